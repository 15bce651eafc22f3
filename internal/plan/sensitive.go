// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/json" // keeps integers apart from other numbers
)

// markedBy are the names of values in a plan, and of what marks their sensitive parts.
var markedBy = map[string]string{"before": "before_sensitive", "after": "after_sensitive", "values": "sensitive_values"}

// Sensitive returns the texts and numbers that a plan in the tool's JSON marks as sensitive;
// none of what is no plan.
func Sensitive(planJSON []byte) [][]byte {
	var whole map[string]any
	if json.Unmarshal(planJSON, &whole) != nil {
		return nil
	}
	return SensitiveIn(whole)
}

// SensitiveIn returns the texts and numbers that a Terraform plan marks as sensitive anywhere:
// in changes, in the planned and the prior state, in outputs and in variables. Numbers are
// int64 and float64.
func SensitiveIn(whole map[string]any) [][]byte {
	var out [][]byte
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			for name, mark := range markedBy {
				out = marked(out, v[name], v[mark])
			}
			if v["sensitive"] == true {
				out = Leaves(out, v["value"])
			}
			for _, e := range v {
				walk(e)
			}
		}
	}
	walk(whole)

	configuration, _ := whole["configuration"].(map[string]any)
	root, _ := configuration["root_module"].(map[string]any)
	declared, _ := root["variables"].(map[string]any)
	given, _ := whole["variables"].(map[string]any)
	for name, d := range declared {
		declaration, _ := d.(map[string]any)
		variable, _ := given[name].(map[string]any)
		if declaration["sensitive"] == true {
			out = Leaves(out, variable["value"])
			out = Leaves(out, declaration["default"])
		}
	}
	return out
}

// marked adds the parts of v that the mark covers; a mark has the shape of the value,
// with true where it is sensitive.
func marked(out [][]byte, v, mark any) [][]byte {
	switch m := mark.(type) {
	case bool:
		if m {
			return Leaves(out, v)
		}
	case map[string]any:
		object, _ := v.(map[string]any)
		for k, e := range object {
			out = marked(out, e, m[k])
		}
	case []any:
		list, _ := v.([]any)
		for i := range min(len(list), len(m)) {
			out = marked(out, list[i], m[i])
		}
	}
	return out
}

// Leaves adds all texts and numbers in v, which is decoded JSON.
func Leaves(out [][]byte, v any) [][]byte {
	switch v := v.(type) {
	case string:
		out = append(out, []byte(v))
	case fmt.Stringer: // a json.Number
		out = append(out, []byte(v.String()))
	case int64, float64:
		if text, err := json.Marshal(v); err == nil {
			out = append(out, text)
		}
	case []any:
		for _, e := range v {
			out = Leaves(out, e)
		}
	case map[string]any:
		for _, e := range v {
			out = Leaves(out, e)
		}
	}
	return out
}
