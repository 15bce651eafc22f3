// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func at(d time.Duration) *metav1.Time {
	t := metav1.NewTime(noon.Add(d))
	return &t
}

// settled is a unit that was applied an hour ago and whose next drift check is due
// in half an hour.
func settledUnit(change func(*infra.Terraform)) *infra.Terraform {
	tf := &infra.Terraform{}
	tf.Generation = 3
	tf.Spec.ApprovePlan = infra.ApprovePlanAuto
	tf.Spec.Interval = metav1.Duration{Duration: 2 * time.Hour}
	tf.Status.InputDigest = "in"
	tf.Status.LastPlanAt = at(-time.Hour)
	tf.Status.LastPlannedGeneration = 3
	tf.Status.LastAppliedRevision = "main@sha1:aaaa"
	tf.Status.NextDriftCheckAt = at(30 * time.Minute)
	if change != nil {
		change(tf)
	}
	return tf
}

func pending(tf *infra.Terraform, id string) {
	tf.Status.Plan.Pending = id
	tf.Status.LastPlan = &infra.PlanRecord{ID: id, Digest: "sha256:" + id, Blob: "sha256:b"}
}

func TestDecide(t *testing.T) {
	same := facts{inputDigest: "in", revision: "main@sha1:bbbb", now: noon, havePlan: true, haveOutputs: true}
	other := same
	other.inputDigest = "other"
	for name, tc := range map[string]struct {
		reason string
		change func(*infra.Terraform)
		facts  facts
		want   action
		after  time.Duration
	}{
		"nothing changed": {"an unrelated commit runs nothing", nil, same, rest, 30 * time.Minute},
		"new": {"a unit that was never planned is planned", func(tf *infra.Terraform) {
			tf.Status = infra.TerraformStatus{}
		}, same, makePlan, 0},
		"inputs changed": {"other inputs make a plan", nil, other, makePlan, 0},
		"request":        {"a request makes a plan even when nothing changed", func(tf *infra.Terraform) { tf.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"} }, same, makePlan, 0},
		"handled request": {"a request that was handled makes none", func(tf *infra.Terraform) {
			tf.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"}
			tf.Status.LastHandledReconcileAt = "now"
		}, same, rest, 30 * time.Minute},
		"drift due": {"a drift check comes due by the persisted time", func(tf *infra.Terraform) { tf.Status.NextDriftCheckAt = at(-time.Second) }, same, checkDrift, 0},
		"shorter interval": {"an interval that was shortened counts from the last plan", func(tf *infra.Terraform) {
			tf.Spec.Interval.Duration = 10 * time.Minute
		}, same, checkDrift, 0},
		"no drift detection": {"without drift detection time alone runs nothing", func(tf *infra.Terraform) {
			tf.Spec.DisableDriftDetection = true
			tf.Status.NextDriftCheckAt = at(-time.Hour)
		}, same, rest, 0},
		"no drift detection, force": {"force looks in every interval", func(tf *infra.Terraform) {
			tf.Spec.DisableDriftDetection, tf.Spec.Force = true, true
			tf.Status.NextDriftCheckAt = at(-time.Hour)
		}, same, checkDrift, 0},
		"destroyed": {"a destroyed unit has no drift", func(tf *infra.Terraform) {
			tf.Spec.Destroy = true
			tf.Status.NextDriftCheckAt = at(-time.Hour)
		}, same, rest, 0},
		"auto":            {"auto applies the pending plan", func(tf *infra.Terraform) { pending(tf, "plan-main-1") }, same, applyPlan, 0},
		"auto, stale":     {"but not one made of other inputs", func(tf *infra.Terraform) { pending(tf, "plan-main-1") }, other, makePlan, 0},
		"manual":          {"without approval it waits", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = ""; pending(tf, "plan-main-1") }, same, awaitApproval, 0},
		"approved":        {"its id approves it", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = "plan-main-1"; pending(tf, "plan-main-1") }, same, applyPlan, 0},
		"prefix":          {"a beginning of its id does not", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = "plan-main"; pending(tf, "plan-main-1") }, same, awaitApproval, 0},
		"approved, stale": {"an approval never runs what was not shown", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = "plan-main-1"; pending(tf, "plan-main-1") }, other, makePlan, 0},
		"plan lost":       {"a plan that is not stored any more is made again", func(tf *infra.Terraform) { pending(tf, "plan-main-1") }, facts{inputDigest: "in", now: noon, haveOutputs: true}, makePlan, 0},
		"plan only":       {"planOnly never applies", func(tf *infra.Terraform) { tf.Spec.PlanOnly = true; pending(tf, "plan-main-1") }, same, awaitApproval, 0},
		"force":           {"force needs no approval", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = ""; tf.Spec.Force = true; pending(tf, "plan-main-1") }, same, applyPlan, 0},
		"disable": {"disable plans nothing", func(tf *infra.Terraform) {
			tf.Spec.ApprovePlan = "disable"
			tf.Spec.Force = true
			pending(tf, "plan-main-1")
		}, same, rest, 30 * time.Minute},
		"disable, changed": {"and looks for drift when something changed", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = "disable" }, other, checkDrift, 0},
		"disable, failed": {"a drift check that failed waits for its retry, though its time has passed", func(tf *infra.Terraform) {
			tf.Spec.ApprovePlan = "disable"
			tf.Status.ReconciliationFailures = 1
			tf.Status.LastPlanAt = at(-5 * time.Second)
			tf.Status.NextDriftCheckAt = at(-time.Minute)
		}, same, rest, 10 * time.Second},
		"disable, failed, due": {"and is then a drift check again", func(tf *infra.Terraform) {
			tf.Spec.ApprovePlan = "disable"
			tf.Status.ReconciliationFailures = 1
			tf.Status.LastPlanAt = at(-15 * time.Second)
		}, same, checkDrift, 0},
		"approved late": {"the apply of a plan that waited for days is not followed by a drift check at once", func(tf *infra.Terraform) {
			tf.Status.LastPlanAt = at(-72 * time.Hour)
			tf.Status.LastSuccessfulReconcileAt = at(-time.Hour)
		}, same, rest, 30 * time.Minute},
		"replan": {"replan makes a new plan, once for each change of the spec", func(tf *infra.Terraform) {
			tf.Spec.ApprovePlan = "replan-main-1"
			tf.Generation = 4
			pending(tf, "plan-main-1")
		}, same, makePlan, 0},
		"replan, done": {"and not again", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = "replan-main-1"; pending(tf, "plan-main-1") }, same, awaitApproval, 0},
		"replan by a tool": {"a tool that drops the pending plan gets a new one", func(tf *infra.Terraform) {
			notReady(tf, infra.ReasonReplanRequested, "Replan requested")
		}, same, makePlan, 0},
		"outputs lost": {"outputs that must be written and are not known are read again", func(tf *infra.Terraform) {
			tf.Spec.WriteOutputsToSecret = &infra.WriteOutputsToSecretSpec{Name: "out"}
			tf.Status.Plan.LastApplied = "plan-main-1"
		}, facts{inputDigest: "in", now: noon}, makePlan, 0},
		"failed, too early": {"a failure is tried again after the retry interval", func(tf *infra.Terraform) {
			tf.Status.ReconciliationFailures = 1
			tf.Status.LastPlanAt = at(-5 * time.Second)
		}, same, rest, 10 * time.Second},
		"failed, due": {"and then it is", func(tf *infra.Terraform) {
			tf.Status.ReconciliationFailures = 1
			tf.Status.LastPlanAt = at(-15 * time.Second)
		}, same, makePlan, 0},
		"failed, mended": {"at once when something changed", func(tf *infra.Terraform) {
			tf.Status.ReconciliationFailures = 1
			tf.Status.LastPlanAt = at(-time.Second)
		}, other, makePlan, 0},
		"backoff": {"a growing retry interval doubles with each failure", func(tf *infra.Terraform) {
			tf.Spec.RetryStrategy = infra.RetryStrategyExponentialBackoff
			tf.Status.ReconciliationFailures = 3
			tf.Status.LastPlanAt = at(0)
		}, same, rest, time.Minute},
		"retries used up": {"after the allowed retries it stalls until the interval", func(tf *infra.Terraform) {
			tf.Spec.Remediation = &infra.Remediation{Retries: new(int64(1))}
			tf.Status.ReconciliationFailures = 2
			tf.Status.LastPlanAt = at(0)
		}, same, giveUp, 2 * time.Hour},
		"no retries, first attempt": {"retries: 0 allows the first attempt", func(tf *infra.Terraform) {
			tf.Spec.Remediation = &infra.Remediation{Retries: new(int64(0))}
			tf.Status = infra.TerraformStatus{}
		}, same, makePlan, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := decide(settledUnit(tc.change), tc.facts)
			if got.do != tc.want || tc.after != got.after {
				t.Fatalf("%s: got %s (%s) after %s, want %s after %s", tc.reason, got.do, got.why, got.after, tc.want, tc.after)
			}
		})
	}
}

func TestNextDueIsSpreadAndTheObjectsOwn(t *testing.T) {
	seen := map[time.Time]bool{}
	for _, uid := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		tf := settledUnit(nil)
		tf.UID = types.UID(uid)
		due := nextDue(tf, noon)
		if again := nextDue(tf, noon); !again.Equal(due) {
			t.Fatalf("the same object and time give %s and %s", due, again)
		}
		if d := due.Sub(noon); d < 114*time.Minute || d > 126*time.Minute {
			t.Fatalf("due after %s: more than a twentieth away from the interval", d)
		}
		seen[due] = true
	}
	if len(seen) < 6 {
		t.Fatalf("8 units share %d times", len(seen))
	}
}
