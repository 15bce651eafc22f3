// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"encoding/json"
	"slices"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/terrace-dev/terrace/internal/mask"
)

// learn adds what a plan marks as sensitive to what is masked for the rest of the run:
// webhooks and policies are given the plan, and may quote it.
func (j *job) learn(planJSON []byte) {
	if values := sensitiveValues(planJSON); len(values) > 0 {
		j.mask = mask.New(slices.Concat(j.inputs.Secrets, values)...)
	}
}

// sensitiveValues are the strings and numbers that a plan in the tool's JSON marks as
// sensitive: of variables, resources and outputs.
func sensitiveValues(planJSON []byte) [][]byte {
	var p tfjson.Plan
	if len(planJSON) == 0 || json.Unmarshal(planJSON, &p) != nil {
		return nil
	}
	var out [][]byte
	if p.Config != nil && p.Config.RootModule != nil {
		for name, v := range p.Config.RootModule.Variables {
			if given := p.Variables[name]; v != nil && v.Sensitive && given != nil {
				out = marked(out, given.Value, true)
			}
		}
	}
	take := func(c *tfjson.Change) {
		if c != nil {
			out = marked(marked(out, c.Before, c.BeforeSensitive), c.After, c.AfterSensitive)
		}
	}
	for _, r := range slices.Concat(p.ResourceChanges, p.ResourceDrift) {
		if r != nil {
			take(r.Change)
		}
	}
	for _, o := range p.OutputChanges {
		take(o)
	}
	return out
}

// marked adds the values of a tree that are below a mark: true, or a tree with true in it.
func marked(out [][]byte, value, mark any) [][]byte {
	switch mark := mark.(type) {
	case bool:
		if mark {
			return leaves(out, value)
		}
	case map[string]any:
		v, _ := value.(map[string]any)
		for k, m := range mark {
			out = marked(out, v[k], m)
		}
	case []any:
		v, _ := value.([]any)
		for i, m := range mark {
			if i < len(v) {
				out = marked(out, v[i], m)
			}
		}
	}
	return out
}

// leaves adds the strings and numbers of a tree.
func leaves(out [][]byte, value any) [][]byte {
	switch v := value.(type) {
	case string:
		return append(out, []byte(v))
	case float64, json.Number:
		if b, err := json.Marshal(v); err == nil {
			return append(out, b)
		}
	case map[string]any:
		for _, e := range v {
			out = leaves(out, e)
		}
	case []any:
		for _, e := range v {
			out = leaves(out, e)
		}
	}
	return out
}
