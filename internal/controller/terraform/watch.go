// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"fmt"
	"slices"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/dependency"
	"github.com/terrace-dev/terrace/internal/graph"
)

// Indexes of units by what they need; the values are "Kind/namespace/name".
const (
	indexSource     = ".index.source"
	indexReference  = ".index.reference"
	indexDependency = ".index.dependency"
)

// Register adds the controller to a manager, with a watch for everything that a
// unit waits for: its source, what it depends on, the data it refers to, its output
// Secret, and its runs.
func (c *Controller) Register(mgr ctrl.Manager) error {
	ctx := context.Background()
	for index, keys := range map[string]func(*infra.Terraform) []string{
		indexSource:     func(tf *infra.Terraform) []string { return []string{sourceKey(tf)} },
		indexReference:  referenceKeys,
		indexDependency: dependencyKeys,
	} {
		err := mgr.GetFieldIndexer().IndexField(ctx, &infra.Terraform{}, index, func(o client.Object) []string {
			return keys(o.(*infra.Terraform))
		})
		if err != nil {
			return fmt.Errorf("index Terraforms by %s: %w", index, err)
		}
	}
	ctl, err := ctrl.NewControllerManagedBy(mgr).
		Named("terraform").
		WithOptions(controller.Options{MaxConcurrentReconciles: c.opts.Concurrent}).
		For(&infra.Terraform{}, builder.WithPredicates(predicate.Or[client.Object](
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&infra.Terraform{}, c.dependants(), builder.WithPredicates(standingChanged)).
		Watches(&kustomizev1.Kustomization{}, leaving).
		Watches(&sourcev1.GitRepository{}, c.by(indexSource, sourcev1.GitRepositoryKind), builder.WithPredicates(artifactChanged)).
		Watches(&sourcev1.OCIRepository{}, c.by(indexSource, sourcev1.OCIRepositoryKind), builder.WithPredicates(artifactChanged)).
		Watches(&sourcev1.Bucket{}, c.by(indexSource, sourcev1.BucketKind), builder.WithPredicates(artifactChanged)).
		WatchesMetadata(&corev1.Secret{}, c.by(indexReference, kindSecret), builder.WithPredicates(contentChanged)).
		WatchesMetadata(&corev1.ConfigMap{}, c.by(indexReference, kindConfigMap), builder.WithPredicates(contentChanged)).
		WatchesRawSource(source.Channel(c.wake, &handler.EnqueueRequestForObject{})).
		Build(c)
	if err != nil {
		return fmt.Errorf("build terraform controller: %w", err)
	}
	if c.opts.SeesAll {
		if err := mgr.Add(manager.RunnableFunc(c.collect)); err != nil {
			return fmt.Errorf("add collector of stored plans: %w", err)
		}
	}
	c.objects = dependency.NewObjects(c.opts.Client, mgr.GetCache(), ctl, func(ctx context.Context, kind, namespace, name string) []reconcile.Request {
		return c.indexed(ctx, indexDependency, objectKey(kind, namespace, name))
	})
	return nil
}

func objectKey(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }

func sourceKey(tf *infra.Terraform) string {
	ns := tf.Spec.SourceRef.Namespace
	if ns == "" {
		ns = tf.Namespace
	}
	return objectKey(tf.Spec.SourceRef.Kind, ns, tf.Spec.SourceRef.Name)
}

// referenceKeys are what a unit reads and the Secret that it writes.
func referenceKeys(tf *infra.Terraform) []string {
	var keys []string
	for _, u := range uses(tf) {
		keys = append(keys, objectKey(u.Kind, u.Namespace, u.Name))
	}
	if w := tf.Spec.WriteOutputsToSecret; w != nil {
		keys = append(keys, objectKey(kindSecret, tf.Namespace, w.Name))
	}
	return keys
}

// dependencies are the objects that a unit waits for, in the order of the spec and
// then of the annotation.
func dependencies(tf *infra.Terraform) []graph.Node {
	var nodes []graph.Node
	for _, ref := range tf.GetDependsOn() {
		ns := ref.Namespace
		if ns == "" {
			ns = tf.Namespace
		}
		nodes = append(nodes, node(ns, ref.Name))
	}
	// A malformed annotation names nothing; the unit's own reconcile tells of it.
	named, _ := graph.ParseDependsOn(tf.Annotations[infra.DependsOnAnnotation], tf.Namespace)
	return append(nodes, named...)
}

func dependencyKeys(tf *infra.Terraform) []string {
	var keys []string
	for _, n := range dependencies(tf) {
		keys = append(keys, objectKey(n.Kind, n.Namespace, n.Name))
	}
	return keys
}

// by wakes the units whose index names the object of the event.
func (c *Controller) by(index, kind string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		return c.indexed(ctx, index, objectKey(kind, o.GetNamespace(), o.GetName()))
	})
}

func (c *Controller) indexed(ctx context.Context, index, key string) []reconcile.Request {
	var list infra.TerraformList
	if err := c.opts.Client.List(ctx, &list, client.MatchingFields{index: key}); err != nil {
		log(ctx).Error(err, "list units", "index", index, "key", key)
		return nil
	}
	requests := make([]reconcile.Request, len(list.Items))
	for i := range list.Items {
		requests[i].NamespacedName = client.ObjectKeyFromObject(&list.Items[i])
	}
	return requests
}

// dependants wakes the units that depend on the one of the event, and, when one is
// deleted or depends on others from now on, those that it depended on: their own
// deletion may have waited for it.
func (c *Controller) dependants() handler.EventHandler {
	wake := c.by(indexDependency, infra.TerraformKind)
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	wakeOld := func(before, now []graph.Node, q queue) {
		for _, n := range before {
			if n.Kind == infra.TerraformKind && !slices.Contains(now, n) {
				q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: n.Namespace, Name: n.Name}})
			}
		}
	}
	return handler.Funcs{
		CreateFunc: wake.Create,
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			wake.Update(ctx, e, q)
			wakeOld(dependencies(e.ObjectOld.(*infra.Terraform)), dependencies(e.ObjectNew.(*infra.Terraform)), q)
		},
		GenericFunc: wake.Generic,
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			wake.Delete(ctx, e, q)
			tf := e.Object.(*infra.Terraform)
			wakeOld(dependencies(tf), nil, q)
			c.writer.Forget(tf.UID)
			c.memory.gone(tf.UID)
		},
	}
}

// leaving wakes the units that a Kustomization depended on: their deletion may have
// waited for it.
var leaving = handler.Funcs{
	DeleteFunc: func(_ context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		nodes, _ := graph.ParseDependsOn(e.Object.GetAnnotations()[infra.DependsOnAnnotation], e.Object.GetNamespace())
		for _, n := range nodes {
			if n.Kind == infra.TerraformKind {
				q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: n.Namespace, Name: n.Name}})
			}
		}
	},
}

// standingChanged passes what a dependant looks at, and a change of what the unit
// itself depends on.
var standingChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		a, b := e.ObjectOld.(*infra.Terraform), e.ObjectNew.(*infra.Terraform)
		return isReady(a) != isReady(b) || a.Generation != b.Generation ||
			a.Status.ObservedGeneration != b.Status.ObservedGeneration ||
			a.Annotations[infra.DependsOnAnnotation] != b.Annotations[infra.DependsOnAnnotation] ||
			a.Status.LastAppliedRevision != b.Status.LastAppliedRevision ||
			a.Status.LastPlannedRevision != b.Status.LastPlannedRevision ||
			!apiequality.Semantic.DeepEqual(a.Status.Outputs, b.Status.Outputs)
	},
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// artifactChanged passes a source whose artifact is another one.
var artifactChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		type source interface{ GetArtifact() *meta.Artifact }
		a, b := e.ObjectOld.(source).GetArtifact(), e.ObjectNew.(source).GetArtifact()
		if a == nil || b == nil {
			return a != b
		}
		return a.Revision != b.Revision || a.Digest != b.Digest || a.URL != b.URL
	},
}

// contentChanged leaves out the resync of a watch, which changes nothing.
var contentChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion()
	},
}
