// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

// unit is what is known of one unit. One of the fields is set.
type unit struct {
	terraform     *infra.Terraform
	kustomization *kustomizev1.Kustomization
}

// unitOf wraps an object of one of the two kinds; ok is false for any other.
func unitOf(o any) (u unit, ok bool) {
	switch o := o.(type) {
	case *infra.Terraform:
		return unit{terraform: o}, true
	case *kustomizev1.Kustomization:
		return unit{kustomization: o}, true
	}
	return unit{}, false
}

func (u unit) object() client.Object {
	if u.terraform != nil {
		return u.terraform
	}
	return u.kustomization
}

// readiness is the Ready condition, nil if there is none yet, and the generation
// that the status speaks of.
func (u unit) readiness() (*metav1.Condition, int64) {
	if u.terraform != nil {
		return apimeta.FindStatusCondition(u.terraform.Status.Conditions, meta.ReadyCondition), u.terraform.Status.ObservedGeneration
	}
	return apimeta.FindStatusCondition(u.kustomization.Status.Conditions, meta.ReadyCondition), u.kustomization.Status.ObservedGeneration
}

// ready tells that the unit's spec as it is now was reconciled with success.
func (u unit) ready() bool {
	c, observed := u.readiness()
	return c != nil && c.Status == metav1.ConditionTrue && observed == u.object().GetGeneration()
}

// message is the unit's Ready condition in words; a Kustomization under way says
// with what in another one.
func (u unit) message() string {
	c, _ := u.readiness()
	if u.kustomization != nil && c != nil && c.Status == metav1.ConditionUnknown {
		if r := apimeta.FindStatusCondition(u.kustomization.Status.Conditions, meta.ReconcilingCondition); r != nil {
			return r.Message
		}
	}
	if c == nil {
		return ""
	}
	return c.Message
}

// revision is the last one of which the unit knows what it means for it.
func (u unit) revision() string {
	if u.terraform != nil {
		return u.terraform.Status.LastPlannedRevision
	}
	return u.kustomization.Status.LastAppliedRevision
}

// work names the last work of the unit, "" if there was none: of a Terraform its
// plan, of a Kustomization what it built. A commit that means nothing to the unit
// leaves it as it is.
func (u unit) work() string {
	if tf := u.terraform; tf != nil {
		if tf.Status.LastPlanAt == nil {
			return ""
		}
		return tf.Status.LastPlanAt.UTC().Format(time.RFC3339Nano) + " " + tf.Status.Plan.LastApplied
	}
	if h := u.kustomization.Status.History; len(h) > 0 {
		return h[0].Digest
	}
	return ""
}

// view is what is known of the units at one moment, by name.
type view map[string]unit

// units watches the units of one namespace, tells of each change of their Ready
// condition, and lets the story wait for what they become.
type units struct {
	client.WithWatch
	namespace string
	say       *teller
	cancel    context.CancelFunc
	done      sync.WaitGroup

	mu      sync.Mutex
	seen    view
	changed chan struct{} // closed, and made anew, at each change
}

// watchUnits begins to watch.
func watchUnits(ctx context.Context, cfg *rest.Config, namespace string, say *teller) (*units, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, infra.AddToScheme, kustomizev1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	u := &units{WithWatch: c, namespace: namespace, say: say, cancel: cancel, seen: view{}, changed: make(chan struct{})}
	u.done.Go(func() { u.follow(ctx, &infra.TerraformList{}) })
	u.done.Go(func() { u.follow(ctx, &kustomizev1.KustomizationList{}) })
	return u, nil
}

// stop ends the watch.
func (u *units) stop() {
	u.cancel()
	u.done.Wait()
}

// follow watches the units of one kind until ctx ends, over restarts of the API
// server. A broken watch is not an error: the story's own deadlines say when it takes
// too long.
func (u *units) follow(ctx context.Context, kind client.ObjectList) {
	for ctx.Err() == nil {
		u.watchOnce(ctx, kind.DeepCopyObject().(client.ObjectList))
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (u *units) watchOnce(ctx context.Context, list client.ObjectList) {
	if err := u.List(ctx, list, client.InNamespace(u.namespace)); err != nil {
		return
	}
	now := view{}
	if err := apimeta.EachListItem(list, func(o runtime.Object) error {
		if one, ok := unitOf(o); ok {
			now[one.object().GetName()] = one
		}
		return nil
	}); err != nil {
		return
	}
	_, terraforms := list.(*infra.TerraformList)
	u.replace(terraforms, now)
	w, err := u.Watch(ctx, list, client.InNamespace(u.namespace), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}})
	if err != nil {
		return
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event, open := <-w.ResultChan():
			if !open {
				return
			}
			one, ok := unitOf(event.Object)
			if !ok {
				return
			}
			u.note(one, event.Type == watch.Deleted)
		}
	}
}

// replace takes note of all units of one kind.
func (u *units) replace(terraforms bool, now view) {
	for name, one := range u.snapshot() {
		if _, there := now[name]; !there && (one.terraform != nil) == terraforms {
			u.note(one, true)
		}
	}
	for _, one := range now {
		u.note(one, false)
	}
}

// note keeps what is known of one unit, and tells when its message has changed.
func (u *units) note(one unit, gone bool) {
	name := one.object().GetName()
	u.mu.Lock()
	before, known := u.seen[name]
	if gone {
		delete(u.seen, name)
	} else {
		u.seen[name] = one
	}
	close(u.changed)
	u.changed = make(chan struct{})
	u.mu.Unlock()

	switch {
	case gone:
		u.say.seen(name, "gone")
	case one.message() != "" && (!known || before.message() != one.message()):
		u.say.seen(name, "%s", one.message())
	}
}

// snapshot copies what is known now.
func (u *units) snapshot() view {
	now, _ := u.state()
	return now
}

func (u *units) state() (view, <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := make(view, len(u.seen))
	for name, one := range u.seen {
		now[name] = one
	}
	return now, u.changed
}

// until waits for the units to be as done says. What it waited for, and what the
// units were instead, is in the error at the deadline.
func (u *units) until(ctx context.Context, what string, timeout time.Duration, done func(view) bool) error {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	for {
		now, changed := u.state()
		if done(now) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
		case <-deadline.C:
			return fmt.Errorf("waited %s for %s; the units are: %s", timeout, what, now)
		}
	}
}

// String lists the units with their messages.
func (v view) String() string {
	var parts []string
	for name, one := range v {
		parts = append(parts, fmt.Sprintf("%s: %s", name, cut(one.message(), 200)))
	}
	if len(parts) == 0 {
		return "none"
	}
	slices.Sort(parts)
	return strings.Join(parts, "; ")
}

// ready tells that all these units are there and ready.
func (v view) ready(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		one, there := v[name]
		return !there || !one.ready()
	})
}

// settledAt tells that all these units know a revision that ends in the commit,
// and are ready.
func (v view) settledAt(commit string, names ...string) bool {
	return v.ready(names...) && !slices.ContainsFunc(names, func(name string) bool {
		return !strings.HasSuffix(v[name].revision(), commit)
	})
}

// terraform returns a Terraform unit, an empty one if it is not there.
func (v view) terraform(name string) *infra.Terraform {
	if tf := v[name].terraform; tf != nil {
		return tf
	}
	return &infra.Terraform{}
}

// ran names the units whose last work is another than it was before.
func ran(before, now view) []string {
	var names []string
	for name, one := range now {
		if was, known := before[name]; !known || was.work() != one.work() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
