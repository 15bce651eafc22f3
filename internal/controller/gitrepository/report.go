// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package gitrepository

import (
	"context"
	"fmt"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/terrace-dev/terrace/internal/status"
)

// Conditions that the Ready condition sums up, the most telling first.
var summarized = []string{
	sourcev1.StorageOperationFailedCondition,
	sourcev1.FetchFailedCondition,
	sourcev1.IncludeUnavailableCondition,
	sourcev1.ArtifactOutdatedCondition,
	sourcev1.ArtifactInStorageCondition,
	sourcev1.SourceVerifiedCondition,
	meta.StalledCondition,
	meta.ReconcilingCondition,
}

// Of these, the ones that are bad when true, and gone when not.
var negative = []string{
	sourcev1.StorageOperationFailedCondition,
	sourcev1.FetchFailedCondition,
	sourcev1.IncludeUnavailableCondition,
	sourcev1.ArtifactOutdatedCondition,
	meta.StalledCondition,
	meta.ReconcilingCondition,
}

// failures are the conditions whose end is a recovery.
var failures = []string{
	sourcev1.FetchFailedCondition,
	sourcev1.IncludeUnavailableCondition,
	sourcev1.StorageOperationFailedCondition,
}

type pendingEvent struct{ kind, reason, message string }

// fail marks a condition and returns err with the same reason.
func (cy *cycle) fail(condition, reason string, err error) error {
	cy.mark(condition, reason, err.Error())
	return status.Fail(reason, err)
}

// stall marks a condition and ends the reconcile until a person acts.
func (cy *cycle) stall(condition, reason, message string) status.Result {
	cy.mark(condition, reason, message)
	return status.Stalled(reason, message)
}

func (cy *cycle) mark(condition, reason, message string) {
	if condition == sourcev1.SourceVerifiedCondition { // the one that is false when bad
		conditions.MarkFalse(cy.obj, condition, reason, "%s", message)
		return
	}
	conditions.MarkTrue(cy.obj, condition, reason, "%s", message)
}

// report turns the end of the phases into conditions, writes them if they say
// anything new, tells of it, and says when to look again.
func (c *Controller) report(ctx context.Context, cy *cycle, res status.Result, failed error) (ctrl.Result, error) {
	obj := cy.obj
	result := ctrl.Result{RequeueAfter: c.o.Jitter(obj.GetRequeueAfter())}
	switch {
	case failed != nil:
		result = ctrl.Result{}
		conditions.Delete(obj, meta.StalledCondition)
		conditions.MarkReconciling(obj, meta.ProgressingWithRetryReason, "%s", progress(obj))
	case res.IsStalled():
		result = ctrl.Result{}
		conditions.MarkStalled(obj, res.Reason, "%s", res.Message)
		obj.Status.ObservedGeneration = obj.Generation
	case !res.IsNext():
		result.RequeueAfter = status.Sooner(res.After, result.RequeueAfter)
		conditions.Delete(obj, meta.StalledCondition)
		conditions.MarkReconciling(obj, meta.ProgressingWithRetryReason, "%s", progress(obj))
	default:
		conditions.Delete(obj, meta.StalledCondition)
		conditions.Delete(obj, meta.ReconcilingCondition)
		obj.Status.ObservedGeneration = obj.Generation
	}
	summarize(obj)
	cy.tellOutcome(res, failed)
	if err := c.write(ctx, cy); err != nil {
		return again(err)
	}
	return result, failed
}

// rest is the report of an object that is suspended.
func (c *Controller) rest(ctx context.Context, cy *cycle) (ctrl.Result, error) {
	if len(cy.obj.Status.Conditions) > 0 {
		conditions.Delete(cy.obj, meta.ReconcilingCondition)
		summarize(cy.obj)
		cy.obj.Status.ObservedGeneration = cy.obj.Generation
	}
	if err := c.write(ctx, cy); err != nil {
		return again(err)
	}
	return ctrl.Result{}, nil
}

// write sends the one status patch, and then the events.
func (c *Controller) write(ctx context.Context, cy *cycle) error {
	if at, ok := meta.ReconcileAnnotationValue(cy.obj.Annotations); ok {
		cy.obj.Status.SetLastHandledReconcileRequest(at)
	}
	status.KeepTimes(cy.base.Status.Conditions, cy.obj.Status.Conditions)
	if _, err := c.writer.Patch(ctx, cy.base, cy.obj); err != nil {
		return err
	}
	c.send(ctx, cy)
	return nil
}

func progress(obj *sourcev1.GitRepository) string {
	switch {
	case obj.Status.Artifact == nil:
		return "building artifact"
	case obj.Generation != obj.Status.ObservedGeneration:
		return fmt.Sprintf("processing object: new generation %d -> %d", obj.Status.ObservedGeneration, obj.Generation)
	default:
		return "reconciliation in progress"
	}
}

// summarize sets Ready.
func summarize(obj *sourcev1.GitRepository) {
	conditions.SetSummary(obj, meta.ReadyCondition,
		conditions.WithConditions(summarized...), conditions.WithNegativePolarityConditions(negative...))
	if v := conditions.Get(obj, sourcev1.SourceVerifiedCondition); v != nil && conditions.IsFalse(obj, v.Type) {
		conditions.MarkFalse(obj, meta.ReadyCondition, v.Reason, "%s", v.Message)
	}
}

// tellOutcome notes the event of this reconcile: a new artifact, a recovery, or a
// failure that the object does not show already. A failure that stays the same
// is told once.
func (cy *cycle) tellOutcome(res status.Result, failed error) {
	switch {
	case failed != nil:
		cy.tellFailure(corev1.EventTypeWarning, status.ReasonOf(failed, meta.FailedReason), failed.Error())
	case res.IsStalled():
		cy.tellFailure(corev1.EventTypeWarning, res.Reason, res.Message)
	case !res.IsNext():
		cy.tellFailure(corev1.EventTypeNormal, res.Reason, res.Message)
	case cy.obj.Status.Artifact == nil || cy.checkout == nil:
	case !cy.base.Status.Artifact.HasDigest(cy.obj.Status.Artifact.Digest):
		cy.tell(corev1.EventTypeNormal, "NewArtifact", cy.storedMessage())
	case conditions.HasAny(cy.base, failures):
		cy.tell(corev1.EventTypeNormal, meta.SucceededReason, cy.storedMessage())
	}
}

func (cy *cycle) storedMessage() string {
	if m := cy.checkout.Commit.ShortMessage(); m != "" {
		return fmt.Sprintf("stored artifact for commit '%s'", m)
	}
	return fmt.Sprintf("stored artifact for commit '%s'", cy.checkout.Revision)
}

func (cy *cycle) tellFailure(kind, reason, message string) {
	was := conditions.Get(cy.base, meta.ReadyCondition)
	is := conditions.Get(cy.obj, meta.ReadyCondition)
	if was != nil && is != nil && was.Reason == is.Reason && was.Message == is.Message && was.Status == is.Status {
		return
	}
	cy.tell(kind, reason, message)
}

func (cy *cycle) tell(kind, reason, message string) {
	cy.events = append(cy.events, pendingEvent{kind, reason, message})
}

func (c *Controller) send(ctx context.Context, cy *cycle) {
	annotations := map[string]string{}
	if a := cy.obj.Status.Artifact; a != nil {
		annotations[sourcev1.GroupVersion.Group+"/revision"] = a.Revision
		annotations[sourcev1.GroupVersion.Group+"/digest"] = a.Digest
	}
	for _, e := range cy.events {
		c.o.Recorder.AnnotatedEventf(cy.obj, annotations, e.kind, e.reason, "%s", e.message)
		if e.kind == corev1.EventTypeNormal {
			ctrl.LoggerFrom(ctx).Info(e.message)
		}
	}
}
