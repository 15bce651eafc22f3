// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// build makes a graph of a text: "a: b c" says that a depends on b and c.
func build(text string) *Graph {
	g := New()
	for _, line := range strings.Split(text, ";") {
		unit, needs, _ := strings.Cut(line, ":")
		if unit = strings.TrimSpace(unit); unit == "" {
			continue
		}
		var nodes []Node
		for _, n := range strings.Fields(needs) {
			nodes = append(nodes, node(n))
		}
		g.DependsOn(node(unit), nodes...)
	}
	return g
}

func node(name string) Node { return Node{Kind: "Terraform", Namespace: "ns", Name: name} }

func names(nodes []Node) string {
	var out []string
	for _, n := range nodes {
		out = append(out, n.Name)
	}
	return strings.Join(out, " ")
}

func TestGraph(t *testing.T) {
	cases := map[string]struct {
		reason string
		graph  string
		levels string
		cycles string
	}{
		"Empty":    {"Nothing has no order and no cycle.", "", "", ""},
		"Single":   {"One thing is in order.", "a", "a", ""},
		"Chain":    {"Network, then cluster, then database.", "c: b; b: a", "a | b | c", ""},
		"Diamond":  {"Both middle ones can run at the same time.", "d: b c; b: a; c: a", "a | b c | d", ""},
		"Shortcut": {"The longest way decides.", "c: a b; b: a", "a | b | c", ""},
		"Two":      {"What has nothing to do with each other.", "b: a; d: c", "a c | b d", ""},
		"Twice":    {"The same edge twice is one edge.", "b: a a; b: a", "a | b", ""},
		"Self":     {"A unit that waits for itself.", "a: a; b", "b", "a"},
		"Pair":     {"Two that wait for each other, and one that waits for them.", "a: b; b: a; c: a", "", "a b"},
		"Triangle": {"In the order of what waits for what, from the first name on.", "b: c; c: a; a: b", "", "a b c"},
		"Reverse":  {"The direction is kept.", "a: c; c: b; b: a", "", "a c b"},
		"Shortest": {"A long and a short way round: the short one is told.", "a: b; b: c d; c: a; d: e; e: a", "", "a b c"},
		"Several":  {"Each group has its own.", "a: b; b: a; x: y; y: x; m: n", "n | m", "a b, x y"},
		"Behind":   {"A cycle that others hang on and that hangs on others.", "z: a; a: b; b: a base", "base", "a b"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			g := build(tc.graph)
			var levels, cycles []string
			for _, l := range g.Levels() {
				levels = append(levels, names(l))
			}
			for _, c := range g.Cycles() {
				cycles = append(cycles, names(c))
			}
			if diff := cmp.Diff(tc.levels, strings.Join(levels, " | ")); diff != "" {
				t.Errorf("%s\nlevels (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.cycles, strings.Join(cycles, ", ")); diff != "" {
				t.Errorf("%s\ncycles (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(strings.ReplaceAll(tc.levels, " | ", " "), names(g.Order())); diff != "" {
				t.Errorf("%s\norder (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestNeighbours(t *testing.T) {
	g := build("cluster: network; database: cluster network; dns: network; other")
	cases := map[string]struct {
		reason string
		got    []Node
		want   string
	}{
		"Dependents":     {"Those that wait for it themselves.", g.Dependents(node("network")), "cluster database dns"},
		"NoDependents":   {"The end of the chain.", g.Dependents(node("database")), ""},
		"Dependencies":   {"What it waits for itself.", g.Dependencies(node("database")), "cluster network"},
		"Unknown":        {"A stranger has none.", g.Dependents(node("stranger")), ""},
		"Affected":       {"A change goes through to the end.", g.Affected(node("cluster")), "cluster database"},
		"AffectedTwo":    {"Several starts, each node once.", g.Affected(node("dns"), node("network"), node("stranger")), "cluster database dns network"},
		"AffectedNobody": {"Nothing hangs on it.", g.Affected(node("other")), "other"},
		"Nodes":          {"All of them.", g.Nodes(), "cluster database dns network other"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, names(tc.got)); diff != "" {
				t.Errorf("%s\n(-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestCycleThrough(t *testing.T) {
	g := build("a: b; b: a c; c: d; d: c; e: a")
	for name, want := range map[string]string{"a": "a b", "b": "b a", "d": "d c", "e": "", "stranger": ""} {
		if got := names(g.CycleThrough(node(name))); got != want {
			t.Errorf("cycle through %s = %q, want %q", name, got, want)
		}
	}
}

// TestKinds: the same name in another kind, group or namespace is another node.
func TestKinds(t *testing.T) {
	g := New()
	g.DependsOn(Node{Kind: "Terraform", Namespace: "a", Name: "x"}, Node{Kind: "Kustomization", Namespace: "a", Name: "x"})
	g.DependsOn(Node{Kind: "Kustomization", Namespace: "a", Name: "x"}, Node{Group: "apps", Kind: "Kustomization", Namespace: "a", Name: "x"})
	g.DependsOn(Node{Group: "apps", Kind: "Kustomization", Namespace: "a", Name: "x"}, Node{Kind: "Kustomization", Namespace: "b", Name: "x"})
	var got []string
	for _, n := range g.Order() {
		got = append(got, n.String())
	}
	want := []string{"Kustomization/b/x", "Kustomization.apps/a/x", "Kustomization/a/x", "Terraform/a/x"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// TestRandom holds the promises of Order and Cycles against graphs of chance.
func TestRandom(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		g := New()
		n := 1 + rnd.IntN(12)
		for range rnd.IntN(20) {
			g.DependsOn(node(fmt.Sprint(rnd.IntN(n))), node(fmt.Sprint(rnd.IntN(n))))
		}
		place := map[Node]int{}
		for i, n := range g.Order() {
			place[n] = i + 1
		}
		for n, at := range place {
			for _, d := range g.Dependencies(n) {
				if place[d] == 0 || place[d] >= at {
					t.Fatalf("%s comes before %s, which it depends on", n, d)
				}
			}
		}
		onCycle := map[Node]bool{}
		for _, c := range g.Cycles() {
			for i, n := range c {
				onCycle[n] = true
				if next := c[(i+1)%len(c)]; !g.needs[n][next] {
					t.Fatalf("cycle %v: %s does not depend on %s", c, n, next)
				}
			}
		}
		if (len(place) == len(g.Nodes())) != (len(onCycle) == 0) {
			t.Fatalf("%d of %d nodes are in order, and the cycles are %v", len(place), len(g.Nodes()), g.Cycles())
		}
		for n := range onCycle {
			if place[n] != 0 {
				t.Fatalf("%s is on a cycle and in order", n)
			}
		}
	}
}

// TestLongChain: dependencies can be as deep as there are units.
func TestLongChain(t *testing.T) {
	g := New()
	const n = 20000
	for i := range n {
		g.DependsOn(node(fmt.Sprintf("%06d", i+1)), node(fmt.Sprintf("%06d", i)))
	}
	if got := len(g.Order()); got != n+1 {
		t.Errorf("%d nodes in order, want %d", got, n+1)
	}
	if c := g.Cycles(); c != nil {
		t.Errorf("cycles of a chain: %v", c)
	}
	g.DependsOn(node("000000"), node(fmt.Sprintf("%06d", n)))
	if c := g.Cycles(); len(c) != 1 || len(c[0]) != n+1 {
		t.Errorf("a ring of %d nodes is not found", n+1)
	}
}

func TestParseDependsOn(t *testing.T) {
	long := strings.Repeat("a", 64)
	cases := map[string]struct {
		reason string
		value  string
		want   []Node
		err    string
	}{
		"Empty":      {reason: "Nothing is named."},
		"Blank":      {reason: "Left-over commas do no harm.", value: " , \n ,"},
		"Name":       {reason: "Without a namespace it is that of the unit.", value: "Terraform/network", want: []Node{{Kind: "Terraform", Namespace: "apps", Name: "network"}}},
		"Namespace":  {reason: "The full form.", value: "Kustomization/flux-system/platform", want: []Node{{Kind: "Kustomization", Namespace: "flux-system", Name: "platform"}}},
		"Group":      {reason: "A group tells two kinds apart.", value: "Cluster.eks.aws.upbound.io/infra/main", want: []Node{{Group: "eks.aws.upbound.io", Kind: "Cluster", Namespace: "infra", Name: "main"}}},
		"GroupName":  {reason: "A group without a namespace.", value: "Deployment.apps/web", want: []Node{{Group: "apps", Kind: "Deployment", Namespace: "apps", Name: "web"}}},
		"DottedName": {reason: "Names of objects can have dots.", value: "ConfigMap/a/b.c", want: []Node{{Kind: "ConfigMap", Namespace: "a", Name: "b.c"}}},
		"Several": {reason: "Commas and lines, with spaces.", value: "Terraform/b,\n  Terraform/a/b ,HelmRelease/c", want: []Node{
			{Kind: "Terraform", Namespace: "apps", Name: "b"}, {Kind: "Terraform", Namespace: "a", Name: "b"}, {Kind: "HelmRelease", Namespace: "apps", Name: "c"},
		}},
		"Twice":     {reason: "Once is enough.", value: "Terraform/b, Terraform/apps/b", want: []Node{{Kind: "Terraform", Namespace: "apps", Name: "b"}}},
		"NoKind":    {reason: "A bare name says too little.", value: "network", err: `"network": want Kind/name or Kind/namespace/name`},
		"TooMany":   {reason: "The API version is not part of it.", value: "infra/v1/Terraform/a", err: `"infra/v1/Terraform/a": want Kind/name or Kind/namespace/name`},
		"LowerKind": {reason: "A plural is not a kind.", value: "terraforms/a", err: `"terraforms/a": the kind has to be a word that begins with a capital letter, such as Terraform`},
		"EmptyKind": {reason: "A kind is needed.", value: "/a", err: `"/a": the kind has to be a word that begins with a capital letter, such as Terraform`},
		"NoGroup":   {reason: "A dot promises a group.", value: "Terraform./a", err: `"Terraform./a": what follows the kind's dot has to be an API group, such as apps`},
		"Spaces":    {reason: "A forgotten comma.", value: "Terraform/a Terraform/b", err: `"Terraform/a Terraform/b": the namespace is not a valid name`},
		"NoName":    {reason: "A name is needed.", value: "Terraform/a/", err: `"Terraform/a/": the name is not a valid name`},
		"LongSpace": {reason: "No namespace is that long.", value: "Terraform/" + long + "/a", err: `"Terraform/` + long + `/a": the namespace is not a valid name`},
		"All": {reason: "Each wrong entry is told, so that one correction does.", value: "a, Terraform/b, c",
			err: `"a": want Kind/name or Kind/namespace/name; "c": want Kind/name or Kind/namespace/name`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ParseDependsOn(tc.value, "apps")
			var msg string
			if err != nil {
				msg = err.Error()
			}
			if diff := cmp.Diff(tc.err, msg); diff != "" {
				t.Errorf("%s\nerror (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s\n(-want +got):\n%s", tc.reason, diff)
			}
		})
	}
	var many strings.Builder
	for i := range maxReferences + 1 {
		fmt.Fprintf(&many, "Terraform/a%d,", i)
	}
	if _, err := ParseDependsOn(many.String(), "apps"); err == nil {
		t.Error("no bound on the number of references")
	}
}

// FuzzParseDependsOn: what is read is written again and read the same.
func FuzzParseDependsOn(f *testing.F) {
	for _, s := range []string{"Terraform/a", "A.b.c/d/e, F/g", "a/b/c/d", "A./b", ",\n", "Ä/b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		nodes, err := ParseDependsOn(value, "apps")
		if err != nil {
			return
		}
		var again []string
		for _, n := range nodes {
			again = append(again, n.String())
		}
		back, err := ParseDependsOn(strings.Join(again, ", "), "other")
		if err != nil {
			t.Fatalf("%q was read as %v, which is refused: %v", value, again, err)
		}
		if diff := cmp.Diff(nodes, back); diff != "" {
			t.Errorf("%q (-first +second):\n%s", value, diff)
		}
	})
}
