// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseRef(t *testing.T) {
	cases := map[string]struct {
		reason string
		word   string
		kinds  []string
		name   string
		err    string
	}{
		"Name":      {reason: "of any kind that the verb takes", word: "network", kinds: []string{"Terraform", "Kustomization", "HelmRelease"}, name: "network"},
		"Alias":     {reason: "the short name of kubectl", word: "tf/network", kinds: []string{"Terraform"}, name: "network"},
		"Case":      {reason: "the kind as in a manifest", word: "Terraform/network", kinds: []string{"Terraform"}, name: "network"},
		"Plural":    {reason: "as in kubectl", word: "terraforms/network", kinds: []string{"Terraform"}, name: "network"},
		"Qualified": {reason: "what -o name prints", word: "terraform.infra.contrib.fluxcd.io/network", kinds: []string{"Terraform"}, name: "network"},
		"Group":     {reason: "the same kind of another group is not ours", word: "terraform.example.org/network", err: `"terraform.example.org": this verb takes terraform, kustomization, helmrelease`},
		"Source":    {reason: "not every verb takes sources", word: "gitrepo/stack", err: `"gitrepo": this verb takes terraform, kustomization, helmrelease`},
		"Three":     {reason: "the namespace is a flag", word: "tf/infra/network", err: `"tf/infra/network" is not NAME or KIND/NAME`},
		"NoName":    {reason: "a kind alone is no unit", word: "tf/", err: `"tf/" is not NAME or KIND/NAME`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r, err := parseRef(tc.word, ofRole(unit))
			message := ""
			if err != nil {
				message = err.Error()
			}
			var kinds []string
			for _, k := range r.Kinds {
				kinds = append(kinds, k.Name)
			}
			if d := cmp.Diff([]any{tc.kinds, tc.name, tc.err}, []any{kinds, r.Name, message}); d != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, d)
			}
		})
	}
}

func TestShortRevision(t *testing.T) {
	for revision, want := range map[string]string{
		"main@sha1:0a1b2c3d4e5f60718293a4b5c6d7e8f901234567": "main@sha1:0a1b2c3d",
		"sha256:0011223344": "sha256:00112233",
		"v1.0.0":            "v1.0.0",
		"a:b":               "a:b",
		"":                  "",
	} {
		if got := shortRevision(revision); got != want {
			t.Errorf("shortRevision(%q): %q, want %q", revision, got, want)
		}
	}
}
