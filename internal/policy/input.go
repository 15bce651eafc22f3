// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/terrace-dev/terrace/internal/mask"
	"github.com/terrace-dev/terrace/internal/plan"
)

// Input is what policies are evaluated over: the plan of one unit, either as Plan or as
// Objects. With neither it is the plan of a Kustomization without objects; of a Terraform
// unit that is an error, and so is both.
type Input struct {
	// Unit is the unit that the plan is of.
	Unit Unit
	// Plan is a Terraform plan, as `tofu show -json` prints it. Rego rules see it as input.
	Plan []byte
	// Objects are the objects that a Kustomization is made of, with what the plan does to
	// them; noop for those that stay as they are. Rego rules see each object as it will be
	// as an input of its own. Objects that are deleted are seen by CEL only, in plan.changes.
	Objects []plan.ObjectChange
	// Mask hides secrets of the run in what results and errors say. Those that the plan
	// itself marks, and the content of Secrets, are hidden in any case.
	Mask *mask.Masker
}

// document is an Input as rules see it.
type document struct {
	unit    unitValue
	plan    planValue
	changes []change
	inputs  []input
	maskers []*mask.Masker
}

// input is an input document of Rego.
type input struct {
	address string
	value   ast.Value
}

// change is what happens to a resource or an object.
type change struct {
	changeValue
	object map[string]any // as it will be, nil if it goes
}

// makes tells that the change creates or changes something.
func (c change) makes() bool {
	return c.object != nil && (slices.Contains(c.Actions, "create") || slices.Contains(c.Actions, "update"))
}

// read makes a document of an Input. Numbers without a fraction are integers.
func read(in Input) (*document, error) {
	doc := &document{
		unit:    unitValue{Kind: in.Unit.Kind, Namespace: in.Unit.Namespace, Name: in.Unit.Name, Labels: in.Unit.Labels},
		maskers: []*mask.Masker{in.Mask},
	}
	if doc.unit.Labels == nil {
		doc.unit.Labels = map[string]string{}
	}
	var secrets [][]byte
	var err error
	switch {
	case len(in.Plan) > 0 && len(in.Objects) > 0:
		err = errors.New("there are a Terraform plan and objects; a unit has one of them")
	case len(in.Plan) > 0 || in.Unit.Kind == terraform:
		secrets, err = doc.readPlan(in.Plan)
	default:
		secrets, err = doc.readObjects(in.Objects)
	}
	if err != nil {
		return nil, err
	}
	if len(secrets) > 0 {
		doc.maskers = append(doc.maskers, mask.New(secrets...))
	}
	for _, c := range doc.changes {
		if !slices.Equal(c.Actions, noop) {
			doc.plan.Changes = append(doc.plan.Changes, c.changeValue)
			doc.plan.Counts.count(c.Actions)
		}
	}
	return doc, nil
}

// terraform is the kind of the units that have a Terraform plan.
const terraform = "Terraform"

// noop is what Terraform says of a resource that stays as it is.
var noop = []string{"no-op"}

// count counts as Terraform does: a replacement is one of add and one of destroy.
func (c *countsValue) count(actions []string) {
	has := func(a string) bool { return slices.Contains(actions, a) }
	if has("create") {
		c.Add++
	}
	if has("update") {
		c.Change++
	}
	if has("delete") {
		c.Destroy++
	}
	if has("create") && has("delete") {
		c.Replace++
	}
}

// errPlan says that a plan cannot be read. What the decoder says of it is left out: it
// quotes the content.
var errPlan = errors.New("the plan is not a JSON object as `tofu show -json` prints it")

// readPlan reads a Terraform plan and returns the values that it marks as sensitive.
func (d *document) readPlan(data []byte) ([][]byte, error) {
	var whole map[string]any
	if err := json.Unmarshal(data, &whole); err != nil || whole == nil {
		return nil, errPlan
	}
	value, err := ast.InterfaceToValue(whole)
	if err != nil {
		return nil, errPlan
	}
	d.inputs = []input{{value: value}}
	list, ok := whole["resource_changes"].([]any)
	if !ok && whole["resource_changes"] != nil {
		return nil, errPlan
	}
	for _, e := range list {
		rc, _ := e.(map[string]any)
		body, _ := rc["change"].(map[string]any)
		if body == nil {
			return nil, errPlan
		}
		c := change{changeValue: changeValue{Actions: []string{}}}
		c.Address, _ = rc["address"].(string)
		c.Type, _ = rc["type"].(string)
		c.object, _ = body["after"].(map[string]any)
		actions, _ := body["actions"].([]any)
		for _, a := range actions {
			s, _ := a.(string)
			c.Actions = append(c.Actions, s)
		}
		d.changes = append(d.changes, c)
	}
	return plan.SensitiveIn(whole), nil
}

// readObjects reads the objects of a Kustomization and returns what is in Secrets.
func (d *document) readObjects(objects []plan.ObjectChange) ([][]byte, error) {
	var secrets [][]byte
	for i := range objects {
		oc := &objects[i]
		c := change{object: oc.After, changeValue: changeValue{Actions: actionsOf(oc.Action)}}
		shown := oc.After
		switch {
		case oc.Action == plan.ActionDelete || oc.Action == plan.ActionForget:
			c.object, shown = nil, oc.Before
		case oc.After == nil:
			c.object, shown = oc.Before, oc.Before
		}
		if shown == nil {
			return nil, fmt.Errorf("object %d of the plan is missing", i)
		}
		c.Type, c.Address = identify(shown)
		secrets = append(secrets, secretsOf(oc.Before, oc.Sensitive)...)
		secrets = append(secrets, secretsOf(oc.After, oc.Sensitive)...)
		d.changes = append(d.changes, c)
		if c.object == nil {
			continue
		}
		value, err := ast.InterfaceToValue(c.object)
		if err != nil {
			return nil, fmt.Errorf("read %s: the object is not JSON", c.Address)
		}
		d.inputs = append(d.inputs, input{c.Address, value})
	}
	return secrets, nil
}

// actionsOf writes an action as Terraform does.
func actionsOf(a plan.Action) []string {
	switch a {
	case plan.ActionReplace:
		return []string{"delete", "create"}
	case plan.ActionNoop:
		return noop
	}
	return []string{string(a)}
}

// identify returns the type and the address of an object, as plans write them.
func identify(o map[string]any) (kind, address string) {
	text := func(v any) string { s, _ := v.(string); return s }
	meta, _ := o["metadata"].(map[string]any)
	kind = text(o["kind"])
	if group, _, ok := strings.Cut(text(o["apiVersion"]), "/"); ok {
		kind += "." + group
	}
	address = kind
	if ns := text(meta["namespace"]); ns != "" {
		address += "/" + ns
	}
	return kind, address + "/" + text(meta["name"])
}

// secretsOf returns what is secret in an object: the content of a Secret, or all values
// outside of metadata of an object that was encrypted.
func secretsOf(o map[string]any, all bool) [][]byte {
	var out [][]byte
	if o["apiVersion"] == "v1" && o["kind"] == "Secret" {
		data, _ := o["data"].(map[string]any)
		for _, v := range data {
			s, _ := v.(string)
			if plain, err := base64.StdEncoding.DecodeString(s); err == nil {
				out = append(out, plain)
			}
			out = append(out, []byte(s))
		}
		out = plan.Leaves(out, o["stringData"])
	}
	if all {
		for k, v := range o {
			if k != "apiVersion" && k != "kind" && k != "metadata" {
				out = plan.Leaves(out, v)
			}
		}
	}
	return out
}

// hide masks what must not be shown.
func (d *document) hide(s string) string {
	for _, m := range d.maskers {
		s = m.String(s)
	}
	return s
}
