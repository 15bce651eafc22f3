// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMadeBy(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		log    string
		want   []Made
	}{
		"Created":     {"an address may have modules, keys and spaces", "module.a[\"x y\"].aws_vpc.b[0]: Creating...\nmodule.a[\"x y\"].aws_vpc.b[0]: Creation complete after 1m2s [id=vpc-1]\n", []Made{{Address: `module.a["x y"].aws_vpc.b[0]`, ID: "vpc-1"}}},
		"NoID":        {"not every resource has an id", "x.y: Creation complete after 0s\n", []Made{{Address: "x.y"}}},
		"Name":        {"a name is no id", "x.y: Creation complete after 0s [name=n]\n", []Made{{Address: "x.y"}}},
		"InFlight":    {"what was begun is not known to be there", "x.y: Creating...\nx.y: Still creating... [10s elapsed]\n", nil},
		"Changed":     {"what was there before is in the state", "x.y: Modifications complete after 0s [id=1]\n", nil},
		"Replaced":    {"the one before is gone", "x.y: Destroying... [id=1]\nx.y: Destruction complete after 0s\nx.y: Creation complete after 0s [id=2]\n", []Made{{Address: "x.y", ID: "2", Replaced: "1"}}},
		"Deposed":     {"the one before goes after the new one has come", "x.y: Creation complete after 0s [id=2]\nx.y (deposed object 1234): Destruction complete after 0s\n", []Made{{Address: "x.y", ID: "2"}}},
		"Destroyed":   {"what is gone again is not there", "x.y: Creation complete after 0s [id=2]\nx.y: Destruction complete after 0s\n", nil},
		"Provisioner": {"a provisioner says what it likes", "x.y (local-exec): z.z: Creation complete after 0s [id=3]\n", nil},
		"Order":       {"as they came", "b.b: Creation complete after 0s [id=1]\na.a: Creation complete after 1s [id=a]b [id=c]\n", []Made{{Address: "b.b", ID: "1"}, {Address: "a.a", ID: "a]b [id=c"}}},
	} {
		t.Run(name, func(t *testing.T) {
			lines := func(yield func(string) bool) {
				for line := range strings.Lines(tc.log) {
					if !yield(strings.TrimSuffix(line, "\n")) {
						return
					}
				}
			}
			if diff := cmp.Diff(tc.want, MadeBy(lines)); diff != "" {
				t.Errorf("%s:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestImportBlock(t *testing.T) {
	block, err := Made{Address: `module.a["x"].b.c[0]`, ID: "a\"${b}\n"}.ImportBlock()
	want := "import {\n  to = module.a[\"x\"].b.c[0]\n  id = \"a\\\"$${b}\\n\"\n}\n"
	if err != nil || string(block) != want {
		t.Errorf("%s, %v; want\n%s", block, err, want)
	}
	if block, err := (Made{Address: "x.y }\nresource", ID: "1"}).ImportBlock(); err == nil {
		t.Errorf("what is no address became\n%s", block)
	}
}
