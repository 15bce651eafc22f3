// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package history keeps the Run objects: one for each run that changed something, failed, or
// was asked for, until there are too many of a unit or they are too old. It writes to the
// API and reads nothing from it but the names of the objects, once, at its start.
package history

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/terrace-dev/terrace/api/v1alpha1"
)

// Options configure a Keeper.
type Options struct {
	// Client writes Runs; Reader lists them at the start, past any cache.
	Client client.Client
	Reader client.Reader
	// Keep is how many Runs of a unit are kept; 0 means 10.
	Keep int
	// KeepFor is how long a Run is kept; 0 means 30 days.
	KeepFor time.Duration
	// Namespaces limits the start's look at what is there; empty means all.
	Namespaces []string
	// Clock is asked for the age of Runs; nil is the real one.
	Clock clock.WithTicker
}

// Keeper keeps the Runs of all units. It is safe for concurrent use.
type Keeper struct {
	opts Options

	loaded chan struct{} // closed when units has what was there before

	mu    sync.Mutex
	units map[types.NamespacedName][]kept // by namespace and UnitLabel; oldest first
}

type kept struct {
	name  string
	ended time.Time
}

// sweepInterval is how often Runs are looked at for their age.
const sweepInterval = time.Hour

// New returns a Keeper. What is there already it knows from Start on.
func New(o Options) *Keeper {
	if o.Keep <= 0 {
		o.Keep = 10
	}
	if o.KeepFor <= 0 {
		o.KeepFor = 30 * 24 * time.Hour
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return &Keeper{opts: o, loaded: make(chan struct{}), units: map[types.NamespacedName][]kept{}}
}

// Label is the value of v1alpha1.UnitLabel for a unit.
func Label(u v1alpha1.UnitReference) string {
	const limit = 63
	s := u.Kind + "." + u.Name
	if len(s) <= limit {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return s[:limit-9] + "-" + hex.EncodeToString(sum[:4])
}

// Record writes a Run, whose name is the run's id: the same one again is not an error. It
// then removes what is one too many of the unit. A Run that the API server does not take (its
// kind is not installed, its namespace is going, a quota or a permission forbids it) is told to
// the log and not an error, because nothing that a unit does may depend on it.
func (k *Keeper) Record(ctx context.Context, r *v1alpha1.Run) error {
	label := Label(r.Spec.Unit)
	if r.Labels == nil {
		r.Labels = map[string]string{}
	}
	r.Labels[v1alpha1.UnitLabel] = label
	err := k.opts.Client.Create(ctx, r)
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil
	case apierrors.IsNotFound(err), apimeta.IsNoMatchError(err), apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		log.FromContext(ctx).Info("a run is not recorded", "run", r.Name, "why", err.Error())
		return nil
	case err != nil:
		return fmt.Errorf("record run %s: %w", r.Name, err)
	}
	u := types.NamespacedName{Namespace: r.Namespace, Name: label}
	k.mu.Lock()
	k.units[u] = append(k.units[u], kept{r.Name, r.Status.Ended.Time})
	k.mu.Unlock()
	if err := k.prune(ctx, u); err != nil {
		log.FromContext(ctx).Info("old runs are not removed", "unit", u.String(), "why", err.Error())
	}
	return nil
}

// Loaded is closed when it is known which Runs there are.
func (k *Keeper) Loaded() <-chan struct{} { return k.loaded }

// Keeps tells whether the Run of that name, of a unit in a namespace, is kept, so that what
// belongs to it can be kept as long. Until it is known which Runs there are, it is, and so are
// those of namespaces that are not looked at.
func (k *Keeper) Keeps(namespace string, u v1alpha1.UnitReference, run string) bool {
	select {
	case <-k.loaded:
	default:
		return true
	}
	if len(k.opts.Namespaces) > 0 && !slices.Contains(k.opts.Namespaces, namespace) {
		return true // another process's, or nobody's for now
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.ContainsFunc(k.units[types.NamespacedName{Namespace: namespace, Name: Label(u)}], func(x kept) bool { return x.name == run })
}

// Start reads which Runs there are, removes those that are too many or too old, and goes
// on to look at their age until ctx ends.
func (k *Keeper) Start(ctx context.Context) error {
	ticker := k.opts.Clock.NewTicker(sweepInterval)
	defer ticker.Stop()
	for known := false; ; {
		if !known {
			if known = k.learn(ctx); known {
				close(k.loaded)
			}
		}
		k.sweep(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// learn reads which Runs there are, and tells whether that is all that will be known.
func (k *Keeper) learn(ctx context.Context) (known bool) {
	err := k.load(ctx)
	if err == nil {
		return true
	}
	// Without it old Runs stay longer, and nothing else is wrong.
	log.FromContext(ctx).Info("runs of before are not known", "why", err.Error())
	// What is not installed or not allowed will not be an hour later.
	return apierrors.IsNotFound(err) || apimeta.IsNoMatchError(err) || apierrors.IsForbidden(err)
}

func (k *Keeper) load(ctx context.Context) error {
	namespaces := k.opts.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, ns := range namespaces {
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.RunKind + "List"))
		for {
			if err := k.opts.Reader.List(ctx, &list, client.InNamespace(ns), client.Limit(500), client.Continue(list.Continue)); err != nil {
				return err
			}
			k.mu.Lock()
			for _, r := range list.Items {
				u := types.NamespacedName{Namespace: r.Namespace, Name: r.Labels[v1alpha1.UnitLabel]}
				if u.Name != "" && !slices.ContainsFunc(k.units[u], func(x kept) bool { return x.name == r.Name }) {
					k.units[u] = append(k.units[u], kept{r.Name, r.CreationTimestamp.Time})
				}
			}
			k.mu.Unlock()
			if list.Continue == "" {
				break
			}
		}
	}
	return nil
}

func (k *Keeper) sweep(ctx context.Context) {
	k.mu.Lock()
	units := make([]types.NamespacedName, 0, len(k.units))
	for u := range k.units {
		units = append(units, u)
	}
	k.mu.Unlock()
	for _, u := range units {
		if err := k.prune(ctx, u); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Info("old runs are not removed", "unit", u.String(), "why", err.Error())
		}
	}
}

// prune removes the Runs of a unit that are too many or too old.
func (k *Keeper) prune(ctx context.Context, u types.NamespacedName) error {
	k.mu.Lock()
	all := k.units[u]
	// Names begin with the time.
	slices.SortFunc(all, func(a, b kept) int { return strings.Compare(a.name, b.name) })
	oldest := k.opts.Clock.Now().Add(-k.opts.KeepFor)
	n := max(len(all)-k.opts.Keep, 0)
	for n < len(all) && all[n].ended.Before(oldest) {
		n++
	}
	gone := slices.Clone(all[:n])
	k.mu.Unlock()
	for _, r := range gone {
		run := &v1alpha1.Run{ObjectMeta: metav1.ObjectMeta{Namespace: u.Namespace, Name: r.name}}
		if err := client.IgnoreNotFound(k.opts.Client.Delete(ctx, run)); err != nil {
			return fmt.Errorf("remove run %s: %w", r.name, err)
		}
		k.forget(u, r.name)
	}
	return nil
}

func (k *Keeper) forget(u types.NamespacedName, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.units[u] = slices.DeleteFunc(k.units[u], func(x kept) bool { return x.name == name })
	if len(k.units[u]) == 0 {
		delete(k.units, u)
	}
}
