// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomize

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/envsubst"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	"sigs.k8s.io/yaml"
)

var variableName = regexp.MustCompile(`^[_[:alpha:]][_[:alpha:][:digit:]]*$`)

// cleanVariables checks the names and removes newlines from the values.
func cleanVariables(in map[string]string) (map[string]string, error) {
	out := make(map[string]string, len(in))
	for _, name := range slices.Sorted(maps.Keys(in)) {
		if !variableName.MatchString(name) {
			return nil, fmt.Errorf("'%s' var name is invalid, must match '%s': rename it in spec.postBuild, or in the ConfigMap or Secret that it is from", name, variableName)
		}
		out[name] = strings.ReplaceAll(in[name], "\n", "")
	}
	return out, nil
}

// mayHaveVariable tells whether substitution can change a text: it has a
// variable, or a dollar that is escaped by another.
func mayHaveVariable(s string) bool {
	return strings.Contains(s, "${") || strings.Contains(s, "$$")
}

// scope is the object that a substitution is at work on.
type scope struct {
	object           string
	apiVersion, kind string
	secret           bool // its text must not be in messages
}

// substitution replaces variables in the objects of one build.
type substitution struct {
	vars   map[string]string
	strict bool
	tree   *tree
	unit   *kustomizev1.Kustomization
	styles *styles // of the sources; made when it is needed first
}

// scalar returns the value of a string node. A string that is quoted in its
// file, or a block, stays one. Another becomes what YAML makes of the text: a
// number, a boolean, a list, a mapping. Where the schema of a built-in kind
// leaves no choice, it decides: the API server would refuse anything else.
func (s *substitution) scalar(at scope, p *place, n *kyaml.Node) (any, error) {
	text, err := s.eval(at, p, n.Value, n)
	if err != nil {
		return nil, err
	}
	wants := wanted(at, p)
	if s.quoted(p, n) {
		if wants == anything || wants == aString {
			return text, nil
		}
		if v, err := parse(text, p); err == nil && wants.takes(v) {
			return v, nil
		}
		return text, nil
	}
	v, err := s.plain(at, p, n)
	if wants != aString {
		return v, err
	}
	if _, ok := v.(string); ok || v == nil && err == nil {
		return v, nil
	}
	return text, nil
}

// quoted tells whether a node is a string whatever its text is.
func (s *substitution) quoted(p *place, n *kyaml.Node) bool {
	if n.Style&quoting != 0 {
		return true
	}
	// Some transformers, as JSON patches, lose the style of the whole object;
	// the files have it.
	return s.index().onlyQuoted(p, n.Value)
}

// plain evaluates the YAML text of a node and parses the result, as Flux does
// with the text of the whole object.
func (s *substitution) plain(at scope, p *place, n *kyaml.Node) (any, error) {
	if strings.Contains(n.Value, "\n") {
		return s.eval(at, p, n.Value, n) // a block, whose style was lost
	}
	source, err := yaml.Marshal(n.Value)
	if err != nil {
		return nil, fmt.Errorf("%s: field %s: write it as YAML: %w", at.object, p, err)
	}
	text, err := s.eval(at, p, strings.TrimSuffix(string(source), "\n"), n)
	if err != nil {
		return nil, err
	}
	v, err := parse(text, p)
	if err != nil {
		return nil, fmt.Errorf("%s: field %s%s: %w. Quote it in the file to keep it a string", at.object, p, s.line(p, n, n.Value), err)
	}
	return v, nil
}

// errInvalid does not say what is invalid: a variable can be a secret.
var errInvalid = errors.New("what the variables make of it is not valid YAML there")

// parse returns the value that a text is in YAML at a place of an object.
func parse(text string, p *place) (any, error) {
	lead := "k: "
	if p != nil && p.item {
		lead = "- "
	}
	data, err := yaml.YAMLToJSON([]byte(lead + text + "\n"))
	if err != nil {
		return nil, errInvalid
	}
	var v any
	if err := utiljson.Unmarshal(data, &v); err != nil {
		return nil, errInvalid
	}
	switch v := v.(type) {
	case map[string]any:
		if out, ok := v["k"]; ok && len(v) == 1 {
			return out, nil
		}
	case []any:
		if len(v) == 1 {
			return v[0], nil
		}
	}
	return nil, errInvalid
}

// value replaces variables in a value without nodes. Strings stay strings.
func (s *substitution) value(at scope, p *place, v any) (any, error) {
	switch v := v.(type) {
	case string:
		if !mayHaveVariable(v) {
			return v, nil
		}
		return s.eval(at, p, v, nil)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			var err error
			if out[i], err = s.value(at, p.index(i), v[i]); err != nil {
				return nil, err
			}
		}
		return out, nil
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			below := p.field(k)
			name, err := s.value(at, below, k)
			if err != nil {
				return nil, err
			}
			key := name.(string)
			if _, ok := out[key]; ok {
				return nil, fmt.Errorf("%s: field %s is there twice", at.object, below)
			}
			if out[key], err = s.value(at, below, v[k]); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return v, nil
}

// eval replaces the variables of one text.
func (s *substitution) eval(at scope, p *place, text string, n *kyaml.Node) (string, error) {
	missing := ""
	out, err := evaluate(text, func(name string) (string, bool) {
		v, ok := s.vars[name]
		if !ok {
			missing = name
		}
		return v, ok || !s.strict
	})
	if err == nil {
		return out, nil
	}
	if isUnset(err) {
		return "", &UndefinedVariableError{Object: at.object, Field: p.String(), Variable: missing, Line: s.where(p, n, "${"+missing)}
	}
	what := "the text after a ${"
	if e := firstInvalid(text); e != "" && !at.secret {
		what = fmt.Sprintf("%q", e)
	}
	return "", fmt.Errorf("%s: field %s%s: %s is not a substitution of variables (%w). Write $${ for a ${ that shall stay as it is, or exclude the object by the annotation %s/substitute: %s",
		at.object, p, s.line(p, n, "${"), what, err, kustomizev1.GroupVersion.Group, kustomizev1.DisabledValue)
}

func (s *substitution) line(p *place, n *kyaml.Node, text string) string {
	if w := s.where(p, n, text); w != "" {
		return " (" + w + ")"
	}
	return ""
}

// where returns the file and line of a text in a node, "" if it is not known.
func (s *substitution) where(p *place, n *kyaml.Node, text string) string {
	if n == nil {
		return s.index().find("", text)
	}
	return s.index().locate(p, n.Value, text)
}

// unsetMessage is by which the library's error for an undefined variable is
// known.
const unsetMessage = "variable not set (strict mode)"

func isUnset(err error) bool { return strings.Contains(err.Error(), unsetMessage) }

// evaluate expands one text with the library of Flux. The library ends at a NUL,
// and panics on negative lengths.
func evaluate(text string, lookup func(string) (string, bool)) (out string, err error) {
	defer func() {
		if r := recover(); r != nil {
			out, err = "", errors.New("bad substitution")
		}
	}()
	parts := strings.Split(text, "\x00")
	for i := range parts {
		if parts[i], err = envsubst.Eval(parts[i], lookup); err != nil {
			return "", err
		}
	}
	return strings.Join(parts, "\x00"), nil
}

// firstInvalid returns the first expression that cannot be parsed, shortened.
func firstInvalid(text string) string {
	for i := 0; i < len(text); {
		j := strings.Index(text[i:], "${")
		if j < 0 {
			return ""
		}
		i += j
		escaped := (len(text[:i])-len(strings.TrimRight(text[:i], "$")))%2 == 1
		end := strings.IndexByte(text[i:], '}')
		if end < 0 {
			end = len(text) - i - 1
		}
		expr := text[i : i+end+1]
		if _, err := evaluate(expr, func(string) (string, bool) { return "", true }); err != nil && !escaped {
			if len(expr) > 40 {
				expr = strings.ToValidUTF8(expr[:40], "") + "…"
			}
			return expr
		}
		i += 2
	}
	return ""
}

// UndefinedVariableError tells that an object uses a variable that is not
// defined, in strict mode.
type UndefinedVariableError struct {
	Object   string // Kind/namespace/name
	Field    string // path in the object
	Variable string
	Line     string // file:line in the artifact, "" if it is not known
}

func (e *UndefinedVariableError) Error() string {
	where := ""
	if e.Line != "" {
		where = " (" + e.Line + ")"
	}
	return fmt.Sprintf("%s: field %s%s: %s: %q. Define it in spec.postBuild, give it a default as in ${%s:=value}, write $${%s} for text that is no variable, or exclude the object by the annotation %s/substitute: %s",
		e.Object, e.Field, where, unsetMessage, e.Variable, e.Variable, e.Variable, kustomizev1.GroupVersion.Group, kustomizev1.DisabledValue)
}
