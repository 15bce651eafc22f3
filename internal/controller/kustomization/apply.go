// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/kube"
	"github.com/terrace-dev/terrace/internal/plan"
	"github.com/terrace-dev/terrace/internal/status"
)

// skipped begins the Content of an object that opted out when it was last looked at.
const skipped = "skipped "

// stageTimeout bounds the wait for CRDs and namespaces to be usable, as in Flux.
const stageTimeout = time.Minute

// apply brings the cluster to what the build says. It is called again when something
// that it waits for has changed, and then goes on where it was: what is as it should
// be costs nothing.
func (c *Controller) apply(ctx context.Context, cy *cycle) (status.Result, error) {
	m, now := cy.mem, c.opts.Clock.Now()
	if m.attempt != nil && m.attempt.inputs != cy.inputs {
		c.conclude(ctx, m.attempt, audit.Cancelled, "what came after it took its place")
		m.attempt = nil // a newer revision ends the old try
	}
	if m.attempt == nil {
		drift := m.applied == cy.inputs
		if drift {
			if drifted, err := c.drifted(ctx, cy); err != nil || !drifted {
				return status.Next, err
			}
		}
		m.attempt = &attempt{inputs: cy.inputs, began: now, drift: drift, changes: map[kube.ID]kube.Change{}}
		if !drift {
			tellCanceled(cy)
			m.healthBegun, m.healthFailed = time.Time{}, ""
		}
	} else if m.attempt.failed != nil {
		// By the interval of now: one that was shortened holds at once.
		if wait := m.attempt.ended.Add(cy.ks.GetRetryInterval()).Sub(now); wait > 0 && !cy.requested {
			return status.Wait(quiet, "", wait), nil
		}
		m.attempt.failed, m.attempt.began = nil, now
	}
	a := m.attempt
	if a.build == nil {
		var err error
		if a.build, err = c.rebuild(ctx, cy); err != nil {
			return status.Result{}, err
		}
	}
	if res := c.pruneLimit(cy); !res.IsNext() {
		return res, nil
	}
	if err := c.begin(cy, slices.Collect(maps.Keys(m.built.desired))); err != nil {
		return status.Result{}, err
	}
	m.applied, m.dirty = "", true
	res, err := c.applyStages(ctx, cy)
	if err != nil {
		a.failed, a.ended = err, now
		c.conclude(ctx, a, audit.Failed, "the unit's conditions say why")
		c.snapshot(cy, status.ReasonOf(err, meta.ReconciliationFailedReason))
		return status.Result{}, hide(a.build.secrets, c.withLog(err, a))
	}
	if !res.IsNext() {
		return res, nil
	}
	c.conclude(ctx, a, audit.Succeeded, "")
	c.applied(cy, a)
	return status.Next, nil
}

// tellCanceled tells that the wait for the health of what was applied before, which the
// status shows, is over.
func tellCanceled(cy *cycle) {
	if cy.mem.healthBegun.IsZero() || cy.mem.healthFailed != "" || !conditions.IsUnknown(cy.base, meta.HealthyCondition) {
		return
	}
	why := "the spec or a variable has changed"
	if old := cy.base.Status.LastAttemptedRevision; old != cy.artifact.Revision {
		why = fmt.Sprintf("%s has the new revision %s", describe(cy.ks.Spec.SourceRef, sourceNamespace(cy.ks)), cy.artifact.Revision)
	}
	cy.event(corev1.EventTypeNormal, meta.HealthCheckCanceledReason, "Health checks canceled: "+why)
}

// applyStages applies stage after stage.
func (c *Controller) applyStages(ctx context.Context, cy *cycle) (status.Result, error) {
	a := cy.mem.attempt
	opts := c.applyOptions(cy)
	opts.Writing = func() error { return c.intend(ctx, cy) }
	a.held = nil
	for _, stage := range kube.Stages(a.build.objects, c.opts.CustomStage) {
		changes, err := cy.client.Apply(ctx, stage, opts)
		for _, ch := range changes {
			c.record(cy, ch)
		}
		if recreating, ok := errors.AsType[*kube.RecreatingError](err); ok {
			return c.stageWait(cy, recreating.Error())
		}
		if err != nil {
			return status.Result{}, err
		}
		why, err := cy.client.Ready(ctx, stage, changes)
		if err != nil {
			return status.Result{}, err
		}
		if why != "" {
			return c.stageWait(cy, why)
		}
	}
	c.rekey(cy, a.build)
	cy.cluster.View.AwaitKinds(cy.name, len(a.held) > 0)
	return status.Next, nil
}

func (c *Controller) applyOptions(cy *cycle) kube.Options {
	return kube.Options{
		Unit: cy.name, Force: cy.ks.Spec.Force, Ignore: kube.IgnoreRules(cy.ks.Spec.Ignore),
		Overridden: c.opts.OverrideManagers, Verified: cy.mem.verified,
	}
}

// record keeps what happened to an object over the reconciles of an attempt.
func (c *Controller) record(cy *cycle, ch kube.Change) {
	a, id := cy.mem.attempt, ch.Key.ID()
	switch ch.Action {
	case kube.Held:
		a.held = append(a.held, ch)
	case kube.Skipped:
		content := ""
		if r, _ := cy.cluster.View.Get(ch.Key); r != nil {
			content = r.Content
		}
		cy.mem.verified[id] = kube.Pair{Desired: cy.mem.built.desired[ch.Key], Content: skipped + content}
	}
	if old, ok := a.changes[id]; ok && old.Done && old.Action.Changes() && !ch.Action.Changes() {
		return // applied earlier in this attempt
	}
	a.changes[id] = ch
}

// stageWait waits for what a later stage needs.
func (c *Controller) stageWait(cy *cycle, why string) (status.Result, error) {
	limit := max(stageTimeout, cy.ks.GetTimeout())
	waited := c.opts.Clock.Since(cy.mem.attempt.began)
	if waited >= limit {
		return status.Result{}, status.Failf(meta.ReconciliationFailedReason, "timed out after %s: %s", limit, why)
	}
	if waited < patience {
		return status.Wait(quiet, "", patience-waited), nil
	}
	return status.Wait(meta.ProgressingReason, fmt.Sprintf("Applying revision %s: %s", cy.artifact.Revision, why), limit-waited), nil
}

// applied records a whole apply.
func (c *Controller) applied(cy *cycle, a *attempt) {
	m := cy.mem
	m.attempt, m.approved, m.dirty = nil, nil, true
	m.held = a.held
	if len(a.held) == 0 {
		m.applied = cy.inputs
	}
	var lines []string
	for _, ch := range sortedChanges(a.changes) {
		if ch.Action.Changes() {
			cy.worked = true
			lines = append(lines, c.describeChange(ch, a))
		}
	}
	if len(lines) == 0 {
		return
	}
	text := strings.Join(lines, "\n")
	if a.drift {
		text = "drift corrected:\n" + text
	}
	m.news = joinNews(m.news, text)
}

func joinNews(a, b string) string {
	if a == "" {
		return b
	}
	return a + "\n" + b
}

func sortedChanges(all map[kube.ID]kube.Change) []kube.Change {
	return slices.SortedFunc(maps.Values(all), func(a, b kube.Change) int { return compareKeys(a.Key, b.Key) })
}

// describeChange writes a change for an event; with what differed, where it repairs.
func (c *Controller) describeChange(ch kube.Change, a *attempt) string {
	if !a.drift || ch.Before == nil || ch.After == nil {
		return ch.String()
	}
	p, err := plan.FromObjects([]plan.ObjectChange{{Action: plan.ActionUpdate, Before: ch.Before.Object, After: ch.After.Object}}, plan.Inputs{Key: c.key, Sensitive: a.build.secrets})
	if err != nil || len(p.Changes) == 0 {
		return ch.String()
	}
	var parts []string
	for _, f := range p.Changes[0].Fields {
		switch {
		case f.Sensitive:
			parts = append(parts, f.Path+" (sensitive)")
		case f.Action == plan.ActionDelete:
			parts = append(parts, fmt.Sprintf("%s: %s removed", f.Path, f.Before))
		case f.Action == plan.ActionCreate:
			parts = append(parts, fmt.Sprintf("%s: %s added", f.Path, f.After))
		default:
			parts = append(parts, fmt.Sprintf("%s: %s → %s", f.Path, f.Before, f.After))
		}
	}
	return ch.String() + ": " + strings.Join(parts, ", ")
}

// withLog adds to an error what was applied before it, as Flux does.
func (c *Controller) withLog(err error, a *attempt) error {
	var lines []string
	for _, ch := range sortedChanges(a.changes) {
		if ch.Action.Changes() && ch.Done {
			lines = append(lines, ch.String())
		}
	}
	if len(lines) == 0 {
		return err
	}
	return status.Fail(status.ReasonOf(err, meta.ReconciliationFailedReason), fmt.Errorf("%w\n%s", err, strings.Join(lines, "\n")))
}

// drifted tells whether an object is not as it was last confirmed.
func (c *Controller) drifted(ctx context.Context, cy *cycle) (bool, error) {
	m, view := cy.mem, cy.cluster.View
	due := !c.opts.Clock.Now().Before(m.due)
	if err := view.Ensure(ctx, kindsOf(m.built.desired)...); err != nil {
		return false, err
	}
	for key, desired := range m.built.desired {
		id := key.ID()
		r, seen := view.Get(key)
		if !seen {
			if due {
				return true, nil // no watch tells of it
			}
			continue
		}
		pair := m.verified[id]
		if content, ok := strings.CutPrefix(pair.Content, skipped); ok && pair.Desired == desired {
			if r == nil && content == "" || r != nil && r.Content == content {
				continue
			}
		}
		switch {
		case r == nil && m.built.ttlJobs[id] && !due:
			// It has cleaned itself up, as it was told to.
		case r != nil && !due && c.contested(cy, key, r):
			// Each would put it back the moment that the other does.
		case r == nil || r.Deleting || pair != kube.Pair{Desired: desired, Content: r.Content}:
			return true, nil
		}
	}
	return false, nil
}

// contested tells whether an object belongs to another unit that wants it as well. As
// in Flux they take turns, once an interval.
func (c *Controller) contested(cy *cycle, key kube.Key, r *kube.Record) bool {
	return r.Unit != cy.name && c.claims.claims(r.Unit, cy.target, key.ID())
}

func kindsOf(desired map[kube.Key]string) []schema.GroupVersionKind {
	var kinds []schema.GroupVersionKind
	for k := range desired {
		kinds = append(kinds, k.Kind)
	}
	return kinds
}

// pruneLimit stops a revision that would prune an unusual share of the unit, before
// it changes anything.
func (c *Controller) pruneLimit(cy *cycle) status.Result {
	ks := cy.ks
	old := keysOf(ks.Status.Inventory)
	if !ks.Spec.Prune || len(old) == 0 || ks.Annotations[v1alpha1.PruneApprovedAnnotation] == cy.artifact.Revision {
		return status.Next
	}
	stale := without(old, slices.Collect(maps.Keys(cy.mem.built.desired)))
	stale = slices.DeleteFunc(stale, func(k kube.Key) bool {
		_, moved := c.claims.claimant(cy.name, cy.target, k.ID())
		return moved
	})
	if len(stale) <= c.opts.PruneLimitMin || len(stale)*100 <= len(old)*c.opts.PruneLimit {
		return status.Next
	}
	names := make([]string, 0, 5)
	for _, k := range stale[:min(5, len(stale))] {
		names = append(names, kube.Subject(k.ID()))
	}
	return status.Stalled(v1alpha1.ReasonPruneLimit, fmt.Sprintf(
		"revision %s would prune %d of %d objects (%s, …), which is more than %d %%: nothing was changed; to let it, annotate %s: %s",
		cy.artifact.Revision, len(stale), len(old), strings.Join(names, ", "), c.opts.PruneLimit, v1alpha1.PruneApprovedAnnotation, cy.artifact.Revision))
}

// prune deletes what this revision says no more.
func (c *Controller) prune(ctx context.Context, cy *cycle) (status.Result, error) {
	ks, m := cy.ks, cy.mem
	c.claims.settled(cy.name, c.Wake)
	desired := slices.Collect(maps.Keys(m.built.desired))
	old := union(keysOf(ks.Status.Inventory), m.begun)
	live := listed(desired, keysOf(ks.Status.Inventory), m.held)
	stale := without(old, desired)
	if len(stale) == 0 || !ks.Spec.Prune {
		m.pruneWait = time.Time{}
		c.letGo(cy, stale)
		ks.Status.Inventory = inventoryOf(live)
		return status.Next, nil
	}
	if who, missing := c.siblingMissing(ctx, cy); missing {
		log(ctx).V(1).Info("wait to prune until others know the revision", "for", who.String())
		return status.Wait(quiet, "", handOver), nil
	}
	m.pruneWait = time.Time{}
	going, kept := c.prunable(ctx, cy, stale)
	changes, err := c.pruned(ctx, cy, going, cy.pruner(), "the revision has them no more")
	var done []kube.Key
	var lines []string
	for _, ch := range changes {
		done = append(done, ch.Key)
		delete(m.verified, ch.Key.ID())
		if ch.Action == kube.Deleted {
			lines = append(lines, ch.String())
			cy.worked = true
		}
	}
	// What was begun and then dropped is gone as well, or it would be pruned for ever.
	c.letGo(cy, without(stale, union(kept, without(going, done))))
	m.dirty = true
	if len(lines) > 0 {
		m.news = joinNews(m.news, strings.Join(lines, "\n"))
	}
	// What could not be deleted stays in the inventory, so that it is tried again.
	ks.Status.Inventory = inventoryOf(union(live, kept, without(going, done)))
	if err != nil {
		c.snapshot(cy, meta.PruneFailedReason)
		return status.Result{}, status.Fail(meta.PruneFailedReason, err)
	}
	return status.Next, nil
}

// letGo forgets that objects may have been applied.
func (c *Controller) letGo(cy *cycle, keys []kube.Key) {
	m := cy.mem
	if left := without(m.begun, keys); len(left) != len(m.begun) {
		m.begun, m.dirty = left, true
	}
}

// handOver is how long a prune waits at most for the units of the same source to look
// at the revision.
const handOver = 30 * time.Second

// listed are the objects that the inventory lists: what was applied. An object that is held is in it only
// if it was before.
func listed(desired, old []kube.Key, held []kube.Change) []kube.Key {
	in := map[kube.ID]bool{}
	for _, k := range old {
		in[k.ID()] = true
	}
	missing := map[kube.ID]bool{}
	for _, h := range held {
		missing[h.Key.ID()] = !in[h.Key.ID()]
	}
	return slices.DeleteFunc(slices.Clone(desired), func(k kube.Key) bool { return missing[k.ID()] })
}

// siblingMissing names a unit of the same source that does not know yet what this
// revision says to it, and so may be about to take over an object.
func (c *Controller) siblingMissing(ctx context.Context, cy *cycle) (fmt.Stringer, bool) {
	m, now := cy.mem, c.opts.Clock.Now()
	if m.pruneWait.IsZero() {
		m.pruneWait = now
	}
	if now.Sub(m.pruneWait) >= handOver {
		return nil, false
	}
	who, missing := c.claims.missing(cy.name, sourceOf(cy.ks), cy.artifact.Revision, c.siblings(ctx, cy))
	return who, missing
}

// prunable splits stale objects into those that go, and those that stay in the
// inventory because others still live in them. Those that another unit wants by now
// are in neither: they are its.
func (c *Controller) prunable(ctx context.Context, cy *cycle, stale []kube.Key) (going, kept []kube.Key) {
	for _, k := range stale {
		if other, ok := c.claims.claimant(cy.name, cy.target, k.ID()); ok {
			log(ctx).Info("hand over", "object", kube.Subject(k.ID()), "to", other.String())
			continue
		}
		if why := c.inhabited(ctx, cy, k, stale); why != "" {
			cy.event(corev1.EventTypeWarning, meta.PruneFailedReason, fmt.Sprintf("%s is not pruned: %s", kube.Subject(k.ID()), why))
			kept = append(kept, k)
			continue
		}
		going = append(going, k)
	}
	return going, kept
}

// snapshot keeps the outcome in the status's history.
func (c *Controller) snapshot(cy *cycle, reason string) {
	if cy.mem.built == nil {
		return
	}
	about := map[string]string{"revision": cy.artifact.Revision}
	if cy.origin != "" {
		about["originRevision"] = cy.origin
	}
	now := c.opts.Clock.Now()
	cy.ks.Status.History.Upsert(cy.mem.built.digest, now, now.Sub(cy.begun).Round(time.Millisecond), reason, about)
}
