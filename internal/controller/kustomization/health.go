// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	kstatus "github.com/fluxcd/cli-utils/pkg/kstatus/status"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/kube"
	"github.com/terrace-dev/terrace/internal/status"
)

const (
	// patience is how long a wait goes on before the status tells of it: most end sooner.
	patience = time.Second
	// explainAgain is when a wait is explained anew: what keeps a Pod from starting shows
	// only after a while.
	explainAgain = 10 * time.Second
)

// ailing is an object that is not healthy.
type ailing struct {
	key    kube.Key
	record *kube.Record
	health kube.Health
}

func (a ailing) String() string {
	return fmt.Sprintf("%s status: '%s': %s", kube.Subject(a.key.ID()), a.health.Status, a.health.Message)
}

// health waits until what was applied, or what spec.healthChecks names, is healthy.
// The watch of the objects wakes the unit.
func (c *Controller) health(ctx context.Context, cy *cycle) (status.Result, error) {
	ks, m, now := cy.ks, cy.mem, c.opts.Clock.Now()
	keys, err := c.checked(ctx, cy)
	if err != nil {
		return status.Result{}, status.Fail(meta.HealthCheckFailedReason, err)
	}
	if len(keys) == 0 {
		conditions.Delete(ks, meta.HealthyCondition)
		m.healthBegun, m.healthFailed = time.Time{}, ""
		return status.Next, nil
	}
	ill, err := c.ailing(ctx, cy, keys)
	if err != nil {
		return status.Result{}, err
	}
	was := conditions.Get(ks, meta.HealthyCondition)
	if len(ill) == 0 {
		if was == nil || was.Status != metav1.ConditionTrue || cy.worked || !m.healthBegun.IsZero() {
			begun := m.healthBegun
			if begun.IsZero() {
				begun = cy.begun
			}
			mark(ks, meta.HealthyCondition, metav1.ConditionTrue, meta.SucceededReason, fmt.Sprintf("Health check passed in %s", now.Sub(begun).Round(time.Millisecond)))
		}
		m.healthBegun, m.healthFailed = time.Time{}, ""
		return status.Next, nil
	}
	if m.healthFailed != "" {
		// It has failed and is not better. It is looked at again when an object moves.
		mark(ks, meta.HealthyCondition, metav1.ConditionFalse, meta.HealthCheckFailedReason, m.healthFailed)
		return status.Result{}, status.Failf(meta.HealthCheckFailedReason, "%s", m.healthFailed)
	}
	if m.healthBegun.IsZero() {
		m.healthBegun = now
	}
	waited, limit := now.Sub(m.healthBegun), ks.GetTimeout()
	dead := slices.ContainsFunc(ill, func(a ailing) bool { return a.health.Status == kstatus.FailedStatus })
	if dead || waited >= limit {
		what := fmt.Sprintf("health check failed after %s: timeout waiting for: [%s]", limit, c.explain(ctx, cy, ill))
		if dead {
			what = fmt.Sprintf("health check failed: failed early due to stalled resources: [%s]", c.explain(ctx, cy, ill))
		}
		m.healthFailed = what
		c.snapshot(cy, meta.HealthCheckFailedReason)
		mark(ks, meta.HealthyCondition, metav1.ConditionFalse, meta.HealthCheckFailedReason, what)
		return status.Result{}, status.Failf(meta.HealthCheckFailedReason, "%s", what)
	}
	if waited < patience {
		return status.Wait(quiet, "", patience-waited), nil
	}
	if conditions.IsReady(ks) && ks.Status.LastAppliedRevision == cy.artifact.Revision && ks.Status.ObservedGeneration == ks.Generation {
		// An object that was healthy restarts. Until the timeout says otherwise the unit is
		// what it was, and who depends on it must not see it go and come back.
		return status.Wait(quiet, "", limit-waited), nil
	}
	next := limit - waited
	if waited < explainAgain {
		next = min(next, explainAgain-waited)
	}
	message := fmt.Sprintf("Running health checks for revision %s with a timeout of %s: waiting for [%s]", cy.artifact.Revision, limit, c.explain(ctx, cy, ill))
	mark(ks, meta.HealthyCondition, metav1.ConditionUnknown, meta.ProgressingReason, message)
	c.tellNews(cy, meta.ProgressingReason)
	return status.Wait(meta.ProgressingReason, message, next), nil
}

// checked lists the objects whose health counts, and watches those that are not the unit's.
func (c *Controller) checked(ctx context.Context, cy *cycle) ([]kube.Key, error) {
	ks := cy.ks
	var keys []kube.Key
	named := map[kube.Key]bool{}
	if ks.Spec.Wait {
		for key, desired := range cy.mem.built.desired {
			pair := cy.mem.verified[key.ID()]
			if strings.HasPrefix(pair.Content, skipped) && pair.Desired == desired || c.isSelf(cy, key) {
				continue
			}
			if slices.ContainsFunc(cy.mem.held, func(h kube.Change) bool { return h.Key == key }) {
				continue
			}
			keys = append(keys, key)
		}
		slices.SortFunc(keys, compareKeys)
	} else {
		for _, ref := range ks.Spec.HealthChecks {
			if ref.APIVersion == "" {
				ref.APIVersion = "apps/v1"
			}
			gv, err := schema.ParseGroupVersion(ref.APIVersion)
			if err != nil {
				return nil, fmt.Errorf("spec.healthChecks: %w", err)
			}
			key := kube.Key{Kind: gv.WithKind(ref.Kind), Namespace: ref.Namespace, Name: ref.Name}
			if c.isSelf(cy, key) {
				continue
			}
			named[key] = true
			keys = append(keys, key)
			if err := cy.cluster.View.Watch(ctx, cy.name, key); err != nil {
				log(ctx).V(1).Info("watch an object of spec.healthChecks", "object", kube.Subject(key.ID()), "error", err.Error())
				if _, unknown := errors.AsType[*kube.UnknownKindError](err); unknown {
					cy.cluster.View.AwaitKinds(cy.name, true)
				}
			}
		}
	}
	cy.cluster.View.Unwatch(cy.name, named)
	return keys, nil
}

// isSelf guards against a unit that waits for itself.
func (c *Controller) isSelf(cy *cycle, key kube.Key) bool {
	return key.Kind.Kind == kustomizev1.KustomizationKind && key.Kind.Group == kustomizev1.GroupVersion.Group &&
		key.Namespace == cy.name.Namespace && key.Name == cy.name.Name
}

func (c *Controller) ailing(ctx context.Context, cy *cycle, keys []kube.Key) ([]ailing, error) {
	checks, err := kube.CompileChecks(cy.ks.Spec.HealthCheckExprs)
	if err != nil {
		return nil, err
	}
	var ill []ailing
	for _, key := range keys {
		r, err := cy.cluster.View.Lookup(ctx, cy.client, key)
		if err != nil {
			ill = append(ill, ailing{key: key, health: kube.Health{Status: kstatus.UnknownStatus, Message: err.Error()}})
			continue
		}
		if r == nil {
			if !cy.mem.built.ttlJobs[key.ID()] {
				ill = append(ill, ailing{key: key, health: kube.Health{Status: kstatus.NotFoundStatus, Message: "it does not exist"}})
			}
			continue
		}
		if h := checks.Of(ctx, key.Kind.GroupKind(), r); h.Status != kstatus.CurrentStatus {
			ill = append(ill, ailing{key, r, h})
		}
	}
	return ill, nil
}

// maxExplained bounds the objects whose trouble is looked into.
const maxExplained = 5

// explain writes what is ill and why.
func (c *Controller) explain(ctx context.Context, cy *cycle, ill []ailing) string {
	var parts []string
	for i, a := range ill {
		text := a.String()
		if i < maxExplained && a.record != nil {
			if why := cy.client.Explain(ctx, a.record); why != "" {
				text += " (" + why + ")"
			}
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// finish says that the unit is what its source asks for.
func (c *Controller) finish(_ context.Context, cy *cycle) (status.Result, error) {
	ks, m, now := cy.ks, cy.mem, c.opts.Clock.Now()
	if len(m.held) > 0 {
		var names []string
		for _, h := range m.held {
			names = append(names, fmt.Sprintf("%s (%s)", kube.Subject(h.Key.ID()), h.Why))
		}
		c.tellNews(cy, meta.ProgressingReason)
		return status.Wait(v1alpha1.ReasonKindsMissing, fmt.Sprintf("Applied revision %s but for %d objects, which are applied once their kind is there: %s",
			cy.artifact.Revision, len(names), strings.Join(names, "; ")), ks.GetRetryInterval()), nil
	}
	fresh := ks.Status.LastAppliedRevision != cy.artifact.Revision
	recovered := !conditions.IsReady(ks)
	ks.Status.LastAppliedRevision, ks.Status.LastAppliedOriginRevision = cy.artifact.Revision, cy.origin
	mark(ks, meta.ReadyCondition, metav1.ConditionTrue, meta.ReconciliationSucceededReason, "Applied revision: "+cy.artifact.Revision)
	conditions.Delete(ks, meta.ReconcilingCondition)
	conditions.Delete(ks, meta.StalledCondition)
	ks.Status.ObservedGeneration = ks.Generation
	if cy.worked || m.news != "" || fresh || recovered || cy.requested {
		c.snapshot(cy, meta.ReconciliationSucceededReason)
	}
	if m.news != "" || recovered {
		m.news = joinNews(m.news, fmt.Sprintf("Reconciliation finished in %s, next run in %s", now.Sub(cy.begun).Round(time.Millisecond), ks.Spec.Interval.Duration))
	}
	c.tellNews(cy, meta.ReconciliationSucceededReason)
	if !now.Before(m.due) {
		m.due = now.Add(ks.Spec.Interval.Duration)
	}
	return status.Next, nil
}

// tellNews tells what was applied and pruned since the last event.
func (c *Controller) tellNews(cy *cycle, reason string) {
	if cy.mem.news != "" {
		cy.event(corev1.EventTypeNormal, reason, cy.mem.news)
		cy.mem.news = ""
	}
}
