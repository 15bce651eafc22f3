// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"context"
	"fmt"
	"sync"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/kube"
)

// Suspensions records in the ledger that units and sources are suspended and resumed: one
// entry for each change that Terrace sees. What was recorded last is in the object's status,
// as the Suspended condition, which its controller writes; an object that is never suspended
// costs nothing. It is safe for concurrent use.
type Suspensions struct {
	finder Finder
	ledger *audit.Ledger

	mu sync.Mutex
	// last are the entries of which the statuses may not tell yet, by unit: those that this
	// process made and that no status was seen to have, and those at the end of the ledger
	// when it was first asked. Nil until then.
	last map[string]recorded
}

type recorded struct {
	suspended bool
	at        time.Time
}

// NewSuspensions returns a Suspensions.
func NewSuspensions(l *audit.Ledger, f Finder) *Suspensions {
	return &Suspensions{finder: f, ledger: l}
}

// Suspendable is an object with spec.suspend.
type Suspendable struct {
	Object client.Object
	Kind   schema.GroupVersionKind
	// Suspended is spec.suspend.
	Suspended bool
	// Conditions are those of the status, which Settle changes.
	Conditions *[]metav1.Condition
	// ObservedGeneration is that of the status.
	ObservedGeneration int64
}

// Settle records that an object was suspended or resumed since its status was written, if it
// was, and makes its conditions say so. The caller writes them. Should that fail, or the
// process end before, the next Settle records nothing more. A nil Suspensions does nothing.
func (s *Suspensions) Settle(ctx context.Context, o Suspendable) error {
	if s == nil {
		return nil
	}
	unit := o.Kind.Kind + "/" + client.ObjectKeyFromObject(o.Object).String()
	was := apimeta.FindStatusCondition(*o.Conditions, v1alpha1.ConditionSuspended)
	done, err := s.recorded(ctx, unit, was != nil, o)
	if err != nil || (was != nil) == o.Suspended {
		return err
	}
	who, detail, err := s.who(ctx, o, was)
	if err != nil {
		return err
	}
	if !done {
		e := audit.Entry{Actor: who, Action: audit.Resume, Unit: unit, Outcome: audit.Succeeded, Detail: detail}
		if o.Suspended {
			e.Action = audit.Suspend
		}
		if _, err := s.ledger.Append(ctx, e); err != nil {
			return fmt.Errorf("write the ledger: %w", err)
		}
		s.mu.Lock()
		s.last[unit] = recorded{o.Suspended, o.Object.GetCreationTimestamp().Time}
		s.mu.Unlock()
	}
	if !o.Suspended {
		apimeta.RemoveStatusCondition(o.Conditions, v1alpha1.ConditionSuspended)
		return nil
	}
	message := "Suspended"
	if who.Name != Nobody {
		message += " by " + who.String()
	}
	apimeta.SetStatusCondition(o.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionSuspended, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSuspended,
		Message: message, ObservedGeneration: o.Object.GetGeneration(),
	})
	return nil
}

// recorded tells whether an entry has the change that the status does not tell of.
func (s *Suspensions) recorded(ctx context.Context, unit string, was bool, o Suspendable) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if was == o.Suspended {
		delete(s.last, unit) // the status is written
		return false, nil
	}
	if err := s.load(ctx); err != nil {
		return false, err
	}
	last, ok := s.last[unit]
	// What an object of that name did that is gone says nothing of this one. Kubernetes has
	// its times in seconds.
	return ok && last.suspended == o.Suspended && !last.at.Before(o.Object.GetCreationTimestamp().Time), nil
}

// load reads, once, what an earlier process recorded last: it may have ended before it wrote
// a status. Such an entry is at the end of the ledger.
func (s *Suspensions) load(ctx context.Context) error {
	if s.last != nil {
		return nil
	}
	last := map[string]recorded{}
	for e, err := range s.ledger.Recent(ctx) {
		if err != nil {
			return err
		}
		if e.Action == audit.Suspend || e.Action == audit.Resume {
			last[e.Unit] = recorded{e.Action == audit.Suspend, e.Time}
		}
	}
	s.last = last
	return nil
}

// Nobody is the name of who changed an object when nothing vouches for who it was.
const Nobody = "unknown"

// who changed spec.suspend: the user whom the API server vouches for, the author of the commit
// that did it, or nobody knows; the text says how it is known.
func (s *Suspensions) who(ctx context.Context, o Suspendable, was *metav1.Condition) (audit.Actor, string, error) {
	after := o.ObservedGeneration
	if was != nil {
		after = was.ObservedGeneration
	}
	if user := v1alpha1.SuspendedBy(o.Object.GetAnnotations(), o.Suspended, after, o.Object.GetGeneration()); user != "" {
		return audit.Actor{Kind: audit.Kubernetes, Name: line(user)}, "", nil
	}
	managers, err := s.finder.managers(ctx, o.Object, o.Kind)
	if err != nil {
		return audit.Actor{}, "", err
	}
	m := ownerOf(managers, "spec", "suspend")
	if m == nil && was != nil {
		m = removedBy(managers, was.LastTransitionTime)
	}
	switch {
	case m == nil:
		return audit.Actor{Kind: audit.Kubernetes, Name: Nobody}, "nothing says who changed spec.suspend", nil
	case m.Manager == kube.Kustomizations.Field && parentOf(o.Object).Name != "":
		who, detail, err := s.finder.parent(ctx, o.Object, o.Kind, m.Time)
		return who, "spec.suspend is " + detail, err
	}
	return audit.Actor{Kind: audit.Kubernetes, Name: Nobody}, fmt.Sprintf("spec.suspend was changed by field manager %q, which says a program and no user", line(m.Manager)), nil
}

// removedBy is the manager that may have taken a field away, of which no trace is left but the
// time at which what a manager owns has changed: the last one, if that was since.
func removedBy(managers []metav1.ManagedFieldsEntry, since metav1.Time) *metav1.ManagedFieldsEntry {
	var last *metav1.ManagedFieldsEntry
	for i := range managers {
		m := &managers[i]
		if m.Time != nil && !m.Time.Before(&since) && (last == nil || last.Time.Before(m.Time)) {
			last = m
		}
	}
	return last
}
