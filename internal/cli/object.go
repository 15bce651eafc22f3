// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	watchtools "k8s.io/client-go/tools/watch"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

// object is a unit or a source as the API server returned it.
type object struct {
	*unstructured.Unstructured
	Kind kind
	// deleted says that a watch brought the object as it last was.
	deleted bool
}

// String names the object for a person: "terraform/default/network".
func (o object) String() string {
	return strings.ToLower(o.Kind.Name) + "/" + o.GetNamespace() + "/" + o.GetName()
}

// terraform converts the object into its type.
func (o object) terraform() (*infra.Terraform, error) {
	tf := &infra.Terraform{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, tf); err != nil {
		return nil, fmt.Errorf("read %s: %w", o, err)
	}
	return tf, nil
}

// text reads a string field; empty when it is not there.
func (o object) text(path ...string) string {
	s, _, _ := unstructured.NestedString(o.Object, path...)
	return s
}

// nestedMaps reads a list of maps; it is empty when the field is not there.
func nestedMaps(o object, path ...string) ([]map[string]any, error) {
	list, _, err := unstructured.NestedSlice(o.Object, path...)
	if err != nil {
		return nil, err
	}
	var out []map[string]any
	for _, item := range list {
		if m, ok := item.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out, nil
}

func (o object) suspended() bool {
	b, _, _ := unstructured.NestedBool(o.Object, "spec", "suspend")
	return b
}

// condition returns the condition of the type; its Status is Unknown, and its
// message says so, when the object has none yet.
func (o object) condition(kind string) (metav1.Condition, bool) {
	list, _ := nestedMaps(o, "status", "conditions")
	for _, m := range list {
		if m["type"] != kind {
			continue
		}
		var c metav1.Condition
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(m, &c); err == nil {
			return c, true
		}
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionUnknown, Message: "waiting to be reconciled"}, false
}

// of addresses the objects of a kind in a namespace; an empty one means all.
func (c *cluster) of(k kind, namespace string) dynamic.ResourceInterface {
	return c.client.Resource(k.Resource).Namespace(namespace)
}

// selection says which objects a verb is about.
type selection struct {
	Kinds     []kind
	Namespace string // empty: all
	Name      string // empty: all
	Labels    string
	Fields    string // a field selector; it excludes Name
}

func (s selection) options() metav1.ListOptions {
	o := metav1.ListOptions{LabelSelector: s.Labels, FieldSelector: s.Fields}
	if s.Name != "" {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", s.Name).String()
	}
	return o
}

// list returns the selected objects by namespace, kind and name, and for each
// kind the resource version from which a watch goes on. Kinds that the cluster
// does not serve have none; when it serves none of them, that is an error.
func (c *cluster) list(ctx context.Context, s selection) ([]object, map[string]string, error) {
	var out []object
	versions := map[string]string{}
	for _, k := range s.Kinds {
		l, err := c.of(k, s.Namespace).List(ctx, s.options())
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, nil, c.explain("list "+k.Resource.Resource, err)
		}
		versions[k.Name] = l.GetResourceVersion()
		for i := range l.Items {
			out = append(out, object{Unstructured: &l.Items[i], Kind: k})
		}
	}
	if len(versions) == 0 {
		return nil, nil, hintf(fmt.Errorf("list %s: the cluster does not know them", s.Kinds[0].Resource.Resource),
			"\"terrace install\" adds the kinds and the controllers")
	}
	slices.SortStableFunc(out, compareObjects)
	return out, versions, nil
}

func compareObjects(a, b object) int {
	return cmp.Or(
		cmp.Compare(a.GetNamespace(), b.GetNamespace()),
		cmp.Compare(kindOrder(a.Kind), kindOrder(b.Kind)),
		cmp.Compare(a.GetName(), b.GetName()),
	)
}

func kindOrder(k kind) int {
	return slices.IndexFunc(kinds, func(o kind) bool { return o.Name == k.Name })
}

// find returns the one object that r names in the namespace of the command.
func (c *cluster) find(ctx context.Context, r ref) (object, error) {
	var found []object
	for _, k := range r.Kinds {
		u, err := c.of(k, c.namespace).Get(ctx, r.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return object{}, c.explain("get "+strings.ToLower(k.Name)+"/"+c.namespace+"/"+r.Name, err)
		}
		found = append(found, object{Unstructured: u, Kind: k})
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		what := "unit"
		if len(r.Kinds) == 1 {
			what = strings.ToLower(r.Kinds[0].Name)
		}
		return object{}, hintf(fmt.Errorf("get %s/%s/%s: not found", what, c.namespace, r.Name),
			"\"terrace get -A\" lists the units of all namespaces")
	}
	return object{}, &usageError{
		err:  fmt.Errorf("get unit/%s/%s: a %s and a %s have this name", c.namespace, r.Name, found[0].Kind.Name, found[1].Kind.Name),
		hint: fmt.Sprintf("say which: %s/%s", strings.ToLower(found[0].Kind.Name), r.Name),
	}
}

// patch merges the fields into the object, guarded by its resource version
// when guard is set. A nil value removes a field.
func (c *cluster) patch(ctx context.Context, o object, fields map[string]any, guard bool, subresources ...string) (object, error) {
	if guard {
		fields = merged(fields, map[string]any{"metadata": map[string]any{"resourceVersion": o.GetResourceVersion()}})
	}
	data, err := json.Marshal(fields)
	if err != nil {
		return object{}, fmt.Errorf("write patch of %s: %w", o, err)
	}
	u, err := c.of(o.Kind, o.GetNamespace()).Patch(ctx, o.GetName(), types.MergePatchType, data,
		metav1.PatchOptions{FieldManager: fieldManager}, subresources...)
	if err != nil {
		return object{}, c.explain("patch "+o.String(), err)
	}
	return object{Unstructured: u, Kind: o.Kind}, nil
}

// fieldManager is the command line's name in managedFields: not the
// controllers', so that what a person changed can be told from what they did.
const fieldManager = "terrace-cli"

// annotations is a patch that sets annotations.
func annotations(values map[string]any) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": values}}
}

// merged returns a with b merged into it, maps by key; b wins.
func merged(a, b map[string]any) map[string]any {
	out := map[string]any{}
	for k, v := range a {
		out[k] = v
	}
	for k, v := range b {
		am, isMap := out[k].(map[string]any)
		bm, bothMaps := v.(map[string]any)
		if isMap && bothMaps {
			v = merged(am, bm)
		}
		out[k] = v
	}
	return out
}

// errGone is the end of a wait for an object that has been deleted.
var errGone = errors.New("deleted meanwhile")

// errEnough ends a watch from inside.
var errEnough = errors.New("enough")

// until watches o until done says so or fails, and returns the object as done
// last saw it. It ends with errGone when the object is deleted, and with the
// context's error when that ends.
func (c *cluster) until(ctx context.Context, o object, done func(object) (bool, error)) (object, error) {
	s := selection{Kinds: []kind{o.Kind}, Namespace: o.GetNamespace(), Name: o.GetName()}
	found, versions, err := c.list(ctx, s)
	if err != nil {
		return o, err
	}
	if len(found) == 0 {
		return o, errGone
	}
	last := found[0]
	if ok, err := done(last); ok || err != nil {
		return last, err
	}
	err = c.follow(ctx, s, versions, func(o object) error {
		last = o
		if o.deleted {
			return errGone
		}
		ok, err := done(o)
		if ok {
			return errEnough
		}
		return err
	})
	if errors.Is(err, errEnough) {
		return last, nil
	}
	if err == nil {
		err = ctx.Err()
	}
	return last, err
}

// follow watches the selection from the versions of a list on, and hands each
// object that changes to one, until one fails or ctx ends; the latter is no error.
func (c *cluster) follow(ctx context.Context, s selection, versions map[string]string, one func(object) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	changes := make(chan change)
	for _, k := range s.Kinds {
		if versions[k.Name] == "" {
			continue
		}
		w, err := watchtools.NewRetryWatcherWithContext(ctx, versions[k.Name], watcher{c, k, s})
		if err != nil {
			return c.explain("watch "+k.Resource.Resource, err)
		}
		go c.pump(ctx, k, w, changes)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case ch := <-changes:
			switch {
			case ctx.Err() != nil:
				return nil
			case ch.err != nil:
				return ch.err
			}
			if err := one(ch.object); err != nil {
				return err
			}
		}
	}
}

// change is what a watch brought: an object, or the watch's end.
type change struct {
	object object
	err    error
}

// pump sends what one watch brings, and its end, to changes.
func (c *cluster) pump(ctx context.Context, k kind, w watch.Interface, changes chan<- change) {
	send := func(ch change) {
		select {
		case changes <- ch:
		case <-ctx.Done():
		}
	}
	doing := "watch " + k.Resource.Resource
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			send(change{err: c.explain(doing, apierrors.FromObject(e.Object))})
			return
		}
		if u, ok := e.Object.(*unstructured.Unstructured); ok && e.Type != watch.Bookmark {
			send(change{object: object{u, k, e.Type == watch.Deleted}})
		}
	}
	send(change{err: errors.New(doing + ": the server ended it")})
}

// watcher opens the watches of one kind of a selection for client-go's
// retrying watcher.
type watcher struct {
	cluster   *cluster
	kind      kind
	selection selection
}

// WatchWithContext implements cache.WatcherWithContext.
func (w watcher) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	want := w.selection.options()
	want.ResourceVersion, want.AllowWatchBookmarks = o.ResourceVersion, o.AllowWatchBookmarks
	return w.cluster.of(w.kind, w.selection.Namespace).Watch(ctx, want)
}
