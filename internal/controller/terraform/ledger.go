// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"errors"
	"fmt"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/approval"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/run"
)

// itself is the actor of what nobody asked for.
var itself = audit.Actor{Kind: audit.Terrace, Name: "terrace"}

// approver is who let a plan be applied: the user of the approval where it says so, else
// Terrace by what the spec says.
func approver(tf *infra.Terraform, plan, by string) audit.Actor {
	if who := v1alpha1.Approver(tf.Annotations, plan); who != "" && (by == approval.BySpec || by == approval.ByAnnotation) {
		return audit.Actor{Kind: audit.Kubernetes, Name: who}
	}
	return audit.Actor{Kind: audit.Terrace, Name: by}
}

// recorded does what changes resources between an intent and an outcome in the ledger. When
// the intent cannot be written, nothing is done.
func (c *Controller) recorded(ctx context.Context, r *run.Run, e audit.Entry, do func() error) error {
	e.Run = r.ID()
	intent, err := c.opts.Ledger.Begin(ctx, e)
	if err != nil {
		return fmt.Errorf("record what is about to be done: %w", err)
	}
	err = do()
	o := audit.Outcome{Result: string(run.OutcomeOf(err))}
	if err != nil {
		o.Detail = c.bare(err)
	}
	if end := intent.End(ctx, o); end != nil && err == nil {
		// It is done, and the intent says so without its outcome: the run goes on.
		fmt.Fprintf(r.Output(), "terrace: the ledger has no outcome of this %s: %v\n", e.Action, end)
	}
	return err
}

// bare is an error as it may be kept for ever: why the run was ended, without the texts of tools
// and providers, which the run's log has, masked, for as long as it is kept.
func (c *Controller) bare(err error) string {
	if cancelled, ok := errors.AsType[*run.CancelledError](err); ok {
		return cancelled.Error()
	}
	if late, ok := errors.AsType[*run.TimedOutError](err); ok {
		return late.Error()
	}
	return "the run's log says why"
}

// applyEntry is the ledger's entry of an apply.
func applyEntry(j *job, rec infra.PlanRecord) audit.Entry {
	e := audit.Entry{
		Actor: j.actor, Action: audit.Apply, Unit: j.unit.String(), Revision: rec.Revision,
		PlanID: rec.ID, PlanDigest: rec.Digest, Counts: countsIn(rec),
	}
	switch {
	case rec.Destroy:
		e.Action = audit.Destroy
	case rec.Drift:
		e.Action = audit.Repair
	}
	return e
}

func countsIn(rec infra.PlanRecord) *audit.Counts {
	return &audit.Counts{Add: rec.Create + rec.Replace, Change: rec.Update, Destroy: rec.Delete + rec.Replace}
}

// planEntry is the entry of a plan with changes, or of drift that was found.
func planEntry(tf *infra.Terraform, p *planned, r run.State) audit.Entry {
	e := audit.Entry{
		Actor: itself, Action: audit.Plan, Unit: unitOf(tf).String(), Revision: p.record.Revision, Run: r.Run,
		PlanID: p.record.ID, PlanDigest: p.record.Digest, Counts: countsIn(*p.record), Outcome: audit.Succeeded,
	}
	if p.record.Drift {
		e.Action = audit.Drift
	}
	return e
}

// approveEntries are the entries of what was decided about a plan before it is applied: an
// approval that a person gave, and a policy that was overridden.
func approveEntries(tf *infra.Terraform, rec infra.PlanRecord, who audit.Actor, s step) []audit.Entry {
	entry := audit.Entry{
		Actor: who, Action: audit.Approve, Unit: unitOf(tf).String(), Revision: rec.Revision,
		PlanID: rec.ID, PlanDigest: rec.Digest, Counts: countsIn(rec), Outcome: audit.Succeeded,
	}
	var out []audit.Entry
	if s.by == approval.BySpec || s.by == approval.ByAnnotation {
		out = append(out, entry)
	}
	if s.overridden && rec.Policy != nil {
		// Who wrote the annotation is in the API server's audit log; the approver need not have.
		entry.Actor = audit.Actor{Kind: audit.Terrace, Name: v1alpha1.PolicyOverrideAnnotation}
		entry.Action, entry.Detail = audit.PolicyOverride, rec.Policy.Denied
		out = append(out, entry)
	}
	return out
}

// append writes an entry about what has happened or was decided. The reconcile that it is
// part of is tried again when it cannot be written.
func (c *Controller) append(ctx context.Context, e audit.Entry) error {
	if _, err := c.opts.Ledger.Append(ctx, e); err != nil {
		return fmt.Errorf("write the ledger: %w", err)
	}
	return nil
}
