// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/graph"
)

func newTree(a *app) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "tree [UNIT]",
		Short: "Show units below what they depend on, with their state",
		Long: `Show each unit below the last of what it depends on, or one unit and all that
depends on it. What else a unit needs is named beside it. Messages are shown of
units that are not ready.`,
		Example: `  terrace tree
  terrace tree tf/network`,
		Args:              atMost(1, "one UNIT"),
		ValidArgsFunction: a.unitArg(ofRole(unit)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if all && len(args) > 0 {
				return usagef(cmd, "needs UNIT or -A, and not both")
			}
			return a.tree(cmd, all, args)
		},
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "in all namespaces")
	return cmd
}

func (a *app) tree(cmd *cobra.Command, all bool, args []string) error {
	var root ref
	var err error
	if len(args) > 0 {
		if root, err = parseRef(args[0], ofRole(unit)); err != nil {
			return usagef(cmd, "%v", err)
		}
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	s := selection{Kinds: ofRole(unit), Namespace: c.namespace}
	if all {
		s.Namespace = ""
	}
	found, _, err := c.list(cmd.Context(), s)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		fmt.Fprintln(a.env.Stderr, "no units found")
		return nil
	}
	f, err := newForest(found, s.Namespace)
	if err != nil {
		return err
	}
	if len(args) > 0 {
		o, err := c.find(cmd.Context(), root)
		if err != nil {
			return err
		}
		f.keep(node(o))
	}
	t := newTable(a.env.Stdout, a.painter(), "UNIT", "KIND", "LAYER", "REVISION", "READY", "PLAN", "MESSAGE")
	t.print(true, f.rows()...)
	return nil
}

// node is the object's place in a graph. Groups of known kinds are left out, so
// that a reference finds it with and without one.
func node(o object) graph.Node {
	return graph.Node{Kind: o.Kind.Name, Namespace: o.GetNamespace(), Name: o.GetName()}
}

// needs are what the object depends on: spec.dependsOn, which is of its own
// kind, and the annotation, which is of any.
func needs(o object) ([]graph.Node, error) {
	var out []graph.Node
	list, err := nestedMaps(o, "spec", "dependsOn")
	if err != nil {
		return nil, fmt.Errorf("read %s: spec.dependsOn: %w", o, err)
	}
	for _, d := range list {
		n := graph.Node{Kind: o.Kind.Name, Namespace: o.GetNamespace()}
		n.Name, _ = d["name"].(string)
		if ns, _ := d["namespace"].(string); ns != "" {
			n.Namespace = ns
		}
		out = append(out, n)
	}
	more, err := graph.ParseDependsOn(o.GetAnnotations()[infra.DependsOnAnnotation], o.GetNamespace())
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", o, err)
	}
	for _, n := range more {
		if k, ok := kindOf(n.Kind); ok && (n.Group == "" || n.Group == k.Resource.Group) {
			n.Group = ""
		}
		out = append(out, n)
	}
	return out, nil
}

// forest is the graph of units, cut down to trees: each unit has at most one
// parent, the dependency that can be ready last.
type forest struct {
	objects   map[graph.Node]object
	graph     *graph.Graph
	level     map[graph.Node]int
	kept      map[graph.Node]bool
	namespace string // the one that was listed; empty: all
	cycles    map[graph.Node]string
}

func newForest(found []object, namespace string) (*forest, error) {
	f := &forest{
		objects: map[graph.Node]object{}, graph: graph.New(), level: map[graph.Node]int{},
		kept: map[graph.Node]bool{}, namespace: namespace, cycles: map[graph.Node]string{},
	}
	for _, o := range found {
		n, err := needs(o)
		if err != nil {
			return nil, err
		}
		f.objects[node(o)] = o
		f.graph.Add(node(o))
		f.graph.DependsOn(node(o), n...)
	}
	for i, nodes := range f.graph.Levels() {
		for _, n := range nodes {
			f.level[n] = i
		}
	}
	for _, c := range f.graph.Cycles() {
		for _, n := range c {
			f.cycles[n] = "cycle: " + f.way(c)
		}
	}
	for _, n := range f.graph.Nodes() {
		f.kept[n] = true
	}
	return f, nil
}

// keep leaves a node and what depends on it.
func (f *forest) keep(n graph.Node) {
	f.kept = map[graph.Node]bool{}
	for _, m := range f.graph.Affected(n) {
		f.kept[m] = true
	}
}

// way writes a cycle from its first node back to it.
func (f *forest) way(cycle []graph.Node) string {
	var names []string
	for _, n := range append(slices.Clone(cycle), cycle[0]) {
		names = append(names, f.name(n))
	}
	return strings.Join(names, " → ")
}

// name is short where it can be: the namespace is left out when only one was
// listed and the node is in it.
func (f *forest) name(n graph.Node) string {
	if n.Namespace == f.namespace {
		return n.Name
	}
	return n.Namespace + "/" + n.Name
}

// parent is the kept dependency of a node with the highest level; ok is false
// for a root. What is on a cycle, or depends on one, has no level and is a root.
func (f *forest) parent(n graph.Node) (parent graph.Node, ok bool) {
	if _, placed := f.level[n]; !placed {
		return graph.Node{}, false
	}
	for _, d := range f.graph.Dependencies(n) {
		if f.kept[d] && (!ok || f.level[d] > f.level[parent]) {
			parent, ok = d, true
		}
	}
	return parent, ok
}

// rows are the trees, line by line.
func (f *forest) rows() [][]string {
	children := map[graph.Node][]graph.Node{}
	var roots []graph.Node
	for _, n := range f.graph.Nodes() {
		if !f.kept[n] {
			continue
		}
		if p, ok := f.parent(n); ok {
			children[p] = append(children[p], n)
		} else {
			roots = append(roots, n)
		}
	}
	var rows [][]string
	var walk func(n graph.Node, first, rest string, above []graph.Node)
	walk = func(n graph.Node, first, rest string, above []graph.Node) {
		rows = append(rows, f.row(n, first, above))
		above = append(slices.Clone(above), n)
		for i, c := range children[n] {
			if i == len(children[n])-1 {
				walk(c, rest+"└─ ", rest+"   ", above)
			} else {
				walk(c, rest+"├─ ", rest+"│  ", above)
			}
		}
	}
	for _, n := range roots {
		walk(n, "", "", nil)
	}
	return rows
}

// row is the line of a node, below the ones above it.
func (f *forest) row(n graph.Node, prefix string, above []graph.Node) []string {
	o, ok := f.objects[n]
	if !ok {
		return []string{prefix + f.name(n), n.Kind, none, none, none, none, f.absent(n)}
	}
	ready, _ := o.condition("Ready")
	text := message(o, ready.Message, false)
	if ready.Status == "True" && !o.suspended() && o.GetDeletionTimestamp() == nil {
		text = ""
	}
	if also := f.also(n, above); also != "" {
		text = strings.TrimSuffix("also needs "+also+"; "+text, "; ")
	}
	if c := f.cycles[n]; c != "" {
		text = c
	}
	return []string{prefix + f.name(n), n.Kind, orNone(o.GetLabels()[infra.LayerLabel]), revision(o, false),
		string(ready.Status), orNone(o.text("status", "plan", "pending")), text}
}

// absent says why nothing is known of a node.
func (f *forest) absent(n graph.Node) string {
	k, known := kindOf(n.Kind)
	switch {
	case !known || k.Role != unit:
		return ""
	case f.namespace != "" && n.Namespace != f.namespace:
		return "in another namespace"
	}
	return "not found"
}

// also names the dependencies of a node that do not stand above it.
func (f *forest) also(n graph.Node, above []graph.Node) string {
	var names []string
	for _, d := range f.graph.Dependencies(n) {
		if f.kept[d] && !slices.Contains(above, d) {
			names = append(names, f.name(d))
		}
	}
	return strings.Join(names, ", ")
}
