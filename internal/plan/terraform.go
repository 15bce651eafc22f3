// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"
)

// Parse reads the JSON that `tofu show -json PLANFILE` prints. Numbers are kept
// digit by digit, so it is to be preferred to FromTerraform where both are
// possible; the two can give different digests to a plan with large or
// fractional numbers.
func Parse(data []byte, in Inputs) (*Plan, error) {
	p := &tfjson.Plan{}
	p.UseJSONNumber(true)
	if err := p.UnmarshalJSON(data); err != nil {
		return nil, fmt.Errorf("parse plan: %w", err)
	}
	return FromTerraform(p, in)
}

// FromTerraform makes a Plan of the tool's own description. The digest covers
// the inputs, the variables, the configuration (what a provisioner runs shows
// nowhere else), and the changes of resources and outputs with their values. It
// does not cover what differs between two plans of the same content: the
// revision, times, the tool's version, the state of resources that stay as they
// are, drift, the reasons given, and the order.
func FromTerraform(p *tfjson.Plan, in Inputs) (*Plan, error) {
	if p == nil {
		return nil, errors.New("read plan: there is none")
	}
	out := &Plan{Revision: in.Revision, Branch: branch(in.Revision), Destroy: in.Destroy}
	c := newContent(in)
	if p.Config != nil {
		c.Configuration = p.Config
	}
	for name, v := range p.Variables {
		if v != nil {
			c.PlanVariables[name] = v.Value
		}
	}
	s := secretsOf(p, in.Sensitive)
	for _, rc := range p.ResourceChanges {
		if rc == nil || rc.Change == nil {
			continue
		}
		ch, err := s.resourceChange(rc, false)
		if err != nil {
			return nil, err
		}
		if ch == nil {
			continue
		}
		out.Changes = append(out.Changes, *ch)
		c.Resources = append(c.Resources, resourceContent(rc, ch))
	}
	for _, rc := range p.ResourceDrift {
		if rc == nil || rc.Change == nil {
			continue
		}
		ch, err := s.resourceChange(rc, true)
		if err != nil {
			return nil, err
		}
		if ch != nil {
			out.Drift = append(out.Drift, *ch)
		}
	}
	for name, oc := range p.OutputChanges {
		if oc == nil || oc.Actions.NoOp() {
			continue
		}
		ch, err := s.outputChange(name, oc)
		if err != nil {
			return nil, err
		}
		out.Outputs = append(out.Outputs, *ch)
		c.Outputs = append(c.Outputs, contentOutput{
			Name: name, Actions: actions(oc.Actions),
			Before: oc.Before, After: oc.After, Unknown: trueLeaves(oc.AfterUnknown),
			BeforeSensitive: trueLeaves(oc.BeforeSensitive), AfterSensitive: trueLeaves(oc.AfterSensitive),
		})
	}
	return out.finish(c, in.Key)
}

// finish puts everything in order and gives the plan its counts, digest and id.
func (p *Plan) finish(c *content, key []byte) (*Plan, error) {
	byAddress := func(a, b Change) int {
		return cmp.Or(strings.Compare(a.Address, b.Address), strings.Compare(a.Deposed, b.Deposed))
	}
	slices.SortStableFunc(p.Changes, byAddress)
	slices.SortStableFunc(p.Drift, byAddress)
	slices.SortFunc(p.Outputs, func(a, b OutputChange) int { return strings.Compare(a.Name, b.Name) })
	p.Counts = count(p.Changes)
	d, err := c.digest(key)
	if err != nil {
		return nil, err
	}
	p.Digest, p.ID = d, ID(p.Revision, d)
	return p, nil
}

// resourceChange returns nil for a resource that stays as it is.
func (s *secrets) resourceChange(rc *tfjson.ResourceChange, drift bool) (*Change, error) {
	ch := &Change{
		Address:  rc.Address,
		Mode:     string(rc.Mode),
		Type:     rc.Type,
		Name:     rc.Name,
		Provider: rc.ProviderName,
		Deposed:  rc.DeposedKey,
		Reason:   string(rc.ActionReason),
		Drift:    drift,
	}
	if rc.PreviousAddress != rc.Address {
		ch.PreviousAddress = rc.PreviousAddress
	}
	if i := rc.Change.Importing; i != nil {
		ch.ImportID = cmp.Or(i.ID, "(by identity)")
	}
	ch.Action, ch.CreateFirst = action(rc.Change.Actions)
	if ch.Action == ActionNoop && ch.PreviousAddress == "" && ch.ImportID == "" {
		return nil, nil
	}
	err := s.setValues(ch, rc.Change)
	if err != nil {
		return nil, fmt.Errorf("read plan: resource %s: %w", rc.Address, err)
	}
	return ch, nil
}

func (s *secrets) setValues(ch *Change, c *tfjson.Change) (err error) {
	if ch.Before, err = encode(s.mask(c.Before, c.BeforeSensitive, c.AfterSensitive)); err != nil {
		return err
	}
	if ch.After, err = encode(s.mask(c.After, c.BeforeSensitive, c.AfterSensitive)); err != nil {
		return err
	}
	if ch.AfterUnknown, err = encode(trueLeaves(c.AfterUnknown)); err != nil {
		return err
	}
	ch.Fields, err = s.fields(c)
	return err
}

func (s *secrets) outputChange(name string, c *tfjson.Change) (*OutputChange, error) {
	a, _ := action(c.Actions)
	ch := &OutputChange{
		Name: name, Action: a,
		Unknown:   trueLeaves(c.AfterUnknown) != nil,
		Sensitive: trueLeaves(c.BeforeSensitive) != nil || trueLeaves(c.AfterSensitive) != nil,
	}
	var err error
	if ch.Before, err = encode(s.mask(c.Before, c.BeforeSensitive, c.AfterSensitive)); err != nil {
		return nil, fmt.Errorf("read plan: output %s: %w", name, err)
	}
	if ch.After, err = encode(s.mask(c.After, c.BeforeSensitive, c.AfterSensitive)); err != nil {
		return nil, fmt.Errorf("read plan: output %s: %w", name, err)
	}
	return ch, nil
}

// action returns the action that a list of the tool's actions amounts to, and
// whether a replacement creates first. A resource whose old object is forgotten
// and made anew (OpenTofu's lifecycle.destroy = false) is created: nothing is
// destroyed.
func action(as tfjson.Actions) (a Action, createFirst bool) {
	has := func(a tfjson.Action) bool { return slices.Contains(as, a) }
	switch {
	case has(tfjson.ActionCreate) && has(tfjson.ActionDelete):
		return ActionReplace, as[0] == tfjson.ActionCreate
	case has(tfjson.ActionCreate):
		return ActionCreate, false
	case has(tfjson.ActionUpdate):
		return ActionUpdate, false
	case has(tfjson.ActionDelete):
		return ActionDelete, false
	case has(tfjson.ActionForget):
		return ActionForget, false
	case has(tfjson.ActionRead):
		return ActionRead, false
	}
	return ActionNoop, false
}

func actions(as tfjson.Actions) []string {
	out := make([]string, len(as))
	for i, a := range as {
		out[i] = string(a)
	}
	return out
}

// encode returns v as JSON, nil for null. Unlike json.Marshal it leaves <, > and
// & alone, which people read.
func encode(v any) (json.RawMessage, error) {
	if v == nil {
		return nil, nil
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("encode value: %w", err)
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
