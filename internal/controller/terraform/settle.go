// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/artifact"
	"github.com/terrace-dev/terrace/internal/run"
	"github.com/terrace-dev/terrace/internal/status"
	"github.com/terrace-dev/terrace/internal/tofu"
)

const messageQueued = "Waiting for a free run slot"

// settle looks at the unit's run: it lets a running one go on, and records how a
// finished one ended. A unit without a run goes on to the next phase.
func (c *Controller) settle(ctx context.Context, cy *cycle) (status.Result, error) {
	u := unitOf(cy.tf)
	c.cancelIfAsked(cy)
	st, ok := c.opts.Runs.Get(u)
	if !ok {
		return c.recover(cy)
	}
	if st.Phase != run.Done {
		underWay(cy.tf, st)
		return status.Wait("", "", 0), nil
	}
	var cancelled *run.CancelledError
	if errors.As(st.Err, &cancelled) && cancelled.Shutdown {
		// Terrace is stopping; the next process starts this again.
		return status.Wait("", "", 0), nil
	}
	log(ctx).Info("run ended", "kind", st.Kind, "run", st.Run, "error", errorText(st.Err))
	cy.done = st.ID
	res, err := c.recordEnd(ctx, cy, st)
	if err == nil {
		err = c.keepRun(ctx, cy, st)
	}
	if err != nil {
		unrecord(cy)
	}
	return res, err
}

// unrecord takes back what this reconcile has recorded of a run, because it could not
// record all: half a record would be taken for the whole, and the run be forgotten.
// The next reconcile begins anew with it.
func unrecord(cy *cycle) {
	cy.base.DeepCopyInto(cy.tf)
	cy.done, cy.newOutputs, cy.orphans, cy.events = "", false, false, nil
}

func (c *Controller) recordEnd(ctx context.Context, cy *cycle, st run.State) (status.Result, error) {
	var intr *run.InterruptedError
	if errors.As(st.Err, &intr) {
		return c.recordInterruption(ctx, cy, intr.Interruption)
	}
	switch result := st.Result.(type) {
	case *planned:
		return c.recordPlan(ctx, cy, result, st.Err)
	case *applied:
		return c.recordApply(ctx, cy, result, st.Err)
	case *imported:
		return c.recordImport(ctx, cy, result, st)
	case *glass:
		return c.recordGlass(cy, result, st.Err)
	default:
		// Every job of ours has a result; without one nothing is known but the error.
		c.failed(cy, infra.ReasonReconciliationFailed, st.Err)
		return status.Next, nil
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// underWay says what the unit's run does. A drift check of a unit that is Ready says
// nothing: until it finds something the unit is what its spec asks for, and who waits
// for it must not see it go and come back at each interval.
func underWay(tf *infra.Terraform, st run.State) {
	switch {
	case st.Kind == run.Drift && isReady(tf):
	case st.Phase == run.Queued:
		queued(tf, st)
	default:
		progress(tf, messageOf(st))
	}
}

// queued says that the unit waits for others, once: the place in the queue is in
// the first message only, because a write for every step of the queue would cost
// more than it tells.
func queued(tf *infra.Terraform, st run.State) {
	if r := readyCondition(tf); r != nil && r.Reason == infra.ReasonProgressing && strings.HasPrefix(r.Message, messageQueued) {
		return
	}
	message := messageQueued
	if st.Position > 1 {
		message = fmt.Sprintf("%s: %d runs are ahead", messageQueued, st.Position-1)
	}
	progress(tf, message)
}

func messageOf(st run.State) string {
	switch {
	case st.ID == glassID:
		return infra.MessageInitializing
	case st.Kind == run.Apply:
		return infra.MessageApplying
	case st.Kind == run.Destroy:
		return infra.MessageDeleting
	case st.Kind == run.Import:
		return infra.MessageImporting
	default:
		return infra.MessagePlanning
	}
}

// cancelIfAsked ends the unit's run when the annotation has got another value
// than it had when the run began.
func (c *Controller) cancelIfAsked(cy *cycle) {
	u := unitOf(cy.tf)
	token := cy.tf.Annotations[infra.CancelAnnotation]
	if token != "" && c.memory.cancelToken(u) != token && c.opts.Runs.Cancel(u, "asked for by annotation "+infra.CancelAnnotation) {
		c.memory.setCancelToken(u, token)
	}
}

// recordInterruption looks after a unit whose run ended with the process that
// carried it. None of the run's processes lives any more.
func (c *Controller) recordInterruption(ctx context.Context, cy *cycle, intr run.Interruption) (status.Result, error) {
	if err := c.settleInterruption(ctx, intr); err != nil {
		return status.Result{}, err
	}
	cy.event(corev1.EventTypeWarning, infra.ReasonInterrupted, fmt.Sprintf(
		"%s was interrupted when Terrace stopped; planning anew", intr.Kind))
	if intr.Kind == run.Plan || intr.Kind == run.Drift {
		return status.Next, nil
	}
	return c.recover(cy)
}

// settleInterruption does what the run itself would have done at its end: its lock is
// given back, what held secrets is removed, and its intents in the ledger have an outcome.
func (c *Controller) settleInterruption(ctx context.Context, intr run.Interruption) error {
	if err := c.releaseOwnLock(ctx, intr); err != nil {
		return err
	}
	if err := c.scrub(intr.Unit); err != nil {
		return err
	}
	if _, err := c.opts.Ledger.Interrupt(ctx, intr.Run, "Terrace ended before the run did"); err != nil {
		return fmt.Errorf("write the ledger: %w", err)
	}
	return nil
}

// recover takes back what the status says of an apply that nobody carries out any
// more: some of it may have happened, and only a new plan can tell.
func (c *Controller) recover(cy *cycle) (status.Result, error) {
	tf := cy.tf
	if tf.Status.RunningID != "" {
		tf.Status.RunningID = ""
		tf.Status.Plan.Pending = ""
		tf.Status.InputDigest = ""
		unmark(tf, infra.ConditionApply)
	}
	return status.Next, nil
}

// attempt is what a run was started for; it is part of every result, so that the
// record is about what ran and not about what the object says by then.
type attempt struct {
	revision    string
	artifact    *meta.Artifact
	inputDigest string
	generation  int64
	requestedAt string
	inputsBlob  string // sealed inputs, "" if they were not stored anew
	recovered   []recovery
}

// record takes over what every finished attempt leaves in the status.
func (c *Controller) record(cy *cycle, a *attempt) {
	tellRecovered(cy, a.recovered)
	st := &cy.tf.Status
	now := metav1.NewTime(c.opts.Clock.Now())
	if st.LastPlan != nil && st.LastPlan.InputDigest != a.inputDigest {
		// However this attempt ended, the plan that waits was made of what is not so any more.
		st.Plan.Pending, st.Plan.IsDestroyPlan, st.Plan.IsDriftDetectionPlan = "", false, false
	}
	st.InputDigest = a.inputDigest
	st.LastPlanAt = &now
	st.LastPlannedGeneration = a.generation
	if a.requestedAt != "" {
		st.LastHandledReconcileAt = a.requestedAt
	}
	if a.inputsBlob != "" {
		st.InputsBlob = a.inputsBlob
	}
}

// succeeded takes over what every successful attempt leaves besides, and keeps its
// artifact for a deletion that comes when the source is gone.
func (c *Controller) succeeded(ctx context.Context, cy *cycle, a *attempt) error {
	st := &cy.tf.Status
	if err := c.keepArtifact(ctx, cy, a); err != nil {
		return err
	}
	now := metav1.NewTime(c.opts.Clock.Now())
	st.ReconciliationFailures = 0
	st.LastPlannedRevision = a.revision
	st.LastSuccessfulReconcileAt = &now // an apply can end days after its plan
	due := metav1.NewTime(nextDue(cy.tf, now.Time))
	st.NextDriftCheckAt = &due
	st.Lock.Pending = ""
	unmark(cy.tf, infra.ConditionStateLocked)
	return nil
}

// keepArtifact keeps the artifact of a run for a deletion.
func (c *Controller) keepArtifact(ctx context.Context, cy *cycle, a *attempt) error {
	st := &cy.tf.Status
	switch err := c.opts.Artifacts.Pin(ctx, pinOf(cy.tf), a.artifact); {
	case errors.Is(err, artifact.ErrNotFound) && st.Artifact != nil:
		// The source moved on during the run, and nobody has this artifact any more. The
		// one before is still kept.
	case err != nil && !errors.Is(err, artifact.ErrNotFound):
		return fmt.Errorf("keep artifact %s: %w", a.revision, err)
	default:
		st.Artifact = a.artifact
	}
	return nil
}

// nextDue is one interval later, moved by up to a twentieth of it in a direction
// that is the object's own, so that units that were made together are not checked
// together for ever.
func nextDue(tf *infra.Terraform, from time.Time) time.Time {
	h := fnv.New32a()
	fmt.Fprint(h, tf.UID, from.Unix())
	interval := tf.GetInterval()
	spread := interval / 10
	return from.Add(interval - spread/2 + time.Duration(float64(spread)*float64(h.Sum32())/float64(1<<32)))
}

// failed records a run that did not end well.
func (c *Controller) failed(cy *cycle, reason string, err error) {
	tf := cy.tf
	st := &tf.Status
	message := err.Error()
	var lock *tofu.LockError
	var timeout *run.TimedOutError
	switch {
	case errors.Is(err, run.ErrCancelled):
		// A person ended it: it is not tried again by itself before it would be due.
		due := metav1.NewTime(nextDue(tf, c.opts.Clock.Now()))
		st.NextDriftCheckAt = &due
		notReady(tf, infra.ReasonCancelled, message)
		cy.event(corev1.EventTypeNormal, infra.ReasonCancelled, message)
		return
	case errors.As(err, &timeout):
		reason = infra.ReasonTimedOut
	case errors.As(err, &lock):
		reason = infra.ReasonLockHeld
		message = lockMessage(lock)
		st.Lock.Pending = lock.ID
		mark(tf, infra.ConditionStateLocked, metav1.ConditionTrue, infra.ReasonLockHeld, message)
	}
	st.ReconciliationFailures++
	if r := readyCondition(tf); r == nil || r.Status != metav1.ConditionFalse || r.Message != cut(message) || st.ReconciliationFailures == 1 {
		cy.event(corev1.EventTypeWarning, reason, cut(message))
	}
	notReady(tf, reason, message)
}

// lockMessage names the lock in the words that tools look for, and then its holder.
func lockMessage(l *tofu.LockError) string {
	m := "Terraform Locked with Lock Identifier: " + l.ID
	if l.Who != "" {
		m += fmt.Sprintf(" (held by %s for %s since %s)", l.Who, strings.TrimPrefix(l.Operation, "OperationType"), l.Created)
	}
	return m
}

// recordPlan records a plan or a drift check.
func (c *Controller) recordPlan(ctx context.Context, cy *cycle, p *planned, err error) (status.Result, error) {
	tf := cy.tf
	c.record(cy, &p.attempt)
	if err != nil {
		reason := infra.ReasonPlanFailed
		if p.drift {
			reason = infra.ReasonDriftDetectionFailed
		}
		reason = status.ReasonOf(err, reason)
		if reason == infra.ReasonPostPlanningWebhookFailed {
			mark(tf, infra.ConditionPlan, metav1.ConditionFalse, reason, err.Error())
		}
		c.failed(cy, reason, err)
		return status.Next, nil
	}
	if err := c.succeeded(ctx, cy, &p.attempt); err != nil {
		return status.Result{}, err
	}
	if p.unlocked != "" {
		tf.Status.Lock.LastApplied = p.unlocked
	}
	if p.record == nil {
		return status.Next, c.recordNoChanges(ctx, cy, p)
	}
	c.recordChanges(cy, p)
	return status.Next, nil
}

func (c *Controller) recordNoChanges(ctx context.Context, cy *cycle, p *planned) error {
	tf := cy.tf
	st := &tf.Status
	st.Plan.Pending, st.Plan.IsDestroyPlan, st.Plan.IsDriftDetectionPlan = "", false, false
	st.LastDriftDigest = ""
	mark(tf, infra.ConditionPlan, metav1.ConditionFalse, infra.ReasonPlannedNoChanges, "Plan no changes")
	switch {
	case p.drift:
		ready(tf, infra.ReasonNoDrift, "No drift: "+p.revision)
	case tf.Spec.Destroy:
		ready(tf, infra.ReasonPlannedNoChanges, "No objects need to be destroyed: "+p.revision)
	default:
		ready(tf, infra.ReasonPlannedNoChanges, note("Plan no changes: "+p.revision, p.note))
	}
	if p.outputs == nil {
		return nil
	}
	return c.takeOutputs(ctx, cy, p.outputs)
}

// note appends what a person should know about how the plan was made.
func note(message, note string) string {
	if note == "" {
		return message
	}
	return message + " (" + note + ")"
}

func (c *Controller) recordChanges(cy *cycle, p *planned) {
	tf := cy.tf
	st := &tf.Status
	news := st.LastPlan == nil || st.LastPlan.ID != p.record.ID || st.Plan.Pending != p.record.ID
	st.LastPlan = p.record
	message := note("Plan generated: "+p.counts, p.note)
	mark(tf, infra.ConditionPlan, metav1.ConditionTrue, infra.ReasonPlannedWithChanges, message)

	if p.record.Drift && st.LastDriftDigest != p.record.Digest {
		now := metav1.NewTime(c.opts.Clock.Now())
		st.LastDriftDetectedAt = &now
		st.LastDriftDigest = p.record.Digest
		cy.event(corev1.EventTypeWarning, infra.ReasonDriftDetected, "Drift detected: "+p.counts)
	}
	if tf.Spec.ApprovePlan == infra.ApprovePlanDisable {
		notReady(tf, infra.ReasonDriftDetected, "Drift detected: "+p.counts)
		return
	}
	st.Plan.Pending = p.record.ID
	st.Plan.IsDestroyPlan = p.record.Destroy
	st.Plan.IsDriftDetectionPlan = p.record.Drift
	if news && tf.Spec.ApprovePlan != infra.ApprovePlanAuto && !tf.Spec.Force && !tf.Spec.PlanOnly {
		cy.event(corev1.EventTypeNormal, infra.ReasonPlanSucceed, fmt.Sprintf(
			"Planned.\nPlan generated: set approvePlan: %q to approve this plan.", p.record.ID))
	}
}

// recordApply records an apply or a destroy.
func (c *Controller) recordApply(ctx context.Context, cy *cycle, a *applied, err error) (status.Result, error) {
	tellRecovered(cy, a.recovered)
	tf := cy.tf
	st := &tf.Status
	st.RunningID = ""
	if err != nil {
		// What was shown is not what there is any more: the next plan tells.
		st.Plan.Pending = ""
		st.InputDigest = ""
		now := metav1.NewTime(c.opts.Clock.Now())
		st.LastPlanAt = &now
		mark(tf, infra.ConditionApply, metav1.ConditionFalse, infra.ReasonAppliedFail, err.Error())
		if isStale(err) {
			progress(tf, "The saved plan is stale; planning anew")
			return status.Next, nil
		}
		reason := infra.ReasonApplyFailed
		if a.destroy {
			reason = infra.ReasonDestroyFailed
		}
		c.failed(cy, status.ReasonOf(err, reason), err)
		st.InputDigest = a.inputDigest
		return status.Next, nil
	}
	if err := c.succeeded(ctx, cy, &a.attempt); err != nil {
		return status.Result{}, err
	}
	st.LastAppliedRevision = a.revision
	st.Plan.LastApplied = a.plan.ID
	st.Plan.Pending, st.Plan.IsDestroyPlan, st.Plan.IsDriftDetectionPlan = "", false, false
	st.LastDriftDigest = ""
	if a.drift {
		now := metav1.NewTime(c.opts.Clock.Now())
		st.LastAppliedByDriftDetectionAt = &now
	}
	message := "Applied successfully: " + a.revision
	reason := infra.ReasonAppliedSucceed
	if a.destroy {
		message = "Destroy applied successfully: " + a.revision
		cy.event(corev1.EventTypeNormal, infra.ReasonDestroySucceed, message+" ("+a.counts+")")
	} else {
		cy.event(corev1.EventTypeNormal, infra.ReasonAppliedSucceed, message+" ("+a.counts+")")
	}
	mark(tf, infra.ConditionApply, metav1.ConditionTrue, infra.ReasonAppliedSucceed, message)
	ready(tf, reason, message)
	if tf.Spec.EnableInventory {
		st.Inventory = a.inventory
	} else {
		st.Inventory = nil
	}
	return status.Next, c.takeOutputs(ctx, cy, a.outputs)
}

// isStale tells that a stored plan no longer fits the state, because something
// else changed the state after the plan was made.
func isStale(err error) bool {
	if errors.Is(err, errStale) {
		return true
	}
	var exit *tofu.ExitError
	return errors.As(err, &exit) && strings.Contains(exit.Stderr, "Saved plan is stale")
}
