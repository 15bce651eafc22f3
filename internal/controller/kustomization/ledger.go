// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"context"
	"fmt"
	"strings"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/attribution"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/kube"
	"github.com/terrace-dev/terrace/internal/plan"
)

// approvedPlan is a plan that may be applied.
type approvedPlan struct {
	inputs     string // that it is a plan of, and the policies that it was judged by
	id, digest string
	counts     plan.Counts
	by         audit.Actor
}

// entry is one about the unit, at its revision.
func (cy *cycle) entry(action audit.Action, by audit.Actor) audit.Entry {
	e := audit.Entry{Actor: by, Action: action, Unit: kustomizev1.KustomizationKind + "/" + cy.name.String()}
	if cy.artifact != nil {
		e.Revision = cy.artifact.Revision
	}
	return e
}

// author is who let the revision be applied that the unit applies by itself: the author of its
// commit, if that has not been applied before. What else there is to do is no commit's.
func (cy *cycle) author() audit.Actor {
	if who, ok := attribution.Commit(cy.artifact); ok && cy.base.Status.LastAppliedRevision != cy.artifact.Revision {
		return who
	}
	return audit.Itself
}

// pruner is who let this revision delete what it has no more: who approved that, if it had to
// be, else its author.
func (cy *cycle) pruner() audit.Actor {
	if cy.ks.Annotations[v1alpha1.PruneApprovedAnnotation] == cy.artifact.Revision {
		if who := v1alpha1.Approver(cy.ks.Annotations, cy.artifact.Revision); who != "" {
			return audit.Actor{Kind: audit.Kubernetes, Name: who}
		}
	}
	return cy.author()
}

// intend records that an attempt is about to write, once for each attempt: before that
// nothing is written.
func (c *Controller) intend(ctx context.Context, cy *cycle) error {
	a, m := cy.mem.attempt, cy.mem
	if a.intent != nil {
		return nil
	}
	e := cy.entry(audit.Apply, cy.author())
	if a.drift {
		e.Action, e.Actor = audit.Repair, audit.Itself
	}
	if p := m.approved; p != nil {
		e = p.in(e)
	}
	var err error
	if a.intent, err = c.opts.Ledger.Begin(ctx, e); err != nil {
		return fmt.Errorf("record what is about to be done: %w", err)
	}
	return nil
}

// conclude records how an attempt ended, if it came to write anything.
func (c *Controller) conclude(ctx context.Context, a *attempt, result, detail string) {
	if a == nil || a.intent == nil {
		return
	}
	counts := &audit.Counts{}
	if a.told == nil {
		a.told = map[kube.ID]bool{}
	}
	for id, ch := range a.changes {
		if !ch.Done || a.told[id] {
			continue
		}
		a.told[id] = true
		switch {
		case ch.Action == kube.Created:
			counts.Add++
		case ch.Action == kube.Configured:
			counts.Change++
		case ch.Action == kube.Recreated:
			counts.Add++
			counts.Destroy++
		}
	}
	if err := a.intent.End(ctx, audit.Outcome{Result: result, Counts: counts, Detail: detail}); err != nil {
		// The intent is there, and says what was begun.
		log(ctx).Error(err, "the ledger has no outcome", "intent", a.intent.Seq())
	}
	a.intent = nil
}

// pruned deletes objects between an intent and an outcome in the ledger.
func (c *Controller) pruned(ctx context.Context, cy *cycle, going []kube.Key, who audit.Actor, why string) ([]kube.Change, error) {
	if len(going) == 0 {
		return cy.client.Prune(ctx, cy.name, going)
	}
	e := cy.entry(audit.Prune, who)
	e.Counts, e.Detail = &audit.Counts{Destroy: len(going)}, why
	intent, err := c.opts.Ledger.Begin(ctx, e)
	if err != nil {
		return nil, fmt.Errorf("record what is about to be deleted: %w", err)
	}
	changes, err := cy.client.Prune(ctx, cy.name, going)
	o := audit.Outcome{Result: audit.Succeeded, Counts: &audit.Counts{}}
	for _, ch := range changes {
		if ch.Action == kube.Deleted {
			o.Counts.Destroy++
		}
	}
	if err != nil {
		o.Result, o.Detail = audit.Failed, "the unit's conditions say why"
	}
	if end := intent.End(ctx, o); end != nil {
		log(ctx).Error(end, "the ledger has no outcome", "intent", intent.Seq())
	}
	return changes, err
}

// in is an entry with the plan and who let it be applied.
func (p *approvedPlan) in(e audit.Entry) audit.Entry {
	e.Actor, e.PlanID, e.PlanDigest, e.Counts = p.by, p.id, p.digest, audit.CountsOf(p.counts)
	return e
}

// planned records a plan that waits: the first time that it is looked at, and again after a
// restart only if the status does not tell of it.
func (c *Controller) planned(ctx context.Context, cy *cycle, p *plan.Plan) error {
	if r := conditions.Get(cy.base, meta.ReadyCondition); r != nil && strings.HasPrefix(r.Message, planPrefix(p)) || cy.mem.planned == p.ID {
		return nil
	}
	e := cy.entry(audit.Plan, audit.Itself)
	if cy.mem.applied == cy.inputs {
		e.Action = audit.Drift
	}
	e.PlanID, e.PlanDigest, e.Counts, e.Outcome = p.ID, p.Digest, audit.CountsOf(p.Counts), audit.Succeeded
	if _, err := c.opts.Ledger.Append(ctx, e); err != nil {
		return fmt.Errorf("write the ledger: %w", err)
	}
	cy.mem.planned = p.ID
	return nil
}

// planPrefix begins the message of the Ready condition of a unit whose plan waits.
func planPrefix(p *plan.Plan) string { return "plan " + p.ID + " " }

// decided records what was decided about a plan before it is applied, and who let it be.
func (c *Controller) decided(ctx context.Context, cy *cycle, p *approvedPlan, by, denied string) error {
	approved := attribution.Plan{Object: cy.ks, Kind: unitKind, ID: p.id, By: by}
	if who := cy.author(); cy.mem.applied != cy.inputs && who.Kind == audit.Git {
		approved.Commit = who
	}
	finder := attribution.Finder{Reader: c.opts.Reader}
	entries, who, err := finder.Decided(ctx, approved, p.in(cy.entry(audit.Approve, audit.Actor{})), denied)
	if err != nil {
		return err
	}
	p.by = who
	for _, e := range entries {
		if _, err := c.opts.Ledger.Append(ctx, e); err != nil {
			return fmt.Errorf("write the ledger: %w", err)
		}
	}
	return nil
}
