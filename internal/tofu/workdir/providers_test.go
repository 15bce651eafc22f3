// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package workdir

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLockedProviders(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, content string
		want            []string
		err             error
	}{
		"empty":   {"A module without providers has an empty file.", "# no edits\n", nil, nil},
		"two":     {"Each block names one.", "provider \"registry.opentofu.org/hashicorp/random\" {\n  version = \"3.7.2\"\n  hashes = [\"h1:x\"]\n}\nprovider \"example.org:8443/a/b\" {}\n", []string{"registry.opentofu.org/hashicorp/random", "example.org:8443/a/b"}, nil},
		"other":   {"What is no provider is the tool's affair.", "module \"x\" {}\n", nil, nil},
		"no name": {"A block without a name could be anything.", "provider {}\n", nil, ErrLockFile},
		"torn":    {"A file that cannot be read allows nothing.", "provider \"a/b/c\" {", nil, ErrLockFile},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := lockedProviders([]byte(tc.content))
			if !errors.Is(err, tc.err) {
				t.Fatalf("%s: error %v, want %v", tc.reason, err, tc.err)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, d)
			}
		})
	}
}

func TestRequired(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		files  map[string]string
		want   map[string]string // name to source
	}{
		"declared": {
			"A declaration wins over the use.",
			map[string]string{"main.tf": "terraform {\n  required_providers {\n    aws = { source = \"corp/aws\" }\n  }\n}\nresource \"aws_vpc\" \"x\" {}\n"},
			map[string]string{"aws": "corp/aws"},
		},
		"used": {
			"A name that is only used is a source of one part.",
			map[string]string{"main.tf": "resource \"random_pet\" \"x\" {}\n"},
			map[string]string{"random": "random"},
		},
		"builtin": {
			"What is part of the tool is not asked for.",
			map[string]string{"main.tf": "resource \"terraform_data\" \"x\" {}\n"},
			map[string]string{},
		},
		"template": {
			"A template may declare what a file only uses: init tells.",
			map[string]string{"main.tf.tpl": "{{ .Values.x }}", "a.tf": "resource \"random_pet\" \"x\" {}\n"},
			map[string]string{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := ReachOf(artifact(t, tc.files), ".", Options{})
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, p := range r.Required() {
				got[p.Name] = p.Source
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, d)
			}
		})
	}
}

func FuzzLockedProviders(f *testing.F) {
	f.Add("provider \"registry.opentofu.org/hashicorp/random\" {\n}\n")
	f.Add("provider \"${x}\" {}")
	f.Fuzz(func(t *testing.T, content string) {
		if got, err := lockedProviders([]byte(content)); err != nil && got != nil {
			t.Errorf("both %v and %v", got, err)
		}
	})
}
