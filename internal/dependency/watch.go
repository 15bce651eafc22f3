// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package dependency

import (
	"context"
	"fmt"

	"github.com/fluxcd/pkg/apis/meta"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/graph"
)

// Indexes of units by what they need; the values are those of Key. Every kind of unit
// has them by these names, so that one can ask for the dependants of another kind.
const (
	BySource     = ".index.source"
	ByReference  = ".index.reference"
	ByDependency = ".index.dependency"
)

// Key names an object in an index: "Kind/namespace/name".
func Key(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }

// Keys names what a unit depends on.
func Keys(nodes []graph.Node) []string {
	var keys []string
	for _, n := range nodes {
		keys = append(keys, Key(n.Kind, n.Namespace, n.Name))
	}
	return keys
}

// Index makes the indexes of one kind of unit, by their names.
func Index[T client.Object](ctx context.Context, mgr ctrl.Manager, unit T, indexes map[string]func(T) []string) error {
	for name, keys := range indexes {
		err := mgr.GetFieldIndexer().IndexField(ctx, unit, name, func(o client.Object) []string { return keys(o.(T)) })
		if err != nil {
			return fmt.Errorf("index %T by %s: %w", unit, name, err)
		}
	}
	return nil
}

// Units finds the units of one kind by what they need.
type Units struct {
	reader client.Reader
	list   client.ObjectList
}

// NewUnits returns the units of the kind of list, which is only a pattern. The reader
// has to have the indexes.
func NewUnits(reader client.Reader, list client.ObjectList) Units { return Units{reader, list} }

// Needing returns the units that an index has under a key.
func (u Units) Needing(ctx context.Context, index, key string) []reconcile.Request {
	return u.find(ctx, client.MatchingFields{index: key})
}

func (u Units) find(ctx context.Context, opts ...client.ListOption) []reconcile.Request {
	list := u.list.DeepCopyObject().(client.ObjectList)
	if err := u.reader.List(ctx, list, opts...); err != nil {
		logf.FromContext(ctx).Error(err, "list units", "of", opts)
		return nil
	}
	var requests []reconcile.Request
	_ = apimeta.EachListItem(list, func(o runtime.Object) error {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o.(client.Object))})
		return nil
	})
	return requests
}

// Wake wakes the units that need the object of an event.
func (u Units) Wake(index, kind string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		return u.Needing(ctx, index, Key(kind, o.GetNamespace(), o.GetName()))
	})
}

// WakeNamespace wakes all units of the namespace of an event's object, and those of every
// namespace when that is the given one.
func (u Units) WakeNamespace(everywhere string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		if o.GetNamespace() == everywhere {
			return u.find(ctx)
		}
		return u.find(ctx, client.InNamespace(o.GetNamespace()))
	})
}

// Queue is what event handlers add to.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Enqueue adds the nodes of a kind to a controller's queue.
func Enqueue(q Queue, kind string, nodes []graph.Node) {
	for _, n := range nodes {
		if n.Kind == kind {
			q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: n.Namespace, Name: n.Name}})
		}
	}
}

// Left wakes the units of a kind that an object of another kind depended on by its
// annotation, when that is gone: their own deletion may have waited for it.
func Left(kind string) handler.EventHandler {
	return handler.Funcs{
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q Queue) {
			nodes, _ := graph.ParseDependsOn(e.Object.GetAnnotations()[infra.DependsOnAnnotation], e.Object.GetNamespace())
			Enqueue(q, kind, nodes)
		},
	}
}

// ArtifactChanged passes a source whose artifact is another one.
var ArtifactChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		type source interface{ GetArtifact() *meta.Artifact }
		a, b := e.ObjectOld.(source).GetArtifact(), e.ObjectNew.(source).GetArtifact()
		if a == nil || b == nil {
			return a != b
		}
		return a.Revision != b.Revision || a.Digest != b.Digest || a.URL != b.URL
	},
}

// ContentChanged leaves out the resync of a watch, which changes nothing.
var ContentChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion()
	},
}
