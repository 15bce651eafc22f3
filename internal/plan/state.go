// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"encoding/json"
	"slices"
)

// stateMarks is the part of a state, format 4, that tells of sensitive values.
type stateMarks struct {
	Version int `json:"version"`
	Outputs map[string]struct {
		Value     any  `json:"value"`
		Sensitive bool `json:"sensitive"`
	} `json:"outputs"`
	Resources []struct {
		Instances []struct {
			Attributes map[string]any `json:"attributes"`
			// Sensitive are paths: a step has type get_attr, with the name of an attribute, or
			// index, with a key that tells its own type.
			Sensitive [][]struct {
				Type  string `json:"type"`
				Value any    `json:"value"`
			} `json:"sensitive_attributes"`
		} `json:"instances"`
	} `json:"resources"`
}

// SensitiveInState returns the texts and numbers that a state marks as sensitive, in outputs
// and in resources, whether the configuration or the provider's schema says so. A state of
// another format, or one that OpenTofu has encrypted, gives nothing.
func SensitiveInState(payload []byte) [][]byte {
	var st stateMarks
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber() // a float64 would round what is a secret digit by digit
	if d.Decode(&st) != nil || st.Version != 4 {
		return nil
	}
	var out [][]byte
	for _, o := range st.Outputs {
		if o.Sensitive {
			out = Leaves(out, o.Value)
		}
	}
	for _, r := range st.Resources {
		for _, i := range r.Instances {
			for _, path := range i.Sensitive {
				var v any = i.Attributes
				for _, step := range path {
					v = element(plain(v), plain(step.Value))
				}
				out = Leaves(out, plain(v))
			}
		}
	}
	return out
}

// plain is the value in the pair of value and type by which a state writes one whose type no
// schema says: the name of the type is no secret.
func plain(v any) any {
	pair, ok := v.(map[string]any)
	if !ok || len(pair) != 2 {
		return v
	}
	value, hasValue := pair["value"]
	kind, hasType := pair["type"]
	if !hasValue || !hasType {
		return v
	}
	if list, ok := kind.([]any); ok && len(list) > 1 {
		kind = list[0]
	}
	name, _ := kind.(string)
	if !slices.Contains([]string{"string", "number", "bool", "dynamic", "list", "set", "map", "object", "tuple"}, name) {
		return v
	}
	return value
}
