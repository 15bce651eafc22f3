// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/topdown"
)

const (
	// maxRego bounds the text of all modules, in bytes.
	maxRego = 4 << 20
	// maxNesting bounds how deep brackets are nested: the compiler is recursive, and a stack
	// that overflows ends the process.
	maxNesting = 500
)

// withheld are the built-in functions that rules may not call, each for its reason.
var withheld = map[string]string{
	"http.send":          "a rule sees plans with secrets in them and must not reach the network",
	"net.lookup_ip_addr": "a rule must not reach the network",
	"opa.runtime":        "the environment of the control plane is not a rule's business",
	"json.match_schema":  "a schema may refer to files and hosts",
	"json.verify_schema": "a schema may refer to files and hosts",
}

// capabilities are those of OPA for a version of Rego, without what is withheld.
func capabilities(v ast.RegoVersion) *ast.Capabilities {
	c := ast.CapabilitiesForThisVersion(ast.CapabilitiesRegoVersion(v))
	c.Builtins = slices.DeleteFunc(c.Builtins, func(b *ast.Builtin) bool { return withheld[b.Name] != "" })
	c.AllowNet = []string{} // no host at all; nil would be every host
	return c
}

// rule is a Rego rule that is evaluated.
type rule struct {
	pkg, name string
	// exempt tells that it is not a rule, but says which rules do not apply.
	exempt bool
}

// exception is the name of the rules that exempt.
const exception = "exception"

// prefixes of the names of rules, and what their results mean.
var prefixes = map[string]Level{"deny": Deny, "violation": Deny, "warn": Warn}

// levelOf tells what results of a rule mean, and by which suffix exceptions name it. A
// rule is called by the word, or by the word, an underscore and a suffix.
func levelOf(name string) (level Level, suffix string, ok bool) {
	word, suffix, _ := strings.Cut(name, "_")
	level, ok = prefixes[word]
	return level, suffix, ok
}

// compileRego fills in the rules and their query.
func (p *Policy) compileRego(ctx context.Context, src Source) error {
	compiler, modules, err := p.build(ctx, src.Modules, src.Data, false)
	if err != nil {
		return err
	}
	packages := src.Packages
	if len(packages) == 0 {
		packages = []string{Main}
	}
	if p.rules, err = rulesOf(modules, packages); err != nil {
		return err
	}
	terms := make([]string, len(p.rules))
	for i, r := range p.rules {
		terms[i] = packageRef(r.pkg).Append(ast.StringTerm(r.name)).String()
	}
	p.query, err = rego.New(
		rego.Query("results := ["+strings.Join(terms, ", ")+"]"),
		rego.Compiler(compiler),
		rego.Store(inmem.NewFromObject(emptyIfNil(src.Data))),
	).PrepareForEval(ctx)
	return located(err)
}

func emptyIfNil(data map[string]any) map[string]any {
	if data == nil {
		return map[string]any{}
	}
	return data
}

// build parses and compiles modules. It notes which of them are in the old syntax.
func (p *Policy) build(ctx context.Context, texts map[string]string, data map[string]any, printing bool) (*ast.Compiler, map[string]*ast.Module, error) {
	size := 0
	modules := map[string]*ast.Module{}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		size += len(texts[name])
		m, old, err := parse(name, texts[name])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if old {
			p.notes = append(p.notes, fmt.Sprintf("%s is in the syntax of Rego v0", name))
		}
		modules[name] = m
	}
	if size > maxRego {
		return nil, nil, fmt.Errorf("compile: the modules have %d bytes together, at most %d are taken", size, maxRego)
	}
	if len(errs) > 0 {
		return nil, nil, errors.Join(errs...)
	}
	compiler := newCompiler(ctx, data, printing)
	compiler.Compile(modules)
	if ctx.Err() != nil {
		return nil, nil, fmt.Errorf("compile: %w", context.Cause(ctx))
	}
	if compiler.Failed() {
		return nil, nil, located(compiler.Errors)
	}
	return compiler, modules, nil
}

// newCompiler returns a compiler that ends, with an error of no interest, after the stage
// in which ctx has ended.
func newCompiler(ctx context.Context, data map[string]any, printing bool) *ast.Compiler {
	c := ast.NewCompiler()
	stop := ast.CompilerStageDefinition{Name: "stop", MetricName: "stop", Stage: func(*ast.Compiler) *ast.Error {
		if err := ctx.Err(); err != nil {
			return ast.NewError(ast.CompileErr, nil, "%v", err)
		}
		return nil
	}}
	for _, stage := range ast.AllStages() {
		c.WithStageAfterID(stage, stop)
	}
	return c.
		WithCapabilities(capabilities(ast.RegoV1)).
		WithEnablePrintStatements(printing).
		WithPathConflictsCheck(func(path []string) (bool, error) { return holds(data, path), nil })
}

// holds tells whether there is a document at a path of the data, or a value that is no
// object above it: a rule of that name would hide it, or be hidden.
func holds(data map[string]any, path []string) bool {
	var at any = data
	for _, step := range path {
		m, ok := at.(map[string]any)
		if !ok {
			return true
		}
		if at, ok = m[step]; !ok {
			return false
		}
	}
	return true
}

// parse reads a module as Rego v1, and if it is not, as v0.
func parse(name, text string) (m *ast.Module, old bool, err error) {
	if line := tooDeep(text); line > 0 {
		return nil, false, fmt.Errorf("%s:%d: brackets are nested more than %d deep", name, line, maxNesting)
	}
	m, err = ast.ParseModuleWithOpts(name, text, ast.ParserOptions{RegoVersion: ast.RegoV1, Capabilities: capabilities(ast.RegoV1)})
	if err == nil && m == nil {
		err = fmt.Errorf("%s:1: the file is empty", name)
	}
	if err == nil {
		return m, false, nil
	}
	m, errOld := ast.ParseModuleWithOpts(name, text, ast.ParserOptions{RegoVersion: ast.RegoV0, Capabilities: capabilities(ast.RegoV0)})
	if errOld == nil && m != nil {
		return m, true, nil
	}
	// What looks like v0 is told what is wrong with it as that: "if is missing" at each
	// of its rules would not help.
	if oldRule.MatchString(text) && !newRule.MatchString(text) && errOld != nil {
		return nil, false, fmt.Errorf("%w (read as Rego v0)", located(errOld))
	}
	return nil, false, located(err)
}

var (
	oldRule = regexp.MustCompile(`(?m)^(deny|violation|warn)\w*\s*\[`)
	newRule = regexp.MustCompile(`(?m)\bimport\s+(rego\.v1|future\.keywords)\b|^\w+\s+contains\s`)
)

// tooDeep returns the line at which brackets are nested too deep, 0 if they are not.
// Brackets in strings and comments are not counted.
func tooDeep(text string) int {
	depth, line := 0, 1
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '\n':
			line++
		case '(', '[', '{':
			if depth++; depth > maxNesting {
				return line
			}
		case ')', ']', '}':
			depth = max(0, depth-1)
		case '#':
			for i+1 < len(text) && text[i+1] != '\n' {
				i++
			}
		case '`':
			for i++; i < len(text) && text[i] != '`'; i++ {
				if text[i] == '\n' {
					line++
				}
			}
		case '"':
			for i++; i < len(text) && text[i] != '"' && text[i] != '\n'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			if i < len(text) && text[i] == '\n' {
				line++
			}
		}
	}
	return 0
}

// rulesOf finds the rules of packages that are to be evaluated, sorted. A rule that
// conftest would pass over in silence, because of what it is, is an error.
func rulesOf(modules map[string]*ast.Module, packages []string) ([]rule, error) {
	found := map[rule]bool{}
	var errs []error
	others := map[string]bool{}
	evaluated := 0
	for _, file := range slices.Sorted(maps.Keys(modules)) {
		m := modules[file]
		pkg := packageName(m.Package)
		if !slices.Contains(packages, pkg) {
			others[pkg] = true
			continue
		}
		for _, r := range m.Rules {
			ref := r.Head.Ref()
			name := strings.Trim(ref[0].Value.String(), `"`)
			_, _, isRule := levelOf(name)
			if !isRule && name != exception {
				continue
			}
			if len(r.Head.Args) > 0 || len(ref) > 1 || r.Head.RuleKind() != ast.MultiValue {
				variable := "msg"
				if name == exception {
					variable = "rules"
				}
				errs = append(errs, fmt.Errorf("%s: rule %s is not a set: write `%s contains %s if { … }`", at(r.Head.Location), name, name, variable))
				continue
			}
			if isRule {
				evaluated++
			}
			found[rule{pkg, name, name == exception}] = true
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if evaluated == 0 {
		message := fmt.Sprintf("compile: no rule deny, violation or warn in package %s", strings.Join(packages, ", "))
		if len(others) > 0 {
			message += fmt.Sprintf("; the files are of package %s", strings.Join(slices.Sorted(maps.Keys(others)), ", "))
		}
		return nil, errors.New(message)
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b rule) int {
		return strings.Compare(a.pkg+"\x00"+a.name, b.pkg+"\x00"+b.name)
	}), nil
}

// packageName is how a package is written behind the keyword.
func packageName(p *ast.Package) string {
	parts := make([]string, 0, len(p.Path))
	for _, t := range p.Path[1:] {
		s, _ := t.Value.(ast.String)
		parts = append(parts, string(s))
	}
	return strings.Join(parts, ".")
}

// packageRef is the document of a package.
func packageRef(name string) ast.Ref {
	ref := ast.Ref{ast.DefaultRootDocument}
	for part := range strings.SplitSeq(name, ".") {
		ref = ref.Append(ast.StringTerm(part))
	}
	return ref
}

// at writes a place as file:line:column.
func at(l *ast.Location) string {
	if l == nil {
		return "compile"
	}
	if l.File == "" {
		return fmt.Sprintf("%d:%d", l.Row, l.Col)
	}
	return fmt.Sprintf("%s:%d:%d", l.File, l.Row, l.Col)
}

// located writes the errors of OPA with their places, one a line, nil if there is none.
func located(err error) error {
	var list ast.Errors
	var one *ast.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &list):
	case errors.As(err, &one):
		list = ast.Errors{one}
	default:
		return fmt.Errorf("compile: %w", err)
	}
	var out []error
	said := map[string]bool{}
	for _, e := range list {
		message := fmt.Sprintf("%s: %s", at(e.Location), e.Message)
		if name, reason := refused(e.Message); name != "" {
			message = fmt.Sprintf("%s: function %s is not available: %s", at(e.Location), name, reason)
		}
		if !said[message] {
			out = append(out, errors.New(message))
		}
		said[message] = true
	}
	return errors.Join(out...)
}

// refused finds a function that is withheld in the message that it does not exist.
func refused(message string) (name, reason string) {
	name, ok := strings.CutPrefix(message, "undefined function ")
	if !ok || withheld[name] == "" {
		return "", ""
	}
	return name, withheld[name]
}

// evaluateRego gives the results of one input document.
func (p *Policy) evaluateRego(ctx context.Context, input ast.Value, address string) ([]Result, error) {
	var broken []topdown.Error
	set, err := p.query.Eval(ctx, rego.EvalParsedInput(input), rego.EvalBuiltinErrorList(&broken))
	if err != nil {
		return nil, runtimeError(err)
	}
	for i := range broken {
		// A value of another type than a function takes (null, mostly) makes an expression
		// undefined, and rules are written with that in mind. That a function failed on a
		// value that it takes is something that the rule's author did not foresee.
		if broken[i].Code != topdown.TypeErr {
			return nil, runtimeError(&broken[i])
		}
	}
	if len(set) != 1 {
		return nil, errors.New("the rules have no values")
	}
	values, _ := set[0].Bindings["results"].([]any)
	if len(values) != len(p.rules) {
		return nil, errors.New("the rules have no values")
	}
	exempted := map[[2]string]bool{} // package and suffix
	for i, r := range p.rules {
		if r.exempt {
			for _, suffix := range namesIn(values[i]) {
				exempted[[2]string{r.pkg, suffix}] = true
			}
		}
	}
	var out []Result
	for i, r := range p.rules {
		level, suffix, _ := levelOf(r.name)
		if r.exempt || exempted[[2]string{r.pkg, suffix}] {
			continue
		}
		said, _ := values[i].([]any)
		for _, v := range said {
			res, err := resultOf(v)
			if err != nil {
				return nil, fmt.Errorf("rule %s: %w", r.name, err)
			}
			res.Rule, res.Level = r.name, level
			if res.Address == "" {
				res.Address = address
			}
			out = append(out, res)
		}
	}
	return out, nil
}

// namesIn returns the strings in the elements of an exception's set.
func namesIn(v any) []string {
	var names []string
	elements, _ := v.([]any)
	for _, e := range elements {
		list, _ := e.([]any)
		for _, n := range list {
			if s, ok := n.(string); ok {
				names = append(names, s)
			}
		}
	}
	return names
}

// resultOf reads an element of a rule's set: a message, or an object with one.
func resultOf(v any) (Result, error) {
	switch v := v.(type) {
	case string:
		return Result{Message: v}, nil
	case map[string]any:
		msg, ok := v["msg"].(string)
		if !ok {
			return Result{}, errors.New("a result is an object without a text msg")
		}
		r := Result{Message: msg}
		for _, name := range []string{"address", "resource"} {
			if s, ok := v[name].(string); ok {
				r.Address = s
				break
			}
		}
		return r, nil
	}
	return Result{}, fmt.Errorf("a result is neither a text nor an object with msg (it is a %s)", typeName(v))
}

func typeName(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case []any:
		return "list"
	}
	return "number"
}

// runtimeError says where rules failed.
func runtimeError(err error) error {
	var e *topdown.Error
	switch {
	case topdown.IsCancel(err):
		return errInterrupted
	case errors.As(err, &e) && e.Location != nil:
		return fmt.Errorf("%s: %s", at(e.Location), strings.Join(strings.Fields(e.Message), " "))
	}
	return err
}

// errInterrupted says that an evaluation was ended from outside.
var errInterrupted = errors.New("interrupted")
