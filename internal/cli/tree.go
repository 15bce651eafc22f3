// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/graph"
)

func newTree(a *app) *cobra.Command {
	var all, compact bool
	cmd := &cobra.Command{
		Use:   "tree [UNIT]",
		Short: "Show units below what they depend on, down to their objects",
		Long: `Show each unit below the last of what it depends on, or one unit and all that
depends on it. What else a unit needs is named beside it. Messages are shown of
units that are not ready.

Of one Kustomization the objects that it has applied are shown too, with their
health, and below a Kustomization among them its own objects.`,
		Example: `  terrace tree
  terrace tree tf/network
  terrace tree ks/apps
  terrace tree ks/apps --compact`,
		Args:              atMost(1, "one UNIT"),
		ValidArgsFunction: a.unitArg(ofRole(unit)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if all && len(args) > 0 {
				return usagef(cmd, "needs UNIT or -A, and not both")
			}
			return a.tree(cmd, all, compact, args)
		},
	}
	cmd.Flags().BoolVar(&compact, "compact", false, "units only, not their objects")
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "in all namespaces")
	return cmd
}

func (a *app) tree(cmd *cobra.Command, all, compact bool, args []string) error {
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
		if !compact {
			m, err := c.mapper()
			if err != nil {
				return err
			}
			if err := f.expand(cmd.Context(), c, m, o); err != nil {
				return err
			}
		}
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
	// applied are the objects of the units that were expanded.
	applied map[graph.Node][]live
}

func newForest(found []object, namespace string) (*forest, error) {
	f := &forest{
		objects: map[graph.Node]object{}, graph: graph.New(), level: map[graph.Node]int{},
		kept: map[graph.Node]bool{}, namespace: namespace, cycles: map[graph.Node]string{},
		applied: map[graph.Node][]live{},
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

// expand reads the objects of a Kustomization, and of those among them, each once.
func (f *forest) expand(ctx context.Context, c *cluster, m *kindMapper, o object) error {
	if _, seen := f.applied[node(o)]; seen || o.Kind.Name != kustomization.Name {
		return nil
	}
	ks, err := o.kustomization()
	if err != nil {
		return err
	}
	applied, err := c.inventory(ctx, m, ks)
	if err != nil {
		return err
	}
	f.applied[node(o)] = applied
	for _, l := range applied {
		if k, ok := unitOf(l); ok && l.object != nil {
			child := object{Unstructured: l.object, Kind: k}
			f.objects[node(child)] = child
			if err := f.expand(ctx, c, m, child); err != nil {
				return err
			}
		}
	}
	return nil
}

// unitOf tells whether an applied object is a unit itself, and of which kind.
func unitOf(l live) (kind, bool) {
	k, ok := kindOf(l.id.GroupKind.Kind + "." + l.id.GroupKind.Group)
	return k, ok && k.Role == unit
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
	w := walk{forest: f, children: children, seen: map[graph.Node]bool{}}
	for _, n := range roots {
		w.add(n, "", "", nil)
	}
	return w.rows
}

// walk goes through the trees and makes their lines.
type walk struct {
	*forest
	children map[graph.Node][]graph.Node
	seen     map[graph.Node]bool
	rows     [][]string
}

// add makes the lines of a node and of what is below it. first stands in front of
// its own line, rest in front of those below.
func (w *walk) add(n graph.Node, first, rest string, above []graph.Node) {
	row := w.row(n, first, above)
	if w.seen[n] {
		row[len(row)-1] = "shown above"
		w.rows = append(w.rows, row)
		return
	}
	w.seen[n] = true
	w.rows = append(w.rows, row)
	above = append(slices.Clone(above), n)
	// What it has applied comes before what waits for it.
	var lines []func(first, rest string)
	for _, l := range w.applied[n] {
		child, isUnit := w.child(l)
		lines = append(lines, func(first, rest string) {
			if isUnit {
				w.add(child, first, rest, above)
				return
			}
			w.rows = append(w.rows, w.objectRow(l, first))
		})
	}
	for _, child := range w.children[n] {
		if !w.applies(n, child) {
			lines = append(lines, func(first, rest string) { w.add(child, first, rest, above) })
		}
	}
	for i, line := range lines {
		if i == len(lines)-1 {
			line(rest+"└─ ", rest+"   ")
		} else {
			line(rest+"├─ ", rest+"│  ")
		}
	}
}

// applies tells whether a unit is among the objects of another.
func (f *forest) applies(n, child graph.Node) bool {
	return slices.ContainsFunc(f.applied[n], func(l live) bool {
		c, isUnit := f.child(l)
		return isUnit && c == child
	})
}

// child is the node of an applied object that is a unit.
func (f *forest) child(l live) (graph.Node, bool) {
	k, ok := unitOf(l)
	if !ok || l.object == nil {
		return graph.Node{}, false
	}
	return node(object{Unstructured: l.object, Kind: k}), true
}

// objectRow is the line of an applied object.
func (f *forest) objectRow(l live, prefix string) []string {
	text, _, _ := strings.Cut(l.why, "\n")
	return []string{prefix + l.name(f.namespace), l.id.GroupKind.Kind, none, none, string(l.health), none, text}
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
	plan, _ := pendingPlan(o)
	return []string{prefix + f.name(n), n.Kind, orNone(o.GetLabels()[infra.LayerLabel]), revision(o, false),
		string(ready.Status), orNone(plan), text}
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
