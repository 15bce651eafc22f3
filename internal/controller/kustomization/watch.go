// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"context"
	"fmt"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
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
	"github.com/terrace-dev/terrace/internal/reference"
)

// Indexes of units by what they need; the values are "Kind/namespace/name".
const (
	indexSource     = ".index.source"
	indexReference  = ".index.reference"
	indexDependency = ".index.dependency"
)

// Register adds the controller to a manager, with a watch for everything that a
// unit waits for: its source, what it depends on, and the data it refers to. The
// objects that it applies are watched by the View of their cluster.
func (c *Controller) Register(mgr ctrl.Manager) error {
	ctx := context.Background()
	for index, keys := range map[string]func(*kustomizev1.Kustomization) []string{
		indexSource:     func(ks *kustomizev1.Kustomization) []string { return []string{sourceOf(ks)} },
		indexReference:  c.referenceKeys,
		indexDependency: dependencyKeys,
	} {
		err := mgr.GetFieldIndexer().IndexField(ctx, &kustomizev1.Kustomization{}, index, func(o client.Object) []string {
			return keys(o.(*kustomizev1.Kustomization))
		})
		if err != nil {
			return fmt.Errorf("index Kustomizations by %s: %w", index, err)
		}
	}
	ctl, err := ctrl.NewControllerManagedBy(mgr).
		Named("kustomization").
		WithOptions(controller.Options{MaxConcurrentReconciles: c.opts.Concurrent}).
		For(&kustomizev1.Kustomization{}, builder.WithPredicates(predicate.Or[client.Object](
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&kustomizev1.Kustomization{}, c.dependants(), builder.WithPredicates(contentChanged)).
		Watches(&infra.Terraform{}, leaving).
		Watches(&sourcev1.GitRepository{}, c.by(indexSource, sourcev1.GitRepositoryKind), builder.WithPredicates(artifactChanged)).
		Watches(&sourcev1.OCIRepository{}, c.by(indexSource, sourcev1.OCIRepositoryKind), builder.WithPredicates(artifactChanged)).
		Watches(&sourcev1.Bucket{}, c.by(indexSource, sourcev1.BucketKind), builder.WithPredicates(artifactChanged)).
		Watches(&sourcev1.ExternalArtifact{}, c.by(indexSource, sourcev1.ExternalArtifactKind), builder.WithPredicates(artifactChanged)).
		WatchesMetadata(&corev1.Secret{}, c.by(indexReference, reference.Secret), builder.WithPredicates(contentChanged)).
		WatchesMetadata(&corev1.ConfigMap{}, c.by(indexReference, reference.ConfigMap), builder.WithPredicates(contentChanged)).
		WatchesRawSource(source.Channel(c.wakes.out, &handler.EnqueueRequestForObject{})).
		Build(c)
	if err != nil {
		return fmt.Errorf("build kustomization controller: %w", err)
	}
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		<-ctx.Done()
		c.targets.close()
		return nil
	})); err != nil {
		return fmt.Errorf("add the end of the cluster watches: %w", err)
	}
	c.objects = dependency.NewObjects(c.opts.Client, mgr.GetCache(), ctl, func(ctx context.Context, kind, namespace, name string) []reconcile.Request {
		return c.indexed(ctx, indexDependency, objectKey(kind, namespace, name))
	})
	return nil
}

func objectKey(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }

func (c *Controller) referenceKeys(ks *kustomizev1.Kustomization) []string {
	refs, _ := c.uses(ks)
	var keys []string
	for _, r := range refs {
		keys = append(keys, objectKey(r.Kind, r.Namespace, r.Name))
	}
	return keys
}

func dependencyKeys(ks *kustomizev1.Kustomization) []string {
	var keys []string
	for _, n := range dependencies(ks) {
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
	var list kustomizev1.KustomizationList
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

// dependants wakes the units that depend on the one of the event: a readyExpr may look
// at anything of it. It drops what is remembered of one that is gone.
func (c *Controller) dependants() handler.EventHandler {
	wake := c.by(indexDependency, kustomizev1.KustomizationKind)
	return handler.Funcs{
		CreateFunc:  wake.Create,
		UpdateFunc:  wake.Update,
		GenericFunc: wake.Generic,
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			wake.Delete(ctx, e, q)
			addAll(q, dependencies(e.Object.(*kustomizev1.Kustomization)))
			c.writer.Forget(e.Object.GetUID())
			name := types.NamespacedName{Namespace: e.Object.GetNamespace(), Name: e.Object.GetName()}
			c.memory.gone(name, e.Object.GetUID())
			c.claims.withdraw(name)
		},
	}
}

// leaving wakes the units that a Terraform unit depended on: their deletion may have
// waited for it.
var leaving = handler.Funcs{
	DeleteFunc: func(_ context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		nodes, _ := graph.ParseDependsOn(e.Object.GetAnnotations()[infra.DependsOnAnnotation], e.Object.GetNamespace())
		addAll(q, nodes)
	},
}

func addAll(q workqueue.TypedRateLimitingInterface[reconcile.Request], nodes []graph.Node) {
	for _, n := range nodes {
		if n.Kind == kustomizev1.KustomizationKind {
			q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: n.Namespace, Name: n.Name}})
		}
	}
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
