// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/approval"
	"github.com/terrace-dev/terrace/internal/kube"
	"github.com/terrace-dev/terrace/internal/plan"
	"github.com/terrace-dev/terrace/internal/policy"
	"github.com/terrace-dev/terrace/internal/status"
)

// approve holds a unit whose plan somebody or something has to agree to, until it is
// agreed: by a person (terrace.dev/approve: manual), by its counts (terrace.dev/auto-approve), by
// the time (terrace.dev/apply-window), by policies. What is applied is what was approved, by
// content: if it is another by then, that one waits. The plan is made anew at each look for that.
func (c *Controller) approve(ctx context.Context, cy *cycle) (status.Result, error) {
	ks, m := cy.ks, cy.mem
	unit := policy.Unit{Kind: kustomizev1.KustomizationKind, Namespace: ks.Namespace, Name: ks.Name, Labels: ks.Labels}
	policies, err := c.opts.Policies.For(ctx, unit)
	if err != nil {
		return status.Result{}, fmt.Errorf("find the policies: %w", err)
	}
	request := approval.Request{
		ApprovePlan:    infra.ApprovePlanAuto,
		ApprovedPlan:   ks.Annotations[v1alpha1.ApprovedPlanAnnotation],
		AutoApprove:    ks.Annotations[v1alpha1.AutoApproveAnnotation],
		Window:         ks.Annotations[v1alpha1.ApplyWindowAnnotation],
		Now:            c.opts.Clock.Now(),
		PolicyOverride: ks.Annotations[v1alpha1.PolicyOverrideAnnotation],
	}
	if ks.Annotations[v1alpha1.ApproveAnnotation] == v1alpha1.ApproveManual {
		request.ApprovePlan = ""
	} else if request.AutoApprove == "" && request.Window == "" && len(policies) == 0 {
		m.approved = nil
		c.judged.Delete(cy.name)
		return status.Next, nil
	}
	inputs := cy.inputs + policy.Digest(policies) + labels.Set(ks.Labels).String()
	if m.approved != nil && m.approved.inputs == inputs && m.attempt != nil && m.attempt.failed == nil && m.attempt.intent != nil {
		return status.Next, nil // being written already
	}
	m.approved = nil
	if m.applied == cy.inputs {
		if drifted, err := c.drifted(ctx, cy); err != nil || !drifted {
			return status.Next, err
		}
	}
	p, objects, err := c.plan(ctx, cy)
	if err != nil {
		return status.Result{}, err
	}
	c.judged.Delete(cy.name)
	if !p.HasChanges() {
		return status.Next, nil
	}
	if len(policies) > 0 {
		if request.Policy, err = c.judge(ctx, cy, policies, policy.Input{Unit: unit, Objects: objects}); err != nil {
			return status.Result{}, err
		}
	}
	request.Pending = &approval.Pending{ID: p.ID, Digest: p.Digest, Counts: p.Counts}
	d := approval.Decide(request)
	if d.Approved {
		ok := &approvedPlan{inputs: inputs, id: p.ID, digest: p.Digest, counts: p.Counts}
		denied := ""
		if d.Overridden {
			denied = request.Policy.Denied
		}
		if err := c.decided(ctx, cy, ok, d.By, denied); err != nil {
			return status.Result{}, err
		}
		m.approved, m.planned = ok, ""
		return status.Next, nil
	}
	if err := c.planned(ctx, cy, p); err != nil {
		return status.Result{}, err
	}
	return c.held(cy, p, d), nil
}

// judge evaluates the policies over what a plan does to objects, and keeps what they say.
func (c *Controller) judge(ctx context.Context, cy *cycle, policies []*policy.Policy, in policy.Input) (approval.Policy, error) {
	b, err := c.rebuild(ctx, cy)
	if err != nil {
		return approval.Policy{}, err
	}
	in.Mask = masker(b.secrets)
	summary, err := policy.Check(ctx, policies, in)
	if err != nil {
		return approval.Policy{}, fmt.Errorf("evaluate the policies: %w", err)
	}
	c.judged.Store(cy.name, summary.Results())
	if len(summary.Warnings) > 0 {
		cy.tellOnce(corev1.EventTypeWarning, v1alpha1.ReasonPolicyWarning, policy.Sentence(summary.Warnings))
	}
	return approval.Policy{Denied: policy.Sentence(summary.Denied), NeedsApproval: policy.Sentence(summary.NeedsApproval)}, nil
}

// Judged is what policies say of the plan of a unit that was looked at last, if that had
// changes: of the plan that waits, where one does.
func (c *Controller) Judged(name types.NamespacedName) []plan.PolicyResult {
	results, _ := c.judged.Load(name)
	out, _ := results.([]plan.PolicyResult)
	return out
}

// held says what a plan waits for.
func (c *Controller) held(cy *cycle, p *plan.Plan, d approval.Decision) status.Result {
	ks := cy.ks
	state, reason, after := metav1.ConditionUnknown, v1alpha1.ReasonPlanWaiting, ks.GetRequeueAfter()
	message := planPrefix(p) + fmt.Sprintf("waits: %s; approve it with `terrace approve ks/%s -n %s`, or annotate %s: %s",
		p.Counts, ks.Name, ks.Namespace, v1alpha1.ApprovedPlanAnnotation, p.ID)
	switch d.Obstacle {
	case approval.PolicyDenies:
		state, reason = metav1.ConditionFalse, v1alpha1.ReasonPolicyDenied
		message = planPrefix(p) + fmt.Sprintf("(%s) is not applied: %s", p.Counts, d.Why)
	case approval.WindowShut:
		reason = v1alpha1.ReasonOutsideWindow
		message = planPrefix(p) + fmt.Sprintf("(%s) waits: %s", p.Counts, d.Why)
		if !d.WaitUntil.IsZero() {
			after = min(after, max(d.WaitUntil.Sub(c.opts.Clock.Now()), time.Second))
		}
	default:
		if ks.Annotations[v1alpha1.ApproveAnnotation] != v1alpha1.ApproveManual {
			message += ": " + d.Why
		}
	}
	cy.tellOnce(corev1.EventTypeNormal, reason, message)
	// Nobody makes progress until a person does: Reconciling would make tools time out.
	mark(ks, meta.ReadyCondition, state, reason, message)
	conditions.Delete(ks, meta.ReconcilingCondition)
	conditions.Delete(ks, meta.StalledCondition)
	ks.Status.ObservedGeneration = ks.Generation
	return status.Wait(told, "", after)
}

// plan tells what an apply of the build would do, prunes included, and what it does to each
// object, those that stay as they are included. It writes nothing.
func (c *Controller) plan(ctx context.Context, cy *cycle) (*plan.Plan, []plan.ObjectChange, error) {
	b, err := c.rebuild(ctx, cy)
	if err != nil {
		return nil, nil, err
	}
	built := map[kube.Key]*unstructured.Unstructured{}
	for _, o := range b.objects {
		built[kube.KeyOf(o)] = o
	}
	opts := c.applyOptions(cy)
	var all, same []plan.ObjectChange
	for _, stage := range kube.Stages(b.objects, c.opts.CustomStage) {
		changes, err := cy.client.Diff(ctx, stage, opts)
		if err != nil {
			return nil, nil, hide(b.secrets, err)
		}
		for _, ch := range changes {
			if oc, ok := ch.Planned(); ok {
				all = append(all, oc)
			} else {
				same = append(same, unchanged(ch, built))
			}
		}
	}
	if cy.ks.Spec.Prune {
		stale := without(union(keysOf(cy.ks.Status.Inventory), cy.mem.begun), slices.Collect(maps.Keys(cy.mem.built.desired)))
		going, _ := c.prunable(ctx, cy, stale)
		for _, key := range going {
			r, err := cy.cluster.View.Lookup(ctx, cy.client, key)
			if err != nil {
				return nil, nil, err
			}
			if r != nil && r.Unit == cy.name {
				all = append(all, plan.ObjectChange{Action: plan.ActionDelete, Before: r.Object().Object})
			}
		}
	}
	p, err := plan.FromObjects(all, plan.Inputs{Revision: cy.artifact.Revision, Key: c.key, Sensitive: b.secrets})
	if err != nil {
		return nil, nil, fmt.Errorf("make plan: %w", err)
	}
	return p, append(all, same...), nil
}

// unchanged is an object that stays as it is, or as somebody else wants it.
func unchanged(ch kube.Change, built map[kube.Key]*unstructured.Unstructured) plan.ObjectChange {
	o := cmp.Or(ch.After, ch.Before, built[ch.Key])
	if o == nil {
		return plan.ObjectChange{Action: plan.ActionNoop}
	}
	return plan.ObjectChange{Action: plan.ActionNoop, Before: o.Object, After: o.Object}
}
