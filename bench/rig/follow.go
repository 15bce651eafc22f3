// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Followed are the objects of one kind in a namespace, as a watch shows them.
type Followed[T client.Object] struct {
	stop context.CancelFunc

	mu      sync.Mutex
	seen    map[string]T // by name; those that are gone are absent
	changed chan struct{}
	ended   bool
}

// Follow watches the objects of list's kind until Stop or the end of ctx. Each
// object that the watch shows is also given to every one of then, in order.
func Follow[T client.Object](ctx context.Context, c client.WithWatch, list client.ObjectList, namespace string, then ...func(T)) (*Followed[T], error) {
	f := &Followed[T]{seen: map[string]T{}, changed: make(chan struct{})}
	ctx, f.stop = context.WithCancel(ctx)
	w, err := c.Watch(ctx, list, client.InNamespace(namespace))
	if err != nil {
		f.stop()
		return nil, err
	}
	go func() {
		defer w.Stop()
		for event := range w.ResultChan() {
			o, ok := event.Object.(T)
			if !ok {
				continue // the watch tells of its own end
			}
			f.note(event.Type, o)
			if event.Type == watch.Deleted {
				continue
			}
			for _, do := range then {
				do(o)
			}
		}
		f.mu.Lock()
		f.ended = true
		close(f.changed)
		f.mu.Unlock()
	}()
	return f, nil
}

func (f *Followed[T]) note(event watch.EventType, o T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if event == watch.Deleted {
		delete(f.seen, o.GetName())
	} else {
		f.seen[o.GetName()] = o
	}
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
		missing, example := 0, ""
		for _, name := range names {
			o, there := f.seen[name]
			if done(o) {
				continue
			}
			missing++
			if example = name; there {
				example += ": " + why(o)
			}
		}
		changed, ended := f.changed, f.ended
		f.mu.Unlock()
		if missing == 0 {
			return nil
		}
		if ended {
			return fmt.Errorf("wait for %s: the watch ended", what)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %d of %d units are not, such as %s: %w", what, missing, len(names), example, ctx.Err())
		}
	}
}
