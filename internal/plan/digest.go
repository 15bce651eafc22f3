// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"
)

// contentVersion names the rules by which content is put together. Raising it
// gives every plan a new digest, and so drops every approval that waits.
const contentVersion = 1

// content is what a digest covers. It is encoded as JSON, whose objects
// encoding/json orders by key.
type content struct {
	Version       int                        `json:"version"`
	Destroy       bool                       `json:"destroy"`
	Targets       []string                   `json:"targets"`
	Salt          string                     `json:"salt"`
	Variables     map[string]json.RawMessage `json:"variables"`
	PlanVariables map[string]any             `json:"planVariables"`
	Configuration any                        `json:"configuration"`
	Resources     []contentResource          `json:"resources"`
	Outputs       []contentOutput            `json:"outputs"`
	// Objects keeps a plan of objects from ever having the digest of another one.
	Objects bool `json:"objects,omitempty"`
}

type contentResource struct {
	Address         string   `json:"address"`
	PreviousAddress string   `json:"previousAddress"`
	Deposed         string   `json:"deposed"`
	Provider        string   `json:"provider"`
	Actions         []string `json:"actions"`
	Importing       any      `json:"importing"`
	Before          any      `json:"before"`
	After           any      `json:"after"`
	Unknown         any      `json:"unknown"`
	BeforeSensitive any      `json:"beforeSensitive"`
	AfterSensitive  any      `json:"afterSensitive"`
	// The rest is of objects only.
	UID    string         `json:"uid,omitempty"`
	Fields []contentField `json:"fields,omitempty"`
}

// contentField is a field that changes, with its values as they are.
type contentField struct {
	Path   string `json:"path"`
	Before any    `json:"before"`
	After  any    `json:"after"`
}

type contentOutput struct {
	Name            string   `json:"name"`
	Actions         []string `json:"actions"`
	Before          any      `json:"before"`
	After           any      `json:"after"`
	Unknown         any      `json:"unknown"`
	BeforeSensitive any      `json:"beforeSensitive"`
	AfterSensitive  any      `json:"afterSensitive"`
}

func newContent(in Inputs) *content {
	return &content{
		Version:       contentVersion,
		Destroy:       in.Destroy,
		Targets:       slices.Sorted(slices.Values(in.Targets)),
		Salt:          in.Salt,
		Variables:     maps.Clone(in.Variables),
		PlanVariables: map[string]any{},
	}
}

// resourceContent returns what the digest covers of a resource. Of a data source
// and of a resource that only moves or is imported, values are left out: they are
// what is, not what the plan changes.
func resourceContent(rc *tfjson.ResourceChange, ch *Change) contentResource {
	c := contentResource{
		Address:         ch.Address,
		PreviousAddress: ch.PreviousAddress,
		Deposed:         ch.Deposed,
		Provider:        ch.Provider,
		Actions:         actions(rc.Change.Actions),
	}
	if i := rc.Change.Importing; i != nil {
		c.Importing = i
	}
	if ch.Action == ActionRead || ch.Action == ActionNoop {
		return c
	}
	c.Before, c.After = rc.Change.Before, rc.Change.After
	c.Unknown = trueLeaves(rc.Change.AfterUnknown)
	c.BeforeSensitive = trueLeaves(rc.Change.BeforeSensitive)
	c.AfterSensitive = trueLeaves(rc.Change.AfterSensitive)
	return c
}

// digest returns "sha256:" and the hash of the content, keyed if there is a key.
func (c *content) digest(key []byte) (string, error) {
	slices.SortFunc(c.Resources, func(a, b contentResource) int {
		return cmp.Or(strings.Compare(a.Address, b.Address), strings.Compare(a.Deposed, b.Deposed))
	})
	slices.SortFunc(c.Outputs, func(a, b contentOutput) int { return strings.Compare(a.Name, b.Name) })
	for name, v := range c.Variables {
		// The caller's JSON may differ in spaces and in the order of keys.
		norm, err := normalise(v)
		if err != nil {
			// The cause quotes the value, which may be a secret.
			return "", fmt.Errorf("digest plan: variable %s: not JSON", name)
		}
		c.Variables[name] = norm
	}
	var h hash.Hash = sha256.New()
	if len(key) > 0 {
		h = hmac.New(sha256.New, key)
	}
	if err := json.NewEncoder(h).Encode(c); err != nil {
		return "", fmt.Errorf("digest plan: %w", err)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

func normalise(raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 {
		return json.RawMessage("null"), nil
	}
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if d.More() {
		return nil, fmt.Errorf("more than one value")
	}
	return json.Marshal(v)
}

// trueLeaves returns what is left of a tree of booleans when everything but true
// is taken away, nil if that is nothing. The tool marks unknown and sensitive
// values with such trees, and its versions differ in what false and empty parts
// they write.
func trueLeaves(v any) any {
	switch v := v.(type) {
	case bool:
		if v {
			return true
		}
	case map[string]any:
		var out map[string]any
		for k, e := range v {
			if t := trueLeaves(e); t != nil {
				if out == nil {
					out = map[string]any{}
				}
				out[k] = t
			}
		}
		if out != nil {
			return out
		}
	case []any:
		// Positions matter: what is false in between stays as null.
		out, found := make([]any, len(v)), false
		for i, e := range v {
			out[i] = trueLeaves(e)
			found = found || out[i] != nil
		}
		if found {
			return out
		}
	}
	return nil
}
