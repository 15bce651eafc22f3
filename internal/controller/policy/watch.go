// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/dependency"
)

// Register adds the controller to a manager, with a watch of the sources of policies. The
// status that it writes is what wakes the units: their controllers watch Policies.
func (c *Controller) Register(mgr ctrl.Manager) error {
	err := dependency.Index(context.Background(), mgr, &v1alpha1.Policy{}, map[string]func(*v1alpha1.Policy) []string{
		dependency.BySource: sourceKeys,
	})
	if err != nil {
		return err
	}
	err = ctrl.NewControllerManagedBy(mgr).
		Named("policy").
		WithOptions(controller.Options{MaxConcurrentReconciles: c.opts.Concurrent}).
		For(&v1alpha1.Policy{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&sourcev1.GitRepository{}, c.users.Wake(dependency.BySource, sourcev1.GitRepositoryKind), builder.WithPredicates(dependency.ArtifactChanged)).
		Watches(&sourcev1.OCIRepository{}, c.users.Wake(dependency.BySource, sourcev1.OCIRepositoryKind), builder.WithPredicates(dependency.ArtifactChanged)).
		Watches(&sourcev1.Bucket{}, c.users.Wake(dependency.BySource, sourcev1.BucketKind), builder.WithPredicates(dependency.ArtifactChanged)).
		Watches(&sourcev1.ExternalArtifact{}, c.users.Wake(dependency.BySource, sourcev1.ExternalArtifactKind), builder.WithPredicates(dependency.ArtifactChanged)).
		Complete(c)
	if err != nil {
		return fmt.Errorf("build policy controller: %w", err)
	}
	return nil
}

// sourceKeys names the source of a policy for the index.
func sourceKeys(obj *v1alpha1.Policy) []string {
	if s := obj.Spec.Source; s != nil {
		return []string{dependency.Key(s.Kind, obj.Namespace, s.Name)}
	}
	return nil
}
