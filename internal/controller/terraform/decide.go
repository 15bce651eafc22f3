// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"strings"
	"time"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/approval"
)

// action is what a reconcile has to do next.
type action string

const (
	// rest: nothing is due before step.after.
	rest action = "rest"
	// makePlan: what the unit reads has changed, or somebody asked.
	makePlan action = "plan"
	// checkDrift: nothing has changed here; the world may have.
	checkDrift action = "drift"
	// applyPlan: the pending plan is approved.
	applyPlan action = "apply"
	// awaitApproval: the pending plan needs somebody's word.
	awaitApproval action = "await"
	// giveUp: the allowed retries are used up.
	giveUp action = "stalled"
)

// step is a decision with its reason, which goes to the log.
type step struct {
	do    action
	why   string
	after time.Duration // when to look again by time alone; zero: never
	by    string        // applyPlan: who approved
	say   string        // awaitApproval: the message of the Ready condition
	// obstacle is what the plan waits for besides an approval.
	obstacle approval.Obstacle
	// denied is what the policies say that were overridden for the plan that is applied.
	denied string
}

// facts are what decide needs to know besides the object.
type facts struct {
	inputDigest string
	revision    string
	now         time.Time
	// haveOutputs tells that the outputs that were last read are still in the blob store.
	haveOutputs bool
	// havePlan tells that the pending plan is still in the blob store.
	havePlan bool
	// policies is the digest of the policies that are in force.
	policies string
}

// decide says what is to be done with a unit whose source, dependencies and
// inputs are in order and of which nothing is running. It is pure: all that it
// knows of the past is in the status, so a restart decides the same.
func decide(tf *infra.Terraform, f facts) step {
	st := &tf.Status
	changed := st.InputDigest != f.inputDigest
	requested := reconcileRequested(tf)

	driftOnly := tf.Spec.ApprovePlan == infra.ApprovePlanDisable
	if _, looks := driftDue(tf); st.ReconciliationFailures > 0 && !changed && !requested && (looks || !driftOnly) {
		return decideRetry(tf, f)
	}
	if driftOnly {
		return decideDriftOnly(tf, f, changed || requested)
	}
	switch {
	case st.LastPlanAt == nil:
		return step{do: makePlan, why: "never planned"}
	case changed:
		return step{do: makePlan, why: "inputs changed"}
	case requested:
		return step{do: makePlan, why: "reconcile requested"}
	case replanRequested(tf):
		return step{do: makePlan, why: "replan requested"}
	case tf.Spec.WriteOutputsToSecret != nil && !tf.Spec.Destroy && !f.haveOutputs && st.Plan.Pending == "" && st.Plan.LastApplied != "":
		return step{do: makePlan, why: "outputs not known"}
	}

	if st.Plan.Pending != "" {
		if st.LastPlan == nil || st.LastPlan.ID != st.Plan.Pending || !f.havePlan {
			return step{do: makePlan, why: "pending plan is not in the store"}
		}
		if policyDigest(st.LastPlan) != f.policies {
			return step{do: makePlan, why: "policies changed"}
		}
		d := approval.Decide(request(tf, f.now))
		if d.Approved {
			s := step{do: applyPlan, why: d.Why, by: d.By}
			if d.Overridden {
				s.denied = st.LastPlan.Policy.Denied
			}
			return s
		}
		s := step{do: awaitApproval, why: d.Why, say: d.Message, obstacle: d.Obstacle}
		if !d.WaitUntil.IsZero() {
			s.after = max(d.WaitUntil.Sub(f.now), time.Second)
		}
		return s
	}

	due, ok := driftDue(tf)
	if !ok {
		return step{do: rest, why: "drift detection is off"}
	}
	if wait := due.Sub(f.now); wait > 0 {
		return step{do: rest, why: "nothing has changed", after: wait}
	}
	return step{do: checkDrift, why: "drift check is due"}
}

// request is what an approval of the pending plan rests on.
func request(tf *infra.Terraform, now time.Time) approval.Request {
	rec := tf.Status.LastPlan
	r := approval.Request{
		ApprovePlan:    tf.Spec.ApprovePlan,
		ApprovedPlan:   tf.Annotations[v1alpha1.ApprovedPlanAnnotation],
		Force:          tf.Spec.Force,
		PlanOnly:       tf.Spec.PlanOnly,
		Replanned:      tf.Status.LastPlannedGeneration == tf.Generation,
		AutoApprove:    tf.Annotations[v1alpha1.AutoApproveAnnotation],
		Window:         tf.Annotations[v1alpha1.ApplyWindowAnnotation],
		Now:            now,
		PolicyOverride: tf.Annotations[v1alpha1.PolicyOverrideAnnotation],
		Pending: &approval.Pending{
			ID: rec.ID, Digest: rec.Digest, RevisionID: rec.RevisionID, Destroy: rec.Destroy, Drift: rec.Drift,
			Counts: planCounts(rec),
		},
	}
	if p := rec.Policy; p != nil {
		r.Policy = approval.Policy{Denied: p.Denied, NeedsApproval: p.NeedsApproval}
	}
	return r
}

// decideDriftOnly serves approvePlan: disable, which looks for drift and never
// makes a plan that could be applied.
func decideDriftOnly(tf *infra.Terraform, f facts, now bool) step {
	due, ok := driftDue(tf)
	switch {
	case !ok:
		return step{do: rest, why: "planning is disabled and so is drift detection"}
	case now || tf.Status.LastPlanAt == nil || !due.After(f.now):
		return step{do: checkDrift, why: "drift check is due"}
	default:
		return step{do: rest, why: "nothing has changed", after: due.Sub(f.now)}
	}
}

// decideRetry serves a unit whose last attempt failed and whose inputs are the same.
func decideRetry(tf *infra.Terraform, f facts) step {
	st := &tf.Status
	delay := tf.RetryDelay(st.ReconciliationFailures - 1)
	why := "the last attempt failed"
	exhausted := !tf.Spec.Remediation.ShouldRetry(st.ReconciliationFailures)
	if exhausted {
		// The interval goes on after the retries: what failed for a reason outside
		// the object recovers by itself, at the pace of an ordinary check.
		delay = max(delay, tf.GetInterval())
		why = "the retries are used up"
	}
	last := f.now
	if st.LastPlanAt != nil {
		last = st.LastPlanAt.Time
	}
	if wait := last.Add(delay).Sub(f.now); wait > 0 {
		if exhausted {
			return step{do: giveUp, why: why, after: wait}
		}
		return step{do: rest, why: why, after: wait}
	}
	if tf.Spec.ApprovePlan == infra.ApprovePlanDisable {
		return step{do: checkDrift, why: why}
	}
	return step{do: makePlan, why: why}
}

// driftDue returns when the next drift check is due; ok is false when the object
// wants none.
func driftDue(tf *infra.Terraform) (due time.Time, ok bool) {
	st := &tf.Status
	// force asks for a plan in every interval, whatever is said of drift.
	if tf.Spec.DisableDriftDetection && !tf.Spec.Force || tf.Spec.Destroy || tf.Spec.PlanOnly {
		return time.Time{}, false
	}
	if st.NextDriftCheckAt != nil {
		due = st.NextDriftCheckAt.Time
	}
	// An interval that was shortened counts from the last plan at once, or from the
	// apply of a plan that waited for its approval.
	last := st.LastPlanAt
	if last.Before(st.LastSuccessfulReconcileAt) {
		last = st.LastSuccessfulReconcileAt
	}
	if last != nil {
		if byInterval := last.Add(tf.GetInterval() + tf.GetInterval()/10); due.IsZero() || byInterval.Before(due) {
			due = byInterval
		}
	}
	return due, true
}

// reconcileRequested tells that the annotation holds a value that was not handled yet.
func reconcileRequested(tf *infra.Terraform) bool {
	at, ok := tf.Annotations[infra.ReconcileRequestAnnotation]
	return ok && at != tf.Status.LastHandledReconcileAt
}

// replanRequested tells that the pending plan is to be dropped: by an approvePlan
// that begins "replan", once for each change of the spec, or by a tool that took
// the pending id out of the status and left the reason.
func replanRequested(tf *infra.Terraform) bool {
	if readyReason(tf) == infra.ReasonReplanRequested {
		return true
	}
	return strings.HasPrefix(tf.Spec.ApprovePlan, infra.ApprovePlanReplanPrefix) &&
		tf.Status.LastPlannedGeneration != tf.Generation
}
