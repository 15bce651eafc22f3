// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"errors"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/run"
)

// History keeps the Runs of units.
type History interface {
	// Record writes a Run; the same one again does nothing.
	Record(context.Context, *v1alpha1.Run) error
}

// maxRunMessage bounds the message of a Run, in bytes; the log has the rest.
const maxRunMessage = 2 << 10

// keepRun records a run in the history, and a plan in the ledger, before the status forgets it: so a crash between
// the two records it twice, by the same name, and never not at all.
func (c *Controller) keepRun(ctx context.Context, cy *cycle, st run.State) error {
	r := runRecord(cy.base, st)
	if r == nil {
		return nil
	}
	if err := c.opts.History.Record(ctx, r); err != nil {
		return err
	}
	if p, ok := st.Result.(*planned); ok && p.record != nil {
		return c.append(ctx, planEntry(cy.base, p, st))
	}
	return nil
}

// runRecord is what is kept of a run: nil for one that found nothing and that nobody asked
// for, and for one that was never begun. The unit is as it was before the run was recorded.
func runRecord(tf *infra.Terraform, st run.State) *v1alpha1.Run {
	r := &v1alpha1.Run{
		ObjectMeta: metav1.ObjectMeta{Namespace: tf.Namespace, Name: strings.ToLower(st.Run)},
		Spec: v1alpha1.RunSpec{
			Unit:      v1alpha1.UnitReference{Kind: infra.TerraformKind, Name: tf.Name},
			Operation: string(st.Kind),
		},
		Status: v1alpha1.RunStatus{
			Outcome: string(run.OutcomeOf(st.Err)),
			Began:   metav1.NewTime(st.Begun), Ended: metav1.NewTime(st.Since),
		},
	}
	if layer := tf.Labels[infra.LayerLabel]; layer != "" {
		r.Labels = map[string]string{infra.LayerLabel: layer}
	}
	for _, s := range st.Steps {
		r.Status.Steps = append(r.Status.Steps, v1alpha1.RunStep{Name: s.Name, Took: metav1.Duration{Duration: s.Took}})
	}
	if st.Err != nil {
		r.Status.Message = bounded(st.Err.Error(), maxRunMessage)
	}
	var plan *infra.PlanRecord
	var intr *run.InterruptedError
	switch result := st.Result.(type) {
	case *planned:
		asked := result.requestedAt != "" && result.requestedAt != tf.Status.LastHandledReconcileAt
		if result.record == nil && st.Err == nil && !asked {
			return nil
		}
		r.Spec.Revision, plan = result.revision, result.record
	case *applied:
		r.Spec.Revision, r.Spec.ApprovedBy, plan = result.revision, result.approvedBy, result.plan
		if result.destroy {
			r.Spec.Operation = string(run.Destroy)
		}
	case *imported:
		r.Spec.Revision, r.Spec.ApprovedBy = result.revision, result.by
		r.Spec.Import = &v1alpha1.RunImport{Address: result.address, ID: result.id}
	default:
		if !errors.As(st.Err, &intr) || st.ID == glassID {
			return nil // work by hand, which Terrace knows nothing of
		}
		r.Spec.Revision = intr.Interruption.Facts["revision"]
	}
	if st.Run == "" {
		return nil // cancelled before it began
	}
	if plan != nil {
		r.Spec.Plan, r.Spec.PlanDigest = plan.ID, plan.Digest
		counts := v1alpha1.Counts(*audit.CountsOf(planCounts(plan)))
		r.Status.Counts = &counts
	}
	return r
}

// bounded cuts a text to at most n bytes, between characters.
func bounded(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const dots = "…"
	return strings.ToValidUTF8(s[:n-len(dots)], "") + dots
}
