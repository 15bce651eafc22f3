// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package status is the grammar that every reconciler speaks: a phase ends with
// a Result, the reconciler with one patch of what changed.
//
// It does not know any kind and decides nothing. Data comes in as the object that
// a reconciler read and then changed; it goes out as at most one write of the
// status subresource, and none when nothing changed.
package status

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

type ending int

const (
	next ending = iota
	wait
	stalled
)

// Result is how a phase ended. The zero value is Next.
type Result struct {
	ending  ending
	Reason  string
	Message string
	// After is when to look again although nothing woke the object; zero means
	// that only an event wakes it.
	After time.Duration
}

// Next lets the following phase run.
var Next = Result{}

// Wait ends the changing phases: something outside must happen first. The object
// is looked at again after the given time, or when a watch wakes it (zero: only then).
func Wait(reason, message string, after time.Duration) Result {
	return Result{ending: wait, Reason: reason, Message: message, After: after}
}

// Stalled ends the changing phases until a person changes the object or what it
// refers to; nothing is retried by time.
func Stalled(reason, message string) Result {
	return Result{ending: stalled, Reason: reason, Message: message}
}

// IsNext says whether the following phase may run.
func (r Result) IsNext() bool { return r.ending == next }

// IsStalled says whether a person must act.
func (r Result) IsStalled() bool { return r.ending == stalled }

// Phase is one step of a reconciler over a value that the steps share. It looks
// whether its work is done, does it, records it on the object, and says how it ended.
type Phase[T any] func(ctx context.Context, cycle T) (Result, error)

// Run runs the phases in order until one does not end with Next.
func Run[T any](ctx context.Context, cycle T, phases ...Phase[T]) (Result, error) {
	for _, phase := range phases {
		res, err := phase(ctx, cycle)
		if err != nil || !res.IsNext() {
			return res, err
		}
	}
	return Next, nil
}

// Failure is an error that knows the reason that the Ready condition shall carry.
type Failure struct {
	Reason string
	Err    error
}

// Fail wraps err with a condition reason.
func Fail(reason string, err error) error { return &Failure{Reason: reason, Err: err} }

// Failf is Fail with a formatted error.
func Failf(reason, format string, args ...any) error {
	return &Failure{Reason: reason, Err: fmt.Errorf(format, args...)}
}

func (f *Failure) Error() string { return f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// ReasonOf returns the reason that err carries, or otherwise the given one.
func ReasonOf(err error, otherwise string) string {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f.Reason
	}
	return otherwise
}

// Sooner returns the smaller of two requeue times, where zero means never.
func Sooner(a, b time.Duration) time.Duration {
	switch {
	case a <= 0:
		return b
	case b <= 0 || a < b:
		return a
	default:
		return b
	}
}

// Again is another try after a lost race, of which nothing is written.
var Again = reconcile.Result{RequeueAfter: 50 * time.Millisecond}

// RetryConflict turns a lost race into another try; everything else is an error.
func RetryConflict(err error) (reconcile.Result, error) {
	if apierrors.IsConflict(err) {
		return Again, nil
	}
	return reconcile.Result{}, err
}

// KeepTimes gives a condition that has the status it was read with the time that it
// had: on the way through a reconcile it may have been another, which nobody has seen,
// and a time alone is not worth a write.
func KeepTimes(was, now []metav1.Condition) {
	for i := range now {
		if old := apimeta.FindStatusCondition(was, now[i].Type); old != nil && old.Status == now[i].Status {
			now[i].LastTransitionTime = old.LastTransitionTime
		}
	}
}
