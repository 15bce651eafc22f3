// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package workdir

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/Masterminds/sprig/v3"
)

// Bounds of a rendering: what a stranger writes must not cost the control plane
// its memory or its time.
const (
	maxRendered = 8 << 20
	maxLoops    = 1 << 20
	maxRepeat   = 1 << 20
	maxCount    = 100_000
)

var (
	errMissing  = errors.New("there is no such value")
	errTooLong  = errors.New("the result is too long")
	errTooOften = errors.New("it loops too often")
)

// rendering is a parsed template that can be executed.
type rendering struct {
	at    string
	tmpl  *template.Template
	loops int
	kept  any
	// single says that it is one expression and nothing else.
	single bool
}

const (
	checkFunc = "terraceCheck"
	keepFunc  = "terraceKeep"
	loopFunc  = "terraceLoop"
)

// parseTemplate parses source. Behind every expression it puts a function that
// refuses what is missing, into every loop one that counts.
func parseTemplate(at, source, left, right string) (*rendering, error) {
	r := &rendering{at: at}
	funcs := safeFuncs()
	funcs[checkFunc] = func(v any) (any, error) {
		if v == nil {
			return nil, errMissing
		}
		return v, nil
	}
	funcs[keepFunc] = func(v any) (any, error) {
		if v == nil {
			return nil, errMissing
		}
		r.kept = v
		return "", nil
	}
	funcs[loopFunc] = func() (string, error) {
		if r.loops++; r.loops > maxLoops {
			return "", errTooOften
		}
		return "", nil
	}
	var err error
	r.tmpl, err = template.New("").Delims(left, right).Funcs(funcs).Parse(source)
	if err != nil {
		return nil, fmt.Errorf("parse the template in %s: %s", at, reason(err))
	}
	if tree := r.tmpl.Tree; tree != nil && tree.Root != nil && len(tree.Root.Nodes) == 1 {
		a, ok := tree.Root.Nodes[0].(*parse.ActionNode)
		r.single = ok && len(a.Pipe.Decl) == 0
	}
	return r, nil
}

// value is what a single expression gives; nil for any other template.
func (r *rendering) value(data any) (any, error) {
	if !r.single {
		return nil, nil
	}
	t, err := r.tmpl.Clone()
	if err != nil {
		return nil, fmt.Errorf("render the template in %s: %s", r.at, reason(err))
	}
	pipe(t.Tree.Root.Nodes[0].(*parse.ActionNode).Pipe, t.Tree, keepFunc)
	err = t.Execute(io.Discard, data)
	if err != nil {
		return nil, fmt.Errorf("render the template in %s: %s", r.at, reason(err))
	}
	return r.kept, nil
}

// text executes the template.
func (r *rendering) text(data any) (string, error) {
	t, err := r.tmpl.Clone()
	if err != nil {
		return "", fmt.Errorf("render the template in %s: %s", r.at, reason(err))
	}
	for _, named := range t.Templates() {
		if named.Tree != nil && named.Tree.Root != nil {
			guard(named.Tree.Root, named.Tree)
		}
	}
	out := &boundedText{}
	if err := t.Execute(out, data); err != nil {
		return "", fmt.Errorf("render the template in %s: %s", r.at, reason(err))
	}
	return out.String(), nil
}

// guard rewrites the tree below a list: see parseTemplate.
func guard(list *parse.ListNode, tree *parse.Tree) {
	if list == nil {
		return
	}
	for _, node := range list.Nodes {
		switch n := node.(type) {
		case *parse.ActionNode:
			if len(n.Pipe.Decl) == 0 {
				pipe(n.Pipe, tree, checkFunc)
			}
		case *parse.IfNode:
			guard(n.List, tree)
			guard(n.ElseList, tree)
		case *parse.WithNode:
			guard(n.List, tree)
			guard(n.ElseList, tree)
		case *parse.RangeNode:
			guard(n.List, tree)
			guard(n.ElseList, tree)
			n.List.Nodes = append([]parse.Node{loop(n, tree)}, n.List.Nodes...)
		}
	}
}

// pipe appends a function to an expression.
func pipe(p *parse.PipeNode, tree *parse.Tree, name string) {
	p.Cmds = append(p.Cmds, &parse.CommandNode{
		NodeType: parse.NodeCommand, Pos: p.Pos,
		Args: []parse.Node{parse.NewIdentifier(name).SetTree(tree).SetPos(p.Pos)},
	})
}

func loop(n *parse.RangeNode, tree *parse.Tree) parse.Node {
	p := &parse.PipeNode{NodeType: parse.NodePipe, Pos: n.Pos, Line: n.Line}
	pipe(p, tree, loopFunc)
	return &parse.ActionNode{NodeType: parse.NodeAction, Pos: n.Pos, Line: n.Line, Pipe: p}
}

// reason is what an error of a template says, without the values that functions
// quote in theirs: of an execution only the place, the expression and, when it
// is one of ours, why.
func reason(err error) string {
	var exec template.ExecError
	if !errors.As(err, &exec) {
		return strings.TrimPrefix(err.Error(), "template: ")
	}
	for _, known := range []error{errMissing, errTooLong, errTooOften} {
		if errors.Is(err, known) {
			return place(err.Error()) + known.Error()
		}
	}
	return place(err.Error()) + "it cannot be evaluated"
}

// place is `<.i.p>: ` of `template: :1:4: executing "" at <.i.p>: …`.
func place(text string) string {
	_, rest, ok := strings.Cut(text, " at <")
	if !ok {
		return ""
	}
	expr, _, ok := strings.Cut(rest, ">: ")
	if !ok || len(expr) > 200 {
		return ""
	}
	return "<" + strings.ReplaceAll(expr, " | "+checkFunc, "") + ">: "
}

// boundedText is a strings.Builder with an end.
type boundedText struct{ strings.Builder }

// Write fails beyond maxRendered bytes.
func (b *boundedText) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxRendered {
		return 0, errTooLong
	}
	return b.Builder.Write(p)
}

// safeFuncs are sprig's functions without those that read the environment or
// ask the network, and with bounds on those that make much out of little.
func safeFuncs() template.FuncMap {
	funcs := template.FuncMap{}
	for name, f := range sprig.TxtFuncMap() {
		funcs[name] = f
	}
	for _, name := range []string{
		"env", "expandenv", "getHostByName",
		// Key generation takes seconds of CPU for a few letters of template.
		"genPrivateKey", "genCA", "genCAWithKey", "genSelfSignedCert", "genSelfSignedCertWithKey",
		"genSignedCert", "genSignedCertWithKey", "derivePassword", "bcrypt", "htpasswd",
	} {
		delete(funcs, name)
	}
	repeat, until, untilStep := funcs["repeat"].(func(int, string) string), funcs["until"].(func(int) []int), funcs["untilStep"].(func(int, int, int) []int)
	funcs["repeat"] = func(n int, s string) (string, error) {
		if n < 0 || len(s) > 0 && n > maxRepeat/len(s) {
			return "", errTooLong
		}
		return repeat(n, s), nil
	}
	funcs["until"] = func(n int) ([]int, error) {
		if n > maxCount || n < -maxCount {
			return nil, errTooOften
		}
		return until(n), nil
	}
	funcs["untilStep"] = func(from, to, step int) ([]int, error) {
		if step == 0 || abs(to-from)/abs(step) > maxCount {
			return nil, errTooOften
		}
		return untilStep(from, to, step), nil
	}
	delete(funcs, "seq")
	for _, name := range []string{"randAlphaNum", "randAlpha", "randNumeric", "randAscii"} {
		random := funcs[name].(func(int) string)
		funcs[name] = func(n int) (string, error) {
			if n < 0 || n > maxCount {
				return "", errTooLong
			}
			return random(n), nil
		}
	}
	for _, name := range []string{"indent", "nindent"} {
		indent := funcs[name].(func(int, string) string)
		funcs[name] = func(n int, s string) (string, error) {
			if n < 0 || n > 1000 || len(s) > maxRepeat {
				return "", errTooLong
			}
			return indent(n, s), nil
		}
	}
	return funcs
}

func abs(n int) int {
	if n < 0 {
		return -n
	}
	return n
}
