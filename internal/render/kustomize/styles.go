// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomize

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
)

// styles knows how the scalars with variables are written in the files that a
// build read, and where.
type styles struct {
	seen  map[spelled]spelling
	files map[string][]byte
}

// quoting are the styles in which a scalar is a string whatever its text is.
var quoting = kyaml.DoubleQuotedStyle | kyaml.SingleQuotedStyle | kyaml.LiteralStyle | kyaml.FoldedStyle | kyaml.TaggedStyle

// spelled is a scalar by where it is and its text. Where is its path in the
// document, and once more its key with "[]" for each list: a patch has its lists
// in another order than the object.
type spelled struct{ where, text string }

// spelling is how and where a scalar is written.
type spelling struct {
	quoted, plain bool
	file          string
	line          int // of the text's first line
}

// index returns the styles of the sources of the build.
func (s *substitution) index() *styles {
	if s.styles != nil {
		return s.styles
	}
	x := &styles{seen: map[spelled]spelling{}, files: map[string][]byte{}}
	for name, c := range s.tree.contents {
		if c.err == nil {
			x.files[name] = c.data
		}
	}
	// In order, so that the first place is the same each time.
	for _, name := range slices.Sorted(maps.Keys(x.files)) {
		if isManifest(name) || isKustomization(name) || strings.HasSuffix(name, ".json") {
			x.document(name, 0, x.files[name])
		}
	}
	for i, p := range s.unit.Spec.Patches {
		x.document(fmt.Sprintf("spec.patches[%d]", i), 0, []byte(p.Patch))
	}
	s.styles = x
	return x
}

// document notes the scalars of a file, or of a patch inside of one that begins
// after the given line.
func (x *styles) document(file string, after int, content []byte) {
	if !mayHaveVariable(string(content)) {
		return
	}
	dec := kyaml.NewDecoder(bytes.NewReader(content))
	for {
		var doc kyaml.Node
		if err := dec.Decode(&doc); err != nil {
			return
		}
		x.node(file, after, nil, &doc, 0)
	}
}

func (x *styles) node(file string, after int, p *place, n *kyaml.Node, depth int) {
	if depth > maxDepth {
		return
	}
	switch n.Kind {
	case kyaml.DocumentNode:
		for _, c := range n.Content {
			x.node(file, after, p, c, depth+1)
		}
	case kyaml.SequenceNode:
		for i, c := range n.Content {
			x.node(file, after, p.index(i), c, depth+1)
		}
	case kyaml.MappingNode:
		target := patched(n)
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := n.Content[i].Value
			at := p.field(k)
			x.scalar(file, after, at, n.Content[i])
			if target != nil && k == "value" {
				at = target
			}
			x.node(file, after, at, n.Content[i+1], depth+1)
		}
	case kyaml.ScalarNode:
		x.scalar(file, after, p, n)
	}
}

func (x *styles) scalar(file string, after int, p *place, n *kyaml.Node) {
	if !mayHaveVariable(n.Value) {
		return
	}
	for _, where := range []string{p.String(), p.style()} {
		id := spelled{where, n.Value}
		at, ok := x.seen[id]
		if !ok {
			at.file, at.line = file, after+n.Line
			if n.Style&(kyaml.LiteralStyle|kyaml.FoldedStyle) != 0 {
				at.line++
			}
		}
		if n.Style&quoting != 0 {
			at.quoted = true
		} else {
			at.plain = true
		}
		x.seen[id] = at
	}
	if strings.Contains(n.Value, "\n") && strings.HasPrefix(p.style(), "patch") {
		x.document(file, after+n.Line, []byte(n.Value))
	}
}

// patched returns the place that an operation of a JSON patch sets, nil if the
// mapping is not one. An item that is appended has no index yet, it gets 0.
func patched(n *kyaml.Node) *place {
	var op, path string
	for i := 0; i+1 < len(n.Content); i += 2 {
		switch n.Content[i].Value {
		case "op":
			op = n.Content[i+1].Value
		case "path":
			path = n.Content[i+1].Value
		}
	}
	if op == "" || !strings.HasPrefix(path, "/") {
		return nil
	}
	var p *place
	for part := range strings.SplitSeq(path[1:], "/") {
		if i, err := strconv.Atoi(part); err == nil || part == "-" {
			p = p.index(i)
			continue
		}
		p = p.field(strings.NewReplacer("~1", "/", "~0", "~").Replace(part))
	}
	return p
}

// get returns how a scalar is written, by its path if that is known.
func (x *styles) get(p *place, text string) (spelling, bool) {
	for _, where := range []string{p.String(), p.style()} {
		if at, ok := x.seen[spelled{where, text}]; ok {
			return at, true
		}
	}
	return spelling{}, false
}

// onlyQuoted tells whether the sources have the scalar, and never plain.
func (x *styles) onlyQuoted(p *place, text string) bool {
	at, _ := x.get(p, text)
	return at.quoted && !at.plain
}

// locate returns file:line of a part of a scalar.
func (x *styles) locate(p *place, text, part string) string {
	if at, ok := x.get(p, text); ok {
		return fmt.Sprintf("%s:%d", at.file, at.line+linesBefore(text, part))
	}
	return x.find(text, part)
}

// find looks for a file that is the text, as the source of a generator is, and
// else for the only one that has the part.
func (x *styles) find(text, part string) string {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(x.files)) {
		content := string(x.files[name])
		if text != "" && content == text {
			return fmt.Sprintf("%s:%d", name, 1+linesBefore(text, part))
		}
		if strings.Contains(content, part) {
			found = append(found, name)
		}
	}
	if len(found) == 1 {
		return fmt.Sprintf("%s:%d", found[0], 1+linesBefore(string(x.files[found[0]]), part))
	}
	return ""
}

// linesBefore counts the lines of a text before a part of it.
func linesBefore(text, part string) int {
	before, _, ok := strings.Cut(text, part)
	if !ok {
		return 0
	}
	return strings.Count(before, "\n")
}
