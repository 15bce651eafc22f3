// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package workdir

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// ValuesVariable is the variable that spec.values becomes.
const ValuesVariable = "values"

// Variable is an entry of spec.vars, its valueFrom resolved by the caller.
type Variable struct {
	Name string
	// Value is any JSON; nil is null.
	Value json.RawMessage
}

// Variables are all that a unit gives to its module, besides variable files.
type Variables struct {
	// Vars are spec.vars.
	Vars []Variable
	// From are the data of spec.varsFrom, each reduced to its varsKeys and
	// renamed by the caller, in the order of the spec. They are strings, always.
	// A value that is not UTF-8 is left out: no string of the engine can hold it.
	From []map[string][]byte
	// Values is spec.values after [Values]; nil: none.
	Values json.RawMessage
}

// JSON is the content of VarsFile: later wins, From over Vars, Values over both;
// keys are sorted. It is nil when there is no variable at all.
func (v Variables) JSON() ([]byte, error) {
	all := map[string]json.RawMessage{}
	for _, item := range v.Vars {
		if item.Value == nil {
			all[item.Name] = json.RawMessage("null")
			continue
		}
		if !json.Valid(item.Value) {
			return nil, fmt.Errorf("make variables: the value of %s is not JSON", item.Name)
		}
		all[item.Name] = item.Value
	}
	for _, data := range v.From {
		for name, value := range data {
			if !utf8.Valid(value) {
				delete(all, name)
				continue
			}
			all[name] = encode(string(value))
		}
	}
	if v.Values != nil {
		all[ValuesVariable] = v.Values
	}
	if len(all) == 0 {
		return nil, nil
	}
	b, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("make variables: %w", err)
	}
	return b, nil
}

// encode is the JSON of s with its bytes as they are: <, > and & too.
func encode(s any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always encodes
	return bytes.TrimSpace(b.Bytes())
}

// Input is a Secret of spec.readInputsFromSecrets.
type Input struct {
	// As is the name in templates.
	As   string
	Data map[string][]byte
}

// typeSuffix ends the key that holds the type of the key before it, as
// writeOutputsToSecret writes them.
const typeSuffix = "__type"

// Inputs makes the data of templates: .as.key. A key whose companion key__type
// says that it is no string is decoded: numbers keep their digits, lists and
// objects can be indexed and ranged over. The companions stay, as strings.
func Inputs(list []Input) (map[string]any, error) {
	inputs := map[string]any{}
	for _, in := range list {
		m := map[string]any{}
		for key, value := range in.Data {
			kind, typed := in.Data[key+typeSuffix]
			if !typed || isStringType(kind) {
				m[key] = string(value)
				continue
			}
			decoded, err := decode(value)
			if err != nil {
				// Not the cause: it may quote the value.
				return nil, fmt.Errorf("read input %s.%s: it is not the JSON that %s%s says", in.As, key, key, typeSuffix)
			}
			m[key] = decoded
		}
		inputs[in.As] = m
	}
	return inputs, nil
}

func isStringType(kind []byte) bool { return string(bytes.TrimSpace(kind)) == `"string"` }

func decode(b []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if d.More() {
		return nil, fmt.Errorf("more than one value")
	}
	return v, nil
}

// valuesLeft and valuesRight enclose a template in spec.values.
const (
	valuesLeft  = "${{"
	valuesRight = "}}"
)

// Values renders the templates in spec.values: each string of the parsed JSON by
// itself, keys too, so that no input can change the structure. A string becomes
// a string; only one that is a single expression whose value is a list or an
// object becomes that. Without templates the result is values, compacted. The
// error names the place and never a value.
func Values(values json.RawMessage, inputs map[string]any) (json.RawMessage, error) {
	if len(values) == 0 {
		return nil, nil
	}
	parsed, err := decode(values)
	if err != nil {
		return nil, fmt.Errorf("read values: %w", err)
	}
	rendered, err := renderNode(parsed, inputs, ".values")
	if err != nil {
		return nil, err
	}
	return encode(rendered), nil
}

func renderNode(node any, inputs map[string]any, at string) (any, error) {
	switch node := node.(type) {
	case string:
		return renderString(node, inputs, at)
	case []any:
		for i, item := range node {
			r, err := renderNode(item, inputs, fmt.Sprintf("%s[%d]", at, i))
			if err != nil {
				return nil, err
			}
			node[i] = r
		}
		return node, nil
	case map[string]any:
		out := make(map[string]any, len(node))
		for _, key := range sortedKeys(node) {
			name, err := renderString(key, inputs, at)
			if err != nil {
				return nil, err
			}
			text, ok := name.(string)
			if !ok {
				return nil, fmt.Errorf("render %s: a key is a list or an object", at)
			}
			if out[text], err = renderNode(node[key], inputs, at+"."+key); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return node, nil
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func renderString(s string, inputs map[string]any, at string) (any, error) {
	if !strings.Contains(s, valuesLeft) {
		return s, nil
	}
	t, err := parseTemplate(at, s, valuesLeft, valuesRight)
	if err != nil {
		return nil, err
	}
	whole, err := t.value(inputs)
	if err != nil {
		return nil, err
	}
	switch whole.(type) {
	case []any, map[string]any:
		return whole, nil
	}
	return t.text(inputs)
}

// Render renders a main.tf.tpl: {{ }}, .Values is the rendered spec.values. A
// value that is not there is an error, not "<no value>".
func Render(source []byte, values json.RawMessage) ([]byte, error) {
	data := map[string]any{}
	if len(values) > 0 {
		parsed, err := decode(values)
		if err != nil {
			return nil, fmt.Errorf("read values: %w", err)
		}
		data["Values"] = parsed
	} else {
		data["Values"] = map[string]any{}
	}
	t, err := parseTemplate(templateFile, string(source), "{{", "}}")
	if err != nil {
		return nil, err
	}
	s, err := t.text(data)
	return []byte(s), err
}
