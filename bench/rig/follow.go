// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"
	"maps"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Followed are the objects of one kind in a namespace, as a watch shows them. A watch
// that the API server ends, as it does to a client that is too slow for it, is begun
// again.
type Followed[T client.Object] struct {
	stop context.CancelFunc
	then func(T)

	mu      sync.Mutex
	seen    map[string]T // by name; those that are gone are absent
	changed chan struct{}
}

// Follow watches the objects of one kind until Stop or the end of ctx: example is an
// object of it, and list an empty list. Each object that the watch shows is also given
// to then, in order, unless that is nil.
func Follow[T client.Object](ctx context.Context, c client.WithWatch, example T, list client.ObjectList, namespace string, then func(T)) *Followed[T] {
	f := &Followed[T]{then: then, seen: map[string]T{}, changed: make(chan struct{})}
	ctx, f.stop = context.WithCancel(ctx)
	options := func(o metav1.ListOptions) *client.ListOptions {
		return &client.ListOptions{Namespace: namespace, Raw: &o}
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			into := list.DeepCopyObject().(client.ObjectList)
			return into, c.List(ctx, into, options(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, list.DeepCopyObject().(client.ObjectList), options(o))
		},
	}
	r := cache.NewReflectorWithOptions(lw, example, followStore[T]{f}, cache.ReflectorOptions{Name: "bench"})
	go r.RunWithContext(ctx)
	return f
}

// followStore takes in what the watch shows.
type followStore[T client.Object] struct{ f *Followed[T] }

func (s followStore[T]) Add(o any) error { return s.Update(o) }
func (s followStore[T]) Resync() error   { return nil }

func (s followStore[T]) Update(o any) error {
	shown := o.(T)
	s.f.change(func(seen map[string]T) { seen[shown.GetName()] = shown })
	if s.f.then != nil {
		s.f.then(shown)
	}
	return nil
}

func (s followStore[T]) Delete(o any) error {
	s.f.change(func(seen map[string]T) { delete(seen, o.(T).GetName()) })
	return nil
}

// Replace takes a whole list; what is not in it is gone.
func (s followStore[T]) Replace(items []any, _ string) error {
	s.f.change(func(seen map[string]T) {
		clear(seen)
		for _, o := range items {
			seen[o.(T).GetName()] = o.(T)
		}
	})
	if s.f.then != nil {
		for _, o := range items {
			s.f.then(o.(T))
		}
	}
	return nil
}

func (f *Followed[T]) change(do func(seen map[string]T)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do(f.seen)
	close(f.changed)
	f.changed = make(chan struct{})
}

// Stop ends the watch.
func (f *Followed[T]) Stop() {
	if f != nil {
		f.stop()
	}
}

// Seen returns the objects by name. They are not to be changed.
func (f *Followed[T]) Seen() map[string]T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.seen)
}

// Until waits for each of the named objects to be as done says; it is given an
// object's zero value when there is none. what and why are for the error: what is
// waited for, and what an object says of itself.
func (f *Followed[T]) Until(ctx context.Context, what string, names []string, done func(T) bool, why func(T) string) error {
	ctx, cancel := context.WithTimeout(ctx, PhaseTimeout)
	defer cancel()
	for {
		f.mu.Lock()
		changed := f.changed
		f.mu.Unlock()
		// Not under the lock, so that the watch need not wait for a look at every object.
		seen := f.Seen()
		missing, example := 0, ""
		for _, name := range names {
			o, there := seen[name]
			if done(o) {
				continue
			}
			missing++
			if example = name; there {
				example += ": " + why(o)
			}
		}
		if missing == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %d of %d units are not, such as %s: %w", what, missing, len(names), example, ctx.Err())
		}
	}
}
