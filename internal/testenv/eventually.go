// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"
)

// patience bounds every wait; nothing is measured by it, so it is generous.
const patience = 2 * time.Minute

// Eventually watches obj, which names the object, until cond is true for it, and
// leaves it as it was then in obj. It sees each version once, from the present
// one on. When that does not come to pass, the test ends and shows the object.
func Eventually[T client.Object](t testing.TB, env *Env, obj T, cond func(T) bool) {
	t.Helper()
	err := follow(env, obj, func(e watch.Event) bool {
		if e.Type == watch.Deleted {
			return false
		}
		assign(obj, e.Object.(client.Object))
		return cond(obj)
	})
	if err != nil {
		t.Fatalf("%v; it is now:\n%s", err, text(env, obj))
	}
}

// Gone watches obj until it is not there any more, and ends the test when it
// stays.
func Gone(t testing.TB, env *Env, obj client.Object) {
	t.Helper()
	gone := func() bool {
		return apierrors.IsNotFound(env.Client.Get(context.Background(), client.ObjectKeyFromObject(obj), obj.DeepCopyObject().(client.Object)))
	}
	if gone() {
		return
	}
	err := follow(env, obj, func(e watch.Event) bool {
		// It may have gone before the watch began; then the watch shows nothing,
		// or something newer of the same name.
		return e.Type == watch.Deleted || gone()
	}, gone)
	if err != nil {
		t.Fatalf("%v; it is still there:\n%s", err, text(env, obj))
	}
}

// follow calls seen with every event of obj until it says true. Before each
// watch it asks the other conditions.
func follow(env *Env, obj client.Object, seen func(watch.Event) bool, or ...func() bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	list, name, err := listOf(env, obj)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		w, err := env.Client.Watch(ctx, list, client.InNamespace(obj.GetNamespace()), client.MatchingFields{"metadata.name": obj.GetName()})
		if err != nil {
			return fmt.Errorf("watch %s: %w", name, err)
		}
		for _, done := range or {
			if done() {
				w.Stop()
				return nil
			}
		}
		for event := range w.ResultChan() {
			if _, ok := event.Object.(client.Object); ok && seen(event) {
				w.Stop()
				return nil
			}
		}
	}
	return fmt.Errorf("waited %v for %s", patience, name)
}

func listOf(env *Env, obj client.Object) (list client.ObjectList, name string, err error) {
	gvk, err := apiutil.GVKForObject(obj, env.Client.Scheme())
	if err != nil {
		return nil, "", fmt.Errorf("watch %T: %w", obj, err)
	}
	name = fmt.Sprintf("%s %s", gvk.Kind, client.ObjectKeyFromObject(obj))
	kind := schema.GroupVersionKind{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind + "List"}
	if _, ok := obj.(*unstructured.Unstructured); ok {
		u := &unstructured.UnstructuredList{}
		u.SetGroupVersionKind(kind)
		return u, name, nil
	}
	made, err := env.Client.Scheme().New(kind)
	if err != nil {
		return nil, "", fmt.Errorf("watch %s: %w", name, err)
	}
	list, ok := made.(client.ObjectList)
	if !ok {
		return nil, "", fmt.Errorf("watch %s: %T is not a list", name, made)
	}
	return list, name, nil
}

// assign sets what to points to.
func assign(to, from client.Object) {
	reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from).Elem())
}

// text is the object as a person reads it.
func text(env *Env, obj client.Object) string {
	now := obj.DeepCopyObject().(client.Object)
	if err := env.Client.Get(context.Background(), client.ObjectKeyFromObject(obj), now); err != nil {
		return err.Error()
	}
	now.SetManagedFields(nil)
	out, err := yaml.Marshal(now)
	if err != nil {
		return err.Error()
	}
	return string(out)
}
