// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/terrace-dev/terrace/internal/graph"
)

// unitsOf makes Terraforms of "name: dependency, dependency", and Kustomizations of
// "ks/name: …"; a dependency with a slash goes into the annotation.
func unitsOf(t *testing.T, lines ...string) []object {
	t.Helper()
	var text strings.Builder
	for _, line := range lines {
		name, rest, _ := strings.Cut(line, ":")
		var dependsOn, annotated []string
		for _, d := range strings.FieldsFunc(rest, func(r rune) bool { return r == ',' || r == ' ' }) {
			if strings.Contains(d, "/") {
				annotated = append(annotated, d)
			} else {
				dependsOn = append(dependsOn, "{name: "+d+"}")
			}
		}
		k := terraform
		if other, ok := strings.CutPrefix(name, "ks/"); ok {
			k, name = kustomization, other
		}
		fmt.Fprintf(&text, `---
apiVersion: %s
kind: %s
metadata: {name: %s, namespace: infra, annotations: {terrace.dev/depends-on: %q}}
spec: {dependsOn: [%s]}
status: {conditions: [{type: Ready, status: "True", reason: NoDrift, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}
`, k.Resource.GroupVersion(), k.Name, name, strings.Join(annotated, ","), strings.Join(dependsOn, ","))
	}
	return parse(t, []byte(text.String()))
}

func TestTree(t *testing.T) {
	cases := map[string]struct {
		reason string
		units  []string
		root   string
		want   string // first and last column
	}{
		"Diamond": {
			reason: "a unit stands once, below what is ready last; what is above it anyway is not named again",
			units:  []string{"network", "cluster: network", "dns: network", "database: network cluster", "app: dns database"},
			want: `network|
├─ cluster|
│  └─ database|
│     └─ app|also needs dns
└─ dns|
`,
		},
		"Elsewhere": {
			reason: "what is depended on and not there is shown, with the reason",
			units:  []string{"app: missing Terraform/shared/vpc Deployment.apps/infra/web", "late: GitRepository/infra/stack"},
			want: `missing|not found
└─ app|also needs web, shared/vpc
stack|
└─ late|
web|
shared/vpc|in another namespace
`,
		},
		"Cycle": {
			reason: "what is on a cycle has no place; the cycle is written out",
			units:  []string{"a: c", "b: a", "c: b", "d: c"},
			want: `a|cycle: a → c → b → a
b|cycle: a → c → b → a
c|cycle: a → c → b → a
d|also needs c
`,
		},
		"AcrossKinds": {
			reason: "a unit stands below what it needs, of whatever kind that is",
			units:  []string{"network", "ks/platform: Terraform/network", "ks/apps: platform", "dns: Kustomization/platform Kustomization.kustomize.toolkit.fluxcd.io/apps"},
			want: `network|
└─ platform|
   └─ apps|
      └─ dns|
`,
		},
		"Subtree": {
			reason: "one unit and what depends on it",
			units:  []string{"network", "cluster: network", "database: cluster", "other"},
			root:   "cluster",
			want: `cluster|
└─ database|
`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			f, err := newForest(unitsOf(t, tc.units...), "infra")
			if err != nil {
				t.Fatal(err)
			}
			if tc.root != "" {
				f.keep(graph.Node{Kind: "Terraform", Namespace: "infra", Name: tc.root})
			}
			var got strings.Builder
			for _, row := range f.rows() {
				fmt.Fprintf(&got, "%s|%s\n", row[0], row[len(row)-1])
			}
			if d := cmp.Diff(tc.want, got.String()); d != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, d)
			}
		})
	}
}

func TestPrintTree(t *testing.T) {
	var units []object
	for _, o := range fixtures(t) {
		if o.Kind.Role == unit {
			units = append(units, o)
		}
	}
	f, err := newForest(units, "")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	newTable(&out, nil, "UNIT", "KIND", "LAYER", "REVISION", "READY", "PLAN", "MESSAGE").print(true, f.rows()...)
	golden(t, "tree", out.Bytes())
}
