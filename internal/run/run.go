// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package run executes jobs: plans, applies, destroys, drift checks. It decides
// when a job may run (so many at once, fair between namespaces, one for a unit),
// bounds it in time, cancels it, keeps its log and a journal of it, and after a
// crash finds the processes that were left behind and ends them before anyone
// may go on.
//
// It does not know what a job does: that is the function that the job carries.
// Results live in memory until they are fetched; logs and records of the last
// runs live in the directory given to New, and nowhere else.
package run

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/terrace-dev/terrace/internal/mask"
)

// Unit names what a run is for. Namespace may be empty; Kind and Name may not.
type Unit struct {
	Kind, Namespace, Name string
}

// String is Kind/Namespace/Name, or Kind/Name without a namespace.
func (u Unit) String() string {
	if u.Namespace == "" {
		return u.Kind + "/" + u.Name
	}
	return u.Kind + "/" + u.Namespace + "/" + u.Name
}

// Kind says what a run does.
type Kind string

// The kinds of run.
const (
	Plan    Kind = "plan"
	Apply   Kind = "apply"
	Destroy Kind = "destroy"
	Drift   Kind = "drift"
	Import  Kind = "import"
)

// Phase says how far a job has come.
type Phase string

// The phases of a job, in their order.
const (
	Queued  Phase = "Queued"
	Running Phase = "Running"
	Done    Phase = "Done"
)

// StepRecover is the step of a run that was interrupted by the end of the process
// that ran it, while what it left behind is being ended.
const StepRecover = "recover"

// Job is work to be done for a unit.
type Job struct {
	Unit Unit
	// ID names the content of the job: the same (Unit, ID) is not started again
	// while it is known.
	ID   string
	Kind Kind
	// Timeout bounds the run from its start, not the time in the queue; 0 means
	// the executor's Options.Timeout.
	Timeout time.Duration
	// Mask is applied to the run's output and to the message in its record. Nil
	// masks by form only.
	Mask *mask.Masker
	// Facts are kept in the journal from its first entry on, so that they are
	// known after a crash: the plan's digest, where the state is. They must not
	// hold secrets.
	Facts map[string]string
	// Do does the work. Its context ends when the run is cancelled or out of
	// time, with a *CancelledError or *TimedOutError as its cause; Do then ends
	// what it started and returns. A panic of Do is the run's error.
	Do func(ctx context.Context, r *Run) (any, error)
	// Result is State.Result where Do gives none: it panicked, or was never called
	// because the job was cancelled in the queue or its log could not be opened.
	// Whoever records the end of the job still knows by it what was to be done.
	Result any
}

// State is what is known of the job of a unit.
type State struct {
	ID    string // of the job
	Run   string // names this execution; empty while queued
	Kind  Kind
	Phase Phase
	// Position in the order in which queued jobs will start as things are now,
	// from 1 on; 0 when not queued.
	Position int
	Step     string    // of a running job; of a finished one the last
	Since    time.Time // when the phase began
	Begun    time.Time // when the run began; zero while queued
	// Steps of a finished run and how long each took; none of an interrupted one.
	Steps []StepRecord
	// Result is what Do returned, or the job's Result if it returned none; nil unless
	// Done.
	Result any
	// Err is what Do returned. Of a run that was cancelled, timed out or
	// interrupted it matches ErrCancelled, ErrTimedOut or ErrInterrupted, and
	// what Do returned besides.
	Err     error
	LogPath string // of the run's log; empty while queued
}

// Reasons why a run ended before it was finished, for errors.Is. The facts are in
// the types CancelledError, TimedOutError and InterruptedError.
var (
	ErrCancelled   = errors.New("cancelled")
	ErrTimedOut    = errors.New("timed out")
	ErrInterrupted = errors.New("interrupted")
)

// CancelledError says that a run was cancelled, running or queued. It matches
// ErrCancelled.
type CancelledError struct {
	Reason   string
	Shutdown bool // the executor shuts down; nobody asked for this run to end
}

func (e *CancelledError) Error() string {
	if e.Reason == "" {
		return ErrCancelled.Error()
	}
	return "cancelled: " + e.Reason
}

// Is makes errors.Is match ErrCancelled.
func (e *CancelledError) Is(target error) bool { return target == ErrCancelled }

// TimedOutError says that a run, or a step of it, took longer than it may. It
// matches ErrTimedOut.
type TimedOutError struct {
	Step  string // that was running
	Whole bool   // the bound of the whole run was hit, not that of the step
	After time.Duration
}

func (e *TimedOutError) Error() string {
	switch {
	case e.Step == "":
		return fmt.Sprintf("timed out after %s", e.After)
	case e.Whole:
		return fmt.Sprintf("timed out after %s, in step %s", e.After, e.Step)
	default:
		return fmt.Sprintf("step %s timed out after %s", e.Step, e.After)
	}
}

// Is makes errors.Is match ErrTimedOut.
func (e *TimedOutError) Is(target error) bool { return target == ErrTimedOut }

// InterruptedError says that the process that executed the run ended before the
// run did, and was found so by the next. It matches ErrInterrupted.
type InterruptedError struct {
	Interruption Interruption
}

func (e *InterruptedError) Error() string {
	i := e.Interruption
	switch {
	case len(i.Processes) == 0:
		return fmt.Sprintf("interrupted: run %s did not end", i.Run)
	case i.Killed:
		return fmt.Sprintf("interrupted: run %s did not end; what it left behind was killed", i.Run)
	default:
		return fmt.Sprintf("interrupted: run %s did not end, in %s", i.Run, i.Processes[len(i.Processes)-1].Subcommand)
	}
}

// Is makes errors.Is match ErrInterrupted.
func (e *InterruptedError) Is(target error) bool { return target == ErrInterrupted }

// Interruption is a run that had begun and not ended when the process that
// executed it did. When it is reported, none of its processes lives any more.
type Interruption struct {
	Run       string // as State.Run
	ID        string // of the job
	Unit      Unit
	Kind      Kind
	Begun     time.Time
	Facts     map[string]string // the job's, and what the run recorded
	Processes []Process         // that the run said it started, oldest first
	Orphaned  bool              // a process of the run was still alive
	Killed    bool              // and did not end when it was asked to
	LogPath   string
}

// Outcome says how a run ended.
type Outcome string

// How runs end.
const (
	Succeeded   Outcome = "succeeded"
	Failed      Outcome = "failed"
	Cancelled   Outcome = "cancelled"
	TimedOut    Outcome = "timed-out"
	Interrupted Outcome = "interrupted"
)

// OutcomeOf says how a run ended whose Do returned err.
func OutcomeOf(err error) Outcome {
	switch {
	case err == nil:
		return Succeeded
	case errors.Is(err, ErrInterrupted):
		return Interrupted
	case errors.Is(err, ErrTimedOut):
		return TimedOut
	case errors.Is(err, ErrCancelled):
		return Cancelled
	default:
		return Failed
	}
}

// Observation is what Options.Observe is told of a run that has ended.
type Observation struct {
	Unit    Unit
	Kind    Kind
	Run     string // empty when it was cancelled in the queue
	Outcome Outcome
	Waited  time.Duration // in the queue
	Took    time.Duration // running
}

// Stats counts jobs at one moment.
type Stats struct {
	Concurrency int // how many may run at once
	Queued      int
	Running     int
	// ByNamespace has the namespaces with a job queued or running.
	ByNamespace map[string]Counts
}

// Counts is Stats for one namespace.
type Counts struct{ Queued, Running int }
