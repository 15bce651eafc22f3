// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package workdir

import (
	"path"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// cwdMark stands for path.cwd, the absolute path of the module directory, which
// is not known where the artifact is only read.
const cwdMark = "/\x00cwd"

const (
	maxAlternatives = 32
	maxText         = 4096
	maxEval         = 64  // nesting within one expression
	maxChain        = 100 // locals that are made of locals
	maxParts        = 256 // of one template
)

// value is what a string expression may be: one or more alternatives. No
// alternative at all does not occur; unknown is one with an empty beginning.
type value []alternative

// alternative is a string, or the beginning of one.
type alternative struct {
	text  string
	known bool // false: text is only how it begins
}

func known(s string) value {
	if len(s) > maxText {
		return unknown()
	}
	return value{{text: s, known: true}}
}

func unknown() value { return value{{}} }

func (v value) constant() bool { return len(v) == 1 && v[0].known }

// concat appends w to every alternative that is known to its end.
func (v value) concat(w value) value {
	var out value
	for _, a := range v {
		if !a.known {
			out = append(out, a)
			continue
		}
		for _, b := range w {
			if len(a.text)+len(b.text) > maxText {
				return unknown()
			}
			out = append(out, alternative{text: a.text + b.text, known: b.known})
		}
		if len(out) > maxAlternatives {
			return unknown()
		}
	}
	return out
}

// apply maps what is known, and makes the rest unknown.
func (v value) apply(f func(string) string) value {
	var out value
	for _, a := range v {
		if !a.known {
			return unknown()
		}
		out = append(out, alternative{text: f(a.text), known: true})
	}
	return out
}

// scope is where an expression is evaluated: a module as one caller sees it. The
// zero value knows nothing.
//
// This is not the engine's evaluator, on purpose: it knows strings only, and no
// loops, so that what a stranger wrote can cost neither memory nor time.
type scope struct {
	module string // path.module: relative to the working directory
	vars   map[string]value
	locals map[string]hclsyntax.Expression
	memo   map[string]value
	open   map[string]bool
	depth  int
}

// eval is what the expression may be, as far as can be said.
func (s *scope) eval(e hclsyntax.Expression) value {
	if s.depth >= maxEval {
		return unknown()
	}
	s.depth++
	defer func() { s.depth-- }()
	switch e := e.(type) {
	case *hclsyntax.LiteralValueExpr:
		return ofCty(e.Val)
	case *hclsyntax.ParenthesesExpr:
		return s.eval(e.Expression)
	case *hclsyntax.TemplateWrapExpr:
		return s.eval(e.Wrapped)
	case *hclsyntax.TemplateExpr:
		v := known("")
		for i, part := range e.Parts {
			if i == maxParts {
				return v.concat(unknown())
			}
			v = v.concat(s.eval(part))
		}
		return v
	case *hclsyntax.ConditionalExpr:
		v := append(append(value{}, s.eval(e.TrueResult)...), s.eval(e.FalseResult)...)
		if len(v) > maxAlternatives {
			return unknown()
		}
		return v
	case *hclsyntax.ScopeTraversalExpr:
		return s.reference(e.Traversal)
	case *hclsyntax.FunctionCallExpr:
		return s.call(e)
	}
	return unknown()
}

func ofCty(v cty.Value) value {
	switch {
	case v.IsNull() || !v.IsKnown():
		return unknown()
	case v.Type() == cty.String:
		return known(v.AsString())
	case v.Type() == cty.Number:
		return known(v.AsBigFloat().Text('f', -1))
	case v.Type() == cty.Bool && v.True():
		return known("true")
	case v.Type() == cty.Bool:
		return known("false")
	}
	return unknown()
}

func (s *scope) reference(t hcl.Traversal) value {
	if len(t) != 2 {
		return unknown()
	}
	attr, ok := t[1].(hcl.TraverseAttr)
	if !ok {
		return unknown()
	}
	switch t.RootName() {
	case "path":
		switch attr.Name {
		case "module":
			return known(s.module)
		case "root":
			return known(".")
		case "cwd":
			return known(cwdMark)
		}
	case "var":
		if v, ok := s.vars[attr.Name]; ok {
			return v
		}
	case "local":
		return s.local(attr.Name)
	}
	return unknown()
}

func (s *scope) local(name string) value {
	if v, ok := s.memo[name]; ok {
		return v
	}
	e, ok := s.locals[name]
	if !ok || s.open[name] || len(s.open) >= maxChain {
		return unknown()
	}
	s.open[name] = true
	depth := s.depth
	s.depth = 0
	// What is not known because a chain is too long or a circle is remembered
	// as well: else the work would grow with the number of ways through it.
	v := s.eval(e)
	s.memo[name] = v
	s.depth = depth
	delete(s.open, name)
	return v
}

func (s *scope) call(e *hclsyntax.FunctionCallExpr) value {
	if e.ExpandFinal {
		return unknown()
	}
	name := functionName(e)
	switch {
	case name == "abspath" && len(e.Args) == 1:
		return s.eval(e.Args[0]).apply(func(p string) string {
			if strings.HasPrefix(p, "/") {
				return p
			}
			return cwdMark + "/" + p
		})
	case name == "dirname" && len(e.Args) == 1:
		return s.eval(e.Args[0]).apply(path.Dir)
	case name == "basename" && len(e.Args) == 1:
		return s.eval(e.Args[0]).apply(path.Base)
	case name == "join" && len(e.Args) == 2:
		return s.join(e.Args[0], e.Args[1])
	case name == "format" && len(e.Args) > 0:
		return s.format(e.Args)
	case name == "try" || name == "coalesce":
		var v value
		for _, arg := range e.Args {
			v = append(v, s.eval(arg)...)
		}
		if len(v) > 0 && len(v) <= maxAlternatives {
			return v
		}
	case name == "lower" && len(e.Args) == 1:
		return s.eval(e.Args[0]).apply(strings.ToLower)
	}
	return unknown()
}

func (s *scope) join(separator, list hclsyntax.Expression) value {
	tuple, ok := list.(*hclsyntax.TupleConsExpr)
	if !ok {
		return unknown()
	}
	sep := s.eval(separator)
	v := known("")
	for i, item := range tuple.Exprs {
		if i == maxParts {
			return v.concat(unknown())
		}
		if i > 0 {
			v = v.concat(sep)
		}
		v = v.concat(s.eval(item))
	}
	return v
}

// format knows %s, which is what paths are made with.
func (s *scope) format(args []hclsyntax.Expression) value {
	spec := s.eval(args[0])
	if !spec.constant() {
		return unknown()
	}
	v := known("")
	rest := spec[0].text
	for _, arg := range args[1:] {
		before, after, ok := strings.Cut(rest, "%")
		if !ok {
			return unknown()
		}
		v = v.concat(known(before))
		if !strings.HasPrefix(after, "s") {
			return v.concat(unknown())
		}
		v = v.concat(s.eval(arg))
		rest = after[1:]
	}
	if strings.Contains(rest, "%") {
		return v.concat(unknown())
	}
	return v.concat(known(rest))
}

// functionName is the name without the namespace of the built-in functions.
func functionName(e *hclsyntax.FunctionCallExpr) string {
	return strings.TrimPrefix(e.Name, "core::")
}
