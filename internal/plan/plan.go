// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package plan is a plan as a value: which changes a run would make, how many,
// and a digest of its content by which it is approved.
//
// A Plan is read from what tofu or terraform says about a plan file (Parse,
// FromTerraform) or from its machine-readable output (FromStream), or made of
// Kubernetes objects before and after (FromObjects), and rendered as text,
// Markdown or JSON. The package reads no files, runs nothing and keeps
// nothing. Values that are marked sensitive are part of the digest and of
// nothing else: no Plan holds them, so that every rendering of it can be shown.
package plan

import (
	"encoding/json"
	"fmt"
)

// Action is what a plan does to a resource, an output or a field.
type Action string

const (
	// ActionCreate makes something that is not there.
	ActionCreate Action = "create"
	// ActionUpdate changes something in place.
	ActionUpdate Action = "update"
	// ActionDelete destroys something.
	ActionDelete Action = "delete"
	// ActionReplace destroys something and makes it again.
	ActionReplace Action = "replace"
	// ActionRead reads a data source during the apply.
	ActionRead Action = "read"
	// ActionNoop leaves a resource as it is and changes only what the state says
	// of it: it is imported or has another address.
	ActionNoop Action = "noop"
	// ActionForget takes a resource out of the state and leaves it in the world.
	ActionForget Action = "forget"
)

// Plan is a set of changes. It is encoded as JSON with encoding/json and stays
// equal over a round trip.
type Plan struct {
	// ID is what people approve: the branch and the beginning of Digest; see ID.
	ID string `json:"id"`
	// Digest names the content ("sha256:…"). Plans of equal digest make the same changes.
	Digest string `json:"digest"`
	// Revision is the revision of the source, in any of the forms that Flux gives it. It is
	// not part of the content.
	Revision string `json:"revision,omitempty"`
	// Branch is the branch or tag in Revision, empty if it has none.
	Branch string `json:"branch,omitempty"`
	// Destroy tells that the plan was asked to destroy everything.
	Destroy bool `json:"destroy,omitempty"`
	// Objects tells that the changes are those of Kubernetes objects; see FromObjects.
	Objects bool `json:"objects,omitempty"`
	// Changes are ordered by address. Resources that stay as they are are left out.
	Changes []Change `json:"changes,omitempty"`
	// Outputs are ordered by name. Outputs that stay as they are are left out.
	Outputs []OutputChange `json:"outputs,omitempty"`
	// Drift is what was changed outside of Terraform since the last run. What the plan does
	// about it is in Changes; it is not part of the content.
	Drift []Change `json:"drift,omitempty"`
	// Counts are the numbers of Changes by their kind.
	Counts Counts `json:"counts"`
	// Policies are what policies say of the plan. They are not part of the content.
	Policies []PolicyResult `json:"policies,omitempty"`
}

// Change is what happens to one resource, or to one Kubernetes object.
type Change struct {
	// Address is the resource's address, with its module and its index; of an object,
	// Kind.group/namespace/name, without the group for the core group and without the
	// namespace for what belongs to none.
	Address string `json:"address"`
	// PreviousAddress is set if the address changes.
	PreviousAddress string `json:"previousAddress,omitempty"`
	// Mode is "managed" or "data", or "object" for a Kubernetes object.
	Mode string `json:"mode,omitempty"`
	// Type is the resource's type, such as aws_vpc; of an object, Kind.group.
	Type string `json:"type,omitempty"`
	// Name is the resource's name in its module; of an object, namespace/name.
	Name string `json:"name,omitempty"`
	// Provider is the provider's address; in a plan from a stream, its implied short name; of
	// an object, its API version.
	Provider string `json:"provider,omitempty"`
	// Action is what happens.
	Action Action `json:"action"`
	// CreateFirst tells of a replacement that the new object is made before the old one goes.
	CreateFirst bool `json:"createFirst,omitempty"`
	// ImportID is set if the resource is imported.
	ImportID string `json:"importID,omitempty"`
	// Deposed is the key of an object that is left over from a replacement; empty for the current one.
	Deposed string `json:"deposed,omitempty"`
	// Before and After are the whole objects, absent if there is none, with each sensitive
	// value replaced by a text that says so. A plan from a stream has neither.
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
	// AfterUnknown has the shape of After, with true where a value becomes known only by the apply.
	AfterUnknown json.RawMessage `json:"afterUnknown,omitempty"`
	// Fields are the leaves in which Before and After differ, in the order of their paths.
	Fields []FieldChange `json:"fields,omitempty"`
	// Reason is the keyword by which the tool explains the action, empty if it gives none; of
	// an object, a text.
	Reason string `json:"reason,omitempty"`
	// Held says why the change cannot be applied yet, empty if it can. It is not part of the
	// content: it says when, not what.
	Held string `json:"held,omitempty"`
	// Drift tells that the change was found, not planned.
	Drift bool `json:"drift,omitempty"`
}

// FieldChange is a difference in one field of a resource.
type FieldChange struct {
	// Path leads to the field: tags["Name"], ingress[0].from_port; in an object, an element of
	// a list is named by its key where the list has one: containers[name=web].image.
	Path string `json:"path"`
	// Action is create, update or delete.
	Action Action `json:"action"`
	// Before and After are the values, absent if there is none, and a text that says so if
	// the field is sensitive.
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
	// Unknown tells that the new value becomes known only by the apply.
	Unknown bool `json:"unknown,omitempty"`
	// Sensitive tells that the value must not be shown.
	Sensitive bool `json:"sensitive,omitempty"`
	// Replaces tells that this difference is why the resource is replaced.
	Replaces bool `json:"replaces,omitempty"`
}

// OutputChange is what happens to one output of the root module.
type OutputChange struct {
	// Name is the output's name.
	Name string `json:"name"`
	// Action is create, update or delete.
	Action Action `json:"action"`
	// Before and After are the values, as in FieldChange.
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
	// Unknown tells that the new value, or a part of it, becomes known only by the apply.
	Unknown bool `json:"unknown,omitempty"`
	// Sensitive tells that the value must not be shown.
	Sensitive bool `json:"sensitive,omitempty"`
}

// Inputs are what a plan was made from, as far as the tool's own description
// does not tell.
type Inputs struct {
	// Revision is the revision of the source. It gives the id its branch and does not enter
	// the digest: the same content at another commit has the same digest.
	Revision string
	// Destroy tells that the plan was asked to destroy everything.
	Destroy bool
	// Targets are the addresses that the plan is restricted to, in any order.
	Targets []string
	// Variables are values by name that enter the digest beside those that the plan tells.
	Variables map[string]json.RawMessage
	// Salt enters the digest as it is. FromStream needs one, the digest of the plan file,
	// because a stream holds no values; for the other functions it can be the digest of
	// whatever else the plan stands for, and may be empty.
	Salt string
	// Key makes the digest an HMAC, so that a reader of the digest who does not have the key
	// cannot find out a secret of few possible values by trying them. Plans whose digests are
	// compared need the same key. Empty means a plain SHA-256.
	Key []byte
	// Sensitive are values to be masked wherever they turn up, beside those that are marked:
	// what was substituted from a Secret, say. Of a length below four they are passed over.
	Sensitive []string
}

// Counts are numbers of resources.
type Counts struct {
	// Create counts resources that are made new.
	Create int `json:"create"`
	// Update counts resources that are changed in place.
	Update int `json:"update"`
	// Delete counts resources that are destroyed for good.
	Delete int `json:"delete"`
	// Replace counts resources that are destroyed and made again.
	Replace int `json:"replace"`
	// Read counts data sources that are read during the apply.
	Read int `json:"read,omitempty"`
	// Import counts resources that are imported, whatever else happens to them.
	Import int `json:"import,omitempty"`
	// Forget counts resources that leave the state and stay in the world.
	Forget int `json:"forget,omitempty"`
	// Move counts resources that get another address, whatever else happens to them.
	Move int `json:"move,omitempty"`
	// Held counts those of the above that cannot be applied yet.
	Held int `json:"held,omitempty"`
}

// String counts as the CLI does: "2 to add, 1 to change, 0 to destroy", where a
// replacement adds one and destroys one.
func (c Counts) String() string {
	s := fmt.Sprintf("%d to add, %d to change, %d to destroy", c.Create+c.Replace, c.Update, c.Delete+c.Replace)
	if c.Import > 0 {
		s = fmt.Sprintf("%d to import, %s", c.Import, s)
	}
	if c.Forget > 0 {
		s = fmt.Sprintf("%s, %d to forget", s, c.Forget)
	}
	if c.Held > 0 {
		s = fmt.Sprintf("%s (%d held)", s, c.Held)
	}
	return s
}

// HasChanges tells whether applying the plan would change the world, the state
// or an output. Reading a data source changes none of them.
func (p *Plan) HasChanges() bool {
	c := p.Counts
	return len(p.Outputs) > 0 || c.Create+c.Update+c.Delete+c.Replace+c.Import+c.Forget+c.Move > 0
}

// count counts changes by their kind.
func count(changes []Change) Counts {
	var c Counts
	for i := range changes {
		ch := &changes[i]
		switch ch.Action {
		case ActionCreate:
			c.Create++
		case ActionUpdate:
			c.Update++
		case ActionDelete:
			c.Delete++
		case ActionReplace:
			c.Replace++
		case ActionRead:
			c.Read++
		case ActionForget:
			c.Forget++
		}
		if ch.ImportID != "" {
			c.Import++
		}
		if ch.PreviousAddress != "" {
			c.Move++
		}
		if ch.Held != "" {
			c.Held++
		}
	}
	return c
}
