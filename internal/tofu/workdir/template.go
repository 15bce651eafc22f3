// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package workdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/Masterminds/sprig/v3"
)

// Bounds of a rendering: what a stranger writes must not cost the control plane
// its memory or its time.
const (
	maxRendered = 8 << 20
	maxLoops    = 100_000
	maxWeight   = 4 << 20  // of what one function returns, in bytes or items
	maxSpent    = 64 << 20 // of all that functions take and return
	maxNesting  = 100
)

// missingError is an expression that gives nothing.
type missingError struct{ expr string }

// Error names the expression as it is written.
func (e missingError) Error() string { return "<" + e.expr + ">: " + errMissing.Error() }

var (
	errMissing  = errors.New("there is no such value")
	errTooLong  = errors.New("the result is too long")
	errTooOften = errors.New("it loops too often")
)

// rendering is a template that can be executed.
type rendering struct {
	at, source, left, right string
	loops, spent            int
	kept                    any
	// single says that it is one expression and nothing else.
	single bool
}

const (
	checkFunc = "terraceCheck"
	keepFunc  = "terraceKeep"
	loopFunc  = "terraceLoop"
)

// parseTemplate reads source once, for its errors.
func parseTemplate(at, source, left, right string) (*rendering, error) {
	r := &rendering{at: at, source: source, left: left, right: right}
	t, err := r.parse()
	if err != nil {
		return nil, err
	}
	if t.Tree != nil && t.Root != nil && len(t.Root.Nodes) == 1 {
		a, ok := t.Root.Nodes[0].(*parse.ActionNode)
		r.single = ok && len(a.Pipe.Decl) == 0
	}
	return r, nil
}

// parse makes a tree of its own, which may be rewritten.
func (r *rendering) parse() (*template.Template, error) {
	funcs := r.safeFuncs()
	funcs[checkFunc] = func(expr string, v any) (any, error) {
		if v == nil {
			return nil, missingError{expr}
		}
		return v, nil
	}
	funcs[keepFunc] = func(v any) string {
		r.kept = v
		return ""
	}
	funcs[loopFunc] = func() (string, error) {
		if r.loops++; r.loops > maxLoops {
			return "", errTooOften
		}
		return "", nil
	}
	t, err := template.New("").Delims(r.left, r.right).Funcs(funcs).Parse(r.source)
	if err != nil {
		return nil, fmt.Errorf("parse the template in %s: %s", r.at, reason(err))
	}
	return t, nil
}

// value is what a single expression gives; nil for any other template.
func (r *rendering) value(data any) (any, error) {
	if !r.single {
		return nil, nil
	}
	t, err := r.parse()
	if err != nil {
		return nil, err
	}
	pipe(t.Root.Nodes[0].(*parse.ActionNode).Pipe, t.Tree, keepFunc)
	if err := t.Execute(io.Discard, data); err != nil {
		return nil, fmt.Errorf("render the template in %s: %s", r.at, reason(err))
	}
	return r.kept, nil
}

// text executes the template: behind every expression a function refuses what
// is missing, in every loop one counts.
func (r *rendering) text(data any) (string, error) {
	t, err := r.parse()
	if err != nil {
		return "", err
	}
	for _, named := range t.Templates() {
		if named.Tree != nil && named.Root != nil {
			guard(named.Root, named.Tree)
		}
	}
	out := &boundedText{}
	if err := t.Execute(out, data); err != nil {
		return "", fmt.Errorf("render the template in %s: %s", r.at, reason(err))
	}
	return out.String(), nil
}

// guard rewrites the tree below a list: see rendering.text.
func guard(list *parse.ListNode, tree *parse.Tree) {
	if list == nil {
		return
	}
	for _, node := range list.Nodes {
		switch n := node.(type) {
		case *parse.ActionNode:
			if len(n.Pipe.Decl) == 0 {
				expr := n.Pipe.String()
				pipe(n.Pipe, tree, checkFunc, &parse.StringNode{
					NodeType: parse.NodeString, Pos: n.Pos, Quoted: strconv.Quote(expr), Text: expr,
				})
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

// pipe appends a function to an expression; its last argument is the value.
func pipe(p *parse.PipeNode, tree *parse.Tree, name string, args ...parse.Node) {
	p.Cmds = append(p.Cmds, &parse.CommandNode{
		NodeType: parse.NodeCommand, Pos: p.Pos,
		Args: append([]parse.Node{parse.NewIdentifier(name).SetTree(tree).SetPos(p.Pos)}, args...),
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
	var missing missingError
	if errors.As(err, &missing) {
		return missing.Error()
	}
	for _, known := range []error{errTooLong, errTooOften} {
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
	return "<" + expr + ">: "
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
// ask the network or make keys, each with a bound on what it returns; those that
// make much out of little look at their arguments first.
func (r *rendering) safeFuncs() template.FuncMap {
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
	// The built-in ones are linear in their arguments, but for these.
	funcs["print"], funcs["println"], funcs["printf"] = fmt.Sprint, fmt.Sprintln, fmt.Sprintf
	for name, f := range funcs {
		funcs[name] = r.bounded(f, amplifiers[name])
	}
	return funcs
}

// amplifiers are the functions whose result can be as long as the product of
// their arguments, numbers counted by their value.
var amplifiers = map[string]bool{
	"repeat": true, "until": true, "untilStep": true, "seq": true, "indent": true, "nindent": true,
	"replace": true, "join": true, "printf": true, "wrapWith": true, "wrap": true,
	"regexReplaceAll": true, "mustRegexReplaceAll": true,
	"regexReplaceAllLiteral": true, "mustRegexReplaceAllLiteral": true,
	"randAlphaNum": true, "randAlpha": true, "randNumeric": true, "randAscii": true, "randBytes": true,
}

// bounded wraps a function: it panics, which the template turns into an error,
// instead of returning more than maxWeight, or when too much has been spent.
func (r *rendering) bounded(f any, amplifies bool) any {
	fn := reflect.ValueOf(f)
	return reflect.MakeFunc(fn.Type(), func(args []reflect.Value) []reflect.Value {
		product := 1.0
		for _, a := range args {
			if amplifies {
				product *= max(1, extent(a, maxNesting))
			}
			if a.Kind() == reflect.String {
				r.spent += a.Len()
			}
		}
		if product > maxWeight {
			panic(errTooLong)
		}
		var results []reflect.Value
		if fn.Type().IsVariadic() {
			results = fn.CallSlice(args)
		} else {
			results = fn.Call(args)
		}
		room := maxWeight
		for _, v := range results {
			room -= weight(v, room, maxNesting)
		}
		r.spent += maxWeight - room
		if room < 0 || r.spent > maxSpent {
			panic(errTooLong)
		}
		return results
	}).Interface()
}

// extent is how much longer an argument can make a result: its number, or the
// sum of its lengths.
func extent(v reflect.Value, nesting int) float64 {
	switch {
	case !v.IsValid() || nesting == 0:
		return 1
	case v.CanInt():
		return math.Abs(float64(v.Int()))
	case v.CanFloat():
		return math.Abs(v.Float())
	}
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		return extent(v.Elem(), nesting-1)
	case reflect.String:
		n := float64(v.Len())
		if count, err := strconv.ParseFloat(v.String(), 64); err == nil && v.Type() == reflect.TypeFor[json.Number]() {
			n = max(n, math.Abs(count))
		}
		return n
	case reflect.Slice, reflect.Array:
		sum := 0.0
		for i := range v.Len() {
			sum += 1 + extent(v.Index(i), nesting-1)
		}
		return sum
	}
	return 1
}

// weight is how much a value holds, counted as often as it is referred to; it
// stops beyond room.
func weight(v reflect.Value, room, nesting int) int {
	if !v.IsValid() || room < 0 {
		return 1
	}
	if nesting == 0 {
		return maxWeight + 1
	}
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		return 1 + weight(v.Elem(), room-1, nesting-1)
	case reflect.String:
		return 1 + v.Len()
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return 1 + v.Len()
		}
		sum := 1
		for i := 0; i < v.Len() && sum <= room; i++ {
			sum += weight(v.Index(i), room-sum, nesting-1)
		}
		return sum
	case reflect.Map:
		sum := 1
		for it := v.MapRange(); it.Next() && sum <= room; {
			sum += weight(it.Key(), room-sum, nesting-1) + weight(it.Value(), room-sum, nesting-1)
		}
		return sum
	}
	return 1
}
