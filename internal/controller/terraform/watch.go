// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"fmt"
	"slices"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
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
	"github.com/terrace-dev/terrace/internal/graph"
)

// Register adds the controller to a manager, with a watch for everything that a
// unit waits for: its source, what it depends on, the data it refers to, its output
// Secret, and its runs.
func (c *Controller) Register(mgr ctrl.Manager) error {
	ctx := context.Background()
	err := dependency.Index(ctx, mgr, &infra.Terraform{}, map[string]func(*infra.Terraform) []string{
		dependency.BySource:     func(tf *infra.Terraform) []string { return []string{sourceKey(tf)} },
		dependency.ByReference:  referenceKeys,
		dependency.ByDependency: func(tf *infra.Terraform) []string { return dependency.Keys(dependencies(tf)) },
	})
	if err != nil {
		return err
	}
	ctl, err := ctrl.NewControllerManagedBy(mgr).
		Named("terraform").
		WithOptions(controller.Options{MaxConcurrentReconciles: c.opts.Concurrent}).
		For(&infra.Terraform{}, builder.WithPredicates(predicate.Or[client.Object](
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, predicate.LabelChangedPredicate{}))).
		Watches(&infra.Terraform{}, c.dependants(), builder.WithPredicates(standingChanged)).
		Watches(&kustomizev1.Kustomization{}, dependency.Left(infra.TerraformKind)).
		Watches(&sourcev1.GitRepository{}, c.units.Wake(dependency.BySource, sourcev1.GitRepositoryKind), builder.WithPredicates(dependency.ArtifactChanged)).
		Watches(&sourcev1.OCIRepository{}, c.units.Wake(dependency.BySource, sourcev1.OCIRepositoryKind), builder.WithPredicates(dependency.ArtifactChanged)).
		Watches(&sourcev1.Bucket{}, c.units.Wake(dependency.BySource, sourcev1.BucketKind), builder.WithPredicates(dependency.ArtifactChanged)).
		WatchesMetadata(&corev1.Secret{}, c.units.Wake(dependency.ByReference, kindSecret), builder.WithPredicates(dependency.ContentChanged)).
		WatchesMetadata(&corev1.ConfigMap{}, c.units.Wake(dependency.ByReference, kindConfigMap), builder.WithPredicates(dependency.ContentChanged)).
		Watches(&v1alpha1.Policy{}, c.units.WakeNamespace(c.opts.Namespace), builder.WithPredicates(dependency.ContentChanged)).
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
		return c.units.Needing(ctx, dependency.ByDependency, dependency.Key(kind, namespace, name))
	})
	return nil
}

func sourceKey(tf *infra.Terraform) string {
	ns := tf.Spec.SourceRef.Namespace
	if ns == "" {
		ns = tf.Namespace
	}
	return dependency.Key(tf.Spec.SourceRef.Kind, ns, tf.Spec.SourceRef.Name)
}

// referenceKeys are what a unit reads and the Secret that it writes.
func referenceKeys(tf *infra.Terraform) []string {
	var keys []string
	for _, u := range uses(tf) {
		keys = append(keys, dependency.Key(u.Kind, u.Namespace, u.Name))
	}
	if w := tf.Spec.WriteOutputsToSecret; w != nil {
		keys = append(keys, dependency.Key(kindSecret, tf.Namespace, w.Name))
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

// dependants wakes the units that depend on the one of the event, and, when one is
// deleted or depends on others from now on, those that it depended on: their own
// deletion may have waited for it.
func (c *Controller) dependants() handler.EventHandler {
	wake := c.units.Wake(dependency.ByDependency, infra.TerraformKind)
	type queue = dependency.Queue
	wakeOld := func(before, now []graph.Node, q queue) {
		dependency.Enqueue(q, infra.TerraformKind, slices.DeleteFunc(before, func(n graph.Node) bool { return slices.Contains(now, n) }))
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
		},
	}
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
