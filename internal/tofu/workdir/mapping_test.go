// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package workdir

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMirrors(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		content string
		want    []string
	}{
		"None":      {reason: "the default", content: `plugin_cache_dir = "/cache"`},
		"Mirror":    {reason: "providers of the operator", content: "provider_installation {\n  filesystem_mirror {\n    include = [\"*/*\"]\n    path = \"/mirror\"\n  }\n  direct {}\n}\n", want: []string{"/mirror"}},
		"Several":   {reason: "more than one", content: `provider_installation { filesystem_mirror { path = "/a" } filesystem_mirror { path = "/b" } }`, want: []string{"/a", "/b"}},
		"Overrides": {reason: "a build of one's own", content: "provider_installation {\n dev_overrides {\n \"x/y\" = \"/dev/y\"\n \"x/z\" = \"/dev/z\"\n }\n}", want: []string{"/dev/y", "/dev/z"}},
		"Network":   {reason: "a mirror by network has no directory", content: `provider_installation { network_mirror { url = "https://m.example.com/" } }`},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Mirrors([]byte(tc.content))); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}
