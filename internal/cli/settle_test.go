// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"testing"
)

func TestSettled(t *testing.T) {
	cases := map[string]struct {
		reason string
		status string
		want   outcome
	}{
		"NotSeen": {
			reason: "Ready is from before the request",
			status: `{lastHandledReconcileAt: old, observedGeneration: 2, conditions: [{type: Ready, status: "True"}]}`,
			want:   noAnswer,
		},
		"Ready": {
			reason: "handled, of this generation, and ready",
			status: `{lastHandledReconcileAt: now, observedGeneration: 2, conditions: [{type: Ready, status: "True"}]}`,
			want:   done,
		},
		"OlderSpec": {
			reason: "Ready is of an older spec",
			status: `{lastHandledReconcileAt: now, observedGeneration: 1, conditions: [{type: Ready, status: "True"}]}`,
			want:   working,
		},
		"Running": {
			reason: "a False of the last attempt stands while the next one runs",
			status: `{lastHandledReconcileAt: now, observedGeneration: 2, conditions: [{type: Ready, status: "False"}, {type: Reconciling, status: "True"}]}`,
			want:   working,
		},
		"Approval": {
			reason: "nothing more happens until somebody approves, whatever else the conditions say",
			status: `{lastHandledReconcileAt: now, observedGeneration: 1, conditions: [{type: Ready, status: Unknown, reason: TerraformPlannedWithChanges}, {type: Reconciling, status: "True"}]}`,
			want:   waiting,
		},
		"Dependency": {
			reason: "a dependency that is not ready is no failure of the unit",
			status: `{lastHandledReconcileAt: now, observedGeneration: 2, conditions: [{type: Ready, status: "False", reason: DependencyNotReady}]}`,
			want:   working,
		},
		"ApprovalOfAKustomization": {
			reason: "the same of a kind that has no condition for its plan",
			status: `{lastHandledReconcileAt: now, observedGeneration: 1, conditions: [{type: Ready, status: "False", reason: PlanWaiting}, {type: Reconciling, status: "True"}]}`,
			want:   waiting,
		},
		"FailedAndRetried": {
			reason: "Flux's kinds keep Reconciling while an error is retried",
			status: `{lastHandledReconcileAt: now, observedGeneration: 1, conditions: [{type: Ready, status: "False", reason: BuildFailed}, {type: Reconciling, status: "True", reason: ProgressingWithRetry}]}`,
			want:   failed,
		},
		"Failed": {
			reason: "an error ends the wait, although it is retried",
			status: `{lastHandledReconcileAt: now, observedGeneration: 1, conditions: [{type: Ready, status: "False", reason: TFExecPlanFailed}]}`,
			want:   failed,
		},
		"Stalled": {
			reason: "nothing is retried",
			status: `{lastHandledReconcileAt: now, observedGeneration: 1, conditions: [{type: Ready, status: Unknown}, {type: Stalled, status: "True"}]}`,
			want:   failed,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := parse(t, []byte("{apiVersion: infra.contrib.fluxcd.io/v1alpha2, kind: Terraform, metadata: {name: x, generation: 2}, status: "+tc.status+"}"))[0]
			if got := settled(o, "now"); got != tc.want {
				t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}
