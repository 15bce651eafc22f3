// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"errors"
	"fmt"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/attribution"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/run"
)

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
		fmt.Fprintf(r.Output(run.Own), "terrace: the ledger has no outcome of this %s: %v\n", e.Action, end)
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

// entryOf is an entry about a plan of a unit.
func entryOf(u run.Unit, rec infra.PlanRecord, action audit.Action, who audit.Actor) audit.Entry {
	return audit.Entry{
		Actor: who, Action: action, Unit: u.String(), Revision: rec.Revision,
		PlanID: rec.ID, PlanDigest: rec.Digest, Counts: audit.CountsOf(planCounts(&rec)),
	}
}

// decided are the entries of an approved plan, and who let it be applied.
func (c *Controller) decided(ctx context.Context, cy *cycle, rec infra.PlanRecord, s step) ([]audit.Entry, audit.Actor, error) {
	tf := cy.tf
	p := attribution.Plan{Object: tf, Kind: unitKind, ID: rec.ID, By: s.by}
	if !rec.Drift && rec.NewRevision {
		p.Commit, _ = attribution.CommitOf(rec.Revision, cy.artifact, tf.Status.Artifact)
	}
	return c.finder().Decided(ctx, p, entryOf(unitOf(tf), rec, audit.Approve, audit.Actor{}), s.denied)
}

func (c *Controller) finder() attribution.Finder { return attribution.Finder{Reader: c.opts.Reader} }

// approvedBy is what the record of a run says of who approved it: a person, else what did.
func approvedBy(who audit.Actor, by string) string {
	switch {
	case who.Kind == audit.Kubernetes:
		return who.Name
	case who.Kind == audit.Git && audit.ByPerson(by):
		return who.String()
	}
	return by
}

// applyEntry is the ledger's entry of an apply.
func applyEntry(j *job, rec infra.PlanRecord) audit.Entry {
	e := entryOf(j.unit, rec, audit.Apply, j.actor)
	switch {
	case rec.Destroy:
		e.Action = audit.Destroy
	case rec.Drift:
		e.Action = audit.Repair
	}
	return e
}

// planEntry is the entry of a plan with changes, or of drift that was found.
func planEntry(tf *infra.Terraform, p *planned, r run.State) audit.Entry {
	e := entryOf(unitOf(tf), *p.record, audit.Plan, audit.Itself)
	e.Run, e.Outcome = r.Run, audit.Succeeded
	if p.record.Drift {
		e.Action = audit.Drift
	}
	return e
}

// append writes an entry about what has happened or was decided. The reconcile that it is
// part of is tried again when it cannot be written.
func (c *Controller) append(ctx context.Context, e audit.Entry) error {
	if _, err := c.opts.Ledger.Append(ctx, e); err != nil {
		return fmt.Errorf("write the ledger: %w", err)
	}
	return nil
}
