// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// MarkName is the environment variable by which processes of a run are known, see
// Run.Mark.
const MarkName = "TERRACE_RUN"

// Run is a job that runs, as its Do sees it. It is safe for concurrent use, and of
// no use after Do has returned.
type Run struct {
	id      string
	job     Job
	begun   time.Time
	clock   clock.WithDelayedExecution
	log     *logFile
	journal *journal
	cancel  context.CancelCauseFunc
	onStep  func(string)

	mu      sync.Mutex
	steps   []StepRecord
	timer   clock.Timer
	outputs []io.Closer
}

// StepRecord is a step of a run and how long it took.
type StepRecord struct {
	Name  string        `json:"name"`
	Began time.Time     `json:"began"`
	Took  time.Duration `json:"took,omitempty"` // nanoseconds
}

// ID names this execution. It is the name of its log and record.
func (r *Run) ID() string { return r.id }

// Mark returns a variable for the environment of the run's processes. By it their
// descendants are found after a crash, also those that outlived the process that
// Started was told of: providers, provisioners. Without it only that process and
// its group are ended.
func (r *Run) Mark() (name, value string) { return MarkName, r.id }

// Step says what the run does now, for State.Step, and ends the step before. After
// the timeout the run's context ends with a *TimedOutError; 0 leaves the
// step to the bound of the whole run.
func (r *Run) Step(name string, timeout time.Duration) {
	r.mu.Lock()
	r.finishStep()
	now := r.clock.Now()
	r.steps = append(r.steps, StepRecord{Name: name, Began: now})
	if timeout > 0 {
		r.timer = r.clock.AfterFunc(timeout, r.expire(len(r.steps), &TimedOutError{Step: name, After: timeout}))
	}
	r.mu.Unlock()
	r.onStep(name)
}

// expire cancels the run if its nth step is still the current one: the timer may
// have fired while Step was stopping it.
func (r *Run) expire(nth int, err error) func() {
	return func() {
		r.mu.Lock()
		current := len(r.steps) == nth && r.steps[nth-1].Took == 0
		r.mu.Unlock()
		if current {
			r.cancel(err)
		}
	}
}

// finishStep ends the current step. The caller holds mu.
func (r *Run) finishStep() {
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
	if n := len(r.steps); n > 0 && r.steps[n-1].Took == 0 {
		r.steps[n-1].Took = max(r.clock.Since(r.steps[n-1].Began), 1)
	}
}

// endStep ends the last step and returns all.
func (r *Run) endStep() []StepRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finishStep()
	return slices.Clone(r.steps)
}

func (r *Run) step() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.steps) == 0 {
		return ""
	}
	return r.steps[len(r.steps)-1].Name
}

// Output returns a writer into the run's log: masked, marked line by line with the
// time and the stream, bounded. Each call gives one with a line of its own in the
// making, all into the same log. It never returns an error: a full disk must not end
// an apply; the log says what is missing.
func (r *Run) Output(s Stream) io.Writer {
	w := r.job.Mask.Writer(&stamper{log: r.log, clock: r.clock, stream: s})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outputs = append(r.outputs, w)
	return unfailing{w}
}

// unfailing keeps a writer's errors from the process whose output it takes.
type unfailing struct{ io.Writer }

func (u unfailing) Write(p []byte) (int, error) {
	_, _ = u.Writer.Write(p)
	return len(p), nil
}

// closeOutputs writes the last words and closes the log.
func (r *Run) closeOutputs(err error) {
	r.mu.Lock()
	outputs := r.outputs
	r.mu.Unlock()
	for _, w := range outputs {
		_ = w.Close()
	}
	if err != nil {
		w := r.job.Mask.Writer(&stamper{log: r.log, clock: r.clock, stream: Own})
		fmt.Fprintln(w, lastWords(err))
		_ = w.Close()
	}
	r.log.close(r.clock.Now().UTC())
}

// lastWords is what the log of a run ends with that did not do what it was to.
func lastWords(err error) string { return fmt.Sprintf("terrace: run %s: %v", OutcomeOf(err), err) }

// Started records in the journal that the run has a process: its PID, which is also
// its process group, and its start time as the kernel counts it (0 asks the
// kernel). When Started returns nil, the entry survives any crash; the process
// must not have effects before. The error says why it could not be recorded, and
// then the process must be ended.
func (r *Run) Started(pid int, startTime uint64, subcommand string) error {
	p, err := identify(pid)
	switch {
	case err != nil && startTime == 0:
		return fmt.Errorf("journal process %d (%s): %w", pid, subcommand, err)
	case err == nil && startTime != 0 && p.startTime != startTime:
		return fmt.Errorf("journal process %d (%s): it started at %d, not at %d", pid, subcommand, p.startTime, startTime)
	case err == nil:
		startTime = p.startTime
	}
	boot, err := bootID()
	if err != nil {
		return fmt.Errorf("journal process %d (%s): %w", pid, subcommand, err)
	}
	err = r.journal.add(line{Process: &Process{
		PID: pid, StartTime: startTime, Boot: boot, Subcommand: subcommand, At: r.clock.Now(),
	}})
	if err != nil {
		return fmt.Errorf("journal process %d (%s): %w", pid, subcommand, err)
	}
	return nil
}

// Record adds facts to the journal, durably when it returns nil: what whoever
// finds the run interrupted has to know, such as the id of the lock that it
// takes. A fact given again replaces the former. They must not hold secrets.
func (r *Run) Record(facts map[string]string) error {
	if err := r.journal.add(line{Facts: facts}); err != nil {
		return fmt.Errorf("journal facts of run %s: %w", r.id, err)
	}
	return nil
}

// message is the error as it may be kept: masked and short.
func (r *Run) message(err error) string {
	if err == nil {
		return ""
	}
	const limit = 2048
	s := r.job.Mask.String(err.Error())
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return s
}
