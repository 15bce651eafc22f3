// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// objectMode is the mode of a change of a Kubernetes object.
const objectMode = "object"

// lastApplied is where kubectl keeps a copy of the object, secrets included.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// ObjectChange is what an apply would do to one Kubernetes object. FromObjects
// reads it and changes nothing of it.
type ObjectChange struct {
	// Action is create, update, delete, replace (delete and make again), forget (leave in
	// the cluster, no longer managed) or noop.
	Action Action
	// Before is the object as it is, nil for create. After is the object as the API server
	// would have it, from a dry run; nil for delete and forget. Where no dry run is possible
	// (Held, replace), it is the object as it is configured.
	Before, After map[string]any
	// Held says why the change cannot be applied yet, empty if it can.
	Held string
	// Reason says why this action, empty if that is plain. Of a replacement it is the API
	// server's message, or the path of the field that cannot be changed: a path in it marks
	// the fields that force the replacement.
	Reason string
	// Sensitive masks every value outside of metadata, as is done for Secrets always. It is
	// for objects that were decrypted.
	Sensitive bool
}

// FromObjects makes a Plan of changes of Kubernetes objects. Objects that stay as
// they are are left out, and so is a noop. So is what the API server and the
// controllers of an object keep in it: status, managedFields, resourceVersion,
// uid, generation, the times, and the annotation of kubectl with a copy.
//
// The values of Secrets are masked: they are part of the digest and of nothing
// else, so in.Key should be set. The digest covers of an update the fields that
// change, of a creation or replacement the whole new object, and of what is
// deleted, replaced or let go, which one it is (its uid): what others write into
// a live object meanwhile does not make another plan of it.
//
// It is an error if a change lacks the object that its action needs, if an object
// has no kind or name, if Before and After are different objects, or if an object
// is listed twice.
func FromObjects(changes []ObjectChange, in Inputs) (*Plan, error) {
	out := &Plan{Revision: in.Revision, Branch: branch(in.Revision), Destroy: in.Destroy, Objects: true}
	c := newContent(in)
	c.Objects = true
	s := newSecrets(in.Sensitive).build()
	seen := make(map[string]bool, len(changes))
	for i := range changes {
		o, err := newObject(&changes[i])
		if err != nil {
			return nil, fmt.Errorf("make plan: change %d: %w", i+1, err)
		}
		if seen[o.change.Address] {
			return nil, fmt.Errorf("make plan: %s is listed twice; one object can have one change only", o.change.Address)
		}
		seen[o.change.Address] = true
		if err := o.compare(s); err != nil {
			return nil, fmt.Errorf("make plan: %s: %w", o.change.Address, err)
		}
		if o.unchanged() {
			continue
		}
		out.Changes = append(out.Changes, o.change)
		c.Resources = append(c.Resources, o.content())
	}
	return out.finish(c, in.Key)
}

// object is a change on its way into a plan.
type object struct {
	change        Change
	before, after map[string]any
	uid           string
	// The marks have the shape of the objects, with true where a value is sensitive.
	beforeMark, afterMark any
	fields                []contentField
}

func newObject(oc *ObjectChange) (*object, error) {
	needBefore, needAfter := false, false
	switch oc.Action {
	case ActionCreate:
		needAfter = true
	case ActionUpdate, ActionReplace:
		needBefore, needAfter = true, true
	case ActionDelete, ActionForget:
		needBefore = true
	case ActionNoop:
	default:
		return nil, fmt.Errorf("action %q is not one of an object", oc.Action)
	}
	if needBefore && oc.Before == nil || needAfter && oc.After == nil || oc.Before == nil && oc.After == nil {
		return nil, fmt.Errorf("an object is missing for action %s", oc.Action)
	}
	o := &object{change: Change{Mode: objectMode, Action: oc.Action}}
	for i, raw := range []map[string]any{oc.Before, oc.After} {
		if raw == nil || i == 0 && oc.Action == ActionCreate || i == 1 && !needAfter {
			continue
		}
		id, err := identify(raw)
		if err != nil {
			return nil, err
		}
		if o.change.Address != "" && o.change.Address != id.Address {
			return nil, fmt.Errorf("%s would become %s; these are two objects", o.change.Address, id.Address)
		}
		o.change.Address, o.change.Type, o.change.Name, o.change.Provider = id.Address, id.Type, id.Name, id.Provider
		tidied, err := tidy(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", id.Address, err)
		}
		mark := marks(tidied, oc.Sensitive)
		if i == 0 {
			o.before, o.beforeMark = tidied, mark
			o.uid, _ = key(raw["metadata"], "uid").(string)
		} else {
			o.after, o.afterMark = tidied, mark
		}
	}
	if o.change.Address == "" { // a noop whose one object is not looked at
		id, err := identify(firstOf(oc.Before, oc.After))
		if err != nil {
			return nil, err
		}
		o.change.Address = id.Address
	}
	o.change.Reason, o.change.Held = oc.Reason, oc.Held
	return o, nil
}

func firstOf(a, b map[string]any) map[string]any {
	if a != nil {
		return a
	}
	return b
}

// identify returns the parts of a Change that name the object.
func identify(o map[string]any) (Change, error) {
	text := func(v any) string { s, _ := v.(string); return s }
	version, kind := text(o["apiVersion"]), text(o["kind"])
	name, namespace := text(key(o["metadata"], "name")), text(key(o["metadata"], "namespace"))
	if version == "" || kind == "" || name == "" {
		return Change{}, fmt.Errorf("an object has no apiVersion, kind or name (it says %q, %q, %q)", version, kind, name)
	}
	c := Change{Type: kind, Name: name, Provider: version}
	if group, _, ok := strings.Cut(version, "/"); ok {
		c.Type += "." + group
	}
	if namespace != "" {
		c.Name = namespace + "/" + name
	}
	c.Address = c.Type + "/" + c.Name
	return c, nil
}

// dropped are the fields of metadata that the API server keeps.
var dropped = []string{
	"managedFields", "resourceVersion", "uid", "generation", "creationTimestamp", "selfLink",
	"deletionTimestamp", "deletionGracePeriodSeconds",
}

// tidy returns a copy without what is not the configuration's, with numbers as
// they are written.
func tidy(in map[string]any) (map[string]any, error) {
	o := maps.Clone(in)
	delete(o, "status")
	if m, ok := o["metadata"].(map[string]any); ok {
		m = maps.Clone(m)
		for _, k := range dropped {
			delete(m, k)
		}
		if a, ok := m["annotations"].(map[string]any); ok {
			a = maps.Clone(a)
			delete(a, lastApplied)
			m["annotations"] = a
			if len(a) == 0 {
				delete(m, "annotations")
			}
		}
		o["metadata"] = m
	}
	if b, ok := o["binaryData"].(map[string]any); ok && o["kind"] == "ConfigMap" {
		// Nobody reads base64: the length and a hash tell as much.
		b = maps.Clone(b)
		for k, v := range b {
			if s, ok := v.(string); ok {
				b[k] = binary(s)
			}
		}
		o["binaryData"] = b
	}
	raw, err := json.Marshal(o)
	if err != nil {
		// The cause can quote a value.
		return nil, errors.New("the object has a value that JSON cannot hold")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var out map[string]any
	if err := d.Decode(&out); err != nil {
		return nil, errors.New("the object does not survive a round through JSON")
	}
	return out, nil
}

func binary(s string) string {
	data, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return s
	}
	return fmt.Sprintf("(%d bytes, sha256:%x)", len(data), sha256.Sum256(data))
}

// marks returns the tree of booleans that covers an object's sensitive values. The
// names of the values are not covered.
func marks(o map[string]any, sensitive bool) any {
	out := map[string]any{}
	for k, v := range o {
		secret := o["kind"] == "Secret" && o["apiVersion"] == "v1" && (k == "data" || k == "stringData")
		if !secret && (!sensitive || k == "apiVersion" || k == "kind" || k == "metadata") {
			continue
		}
		if m := leaves(v); m != nil {
			out[k] = m
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// leaves returns a tree that marks every value in v.
func leaves(v any) any {
	switch v := v.(type) {
	case nil:
		return nil
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = leaves(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = leaves(e)
		}
		return out
	}
	return true
}

// compare fills in the values and the fields that differ.
func (o *object) compare(s *secrets) (err error) {
	own := newSecrets(nil)
	own.collect(asAny(o.before), o.beforeMark)
	own.collect(asAny(o.after), o.afterMark)
	for _, v := range slices.Collect(maps.Keys(own.equal)) {
		if plain, err := base64.StdEncoding.DecodeString(v); err == nil {
			own.collect(string(plain), true)
		}
	}
	own.build()
	o.change.Reason = s.inner.Replace(own.inner.Replace(o.change.Reason))
	o.change.Held = s.inner.Replace(own.inner.Replace(o.change.Held))
	if o.change.Before, err = encode(s.mask(asAny(o.before), o.beforeMark, o.afterMark)); err != nil {
		return err
	}
	if o.change.After, err = encode(s.mask(asAny(o.after), o.beforeMark, o.afterMark)); err != nil {
		return err
	}
	if o.change.Action == ActionDelete || o.change.Action == ActionForget {
		return nil // all of it goes; Before tells what that is
	}
	d := differ{secrets: s, objects: true}
	if o.change.Action == ActionReplace {
		d.replace = o.paths(o.change.Reason)
	}
	before, after := o.before, o.after
	if before == nil {
		after = withoutIdentity(after)
	}
	d.walk(nil, asAny(before), asAny(after), nil, o.beforeMark, o.afterMark)
	o.change.Fields, o.fields = d.fields, d.content
	return d.err
}

// asAny keeps a map that is nil from becoming a value that is not.
func asAny(m map[string]any) any {
	if m == nil {
		return nil
	}
	return m
}

// withoutIdentity leaves out what the head of the block says of a new object.
func withoutIdentity(o map[string]any) map[string]any {
	o = maps.Clone(o)
	delete(o, "apiVersion")
	delete(o, "kind")
	if m, ok := o["metadata"].(map[string]any); ok {
		m = maps.Clone(m)
		delete(m, "name")
		delete(m, "namespace")
		o["metadata"] = m
		if len(m) == 0 {
			delete(o, "metadata")
		}
	}
	return o
}

func (o *object) unchanged() bool {
	switch o.change.Action {
	case ActionNoop:
		return true
	case ActionUpdate:
		return len(o.change.Fields) == 0 && o.change.Held == ""
	}
	return false
}

func (o *object) content() contentResource {
	c := contentResource{Address: o.change.Address, Actions: []string{string(o.change.Action)}}
	switch o.change.Action {
	case ActionCreate:
		c.After = o.after
	case ActionUpdate:
		c.Fields = o.fields
	case ActionReplace:
		c.UID, c.After, c.Fields = o.uid, o.after, o.fields
	default:
		c.UID = o.uid
	}
	return c
}

// pathInText finds what may be the path of a field: spec.selector,
// spec.ports[0].port, or data followed by a colon.
var pathInText = regexp.MustCompile(`[A-Za-z][A-Za-z0-9_-]*(?:\.[A-Za-z][A-Za-z0-9_-]*|\[[^\]\s]*\])*:?`)

// paths returns the fields of the object that a text names, in our own form. What
// follows an index is dropped: the API server counts where we name keys.
func (o *object) paths(text string) []string {
	var out []string
	for _, token := range pathInText.FindAllString(text, -1) {
		name, colon := strings.CutSuffix(token, ":")
		name, _, _ = strings.Cut(name, "[")
		steps := strings.Split(name, ".")
		if key(o.before, steps[0]) == nil && key(o.after, steps[0]) == nil {
			continue
		}
		// A word such as data can be prose; a path alone, or before a colon, is not.
		if len(steps) == 1 && !colon && token == name && token != strings.TrimSpace(text) {
			continue
		}
		path := make([]any, len(steps))
		for i, s := range steps {
			path[i] = s
		}
		out = append(out, pathString(path))
	}
	return out
}

// elementKey is a step into a list, to the element with this key.
type elementKey struct{ name, value string }

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_./:-]+$`)

func (k elementKey) String() string {
	if !plainKey.MatchString(k.value) {
		return "[" + k.name + "=" + strconv.Quote(k.value) + "]"
	}
	return "[" + k.name + "=" + k.value + "]"
}

// elementKeys are the fields by which elements of lists are told apart, in the
// order in which they are tried. They are the merge keys of the built-in kinds, and
// what custom kinds have in common with them.
var elementKeys = []string{"name", "mountPath", "devicePath", "containerPort", "port", "topologyKey", "key", "host", "ip", "type", "id"}

// walkKeyed compares two lists element by element by a key that all elements have
// and no two share: an element put in front is then one change, not a change of
// every element. It returns false, with nothing done, if there is no such key, or
// if the elements that stay are in another order, which then is the change.
func (d *differ) walkKeyed(path []any, before, after, beforeMark, afterMark any) bool {
	b, _ := before.([]any)
	a, _ := after.([]any)
	for _, name := range elementKeys {
		bi, bKeys := keyed(b, name, beforeMark)
		ai, aKeys := keyed(a, name, afterMark)
		if bi == nil || ai == nil || len(bi)+len(ai) == 0 {
			continue
		}
		in := func(m map[string]int) func(string) bool {
			return func(k string) bool { _, ok := m[k]; return !ok }
		}
		if !slices.Equal(slices.DeleteFunc(slices.Clone(bKeys), in(ai)), slices.DeleteFunc(slices.Clone(aKeys), in(bi))) {
			return false
		}
		at := func(v any, i int, ok bool) any {
			if !ok {
				return nil
			}
			return index(v, i)
		}
		for _, k := range merge(bKeys, aKeys, bi) {
			i, inB := bi[k]
			j, inA := ai[k]
			eb, ea := at(before, i, inB), at(after, j, inA)
			if !inB || !inA {
				// The path says the key of what comes or goes.
				eb, ea = withoutKey(eb, name), withoutKey(ea, name)
			}
			d.walk(append(slices.Clip(path), elementKey{name, k}), eb, ea, nil, at(beforeMark, i, inB), at(afterMark, j, inA))
		}
		return true
	}
	return false
}

// withoutKey returns an element without its key, if that leaves anything.
func withoutKey(e any, name string) any {
	m, ok := e.(map[string]any)
	if !ok || len(m) < 2 {
		return e
	}
	m = maps.Clone(m)
	delete(m, name)
	return m
}

// keyed returns the positions of a list's elements by their key, and the keys in
// order; nil if an element has none, shares it, or if the key must not be shown.
func keyed(list []any, name string, mark any) (map[string]int, []string) {
	at, keys := make(map[string]int, len(list)), make([]string, 0, len(list))
	for i, e := range list {
		if key(index(mark, i), name) != nil {
			return nil, nil
		}
		var k string
		switch v := key(e, name).(type) {
		case string:
			k = v
		case json.Number:
			k = v.String()
		}
		if _, ok := at[k]; ok || k == "" {
			return nil, nil
		}
		at[k] = i
		keys = append(keys, k)
	}
	return at, keys
}

// merge returns all keys in the order of the new list, those that go where they
// were. The keys that stay are in the same order in both.
func merge(before, after []string, inBefore map[string]int) []string {
	out := make([]string, 0, len(before)+len(after))
	i := 0
	for _, k := range after {
		if _, ok := inBefore[k]; ok {
			for ; before[i] != k; i++ {
				out = append(out, before[i])
			}
			i++
		}
		out = append(out, k)
	}
	return append(out, before[i:]...)
}

// scripts tells that two lists of the same length hold text of several lines (the
// command of a container, say), which is worth a comparison line by line.
func scripts(before, after any) bool {
	b, _ := before.([]any)
	a, _ := after.([]any)
	return len(a) == len(b) && slices.ContainsFunc(append(slices.Clip(a), b...), multiline)
}
