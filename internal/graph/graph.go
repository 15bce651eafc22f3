// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package graph orders units by what they depend on. It is made of values: it
// reads no objects and knows no kinds. Whoever has the units adds them and their
// edges, and asks for the order, the cycles or who waits for whom.
package graph

import (
	"cmp"
	"slices"
)

// Node names an object. Group is empty where it was not told; nodes with and
// without it are different nodes.
type Node struct {
	Group, Kind, Namespace, Name string
}

// String returns Kind/namespace/name, with the group behind the kind if there is one.
func (n Node) String() string {
	kind := n.Kind
	if n.Group != "" {
		kind += "." + n.Group
	}
	return kind + "/" + n.Namespace + "/" + n.Name
}

// compare orders nodes by namespace, name, kind and group.
func compare(a, b Node) int {
	return cmp.Or(
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(a.Group, b.Group),
	)
}

// Graph holds units and which of them depend on which. It is made by New, and not
// safe for concurrent use while it is changed.
type Graph struct {
	needs map[Node]map[Node]bool
	needy map[Node]map[Node]bool
}

// New returns an empty graph.
func New() *Graph {
	return &Graph{needs: map[Node]map[Node]bool{}, needy: map[Node]map[Node]bool{}}
}

// Add adds a unit. One that is there already keeps its dependencies.
func (g *Graph) Add(unit Node) {
	if g.needs[unit] == nil {
		g.needs[unit], g.needy[unit] = map[Node]bool{}, map[Node]bool{}
	}
}

// DependsOn adds dependencies to a unit, and the unit and the dependencies as far
// as they are not there. A unit that depends on itself is a cycle of one.
func (g *Graph) DependsOn(unit Node, dependencies ...Node) {
	g.Add(unit)
	for _, d := range dependencies {
		g.Add(d)
		g.needs[unit][d] = true
		g.needy[d][unit] = true
	}
}

// Nodes returns all nodes, ordered by namespace, name and kind.
func (g *Graph) Nodes() []Node { return sorted(g.needs) }

// Dependencies returns what a node depends on itself, in the order of Nodes.
func (g *Graph) Dependencies(n Node) []Node { return sorted(g.needs[n]) }

// Dependents returns the nodes that depend on n themselves, in the order of Nodes.
func (g *Graph) Dependents(n Node) []Node { return sorted(g.needy[n]) }

// Affected returns the given nodes and all that depend on them, directly or over
// others, in the order of Nodes. Nodes that are not in the graph are left out.
func (g *Graph) Affected(from ...Node) []Node {
	seen := map[Node]bool{}
	todo := slices.Clone(from)
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[n] || g.needs[n] == nil {
			continue
		}
		seen[n] = true
		for d := range g.needy[n] {
			todo = append(todo, d)
		}
	}
	return sorted(seen)
}

// Order returns the nodes such that each comes after all that it depends on, and
// otherwise in the order of Nodes. Nodes that are on a cycle, or depend on one,
// have no such place and are left out; Cycles names the former.
func (g *Graph) Order() []Node {
	var order []Node
	for _, level := range g.Levels() {
		order = append(order, level...)
	}
	return order
}

// Levels returns the nodes in groups: the first depends on nothing, each further
// one only on those before it. The nodes of a group can be worked on at the same
// time. What Order leaves out is left out here.
func (g *Graph) Levels() [][]Node {
	open := make(map[Node]int, len(g.needs))
	var level []Node
	for n, needs := range g.needs {
		open[n] = len(needs)
		if len(needs) == 0 {
			level = append(level, n)
		}
	}
	var levels [][]Node
	for len(level) > 0 {
		slices.SortFunc(level, compare)
		levels = append(levels, level)
		var next []Node
		for _, n := range level {
			for d := range g.needy[n] {
				if open[d]--; open[d] == 0 {
					next = append(next, d)
				}
			}
		}
		level = next
	}
	return levels
}

// Cycles returns one cycle for each group of nodes that depend on each other, the
// shortest through its first node: each node of it depends on the next, and the
// last on the first. A cycle begins with the node that comes first in the order
// of Nodes, so that the same cycle reads the same each time. A node of the group
// need not be on it; CycleThrough has the one that it is on. No cycle gives nil.
func (g *Graph) Cycles() [][]Node {
	var cycles [][]Node
	for _, group := range g.components() {
		if c := g.cycle(group); c != nil {
			cycles = append(cycles, c)
		}
	}
	slices.SortFunc(cycles, func(a, b []Node) int { return compare(a[0], b[0]) })
	return cycles
}

// CycleThrough returns the shortest cycle that n is on, beginning with n; nil if
// it is on none.
func (g *Graph) CycleThrough(n Node) []Node {
	if g.needs[n] == nil {
		return nil
	}
	return g.path(n, func(Node) bool { return true })
}

// cycle returns the shortest cycle through the first node of a group, nil if the
// group is a single node that does not depend on itself.
func (g *Graph) cycle(group map[Node]bool) []Node {
	return g.path(sorted(group)[0], func(n Node) bool { return group[n] })
}

// path returns the shortest way from a node over its dependencies back to itself.
func (g *Graph) path(start Node, within func(Node) bool) []Node {
	from := map[Node]Node{}
	todo := []Node{start}
	for len(todo) > 0 {
		n := todo[0]
		todo = todo[1:]
		for _, d := range sorted(g.needs[n]) {
			if d == start {
				way := []Node{n}
				for way[len(way)-1] != start {
					way = append(way, from[way[len(way)-1]])
				}
				slices.Reverse(way)
				return way
			}
			if _, seen := from[d]; !seen && within(d) {
				from[d] = n
				todo = append(todo, d)
			}
		}
	}
	return nil
}

// components returns the groups of nodes that reach each other. Tarjan's
// algorithm, without recursion: a chain of dependencies can be as long as there
// are units.
func (g *Graph) components() []map[Node]bool {
	type frame struct {
		node  Node
		needs []Node
	}
	var (
		groups  []map[Node]bool
		stack   []Node
		index   = map[Node]int{}
		low     = map[Node]int{}
		onStack = map[Node]bool{}
	)
	for _, root := range g.Nodes() {
		if _, seen := index[root]; seen {
			continue
		}
		frames := []frame{{root, g.Dependencies(root)}}
		for len(frames) > 0 {
			f := &frames[len(frames)-1]
			if _, seen := index[f.node]; !seen {
				index[f.node] = len(index)
				low[f.node] = index[f.node]
				stack = append(stack, f.node)
				onStack[f.node] = true
			}
			if len(f.needs) > 0 {
				d := f.needs[0]
				if _, seen := index[d]; !seen {
					// Comes back to d when it is done, to take its low.
					frames = append(frames, frame{d, g.Dependencies(d)})
					continue
				}
				if onStack[d] {
					low[f.node] = min(low[f.node], low[d])
				}
				f.needs = f.needs[1:]
				continue
			}
			if low[f.node] == index[f.node] {
				group := map[Node]bool{}
				for {
					n := stack[len(stack)-1]
					stack = stack[:len(stack)-1]
					onStack[n] = false
					group[n] = true
					if n == f.node {
						break
					}
				}
				groups = append(groups, group)
			}
			frames = frames[:len(frames)-1]
		}
	}
	return groups
}

func sorted[V any](set map[Node]V) []Node {
	if len(set) == 0 {
		return nil
	}
	out := make([]Node, 0, len(set))
	for n := range set {
		out = append(out, n)
	}
	slices.SortFunc(out, compare)
	return out
}
