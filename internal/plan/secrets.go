// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"
)

// masked stands for a value that must not be shown.
const masked = "(sensitive value)"

// A secret shorter than this is masked only where the tool marks it: masking
// every "a" would hide the plan and no secret.
const minEqualSecret = 4

// A secret shorter than this is masked where it is a whole value, not inside of one.
const minInnerSecret = 6

// secrets are the values that a plan marks as sensitive anywhere. The tool loses
// marks: what a resource computes from a sensitive argument (the output of a
// terraform_data, say) is unmarked in the state. So a value once marked is masked
// wherever it turns up.
type secrets struct {
	equal map[string]bool
	inner *strings.Replacer
}

// newSecrets returns the secrets that the caller names. They are ready after build.
func newSecrets(values []string) *secrets {
	s := &secrets{equal: map[string]bool{}}
	for _, v := range values {
		s.collect(v, true)
	}
	return s
}

func secretsOf(p *tfjson.Plan, values []string) *secrets {
	s := newSecrets(values)
	changes := make([]*tfjson.Change, 0, len(p.ResourceChanges)+len(p.ResourceDrift)+len(p.OutputChanges))
	for _, list := range [][]*tfjson.ResourceChange{p.ResourceChanges, p.ResourceDrift} {
		for _, rc := range list {
			if rc != nil {
				changes = append(changes, rc.Change)
			}
		}
	}
	for _, c := range p.OutputChanges {
		changes = append(changes, c)
	}
	for _, c := range changes {
		if c != nil {
			s.collect(c.Before, c.BeforeSensitive)
			s.collect(c.After, c.AfterSensitive)
		}
	}
	if p.Config != nil && p.Config.RootModule != nil {
		for name, v := range p.Config.RootModule.Variables {
			if v != nil && v.Sensitive && p.Variables[name] != nil {
				s.collect(p.Variables[name].Value, true)
			}
		}
	}
	return s.build()
}

// build makes what mask needs of the values collected so far.
func (s *secrets) build() *secrets {
	var inner []string
	for v := range s.equal {
		if len(v) >= minInnerSecret {
			inner = append(inner, v)
		}
	}
	// The longest first, so that one secret inside another does not leave the rest of it.
	slices.SortFunc(inner, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	pairs := make([]string, 0, 2*len(inner))
	for _, v := range inner {
		pairs = append(pairs, v, masked)
	}
	s.inner = strings.NewReplacer(pairs...)
	return s
}

// collect adds the strings in v that the mark covers.
func (s *secrets) collect(v, mark any) {
	if mark == nil || mark == false {
		return
	}
	switch v := v.(type) {
	case string:
		if mark == true && len(v) >= minEqualSecret {
			s.equal[v] = true
		}
	case map[string]any:
		for k, e := range v {
			s.collect(e, below(mark, key(mark, k)))
		}
	case []any:
		for i, e := range v {
			s.collect(e, below(mark, index(mark, i)))
		}
	}
}

// below returns the mark of a part: that of the whole if the whole is marked.
func below(mark, part any) any {
	if mark == true {
		return true
	}
	return part
}

// mask returns v with each value replaced that one of the marks covers or that is
// a secret elsewhere. Both sides of a change are masked by both marks: a value
// that was sensitive, or becomes so, is likely to be the same secret.
func (s *secrets) mask(v any, marks ...any) any {
	if v == nil {
		return nil
	}
	for _, m := range marks {
		if m == true {
			return masked
		}
	}
	at := func(step func(any) any) []any {
		out := make([]any, len(marks))
		for i, m := range marks {
			out[i] = step(m)
		}
		return out
	}
	switch v := v.(type) {
	case string:
		if s.equal[v] {
			return masked
		}
		return s.inner.Replace(v)
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = s.mask(e, at(func(m any) any { return key(m, k) })...)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = s.mask(e, at(func(m any) any { return index(m, i) })...)
		}
		return out
	}
	return v
}
