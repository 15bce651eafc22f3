// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Options configure an Executor.
type Options struct {
	// Dir holds journals, records and logs; it is created with mode 0700. One
	// Executor may use it at a time.
	Dir string
	// Concurrency is how many jobs run at once; 0 means one for each core.
	Concurrency int
	// Clock is asked for times and timeouts; nil is the real one.
	Clock clock.WithDelayedExecution
	// Timeout bounds runs whose job has no bound of its own; 0 means one hour.
	Timeout time.Duration
	// Grace is how long an orphan of an interrupted run may take to end after
	// SIGINT before it gets SIGKILL; 0 means one minute.
	Grace time.Duration
	// OnChange is called when the job of a unit goes from Queued to Running and
	// when it becomes Done, not when its position or step changes, and not for
	// what the caller sees in the answer of Start. It is called without locks, and
	// must not block for long. It may be called before New returns.
	OnChange func(Unit)
	// Observe is called once for each job that has ended, before OnChange.
	Observe func(Observation)
	// Log bounds the logs.
	Log LogLimit
	// Kept tells that the log and record of a run stay although the limits of Log say
	// otherwise, because something refers to them. It must not call the executor; nil
	// is for none.
	Kept func(u Unit, run string) bool
}

// LogLimit bounds the logs that an Executor keeps.
type LogLimit struct {
	// Head and Tail are how many bytes of the beginning and of the end of a
	// run's output are kept; 0 means 512 KiB and 1 MiB.
	Head, Tail int64
	// Runs is how many runs of a unit are kept, logs and records; 0 means 10.
	Runs int
	// Age is how long they are kept at most; 0 means 30 days.
	Age time.Duration
}

func (o *Options) defaults() {
	if o.Concurrency <= 0 {
		o.Concurrency = runtime.GOMAXPROCS(0)
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Timeout <= 0 {
		o.Timeout = time.Hour
	}
	if o.Grace <= 0 {
		o.Grace = time.Minute
	}
	if o.OnChange == nil {
		o.OnChange = func(Unit) {}
	}
	if o.Observe == nil {
		o.Observe = func(Observation) {}
	}
	if o.Log.Head <= 0 {
		o.Log.Head = 512 << 10
	}
	if o.Log.Tail <= 0 {
		o.Log.Tail = 1 << 20
	}
	if o.Log.Runs <= 0 {
		o.Log.Runs = 10
	}
	if o.Log.Age <= 0 {
		o.Log.Age = 30 * 24 * time.Hour
	}
	if o.Kept == nil {
		o.Kept = func(Unit, string) bool { return false }
	}
}

// Executor runs jobs. It is safe for concurrent use.
type Executor struct {
	opts  Options
	store store
	// recovery ends when the executor shuts down: what is left behind then stays
	// in the journal for the next.
	recovery     context.Context
	stopRecovery context.CancelFunc
	// busy counts runs and recoveries that have begun and not ended.
	busy sync.WaitGroup

	mu      sync.Mutex
	units   map[Unit]*entry
	queue   queue
	running int
	closed  bool
	last    time.Time // of the last run id given out
}

// entry is the job of a unit. Its fields are guarded by Executor.mu.
type entry struct {
	job    Job
	state  State
	queued time.Time
	cancel context.CancelCauseFunc
	log    *logFile // while running, also while it is recovered
	// left has what the journal told of runs of this unit at New, until it is
	// settled.
	left []Interruption
}

// New opens the directory and returns an executor. Runs that the journal has as
// begun and not ended are taken up in the background: each such unit is Running
// with StepRecover until no process of the run is left, and then Done with an
// *InterruptedError; Start waits for that as for any run. The error says why the
// directory cannot be used; ErrInUse when another executor has it.
func New(opts Options) (*Executor, error) {
	opts.defaults()
	st, err := openStore(opts)
	if err != nil {
		return nil, fmt.Errorf("open the run directory %s: %w", opts.Dir, err)
	}
	left, err := st.unfinished()
	if err != nil {
		st.close()
		return nil, fmt.Errorf("read the run journal in %s: %w", opts.Dir, err)
	}
	e := &Executor{opts: opts, store: st, units: map[Unit]*entry{}}
	e.recovery, e.stopRecovery = context.WithCancel(context.Background())
	for _, rec := range left {
		path := st.logPath(rec.Unit, rec.Run)
		e.units[rec.Unit] = &entry{
			job: Job{Unit: rec.Unit, ID: rec.ID, Kind: rec.Kind},
			state: State{
				ID: rec.ID, Run: rec.Run, Kind: rec.Kind, Phase: Running, Step: StepRecover,
				Since: opts.Clock.Now(), LogPath: path,
			},
			log: reopenLog(path),
		}
	}
	e.busy.Add(len(e.units))
	for u := range e.units {
		go e.recover(u, slices.DeleteFunc(slices.Clone(left), func(r Record) bool { return r.Unit != u }))
	}
	return e, nil
}

// Start queues the job, and runs it at once when there is room. The answer is the
// state of the unit's job, which is the given one unless
//
//   - the same (Unit, ID) is known: nothing is started, whatever its phase; a
//     finished one has to be forgotten first to run again;
//   - another job of the unit is running: nothing is started; start again when
//     OnChange says that it is done.
//
// A queued job with another ID gives up its place to the new one. A finished one
// with another ID is forgotten. After Shutdown, and for a job without Unit, ID or
// Do, the answer is Done with an error and nothing is kept.
func (e *Executor) Start(job Job) State {
	if err := validate(job); err != nil {
		return State{ID: job.ID, Kind: job.Kind, Phase: Done, Since: e.opts.Clock.Now(), Err: err}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return State{ID: job.ID, Kind: job.Kind, Phase: Done, Since: e.opts.Clock.Now(), Err: errShutdown()}
	}
	old := e.units[job.Unit]
	switch {
	case old == nil:
	case old.state.ID == job.ID, old.state.Phase == Running:
		return e.view(old)
	case old.state.Phase == Queued:
		old.job = job
		old.state.ID, old.state.Kind = job.ID, job.Kind
		return e.view(old)
	default:
		e.settle(old)
	}
	now := e.opts.Clock.Now()
	en := &entry{job: job, queued: now, state: State{ID: job.ID, Kind: job.Kind, Phase: Queued, Since: now}}
	e.units[job.Unit] = en
	e.queue.push(en)
	// Whatever starts now is this one: others are waiting only when there is no
	// room for it either.
	e.dispatch()
	return e.view(en)
}

func validate(job Job) error {
	switch {
	case job.Unit.Kind == "" || job.Unit.Name == "":
		return fmt.Errorf("start run of %q: a unit needs a kind and a name", job.Unit)
	case job.ID == "":
		return fmt.Errorf("start run of %s: the job has no id", job.Unit)
	case job.Do == nil:
		return fmt.Errorf("start run of %s: the job does nothing", job.Unit)
	}
	return nil
}

func errShutdown() error { return &CancelledError{Reason: "terrace is shutting down", Shutdown: true} }

// view is the state as callers see it. The caller holds mu.
func (e *Executor) view(en *entry) State {
	s := en.state
	if s.Phase == Queued {
		s.Position = e.queue.position(en)
	}
	return s
}

// Get returns the state of the unit's job, and false when there is none.
func (e *Executor) Get(u Unit) (State, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	en, ok := e.units[u]
	if !ok {
		return State{}, false
	}
	return e.view(en), true
}

// Forget drops the finished job with that id, its result and, if it was
// interrupted, its entry in the journal: do what the interruption asks for
// first. It does nothing when the unit has another job or one that is not done.
func (e *Executor) Forget(u Unit, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if en, ok := e.units[u]; ok && en.state.ID == id && en.state.Phase == Done {
		e.settle(en)
		delete(e.units, u)
	}
}

// settle moves what the journal had of en to the records. The caller holds mu.
func (e *Executor) settle(en *entry) {
	for _, i := range en.left {
		// What cannot be settled is reported again by the next executor.
		_ = e.store.settle(i.Run, i.Unit, e.opts.Clock.Now())
	}
	en.left = nil
}

// Cancel ends the unit's job: a queued one is Done at once, a running one when Do
// has returned; the error of both is a *CancelledError with the reason. It
// returns false when there is nothing to cancel, also for an interrupted run that
// is being recovered.
func (e *Executor) Cancel(u Unit, reason string) bool {
	e.mu.Lock()
	en, ok := e.units[u]
	if !ok || en.state.Phase == Done || en.state.Phase == Running && en.cancel == nil {
		e.mu.Unlock()
		return false
	}
	if en.state.Phase == Running {
		en.cancel(&CancelledError{Reason: reason})
		e.mu.Unlock()
		return true
	}
	o := e.unqueue(en, &CancelledError{Reason: reason})
	e.mu.Unlock()
	e.opts.Observe(o)
	e.opts.OnChange(u)
	return true
}

// unqueue ends a queued job. The caller holds mu.
func (e *Executor) unqueue(en *entry, err error) Observation {
	now := e.opts.Clock.Now()
	e.queue.remove(en)
	en.state.Phase, en.state.Since, en.state.Result, en.state.Err = Done, now, en.job.Result, err
	return Observation{Unit: en.job.Unit, Kind: en.job.Kind, Outcome: OutcomeOf(err), Waited: now.Sub(en.queued)}
}

// Interrupted returns the interrupted runs that have been recovered and not
// settled by Forget or a later Start: oldest first.
func (e *Executor) Interrupted() []Interruption {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []Interruption
	for _, en := range e.units {
		if en.state.Phase == Done {
			out = append(out, en.left...)
		}
	}
	slices.SortFunc(out, func(a, b Interruption) int { return strings.Compare(a.Run, b.Run) })
	return out
}

// Stats counts the jobs that are there now.
func (e *Executor) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := Stats{Concurrency: e.opts.Concurrency, ByNamespace: map[string]Counts{}}
	for u, en := range e.units {
		c := s.ByNamespace[u.Namespace]
		switch en.state.Phase {
		case Queued:
			s.Queued++
			c.Queued++
		case Running:
			s.Running++
			c.Running++
		default:
			continue
		}
		s.ByNamespace[u.Namespace] = c
	}
	return s
}

// Shutdown refuses new jobs, cancels queued and running ones, and returns when
// the last has ended, or with an error that names those that have not when ctx
// ends. The directory is free for another executor when the last has ended,
// whichever came first.
func (e *Executor) Shutdown(ctx context.Context) error {
	e.mu.Lock()
	first := !e.closed
	e.closed = true
	e.stopRecovery()
	var ended []Observation
	for _, en := range e.units {
		switch {
		case en.state.Phase == Queued:
			ended = append(ended, e.unqueue(en, errShutdown()))
		case en.state.Phase == Running && en.cancel != nil:
			en.cancel(errShutdown())
		}
	}
	e.mu.Unlock()
	for _, o := range ended {
		e.opts.Observe(o)
		e.opts.OnChange(o.Unit)
	}
	done := make(chan struct{})
	go func() {
		e.busy.Wait()
		if first {
			e.store.close()
		}
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("shut down runs: %w: still running: %s", context.Cause(ctx), strings.Join(e.alive(), ", "))
	}
}

func (e *Executor) alive() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var names []string
	for u, en := range e.units {
		if en.state.Phase == Running {
			names = append(names, u.String())
		}
	}
	slices.Sort(names)
	return names
}

// Remove forgets a unit that is no more. What is kept of its runs goes when it is old
// or too much, see Sweep. The error says that the unit has a job that is not done.
func (e *Executor) Remove(u Unit) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if en, ok := e.units[u]; ok {
		if en.state.Phase != Done {
			return fmt.Errorf("remove the runs of %s: a run is %s", u, strings.ToLower(string(en.state.Phase)))
		}
		e.settle(en)
		delete(e.units, u)
	}
	return nil
}

// Sweep removes the logs and records of runs that are too many of their unit or too
// old, by Options.Log, and that Options.Kept does not keep; also of units that are no
// more. It reads one directory for each unit that has ever run, and is to be called
// once in a while. The error says what could not be removed.
func (e *Executor) Sweep(ctx context.Context) error {
	units, err := e.store.overfull(ctx, e.opts.Clock.Now())
	if err != nil {
		return fmt.Errorf("remove old runs: %w", err)
	}
	var errs []error
	for _, u := range units {
		errs = append(errs, e.sweepUnit(u))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove old runs: %w", err)
	}
	return nil
}

// sweepUnit holds mu, so that no run of the unit can begin meanwhile.
func (e *Executor) sweepUnit(u Unit) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if en, ok := e.units[u]; ok && (en.state.Phase == Running || len(en.left) > 0) {
		return nil // its own prune comes when it ends
	}
	if err := e.store.prune(u, e.opts.Clock.Now()); err != nil {
		return err
	}
	for other, en := range e.units {
		if other.Namespace == u.Namespace && en.state.Phase == Running {
			return nil // it may be about to make its directory in that of the namespace
		}
	}
	e.store.removeEmpty(u)
	return nil
}

// dispatch starts queued jobs while there is room, and returns their units. The
// caller holds mu.
func (e *Executor) dispatch() []Unit {
	var started []Unit
	for e.running < e.opts.Concurrency && !e.closed {
		en := e.queue.pop()
		if en == nil {
			break
		}
		e.begin(en)
		started = append(started, en.job.Unit)
	}
	return started
}

// begin makes a queued job a running one. The caller holds mu.
func (e *Executor) begin(en *entry) {
	now := e.opts.Clock.Now()
	id := e.runID(now, en.job.Kind)
	path := e.store.logPath(en.job.Unit, id)
	ctx, cancel := context.WithCancelCause(context.Background())
	log := newLog(path, e.opts.Log)
	r := &Run{
		id: id, job: en.job, begun: now, clock: e.opts.Clock, log: log, cancel: cancel,
		journal: &journal{store: &e.store, record: Record{
			Run: id, ID: en.job.ID, Unit: en.job.Unit, Kind: en.job.Kind, Begun: now, Facts: en.job.Facts,
		}},
	}
	r.onStep = func(name string) {
		e.mu.Lock()
		defer e.mu.Unlock()
		en.state.Step = name
	}
	en.cancel, en.log = cancel, log
	en.state.Run, en.state.Phase, en.state.Since, en.state.LogPath = id, Running, now, path
	en.state.Begun = now
	e.running++
	e.busy.Add(1)
	timeout := en.job.Timeout
	if timeout <= 0 {
		timeout = e.opts.Timeout
	}
	go e.execute(ctx, en, r, timeout)
}

// idLayout is the time that an id of a run begins with.
const idLayout = "20060102t150405.000000000z"

// runID names an execution: sortable by its begin, unique, and fit for the name of an
// object. The caller holds mu.
func (e *Executor) runID(now time.Time, kind Kind) string {
	now = now.UTC()
	if !now.After(e.last) {
		now = e.last.Add(time.Nanosecond)
	}
	e.last = now
	return now.Format(idLayout) + "-" + string(kind)
}

func (e *Executor) execute(ctx context.Context, en *entry, r *Run, timeout time.Duration) {
	defer e.busy.Done()
	result, err := r.execute(ctx, timeout)

	e.mu.Lock()
	now := e.opts.Clock.Now()
	o := Observation{
		Unit: en.job.Unit, Kind: en.job.Kind, Run: r.id, Outcome: OutcomeOf(err),
		Waited: r.begun.Sub(en.queued), Took: now.Sub(r.begun),
	}
	if result == nil {
		result = en.job.Result
	}
	en.state.Phase, en.state.Since, en.state.Result, en.state.Err = Done, now, result, err
	en.state.Steps = r.endStep()
	en.cancel, en.log = nil, nil
	en.job.Do = nil // lets go of what it holds on to
	e.running--
	started := e.dispatch()
	e.mu.Unlock()

	e.opts.Observe(o)
	e.opts.OnChange(en.job.Unit)
	for _, u := range started {
		e.opts.OnChange(u)
	}
}

// execute runs the job from the opening of its log to the closing of its record.
func (r *Run) execute(ctx context.Context, timeout time.Duration) (any, error) {
	if err := r.log.open(); err != nil {
		r.cancel(nil)
		return nil, fmt.Errorf("open the log of the run: %w", err)
	}
	whole := r.clock.AfterFunc(timeout, func() {
		r.cancel(&TimedOutError{Step: r.step(), Whole: true, After: timeout})
	})
	result, err := r.do(ctx)
	whole.Stop()
	steps := r.endStep()
	err = because(err, context.Cause(ctx))
	r.cancel(nil)
	r.closeOutputs(err)
	r.journal.end(r.clock.Now(), OutcomeOf(err), r.message(err), steps)
	return result, err
}

// because joins what Do returned with why its context ended: either alone would
// hide the other.
func because(err, cause error) error {
	switch {
	case err == nil || cause == nil || errors.Is(err, cause):
		return err
	case errors.Is(err, context.Canceled) && err.Error() == context.Canceled.Error():
		return cause
	default:
		return fmt.Errorf("%w: %w", cause, err)
	}
}

// do calls Do and makes an error of its panic, and of a goroutine that exits.
func (r *Run) do(ctx context.Context) (result any, err error) {
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		finished := false
		defer func() {
			if finished {
				return
			}
			p := recover()
			if p == nil {
				err = errors.New("the run's goroutine exited")
				return
			}
			err = fmt.Errorf("the run panicked: %s", r.job.Mask.String(fmt.Sprint(p)))
			fmt.Fprintf(r.Output(Own), "panic: %v\n%s", p, debug.Stack())
		}()
		result, err = r.job.Do(ctx, r)
		finished = true
	}()
	<-returned
	return result, err
}

// mkdir makes a directory of ours.
func mkdir(path string) error { return os.MkdirAll(path, 0o700) }
