// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"context"
	"fmt"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/dependency"
	"github.com/terrace-dev/terrace/internal/reference"
)

// Register adds the controller to a manager, with a watch for everything that a
// unit waits for: its source, what it depends on, and the data it refers to. The
// objects that it applies are watched by the View of their cluster.
func (c *Controller) Register(mgr ctrl.Manager) error {
	ctx := context.Background()
	err := dependency.Index(ctx, mgr, &kustomizev1.Kustomization{}, map[string]func(*kustomizev1.Kustomization) []string{
		dependency.BySource:     func(ks *kustomizev1.Kustomization) []string { return []string{sourceOf(ks)} },
		dependency.ByReference:  c.referenceKeys,
		dependency.ByDependency: func(ks *kustomizev1.Kustomization) []string { return dependency.Keys(dependencies(ks)) },
	})
	if err != nil {
		return err
	}
	ctl, err := ctrl.NewControllerManagedBy(mgr).
		Named("kustomization").
		WithOptions(controller.Options{MaxConcurrentReconciles: c.opts.Concurrent}).
		For(&kustomizev1.Kustomization{}, builder.WithPredicates(predicate.Or[client.Object](predicate.LabelChangedPredicate{},
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&kustomizev1.Kustomization{}, c.dependants(), builder.WithPredicates(dependency.ContentChanged)).
		Watches(&infra.Terraform{}, dependency.Left(kustomizev1.KustomizationKind)).
		Watches(&sourcev1.GitRepository{}, c.units.Wake(dependency.BySource, sourcev1.GitRepositoryKind), builder.WithPredicates(dependency.ArtifactChanged)).
		Watches(&sourcev1.OCIRepository{}, c.units.Wake(dependency.BySource, sourcev1.OCIRepositoryKind), builder.WithPredicates(dependency.ArtifactChanged)).
		Watches(&sourcev1.Bucket{}, c.units.Wake(dependency.BySource, sourcev1.BucketKind), builder.WithPredicates(dependency.ArtifactChanged)).
		Watches(&v1alpha1.Policy{}, c.units.WakeNamespace(c.opts.Namespace), builder.WithPredicates(dependency.ContentChanged)).
		Watches(&sourcev1.ExternalArtifact{}, c.units.Wake(dependency.BySource, sourcev1.ExternalArtifactKind), builder.WithPredicates(dependency.ArtifactChanged)).
		WatchesMetadata(&corev1.Secret{}, c.units.Wake(dependency.ByReference, reference.Secret), builder.WithPredicates(dependency.ContentChanged)).
		WatchesMetadata(&corev1.ConfigMap{}, c.units.Wake(dependency.ByReference, reference.ConfigMap), builder.WithPredicates(dependency.ContentChanged)).
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
		return c.units.Needing(ctx, dependency.ByDependency, dependency.Key(kind, namespace, name))
	})
	return nil
}

func (c *Controller) referenceKeys(ks *kustomizev1.Kustomization) []string {
	refs, _ := c.uses(ks)
	var keys []string
	for _, r := range refs {
		keys = append(keys, dependency.Key(r.Kind, r.Namespace, r.Name))
	}
	return keys
}

// dependants wakes the units that depend on the one of the event: a readyExpr may look
// at anything of it. It drops what is remembered of one that is gone.
func (c *Controller) dependants() handler.EventHandler {
	wake := c.units.Wake(dependency.ByDependency, kustomizev1.KustomizationKind)
	return handler.Funcs{
		CreateFunc:  wake.Create,
		UpdateFunc:  wake.Update,
		GenericFunc: wake.Generic,
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q dependency.Queue) {
			wake.Delete(ctx, e, q)
			dependency.Enqueue(q, kustomizev1.KustomizationKind, dependencies(e.Object.(*kustomizev1.Kustomization)))
			c.writer.Forget(e.Object.GetUID())
			name := types.NamespacedName{Namespace: e.Object.GetNamespace(), Name: e.Object.GetName()}
			c.memory.gone(name, e.Object.GetUID())
			c.claims.withdraw(name)
		},
	}
}
