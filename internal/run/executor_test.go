// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// desk is an executor and what it told.
type desk struct {
	*Executor
	mu       sync.Mutex
	changes  []string
	observed []Observation
}

// open makes an executor for the test, in its directory if it is given.
func open(t *testing.T, opts Options) *desk {
	t.Helper()
	d := &desk{}
	if opts.Dir == "" {
		opts.Dir = t.TempDir()
	}
	opts.OnChange = func(u Unit) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.changes = append(d.changes, u.Name)
	}
	opts.Observe = func(o Observation) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.observed = append(d.observed, o)
	}
	e, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	d.Executor = e
	t.Cleanup(func() {
		if err := e.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (d *desk) changed() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.changes
	d.changes = nil
	return out
}

func unit(ns, name string) Unit { return Unit{Kind: "Terraform", Namespace: ns, Name: name} }

// job does what do does, under the name of its unit as id.
func job(u Unit, do func(ctx context.Context, r *Run) (any, error)) Job {
	return Job{Unit: u, ID: u.Name, Kind: Plan, Do: do}
}

// sleep is a Do that takes d and heeds its context.
func sleep(d time.Duration) func(context.Context, *Run) (any, error) {
	return func(ctx context.Context, _ *Run) (any, error) {
		select {
		case <-time.After(d):
			return "slept", nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func mustGet(t *testing.T, e *desk, u Unit) State {
	t.Helper()
	s, ok := e.Get(u)
	if !ok {
		t.Fatalf("%s: no state", u)
	}
	return s
}

func TestLifeOfAJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t, Options{Concurrency: 1})
		a, b := unit("x", "a"), unit("x", "b")
		if s := e.Start(job(a, sleep(time.Second))); s.Phase != Running || s.Run == "" || s.LogPath == "" {
			t.Errorf("with room a job starts at once: %+v", s)
		}
		if s := e.Start(job(b, sleep(time.Second))); s.Phase != Queued || s.Position != 1 || s.LogPath != "" {
			t.Errorf("without room it waits: %+v", s)
		}
		if got := e.Stats(); got.Running != 1 || got.Queued != 1 || got.ByNamespace["x"] != (Counts{Queued: 1, Running: 1}) {
			t.Errorf("stats: %+v", got)
		}
		if got := e.changed(); got != nil {
			t.Errorf("what Start answered is not told again: %v", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if s := mustGet(t, e, a); s.Phase != Done || s.Result != "slept" || s.Err != nil {
			t.Errorf("a: %+v", s)
		}
		if s := mustGet(t, e, b); s.Phase != Running {
			t.Errorf("b: %+v", s)
		}
		if diff := cmp.Diff([]string{"a", "b"}, e.changed()); diff != "" {
			t.Error(diff)
		}
		if s := e.Start(job(a, nil2panic(t))); s.Phase != Done || s.Result != "slept" {
			t.Errorf("the same job is not started again: %+v", s)
		}
		e.Forget(a, "other")
		e.Forget(b, "b")
		mustGet(t, e, a)
		mustGet(t, e, b)
		e.Forget(a, "a")
		if s, ok := e.Get(a); ok {
			t.Errorf("forgotten: %+v", s)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		e.mu.Lock()
		if len(e.units) != 1 || e.running != 0 {
			t.Errorf("left: %d units, %d running", len(e.units), e.running)
		}
		e.mu.Unlock()
		want := []Observation{
			{Unit: a, Kind: Plan, Outcome: Succeeded, Took: time.Second},
			{Unit: b, Kind: Plan, Outcome: Succeeded, Waited: time.Second, Took: time.Second},
		}
		for i := range e.observed {
			e.observed[i].Run = ""
		}
		if diff := cmp.Diff(want, e.observed); diff != "" {
			t.Error(diff)
		}
	})
}

// nil2panic is a Do that must not run.
func nil2panic(t *testing.T) func(context.Context, *Run) (any, error) {
	return func(context.Context, *Run) (any, error) {
		t.Error("a job ran that must not")
		return nil, nil
	}
}

func TestOneRunOfAUnitAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t, Options{Concurrency: 1})
		a, b, c := unit("x", "a"), unit("x", "b"), unit("x", "c")
		e.Start(job(a, sleep(time.Second)))
		newer := job(a, sleep(time.Hour))
		newer.ID = "newer"
		if s := e.Start(newer); s.ID != "a" || s.Phase != Running {
			t.Errorf("another job of a running unit has to wait: %+v", s)
		}
		e.Start(job(b, nil2panic(t)))
		e.Start(job(c, sleep(time.Hour)))
		replaced := job(b, sleep(time.Hour))
		replaced.ID = "replaced"
		if s := e.Start(replaced); s.ID != "replaced" || s.Position != 1 {
			t.Errorf("a newer job takes the place of a queued one: %+v", s)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if s := mustGet(t, e, b); s.ID != "replaced" || s.Phase != Running {
			t.Errorf("b: %+v", s)
		}
		if s := e.Start(newer); s.ID != "newer" || s.Phase != Queued || s.Result != nil {
			t.Errorf("a finished job gives way to the next: %+v", s)
		}
	})
}

func TestConcurrencyAndFairness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t, Options{Concurrency: 2})
		var mu sync.Mutex
		var order []string
		running, most := 0, 0
		do := func(ctx context.Context, r *Run) (any, error) {
			mu.Lock()
			order = append(order, r.job.Unit.Namespace+r.job.Unit.Name)
			running++
			most = max(most, running)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			running--
			mu.Unlock()
			return nil, nil
		}
		for i := range 20 {
			e.Start(job(unit("big", fmt.Sprint(i)), do))
		}
		for i := range 2 {
			e.Start(job(unit("small", fmt.Sprint(i)), do))
		}
		e.Start(job(unit("tiny", "0"), do))
		for u, want := range map[Unit]int{
			unit("big", "2"): 1, unit("small", "0"): 2, unit("tiny", "0"): 3,
			unit("big", "3"): 4, unit("small", "1"): 5, unit("big", "4"): 6, unit("big", "19"): 21,
		} {
			if s := mustGet(t, e, u); s.Position != want {
				t.Errorf("%s: position %d, want %d", u, s.Position, want)
			}
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if most != 2 {
			t.Errorf("%d ran at once", most)
		}
		at := map[string]int{}
		for i, name := range order {
			at[name] = i
		}
		for name, latest := range map[string]int{"small0": 4, "tiny0": 5, "small1": 7} {
			if at[name] > latest {
				t.Errorf("%s was number %d of %v", name, at[name], order)
			}
		}
		if len(order) != 23 {
			t.Errorf("%d of 23 ran", len(order))
		}
	})
}

func TestQueuePositions(t *testing.T) {
	var q queue
	all := map[*entry]bool{}
	for i := range 40 {
		e := &entry{job: Job{Unit: unit(strings.Repeat("n", i*i%5), fmt.Sprint(i))}}
		q.push(e)
		all[e] = true
	}
	for e := range all {
		if e.job.Unit.Name == "7" || e.job.Unit.Name == "12" {
			q.remove(e)
			delete(all, e)
		}
	}
	want := map[*entry]int{}
	for e := range all {
		want[e] = q.position(e)
	}
	for n := 1; ; n++ {
		e := q.pop()
		if e == nil {
			break
		}
		if want[e] != n {
			t.Errorf("%s said position %d and came as %d", e.job.Unit, want[e], n)
		}
		if q.position(e) != 0 {
			t.Errorf("%s has a position after it left", e.job.Unit)
		}
		delete(all, e)
	}
	if len(all) != 0 {
		t.Errorf("%d never came", len(all))
	}
}

func TestErrors(t *testing.T) {
	own := errors.New("exit status 1")
	exits := func(ctx context.Context, _ *Run) (any, error) {
		<-ctx.Done()
		return "partial", own
	}
	cases := map[string]struct {
		reason  string
		timeout time.Duration
		cancel  string
		do      func(context.Context, *Run) (any, error)
		want    string
		is      []error
		outcome Outcome
		result  any
	}{
		"Own": {
			reason:  "what Do says is what is told",
			do:      func(context.Context, *Run) (any, error) { return nil, own },
			want:    "exit status 1",
			is:      []error{own},
			outcome: Failed,
		},
		"Panic": {
			reason:  "a bug in one run must not end the others",
			do:      func(context.Context, *Run) (any, error) { panic("oops") },
			want:    "the run panicked: oops",
			outcome: Failed,
		},
		"Exit": {
			reason:  "nor one that ends its goroutine",
			do:      func(context.Context, *Run) (any, error) { runtime.Goexit(); return nil, nil },
			want:    "the run's goroutine exited",
			outcome: Failed,
		},
		"Cancelled": {
			reason:  "who cancelled matters, and what the tool said then",
			cancel:  "by alice",
			do:      exits,
			want:    "cancelled: by alice: exit status 1",
			is:      []error{own, ErrCancelled},
			outcome: Cancelled,
			result:  "partial",
		},
		"CancelledPlain": {
			reason:  "the context's own error says nothing new",
			cancel:  "by alice",
			do:      sleep(time.Hour),
			want:    "cancelled: by alice",
			is:      []error{ErrCancelled},
			outcome: Cancelled,
		},
		"CancelledTooLate": {
			reason:  "a run that came to its end was not cancelled",
			cancel:  "by alice",
			do:      func(ctx context.Context, _ *Run) (any, error) { <-ctx.Done(); return "whole", nil },
			outcome: Succeeded,
			result:  "whole",
		},
		"Whole": {
			reason:  "the bound of the run holds whatever the step",
			timeout: time.Minute,
			do: func(ctx context.Context, r *Run) (any, error) {
				r.Step("init", 0)
				return exits(ctx, r)
			},
			want:    "timed out after 1m0s, in step init: exit status 1",
			is:      []error{ErrTimedOut, own},
			outcome: TimedOut,
			result:  "partial",
		},
		"Default": {
			reason:  "a job without a bound has the executor's",
			do:      sleep(1000 * time.Hour),
			want:    "timed out after 2h0m0s",
			is:      []error{ErrTimedOut},
			outcome: TimedOut,
		},
		"Step": {
			reason: "a step has its own bound, and the one before has none any more",
			do: func(ctx context.Context, r *Run) (any, error) {
				r.Step("init", time.Minute)
				time.Sleep(30 * time.Second)
				r.Step("plan", 2*time.Minute)
				return sleep(time.Hour)(ctx, r)
			},
			want:    "step plan timed out after 2m0s",
			is:      []error{ErrTimedOut},
			outcome: TimedOut,
		},
		"StepEnded": {
			reason: "a step without a bound ends the bound of the one before",
			do: func(ctx context.Context, r *Run) (any, error) {
				r.Step("init", time.Minute)
				r.Step("plan", 0)
				return sleep(time.Hour)(ctx, r)
			},
			outcome: Succeeded,
			result:  "slept",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := open(t, Options{Timeout: 2 * time.Hour})
				j := job(unit("x", "a"), tc.do)
				j.Timeout = tc.timeout
				e.Start(j)
				synctest.Wait()
				if tc.cancel != "" && !e.Cancel(j.Unit, tc.cancel) {
					t.Error("nothing to cancel")
				}
				time.Sleep(3 * time.Hour)
				synctest.Wait()
				s := mustGet(t, e, j.Unit)
				got := ""
				if s.Err != nil {
					got = s.Err.Error()
				}
				if s.Phase != Done || got != tc.want || s.Result != tc.result {
					t.Errorf("%s: %s %v %q, want %q", tc.reason, s.Phase, s.Result, got, tc.want)
				}
				for _, target := range tc.is {
					if !errors.Is(s.Err, target) {
						t.Errorf("%q is not %q", got, target)
					}
				}
				if len(e.observed) != 1 || e.observed[0].Outcome != tc.outcome {
					t.Errorf("observed %+v, want %s", e.observed, tc.outcome)
				}
				recs, err := e.Records(j.Unit)
				if err != nil || len(recs) != 1 || recs[0].Outcome != tc.outcome || recs[0].Message != tc.want {
					t.Errorf("records: %+v, %v", recs, err)
				}
				if e.Cancel(j.Unit, "late") {
					t.Error("what is done cannot be cancelled")
				}
			})
		})
	}
}

func TestCancelQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t, Options{Concurrency: 1})
		a, b := unit("x", "a"), unit("x", "b")
		e.Start(job(a, sleep(time.Hour)))
		waits := job(b, nil2panic(t))
		waits.Result = "not done"
		e.Start(waits)
		if !e.Cancel(b, "by bob") || e.Cancel(unit("x", "c"), "") {
			t.Error("cancel: want true for what waits, false for what is not there")
		}
		s := mustGet(t, e, b)
		if s.Phase != Done || s.Err == nil || s.Err.Error() != "cancelled: by bob" || s.Result != "not done" {
			t.Errorf("b: %+v", s)
		}
		if diff := cmp.Diff([]string{"b"}, e.changed()); diff != "" {
			t.Error(diff)
		}
		e.Cancel(a, "")
		synctest.Wait()
		if s := mustGet(t, e, a); s.Err.Error() != "cancelled" {
			t.Errorf("a: %v", s.Err)
		}
	})
}

func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t, Options{Concurrency: 1})
		a, b := unit("x", "a"), unit("x", "b")
		slow := func(ctx context.Context, _ *Run) (any, error) {
			<-ctx.Done()
			time.Sleep(time.Minute) // the tool writes its state
			return nil, ctx.Err()
		}
		e.Start(job(a, slow))
		e.Start(job(b, nil2panic(t)))
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		err := e.Shutdown(ctx)
		if err == nil || !strings.Contains(err.Error(), "still running: Terraform/x/a") {
			t.Errorf("shutdown: %v", err)
		}
		var cancelled *CancelledError
		if s := mustGet(t, e, b); !errors.As(s.Err, &cancelled) || !cancelled.Shutdown {
			t.Errorf("b: %v", s.Err)
		}
		if s := e.Start(job(unit("x", "c"), nil2panic(t))); s.Phase != Done || !errors.Is(s.Err, ErrCancelled) {
			t.Errorf("a job after the shutdown: %+v", s)
		}
		if _, err := New(Options{Dir: e.opts.Dir}); !errors.Is(err, ErrInUse) {
			t.Errorf("the directory is free while a run lasts: %v", err)
		}
		if err := e.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if s := mustGet(t, e, a); !errors.Is(s.Err, ErrCancelled) {
			t.Errorf("a: %v", s.Err)
		}
		synctest.Wait()
		again, err := New(Options{Dir: e.opts.Dir})
		if err != nil {
			t.Fatalf("the directory is not free after the shutdown: %v", err)
		}
		if err := again.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func TestRefusals(t *testing.T) {
	e := open(t, Options{})
	do := nil2panic(t)
	for name, j := range map[string]Job{
		"unit": {ID: "1", Do: do},
		"id":   {Unit: unit("x", "a"), Do: do},
		"do":   {Unit: unit("x", "a"), ID: "1"},
	} {
		if s := e.Start(j); s.Phase != Done || s.Err == nil {
			t.Errorf("a job without %s: %+v", name, s)
		}
	}
	if _, err := New(Options{}); err == nil {
		t.Error("no directory: no error")
	}
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Dir: file}); err == nil {
		t.Error("a file for a directory: no error")
	}
}

func TestLogThatCannotBeOpened(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		e := open(t, Options{Dir: dir})
		if err := os.WriteFile(dir+"/x", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		e.Start(job(unit("x", "a"), nil2panic(t)))
		synctest.Wait()
		if s := mustGet(t, e, unit("x", "a")); s.Phase != Done || s.Err == nil || !strings.HasPrefix(s.Err.Error(), "open the log of the run: ") {
			t.Errorf("%+v", s)
		}
	})
}
