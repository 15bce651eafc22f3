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

// view is what is known of the units at one moment, by name.
type view map[string]*infra.Terraform

// units watches the Terraform objects of one namespace, tells of each change of
// their Ready condition, and lets the story wait for what they become.
type units struct {
	client.WithWatch
	namespace string
	say       *teller
	cancel    context.CancelFunc
	done      chan struct{}

	mu      sync.Mutex
	seen    view
	changed chan struct{} // closed, and made anew, at each change
}

// watchUnits begins to watch.
func watchUnits(ctx context.Context, cfg *rest.Config, namespace string, say *teller) (*units, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	if err := infra.AddToScheme(scheme); err != nil {
		return nil, err
	}
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	u := &units{WithWatch: c, namespace: namespace, say: say, cancel: cancel, done: make(chan struct{}), seen: view{}, changed: make(chan struct{})}
	go func() {
		defer close(u.done)
		u.follow(ctx)
	}()
	return u, nil
}

// stop ends the watch.
func (u *units) stop() {
	u.cancel()
	<-u.done
}

// follow watches until ctx ends, over restarts of the API server. A broken watch
// is not an error: the story's own deadlines say when it takes too long.
func (u *units) follow(ctx context.Context) {
	for ctx.Err() == nil {
		u.watchOnce(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (u *units) watchOnce(ctx context.Context) {
	var list infra.TerraformList
	if err := u.List(ctx, &list, client.InNamespace(u.namespace)); err != nil {
		return
	}
	now := view{}
	for i := range list.Items {
		now[list.Items[i].Name] = &list.Items[i]
	}
	u.replace(now)
	w, err := u.Watch(ctx, &infra.TerraformList{}, client.InNamespace(u.namespace), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
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
			tf, ok := event.Object.(*infra.Terraform)
			if !ok {
				return
			}
			u.note(tf, event.Type == watch.Deleted)
		}
	}
}

func (u *units) replace(now view) {
	for name := range u.snapshot() {
		if now[name] == nil {
			u.note(&infra.Terraform{ObjectMeta: metav1.ObjectMeta{Name: name}}, true)
		}
	}
	for _, tf := range now {
		u.note(tf, false)
	}
}

// note keeps what is known of one unit, and tells when its message has changed.
func (u *units) note(tf *infra.Terraform, gone bool) {
	u.mu.Lock()
	before := u.seen[tf.Name]
	if gone {
		delete(u.seen, tf.Name)
	} else {
		u.seen[tf.Name] = tf
	}
	close(u.changed)
	u.changed = make(chan struct{})
	u.mu.Unlock()

	switch {
	case gone:
		u.say.seen(tf.Name, "gone")
	case message(tf) != "" && (before == nil || message(before) != message(tf)):
		u.say.seen(tf.Name, "%s", message(tf))
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
	for name, tf := range u.seen {
		now[name] = tf
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
	for name, tf := range v {
		parts = append(parts, fmt.Sprintf("%s: %s", name, cut(message(tf), 200)))
	}
	if len(parts) == 0 {
		return "none"
	}
	slices.Sort(parts)
	return strings.Join(parts, "; ")
}

// ready tells that the unit's spec as it is now was reconciled with success.
func (v view) ready(name string) bool {
	tf := v[name]
	return tf != nil && tf.Status.ObservedGeneration == tf.Generation && apimeta.IsStatusConditionTrue(tf.Status.Conditions, meta.ReadyCondition)
}

// settledAt tells that all these units know a revision that ends in the commit,
// and are ready.
func (v view) settledAt(commit string, names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		return !v.ready(name) || !strings.HasSuffix(v[name].Status.LastPlannedRevision, commit)
	})
}

// message is the unit's Ready condition in words.
func message(tf *infra.Terraform) string {
	c := apimeta.FindStatusCondition(tf.Status.Conditions, meta.ReadyCondition)
	if c == nil {
		return ""
	}
	return c.Message
}

// ran names the units whose last plan is another than it was before.
func ran(before, now view) []string {
	var names []string
	for name, tf := range now {
		was := before[name]
		if was == nil || !tf.Status.LastPlanAt.Equal(was.Status.LastPlanAt) || tf.Status.Plan.LastApplied != was.Status.Plan.LastApplied {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
