// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"sort"

	"github.com/fluxcd/pkg/ssa"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Keys returns objects of an inventory in the order in which they are deleted: the
// reverse of that in which they were applied.
func Keys(keys []Key) []Key {
	objects := make([]*unstructured.Unstructured, len(keys))
	for i, k := range keys {
		objects[i] = &unstructured.Unstructured{}
		objects[i].SetGroupVersionKind(k.Kind)
		objects[i].SetNamespace(k.Namespace)
		objects[i].SetName(k.Name)
	}
	sort.Sort(sort.Reverse(ssa.SortableUnstructureds(objects)))
	out := make([]Key, len(keys))
	for i, o := range objects {
		out[i] = KeyOf(o)
	}
	return out
}

// Prune deletes the unit's objects among keys, in the order of Keys. An object that
// is another's by now, or opts out, is skipped; one that is gone is deleted. With an
// error, what could not be deleted has no change.
func (k *Client) Prune(ctx context.Context, unit types.NamespacedName, keys []Key) ([]Change, error) {
	var kinds []schema.GroupVersionKind
	type servedKind struct {
		schema.GroupVersionKind
		err error
	}
	served := map[schema.GroupVersionKind]servedKind{}
	for _, key := range keys {
		if _, ok := served[key.Kind]; ok {
			continue
		}
		gvk, err := k.cluster.served(ctx, key.Kind)
		served[key.Kind] = servedKind{gvk, err}
		if err == nil {
			kinds = append(kinds, gvk)
		}
	}
	if err := k.cluster.View.Ensure(ctx, kinds...); err != nil {
		return nil, err
	}
	owner := k.cluster.owner
	var done []Change
	var failed error
	for _, key := range Keys(keys) {
		c := Change{Key: key, Action: Deleted}
		kind := served[key.Kind]
		var r *Record
		err := kind.err
		if err == nil {
			key.Kind = kind.GroupVersionKind
			r, err = k.cluster.View.Lookup(ctx, k, key)
		}
		if _, unknown := asUnknown(err); unknown {
			done = append(done, c) // its CRD is gone, and so is the object
			continue
		}
		if err != nil {
			failed = join(failed, key, err)
			continue
		}
		switch {
		case r == nil:
			done = append(done, c)
			continue
		case r.Unit != unit:
			c.Action, c.Why = Skipped, "it is not this unit's"
		case owner.Kept(r.Object()):
			c.Action, c.Why = Skipped, "it opts out"
		case !r.Deleting:
			if err := k.delete(ctx, key.Kind, key.Namespace, key.Name, r.UID); err != nil {
				failed = join(failed, key, err)
				continue
			}
		}
		c.Before = r.Object()
		done = append(done, c)
	}
	return done, failed
}

func join(err error, key Key, cause error) error {
	next := fmt.Errorf("%s delete failed: %w", Subject(key.ID()), cause)
	if err == nil {
		return next
	}
	return fmt.Errorf("%w; %w", err, next)
}
