// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/approval"
	"github.com/terrace-dev/terrace/internal/kube"
	"github.com/terrace-dev/terrace/internal/plan"
	"github.com/terrace-dev/terrace/internal/status"
)

// approve holds a unit that asks for approvals until its plan has one. What is applied
// is what was approved, by content: if it is another by then, that one waits. The plan is made anew at each look for that.
func (c *Controller) approve(ctx context.Context, cy *cycle) (status.Result, error) {
	ks, m := cy.ks, cy.mem
	if ks.Annotations[v1alpha1.ApproveAnnotation] != v1alpha1.ApproveManual {
		m.approved = ""
		return status.Next, nil
	}
	if m.approved == cy.inputs && m.attempt != nil {
		return status.Next, nil // on its way already
	}
	if m.applied == cy.inputs {
		if drifted, err := c.drifted(ctx, cy); err != nil || !drifted {
			return status.Next, err
		}
	}
	p, err := c.plan(ctx, cy)
	if err != nil {
		return status.Result{}, err
	}
	if !p.HasChanges() {
		return status.Next, nil
	}
	d := approval.Decide(approval.Request{
		ApprovedPlan: ks.Annotations[v1alpha1.ApprovedPlanAnnotation],
		Pending:      &approval.Pending{ID: p.ID, Digest: p.Digest},
	})
	if d.Approved {
		m.approved = cy.inputs
		return status.Next, nil
	}
	message := fmt.Sprintf("plan %s waits: %s; approve it with `terrace approve ks/%s -n %s`, or annotate %s: %s",
		p.ID, p.Counts, ks.Name, ks.Namespace, v1alpha1.ApprovedPlanAnnotation, p.ID)
	cy.tellOnce(corev1.EventTypeNormal, v1alpha1.ReasonPlanWaiting, message)
	// Nobody makes progress until a person does: Reconciling would make tools time out.
	mark(ks, meta.ReadyCondition, metav1.ConditionUnknown, v1alpha1.ReasonPlanWaiting, message)
	conditions.Delete(ks, meta.ReconcilingCondition)
	conditions.Delete(ks, meta.StalledCondition)
	ks.Status.ObservedGeneration = ks.Generation
	return status.Wait(told, "", ks.GetRequeueAfter()), nil
}

// plan tells what an apply of the build would do, prunes included. It writes nothing.
func (c *Controller) plan(ctx context.Context, cy *cycle) (*plan.Plan, error) {
	b, err := c.rebuild(ctx, cy)
	if err != nil {
		return nil, err
	}
	opts := c.applyOptions(cy)
	var all []plan.ObjectChange
	for _, stage := range kube.Stages(b.objects, c.opts.CustomStage) {
		changes, err := cy.client.Diff(ctx, stage, opts)
		if err != nil {
			return nil, hide(b.secrets, err)
		}
		for _, ch := range changes {
			if oc, ok := ch.Planned(); ok {
				all = append(all, oc)
			}
		}
	}
	if cy.ks.Spec.Prune {
		stale := without(union(keysOf(cy.ks.Status.Inventory), cy.mem.begun), slices.Collect(maps.Keys(cy.mem.built.desired)))
		going, _ := c.prunable(ctx, cy, stale)
		for _, key := range going {
			r, err := cy.cluster.View.Lookup(ctx, cy.client, key)
			if err != nil {
				return nil, err
			}
			if r != nil && r.Unit == cy.name {
				all = append(all, plan.ObjectChange{Action: plan.ActionDelete, Before: r.Object().Object})
			}
		}
	}
	p, err := plan.FromObjects(all, plan.Inputs{Revision: cy.artifact.Revision, Key: c.key, Sensitive: b.secrets})
	if err != nil {
		return nil, fmt.Errorf("make plan: %w", err)
	}
	return p, nil
}
