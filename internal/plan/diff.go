// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"
)

// fields returns the leaves in which a change's objects differ.
func (s *secrets) fields(c *tfjson.Change) ([]FieldChange, error) {
	d := differ{secrets: s}
	for _, p := range c.ReplacePaths {
		if path, ok := p.([]any); ok {
			d.replace = append(d.replace, pathString(path))
		}
	}
	d.walk(nil, c.Before, c.After, trueLeaves(c.AfterUnknown), trueLeaves(c.BeforeSensitive), trueLeaves(c.AfterSensitive))
	return d.fields, d.err
}

// differ collects the differences of two values that the JSON decoder made.
type differ struct {
	secrets *secrets
	replace []string
	// objects compares as fits Kubernetes objects: lists by the keys of their elements.
	objects bool
	fields  []FieldChange
	// content has the same leaves with their values unmasked. Only objects need it.
	content []contentField
	err     error
}

// walk compares two values. The last three have the shape of the values, with
// true where the new value is unknown, where the old one is sensitive and where
// the new one is. Null and absent are the same, as they are to providers.
func (d *differ) walk(path []any, before, after, unknown, beforeMark, afterMark any) {
	switch {
	case unknown == true, beforeMark == true, afterMark == true:
		if unknown != nil || !equal(before, after) {
			d.leaf(path, before, after, unknown != nil, beforeMark, afterMark)
		}
	case isObject(before, after, unknown):
		keys := map[string]bool{}
		for _, v := range []any{before, after, unknown} {
			if m, ok := v.(map[string]any); ok {
				for k := range m {
					keys[k] = true
				}
			}
		}
		if len(keys) == 0 && !equal(before, after) {
			d.leaf(path, before, after, false, beforeMark, afterMark)
		}
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			d.walk(append(slices.Clip(path), k), key(before, k), key(after, k), key(unknown, k), key(beforeMark, k), key(afterMark, k))
		}
	case d.objects && isList(before, after) && unknown == nil && d.walkKeyed(path, before, after, beforeMark, afterMark):
	case isList(before, after, unknown) && (!plainList(before, after, unknown, beforeMark, afterMark) || d.objects && scripts(before, after)):
		n := max(length(before), length(after), length(unknown))
		for i := range n {
			d.walk(append(slices.Clip(path), i), index(before, i), index(after, i), index(unknown, i), index(beforeMark, i), index(afterMark, i))
		}
	case !equal(before, after):
		d.leaf(path, before, after, false, beforeMark, afterMark)
	}
}

func (d *differ) leaf(path []any, before, after any, unknown bool, beforeMark, afterMark any) {
	p := pathString(path)
	f := FieldChange{
		Path: p, Action: ActionUpdate, Unknown: unknown,
		Sensitive: beforeMark == true || afterMark == true,
	}
	switch {
	case before == nil:
		f.Action = ActionCreate
	case after == nil && !unknown:
		f.Action = ActionDelete
	}
	for _, r := range d.replace {
		f.Replaces = f.Replaces || within(p, r) || within(r, p)
	}
	var err error
	// A leaf can be a whole object with sensitive parts, where the other side is unknown or
	// has another type.
	if f.Before, err = encode(d.secrets.mask(before, beforeMark, afterMark)); err != nil {
		d.err = err
	}
	if f.After, err = encode(d.secrets.mask(after, beforeMark, afterMark)); err != nil {
		d.err = err
	}
	switch {
	case unknown:
		f.After = nil
	case bytes.Equal(f.Before, f.After):
		// The difference is in what was masked.
		f.Sensitive = true
	}
	d.fields = append(d.fields, f)
	if d.objects {
		d.content = append(d.content, contentField{Path: p, Before: before, After: after})
	}
}

// within tells whether a path is another one or leads into it.
func within(p, outer string) bool {
	rest, ok := strings.CutPrefix(p, outer)
	return ok && (rest == "" || outer == "" || rest[0] == '.' || rest[0] == '[')
}

var identifier = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_-]*$`)

// pathString writes a path as HCL does: tags["a b"], ingress[0].port.
func pathString(path []any) string {
	var b strings.Builder
	for i, step := range path {
		switch s := step.(type) {
		case string:
			switch {
			case !identifier.MatchString(s):
				fmt.Fprintf(&b, "[%s]", strconv.Quote(s))
			case i == 0:
				b.WriteString(s)
			default:
				b.WriteString("." + s)
			}
		case elementKey:
			b.WriteString(s.String())
		default:
			// An int of ours, or a number from JSON.
			fmt.Fprintf(&b, "[%v]", s)
		}
	}
	return b.String()
}

// isObject tells that the values are objects as far as they are there.
func isObject(vs ...any) bool {
	found := false
	for _, v := range vs {
		switch v.(type) {
		case map[string]any:
			found = true
		case nil:
		default:
			return false
		}
	}
	return found
}

// isList tells that the values are lists as far as they are there.
func isList(vs ...any) bool {
	found := false
	for _, v := range vs {
		switch v.(type) {
		case []any:
			found = true
		case nil:
		default:
			return false
		}
	}
	return found
}

// plainList tells that a list has no parts worth naming one by one: only
// scalars, all known and none sensitive. Compared by position, one element put
// in front would look like a change of every element.
func plainList(before, after, unknown, beforeMark, afterMark any) bool {
	if unknown != nil || beforeMark != nil || afterMark != nil {
		return false
	}
	for _, v := range []any{before, after} {
		l, _ := v.([]any)
		for _, e := range l {
			switch e.(type) {
			case map[string]any, []any:
				return false
			}
		}
	}
	return true
}

func key(v any, k string) any {
	if m, ok := v.(map[string]any); ok {
		return m[k]
	}
	return nil
}

func index(v any, i int) any {
	if l, ok := v.([]any); ok && i < len(l) {
		return l[i]
	}
	return nil
}

func length(v any) int {
	l, _ := v.([]any)
	return len(l)
}

func equal(a, b any) bool { return reflect.DeepEqual(a, b) }

// decode reads JSON with its numbers as they are written; nil for nothing.
func decode(raw json.RawMessage) any {
	if len(raw) == 0 {
		return nil
	}
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return string(raw)
	}
	return v
}
