// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/approval"
	"github.com/terrace-dev/terrace/internal/run"
	"github.com/terrace-dev/terrace/internal/status"
)

// proceed decides what is due and starts it, or says what is waited for.
func (c *Controller) proceed(ctx context.Context, cy *cycle) (status.Result, error) {
	tf := cy.tf
	f := facts{inputDigest: cy.inputDigest, revision: cy.artifact.Revision, now: c.opts.Clock.Now()}
	var err error
	if tf.Status.Plan.Pending != "" && tf.Status.LastPlan != nil {
		if f.havePlan, err = c.hasBlob(ctx, tf.Status.LastPlan.Blob); err != nil {
			return status.Result{}, err
		}
	}
	if tf.Status.Outputs != nil {
		if f.haveOutputs, err = c.hasBlob(ctx, tf.Status.Outputs.Digest); err != nil {
			return status.Result{}, err
		}
	}
	if tf.Status.Plan.Pending != "" {
		if _, f.policies, err = c.policiesOf(ctx, tf); err != nil {
			return status.Result{}, err
		}
	}
	if value, ok := importRequested(tf); ok && !c.refuseImport(cy) {
		log(ctx).Info("start import", "request", infra.ImportName(value), "revision", cy.artifact.Revision)
		return c.startImport(ctx, cy, value)
	}
	s := decide(tf, f)
	log(ctx).V(1).Info("decided", "action", s.do, "why", s.why, "revision", cy.artifact.Revision)
	switch s.do {
	case makePlan, checkDrift:
		log(ctx).Info("start "+string(s.do), "why", s.why, "revision", cy.artifact.Revision)
		return c.startPlan(ctx, cy, s)
	case applyPlan:
		log(ctx).Info("start apply", "plan", tf.Status.Plan.Pending, "approvedBy", s.by, "revision", cy.artifact.Revision)
		return c.startApply(ctx, cy, s)
	case awaitApproval:
		c.unchanged(cy)
		c.await(tf, s)
		return status.Wait("", "", s.after), nil
	case giveUp:
		res := status.Stalled(infra.ReasonRetryLimitReached, infra.MessageRetryLimitReached)
		res.After = s.after
		return res, nil
	default:
		c.unchanged(cy)
		c.rederive(cy)
		return status.Wait("", "", s.after), nil
	}
}

func (c *Controller) hasBlob(ctx context.Context, d string) (bool, error) {
	if d == "" {
		return false, nil
	}
	return c.opts.Blobs.Has(ctx, digest.Digest(d))
}

// await says that a plan waits. A plan that repairs drift keeps Ready False: the
// world is not what the spec asks for. So does one that a policy denies: somebody has to act.
func (c *Controller) await(tf *infra.Terraform, s step) {
	message := s.say
	switch s.obstacle {
	case approval.PolicyDenies:
		notReady(tf, v1alpha1.ReasonPolicyDenied, message)
		return
	case approval.WindowShut:
		mark(tf, infra.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonOutsideWindow, message)
		unmark(tf, infra.ConditionReconciling, infra.ConditionStalled)
		return
	}
	if tf.Status.Plan.IsDriftDetectionPlan && !tf.Spec.PlanOnly {
		notReady(tf, infra.ReasonDriftDetected, fmt.Sprintf("Drift detected: %s. %s", countsOf(tf.Status.LastPlan), message))
		return
	}
	awaiting(tf, message)
}

// unchanged records that a new revision, spec or request asks for nothing new of this unit.
func (c *Controller) unchanged(cy *cycle) {
	st := &cy.tf.Status
	if st.ReconciliationFailures == 0 && st.LastPlanAt != nil {
		st.LastPlannedRevision = cy.artifact.Revision
		st.LastPlannedGeneration = cy.tf.Generation
	}
	if at, ok := cy.tf.Annotations[infra.ReconcileRequestAnnotation]; ok {
		st.LastHandledReconcileAt = at
	}
}

// rederive makes Ready say again what the status knows, where it still tells of a
// wait that is over or of work that a restart took away.
func (c *Controller) rederive(cy *cycle) {
	tf := cy.tf
	st := &tf.Status
	if st.ReconciliationFailures > 0 || isReady(tf) {
		unmark(tf, infra.ConditionReconciling, infra.ConditionStalled)
		return
	}
	switch readyReason(tf) {
	case infra.ReasonDriftDetected, infra.ReasonCancelled, infra.ReasonHealthChecksFailed:
		return
	}
	switch {
	case st.LastPlanAt == nil:
		ready(tf, infra.ReasonPlannedNoChanges, "Nothing to do: planning is disabled")
	case st.LastAppliedRevision != "":
		ready(tf, infra.ReasonAppliedSucceed, "Applied successfully: "+st.LastAppliedRevision)
	default:
		ready(tf, infra.ReasonPlannedNoChanges, "Plan no changes: "+st.LastPlannedRevision)
	}
}

// startPlan hands a plan or a drift check to the executor. Nothing is written
// first: a plan that is lost with the process is made again.
func (c *Controller) startPlan(ctx context.Context, cy *cycle, s step) (status.Result, error) {
	tf := cy.tf
	in, err := c.load(ctx, cy)
	if err != nil {
		return c.inputsFailed(cy, err)
	}
	if cy.done != "" {
		// The executor forgets the run that has just been recorded when another one starts:
		// the record must not be lost to a conflict after that.
		done := cy.done
		if _, err := c.commit(ctx, cy, 0, nil); err != nil {
			return status.Result{}, err
		}
		if cy.done == done {
			return status.Wait("", "", 0), nil // the write lost a race; the newer object decides
		}
	}
	j := c.newJob(cy, in)
	if j.policies, j.policyDigest, err = c.policiesOf(ctx, tf); err != nil {
		return status.Result{}, err
	}
	kind := run.Plan
	if s.do == checkDrift {
		kind = run.Drift
	}
	j.drift = s.do == checkDrift
	st := c.start(cy, j, kind, fmt.Sprintf("plan-%s-%d", cy.inputDigest, c.started.Add(1)), c.plan(j))
	if id := lockToBreak(tf); id != "" {
		mark(tf, infra.ConditionStateLocked, metav1.ConditionFalse, infra.ReasonForceUnlock, "Removing the state lock "+id)
	}
	if st.Phase != run.Done { // else Terrace is stopping, and the next process plans
		underWay(tf, st)
	}
	return status.Wait("", "", 0), nil
}

// inputsFailed records inputs that cannot be put together. A change of what they
// are read from wakes the unit, so nothing is retried by time.
func (c *Controller) inputsFailed(cy *cycle, err error) (status.Result, error) {
	var f *status.Failure
	if !errors.As(err, &f) {
		return status.Result{}, err
	}
	return status.Wait(f.Reason, f.Error(), 0), nil
}

// startApply hands the pending plan to the executor. That it begins is written
// before it can have an effect: without the record, a crash in the middle would
// look like a plan that was never approved.
func (c *Controller) startApply(ctx context.Context, cy *cycle, s step) (status.Result, error) {
	tf := cy.tf
	rec := tf.Status.LastPlan
	in, err := c.load(ctx, cy)
	if err != nil {
		return c.inputsFailed(cy, err)
	}
	decided, actor, err := c.decided(ctx, cy, *rec, s)
	if err != nil {
		return status.Result{}, err
	}
	c.unchanged(cy)
	tf.Status.RunningID = rec.ID
	mark(tf, infra.ConditionApply, metav1.ConditionUnknown, infra.ReasonProgressing, infra.MessageApplyStarted)
	progress(tf, infra.MessageApplying)
	tf.Status.ObservedGeneration = tf.Generation
	if _, err := c.commit(ctx, cy, 0, nil); err != nil {
		return status.Result{}, err
	}
	if cy.base.Status.RunningID != rec.ID {
		return status.Wait("", "", 0), nil // the write lost a race; the newer object decides
	}
	j := c.newJob(cy, in)
	j.actor, j.approvedBy = actor, approvedBy(actor, s.by)
	for _, e := range decided {
		if err := c.append(ctx, e); err != nil {
			return status.Result{}, err
		}
	}
	c.start(cy, j, run.Apply, "apply-"+rec.ID+"-"+rec.Blob, c.apply(j, *rec))
	return status.Wait("", "", 0), nil
}

func (c *Controller) start(cy *cycle, j *job, kind run.Kind, id string, do doFunc) run.State {
	u := unitOf(cy.tf)
	c.memory.setCancelToken(u, cy.tf.Annotations[infra.CancelAnnotation])
	return c.opts.Runs.Start(run.Job{
		Unit: u, ID: id, Kind: kind, Timeout: c.opts.RunTimeout, Mask: j.mask, Facts: j.facts(), Do: do, Result: undone(j, kind, id),
	})
}

// undone is the result of a run that ended before its work began: it was cancelled
// while it was queued.
func undone(j *job, kind run.Kind, id string) any {
	switch {
	case id == glassID:
		return &glass{attempt: j.attempt}
	case kind == run.Import:
		return newImported(j, id)
	case kind == run.Apply, kind == run.Destroy:
		return &applied{attempt: j.attempt, approvedBy: j.approvedBy, destroy: kind == run.Destroy || j.tf.Spec.Destroy, onDeletion: kind == run.Destroy}
	default:
		return &planned{attempt: j.attempt, drift: j.drift}
	}
}
