// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/kube"
	"github.com/terrace-dev/terrace/internal/reference"
	"github.com/terrace-dev/terrace/internal/status"
)

// finalize deletes what the unit has applied, as its deletion policy says, and lets
// the object go.
func (c *Controller) finalize(ctx context.Context, cy *cycle) (ctrl.Result, error) {
	ks := cy.ks
	if !controllerutil.ContainsFinalizer(ks, kustomizev1.KustomizationFinalizer) {
		return ctrl.Result{}, nil
	}
	if err := c.restore(cy); err != nil {
		return ctrl.Result{}, err
	}
	c.conclude(ctx, cy.mem.attempt, audit.Cancelled, "the unit was deleted")
	cy.mem.attempt = nil
	keys := union(keysOf(ks.Status.Inventory), cy.mem.begun)
	if deletesObjects(ks) && len(keys) > 0 {
		names, err := c.leavingDependants(ctx, cy)
		if err != nil {
			return ctrl.Result{}, err
		}
		if len(names) > 0 {
			progress(ks, "deletion waits for "+strings.Join(names, ", ")+", which depend on it")
			return c.commit(ctx, cy, ks.GetRetryInterval())
		}
		wait, err := c.deleteAll(ctx, cy, keys)
		if errors.Is(err, reference.ErrChanged) {
			return status.Again, nil
		}
		if err != nil {
			c.failed(cy, meta.PruneFailedReason, "pruning for deleted resource failed: "+err.Error())
			return c.commit(ctx, cy, ks.GetRetryInterval())
		}
		if wait > 0 {
			return c.commit(ctx, cy, wait)
		}
	}
	controllerutil.RemoveFinalizer(ks, kustomizev1.KustomizationFinalizer)
	if _, err := c.writer.PatchMeta(ctx, cy.base, ks); err != nil {
		return status.RetryConflict(err)
	}
	c.claims.withdraw(cy.name)
	c.targets.forget(cy.name)
	c.judged.Delete(cy.name)
	if err := c.journal.remove(cy.name); err != nil {
		return ctrl.Result{}, err
	}
	c.tell(cy)
	return ctrl.Result{}, nil
}

const (
	// leavingTimeout bounds the wait for units that are being deleted and whose objects are
	// in a namespace of this one, leavingGrace that for units which may be deleted next, and
	// leavingAgain is when they are looked at again: they tell only who they depend on.
	leavingTimeout = 5 * time.Minute
	leavingGrace   = 10 * time.Second
	leavingAgain   = time.Second
)

// deletesObjects tells whether the objects go with the unit. Suspended means hands off.
func deletesObjects(ks *kustomizev1.Kustomization) bool {
	if ks.Spec.Suspend {
		return false
	}
	switch ks.GetDeletionPolicy() {
	case kustomizev1.DeletionPolicyMirrorPrune:
		return ks.Spec.Prune
	case kustomizev1.DeletionPolicyDelete, kustomizev1.DeletionPolicyWaitForTermination:
		return true
	}
	return false
}

// deleteAll deletes the unit's objects; wait is when to look again because something
// is still on its way.
func (c *Controller) deleteAll(ctx context.Context, cy *cycle, keys []kube.Key) (wait time.Duration, err error) {
	if cy.cluster, cy.target, cy.client, err = c.targets.of(ctx, cy.ks); err != nil {
		return 0, err
	}
	exists, err := c.accountExists(ctx, cy)
	if err != nil {
		return 0, err
	}
	if !exists {
		cy.event(corev1.EventTypeWarning, meta.PruneFailedReason, fmt.Sprintf("the account %s is gone, so these objects stay:\n%s", c.account(cy.ks), subjects(keys)))
		return 0, nil
	}
	if c.awaitHandOver(ctx, cy) {
		return handOver, nil
	}
	if c.leavingIn(ctx, cy, keys) {
		return leavingAgain, nil
	}
	going, kept := c.prunable(ctx, cy, keys)
	if len(kept) > 0 {
		cy.event(corev1.EventTypeWarning, meta.PruneFailedReason, "these objects stay, because others live in them:\n"+subjects(kept))
	}
	changes, err := c.pruned(ctx, cy, going, audit.Itself, "the unit was deleted")
	if err != nil {
		return 0, err
	}
	var lines []string
	var ending []string
	for _, ch := range changes {
		if ch.Action != kube.Deleted {
			continue
		}
		lines = append(lines, ch.String())
		if r, err := cy.cluster.View.Lookup(ctx, cy.client, ch.Key); err == nil && r != nil && r.Unit == cy.name {
			ending = append(ending, kube.Subject(ch.Key.ID()))
		}
	}
	if len(ending) > 0 && cy.ks.GetDeletionPolicy() == kustomizev1.DeletionPolicyWaitForTermination {
		left := cy.ks.GetTimeout() - c.opts.Clock.Since(cy.ks.DeletionTimestamp.Time)
		if left > 0 {
			progress(cy.ks, "Waiting for the termination of "+strings.Join(ending, ", "))
			return left, nil
		}
		cy.event(corev1.EventTypeWarning, meta.PruneFailedReason, "failed to wait for resources termination: "+strings.Join(ending, ", "))
	}
	if len(lines) > 0 {
		cy.event(corev1.EventTypeNormal, meta.ReconciliationSucceededReason, strings.Join(lines, "\n"))
	}
	return 0, nil
}

// awaitHandOver tells whether units of the same source have yet to say what they want:
// a unit that was renamed in a commit is deleted while its successor takes over.
func (c *Controller) awaitHandOver(ctx context.Context, cy *cycle) bool {
	key := types.NamespacedName{Namespace: sourceNamespace(cy.ks), Name: cy.ks.Spec.SourceRef.Name}
	art, err := c.sourceArtifact(ctx, cy.ks.Spec.SourceRef.Kind, key)
	if err != nil || art == nil || !cy.ks.DeletionTimestamp.Add(handOver).After(c.opts.Clock.Now()) {
		if err != nil && !apierrors.IsNotFound(err) {
			log(ctx).Error(err, "look up the source of a unit that is deleted")
		}
		return false
	}
	c.claims.looked(cy.name, sourceOf(cy.ks), art.Revision, cy.ks.Generation, c.Wake)
	_, missing := c.claims.missing(cy.name, sourceOf(cy.ks), art.Revision, c.siblings(ctx, cy))
	return missing
}

func subjects(keys []kube.Key) string {
	var lines []string
	for _, k := range keys {
		lines = append(lines, kube.Subject(k.ID()))
	}
	return strings.Join(lines, "\n")
}
