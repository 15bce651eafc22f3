// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package provider_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/terrace-dev/terrace/internal/tofu/provider"
)

func TestAllows(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		host     string
		patterns []string
		source   string
		want     bool
	}{
		"no list":           {"Without a list every provider is allowed.", "", nil, "evil/miner", true},
		"whole address":     {"An address matches itself.", "", []string{"registry.opentofu.org/hashicorp/aws"}, "hashicorp/aws", true},
		"without host":      {"A pattern without a host means the tool's own registry.", "", []string{"hashicorp/aws"}, "registry.opentofu.org/hashicorp/aws", true},
		"other host":        {"The same name in another registry is another provider.", "", []string{"hashicorp/aws"}, "registry.terraform.io/hashicorp/aws", false},
		"terraform's host":  {"Of Terraform, the registry is another one.", provider.TerraformRegistry, []string{"hashicorp/aws"}, "registry.terraform.io/hashicorp/aws", true},
		"implied":           {"A source of one part is hashicorp's, as in the tool.", "", []string{"hashicorp/*"}, "aws", true},
		"type of another":   {"A pattern of a namespace is for that namespace.", "", []string{"hashicorp/*"}, "evil/aws", false},
		"any host":          {"A * stands for a host too.", "", []string{"*/hashicorp/aws"}, "mirror.example:8443/hashicorp/aws", true},
		"part of a name":    {"A * stands for a part of a name.", "", []string{"hashicorp/google*"}, "hashicorp/google-beta", true},
		"star and slash":    {"A * does not reach over a slash.", "", []string{"registry.opentofu.org/*"}, "hashicorp/aws", false},
		"dot is a dot":      {"No other sign has a meaning.", "", []string{"registry.opentofu.org/hashicorp/aws"}, "registryxopentofu.org/hashicorp/aws", false},
		"prefix":            {"A name that begins alike is another one.", "", []string{"hashicorp/aws"}, "hashicorp/awscc", false},
		"case":              {"Case does not matter, as in the tool.", "", []string{"HashiCorp/AWS"}, "hashicorp/Aws", true},
		"second":            {"One of several patterns is enough.", "", []string{"a/b", "hashicorp/aws"}, "hashicorp/aws", true},
		"builtin":           {"What is part of the tool is always allowed.", "", []string{"a/b"}, "terraform.io/builtin/terraform", true},
		"builtin namespace": {"But not whatever else is put into its namespace.", "", []string{"a/b"}, "terraform.io/builtin/other", false},
		"builtin elsewhere": {"Nor a namesake.", "", []string{"a/b"}, "evil/terraform", false},
	} {
		t.Run(name, func(t *testing.T) {
			host := tc.host
			if host == "" {
				host = provider.OpenTofuRegistry
			}
			l, err := provider.ParseList(host, tc.patterns)
			if err != nil {
				t.Fatal(err)
			}
			a, err := provider.Parse(host, tc.source)
			if err != nil {
				t.Fatal(err)
			}
			if got := l.Allows(a); got != tc.want {
				t.Errorf("%s: %v allows %s: %t, want %t", tc.reason, tc.patterns, a, got, tc.want)
			}
		})
	}
}

func TestPatternsThatAreRefused(t *testing.T) {
	for name, tc := range map[string]struct{ reason, pattern, want string }{
		"one part":   {"A name alone could be a namespace or a type.", "aws", "NAMESPACE/TYPE"},
		"star alone": {"Everything is what no list at all means.", "*", "NAMESPACE/TYPE"},
		"four parts": {"An address has three parts.", "a/b/c/d", "NAMESPACE/TYPE"},
		"empty part": {"An empty part matches nothing.", "hashicorp/", "between the slashes"},
		"class":      {"Brackets would be read as a class.", "hashicorp/[a-z]", "between the slashes"},
		"question":   {"A question mark would stand for a letter.", "hashicorp/aw?", "between the slashes"},
		"scheme":     {"A URL is not an address.", "https://registry.opentofu.org/hashicorp/aws", "NAMESPACE/TYPE"},
		"space":      {"A list in one entry is one that was not split.", "a/b c/d", "between the slashes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := provider.ParseList(provider.OpenTofuRegistry, []string{"hashicorp/aws", tc.pattern})
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.pattern) {
				t.Errorf("%s: %q: got %v, want an error that names it and has %q", tc.reason, tc.pattern, err, tc.want)
			}
		})
	}
}

func TestSourcesThatAreRefused(t *testing.T) {
	for name, source := range map[string]string{
		"empty": "", "four parts": "a/b/c/d", "empty part": "a//c", "star": "hashicorp/*", "expression": "${var.x}",
	} {
		if a, err := provider.Parse(provider.OpenTofuRegistry, source); err == nil {
			t.Errorf("%s: %q was read as %s", name, source, a)
		}
	}
}

func TestFields(t *testing.T) {
	got := provider.Fields(" hashicorp/aws,hashicorp/random\n\tcorp/* ")
	if d := cmp.Diff([]string{"hashicorp/aws", "hashicorp/random", "corp/*"}, got); d != "" {
		t.Errorf("-want, +got:\n%s", d)
	}
}
