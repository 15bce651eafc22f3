// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"context"
	"fmt"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/runtime/conditions"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/dependency"
	"github.com/terrace-dev/terrace/internal/kube"
)

// siblings are the units of a unit's source that are at work, with the generations of
// their specs.
func (c *Controller) siblings(ctx context.Context, cy *cycle) map[types.NamespacedName]int64 {
	var list kustomizev1.KustomizationList
	if err := c.opts.Client.List(ctx, &list, client.MatchingFields{dependency.BySource: sourceOf(cy.ks)}); err != nil {
		log(ctx).Error(err, "list the units of a source")
		return nil
	}
	siblings := map[types.NamespacedName]int64{}
	for i := range list.Items {
		ks := &list.Items[i]
		if ks.Spec.Suspend || !ks.DeletionTimestamp.IsZero() || conditions.IsStalled(ks) {
			continue
		}
		siblings[client.ObjectKeyFromObject(ks)] = ks.Generation
	}
	return siblings
}

// inhabited says why a namespace must not be pruned, "" if it may, or if the object is
// no namespace.
func (c *Controller) inhabited(ctx context.Context, cy *cycle, k kube.Key, stale []kube.Key) string {
	if k.Kind.Group != "" || k.Kind.Kind != "Namespace" {
		return ""
	}
	if cy.cluster == c.targets.local {
		if k.Name == c.opts.Namespace {
			return "Terrace runs in it"
		}
		if why := c.unitsIn(ctx, cy, k.Name, stale); why != "" {
			return why
		}
	}
	for _, key := range cy.cluster.View.Owned(func(key kube.Key, r *kube.Record) bool {
		return key.Namespace == k.Name && r.Unit != cy.name && r.Unit.Name != "" && !r.Deleting
	}) {
		return fmt.Sprintf("it still holds %s of another unit", kube.Subject(key.ID()))
	}
	return ""
}

// leavingIn tells whether units that are being deleted too still have objects in a
// namespace of the unit: they go first. Who deletes all of them does so one after the
// other, so for a moment any unit counts.
func (c *Controller) leavingIn(ctx context.Context, cy *cycle, keys []kube.Key) bool {
	age := c.opts.Clock.Since(cy.ks.DeletionTimestamp.Time)
	if age >= leavingTimeout {
		return false
	}
	for _, k := range keys {
		if k.Kind.Group != "" || k.Kind.Kind != "Namespace" {
			continue
		}
		units := map[types.NamespacedName]bool{}
		cy.cluster.View.Owned(func(key kube.Key, r *kube.Record) bool {
			if key.Namespace == k.Name && r.Unit != cy.name && r.Unit.Name != "" {
				units[r.Unit] = true
			}
			return false
		})
		for name := range units {
			var other kustomizev1.Kustomization
			if err := c.opts.Client.Get(ctx, name, &other); err == nil && (!other.DeletionTimestamp.IsZero() || age < leavingGrace) {
				return true
			}
		}
	}
	return false
}

// leavingDependants names units that depend on this one and are being deleted too: what
// stands on something goes before it. Others do not hold a deletion up, as in Flux.
func (c *Controller) leavingDependants(ctx context.Context, cy *cycle) ([]string, error) {
	key := client.MatchingFields{dependency.ByDependency: dependency.Key(kustomizev1.KustomizationKind, cy.name.Namespace, cy.name.Name)}
	var names []string
	var units kustomizev1.KustomizationList
	if err := c.opts.Client.List(ctx, &units, key); err != nil {
		return nil, fmt.Errorf("list dependants: %w", err)
	}
	for i := range units.Items {
		if u := &units.Items[i]; !u.DeletionTimestamp.IsZero() && u.UID != cy.ks.UID {
			names = append(names, node(client.ObjectKeyFromObject(u)).String())
		}
	}
	var stacks infra.TerraformList
	if err := c.opts.Client.List(ctx, &stacks, key); err != nil {
		return nil, fmt.Errorf("list dependants: %w", err)
	}
	for i := range stacks.Items {
		if u := &stacks.Items[i]; !u.DeletionTimestamp.IsZero() {
			names = append(names, fmt.Sprintf("%s/%s/%s", infra.TerraformKind, u.Namespace, u.Name))
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	// In a circle each would wait for another, and there is no order to keep.
	if cycle, err := c.dependencyCycle(ctx, cy.ks); err != nil || cycle != "" {
		return nil, err
	}
	return names, nil
}

// unitsIn names a unit that lives in a namespace and does not go with it.
func (c *Controller) unitsIn(ctx context.Context, cy *cycle, namespace string, stale []kube.Key) string {
	going := map[kube.ID]bool{}
	for _, k := range stale {
		going[k.ID()] = true
	}
	// The cache may hold some namespaces only, and refuses to be asked for another.
	var units kustomizev1.KustomizationList
	if err := c.opts.Client.List(ctx, &units); err != nil {
		return err.Error()
	}
	for i := range units.Items {
		u := &units.Items[i]
		id := kube.ID{Namespace: u.Namespace, Name: u.Name}
		id.GroupKind.Group, id.GroupKind.Kind = kustomizev1.GroupVersion.Group, kustomizev1.KustomizationKind
		if !u.DeletionTimestamp.IsZero() || going[id] {
			continue
		}
		if u.Namespace == namespace {
			return fmt.Sprintf("it still holds Kustomization/%s/%s", u.Namespace, u.Name)
		}
		if u.Spec.KubeConfig != nil || client.ObjectKeyFromObject(u) == cy.name {
			continue
		}
		// After a start the kinds of other units are not watched yet.
		for _, key := range keysOf(u.Status.Inventory) {
			if key.Namespace == namespace {
				return fmt.Sprintf("it still holds %s of another unit", kube.Subject(key.ID()))
			}
		}
	}
	var stacks infra.TerraformList
	if err := c.opts.Client.List(ctx, &stacks); err != nil {
		return err.Error()
	}
	for i := range stacks.Items {
		u := &stacks.Items[i]
		if u.Namespace != namespace {
			continue
		}
		id := kube.ID{Namespace: u.Namespace, Name: u.Name}
		id.GroupKind.Group, id.GroupKind.Kind = infra.GroupVersion.Group, infra.TerraformKind
		if u.DeletionTimestamp.IsZero() && !going[id] {
			return fmt.Sprintf("it still holds Terraform/%s/%s", u.Namespace, u.Name)
		}
	}
	return ""
}
