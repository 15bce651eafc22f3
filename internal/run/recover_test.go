// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// The test binary is also the process that gets killed: with these variables it
// runs a job in the directory and does not end by itself.
const (
	crashDir    = "TERRACE_TEST_CRASH_DIR"
	crashScript = "TERRACE_TEST_CRASH_SCRIPT"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		crash(dir, os.Getenv(crashScript))
		return
	}
	os.Exit(m.Run())
}

// crash starts a job whose process is script, says its PID, and waits to be killed.
func crash(dir, script string) {
	e, err := New(Options{Dir: dir})
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	e.Start(Job{
		Unit: unit("x", "a"), ID: "plan-1", Kind: Apply, Facts: map[string]string{"plan": "sha256:1"},
		Do: func(_ context.Context, r *Run) (any, error) {
			name, value := r.Mark()
			cmd := exec.Command("sh", "-c", script)
			cmd.Env = append(os.Environ(), name+"="+value)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			ready, err := cmd.StdoutPipe()
			if err != nil {
				return nil, err
			}
			if err := cmd.Start(); err != nil {
				return nil, err
			}
			if err := errors.Join(
				r.Started(cmd.Process.Pid, 0, "apply"),
				r.Record(map[string]string{"lock": "1-2-3"}),
			); err != nil {
				return nil, err
			}
			fmt.Fprintln(r.Output(Stdout), "applying")
			line, err := bufio.NewReader(ready).ReadString('\n')
			if err != nil {
				return nil, err
			}
			fmt.Printf("%d %s", cmd.Process.Pid, line)
			_ = cmd.Wait()
			select {} // the run must not end before it is killed
		},
	})
	select {}
}

// killed runs crash, kills it, and returns the PIDs that it said: that of the
// script, and what the script printed.
func killed(t *testing.T, dir, script string) (pid, other int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashDir+"="+dir, crashScript+"="+script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	if n, err := fmt.Sscan(line, &pid, &other); n == 0 {
		t.Fatalf("the process said %q: %v", line, err)
	}
	t.Cleanup(func() {
		for _, p := range []int{pid, other} {
			if p > 0 {
				_ = syscall.Kill(p, syscall.SIGKILL)
			}
		}
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	return pid, other
}

// reopen starts an executor and waits until it is done with the unit.
func reopen(t *testing.T, dir string, grace time.Duration) (*Executor, State) {
	t.Helper()
	changed := make(chan Unit, 10)
	e, err := New(Options{Dir: dir, Grace: grace, OnChange: func(u Unit) { changed <- u }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if u := <-changed; u != unit("x", "a") {
		t.Fatalf("changed: %s", u)
	}
	s, ok := e.Get(unit("x", "a"))
	if !ok {
		t.Fatal("no state")
	}
	return e, s
}

func dead(pid int) bool {
	id, err := identify(pid)
	return err != nil || id.dead
}

func TestKilledWithOrphan(t *testing.T) {
	cases := map[string]struct {
		reason string
		script string // FILE is replaced
		grace  time.Duration
		says   string // FILE afterwards
		want   Interruption
		err    string
		linux  bool // needs the mark
	}{
		"EndsWhenAsked": {
			reason: "tofu writes its state on SIGINT: it gets the time",
			script: `trap 'sleep 0.1; echo saved >FILE; exit 1' INT; echo 0; while :; do sleep 0.02; done`,
			grace:  time.Minute,
			says:   "saved\n",
			want:   Interruption{Orphaned: true},
			err:    "did not end, in apply",
		},
		"DoesNotEnd": {
			reason: "what does not heed SIGINT is killed with its group",
			script: `trap '' INT; sleep 1000 & echo $!; wait; wait`,
			grace:  200 * time.Millisecond,
			want:   Interruption{Orphaned: true, Killed: true},
			err:    "what it left behind was killed",
		},
		"LeavesAChild": {
			reason: "a provider that outlives tofu must not go on creating things",
			script: `trap 'exit 1' INT; trap 'sleep 1000' EXIT; sleep 1000 & echo $!; wait`,
			grace:  200 * time.Millisecond,
			want:   Interruption{Orphaned: true, Killed: true},
			err:    "what it left behind was killed",
			linux:  true,
		},
		"LeaderIsGone": {
			reason: "what the dead process left is known by its mark only",
			script: `sh -c 'trap "" INT; echo $$; exec sleep 1000 >/dev/null' &`,
			grace:  200 * time.Millisecond,
			want:   Interruption{Orphaned: true, Killed: true},
			err:    "what it left behind was killed",
			linux:  true,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if tc.linux && runtime.GOOS != "linux" {
				t.Skip("the environment of processes is shown by linux only")
			}
			dir := t.TempDir()
			file := filepath.Join(t.TempDir(), "file")
			pid, other := killed(t, dir, strings.ReplaceAll(tc.script, "FILE", file))
			e, s := reopen(t, dir, tc.grace)
			if !dead(pid) || other != 0 && !dead(other) {
				t.Errorf("%s: something lives", tc.reason)
			}
			if s.Phase != Done || s.ID != "plan-1" || !errors.Is(s.Err, ErrInterrupted) || !strings.Contains(s.Err.Error(), tc.err) {
				t.Errorf("state: %+v", s)
			}
			if b, _ := os.ReadFile(file); string(b) != tc.says {
				t.Errorf("%s: it left %q", tc.reason, b)
			}
			got := e.Interrupted()
			tc.want.ID, tc.want.Unit, tc.want.Kind, tc.want.Run = "plan-1", unit("x", "a"), Apply, s.Run
			tc.want.Facts = map[string]string{"plan": "sha256:1", "lock": "1-2-3"}
			tc.want.LogPath = s.LogPath
			if diff := cmp.Diff([]Interruption{tc.want}, got, cmpopts.IgnoreFields(Interruption{}, "Begun", "Processes")); diff != "" {
				t.Error(diff)
			}
			if p := got[0].Processes; len(p) != 1 || p[0].PID != pid || p[0].Subcommand != "apply" {
				t.Errorf("processes: %+v", p)
			}
			r, err := e.Log(unit("x", "a"), s.Run, LogOptions{Follow: true})
			if err != nil {
				t.Fatal(err)
			}
			want := []string{"applying", "terrace: terrace: run interrupted: " + s.Err.Error()}
			if diff := cmp.Diff(want, text(t, read(t, r))); diff != "" {
				t.Errorf("log:\n%s", diff)
			}
		})
	}
}

func TestInterruptionStaysUntilSettled(t *testing.T) {
	dir := t.TempDir()
	killed(t, dir, `trap 'exit 1' INT; echo 0; while :; do sleep 0.02; done`)
	for range 2 { // nobody did anything about it the first time
		e, s := reopen(t, dir, time.Minute)
		if !errors.Is(s.Err, ErrInterrupted) {
			t.Fatalf("state: %+v", s)
		}
		if err := e.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	e, s := reopen(t, dir, time.Minute)
	if again := e.Start(Job{Unit: unit("x", "a"), ID: "plan-1", Do: nil2panic(t)}); again.Run != s.Run {
		t.Errorf("the same job does not start over an interruption: %+v", again)
	}
	e.Forget(unit("x", "a"), "plan-1")
	if left := e.Interrupted(); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
	recs, err := e.Records(unit("x", "a"))
	if err != nil || len(recs) != 1 || recs[0].Outcome != Interrupted || recs[0].Facts["lock"] != "1-2-3" {
		t.Errorf("records: %+v, %v", recs, err)
	}
	if err := e.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	last, err := New(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = last.Shutdown(context.Background()) }()
	if s, ok := last.Get(unit("x", "a")); ok {
		t.Errorf("settled and there again: %+v", s)
	}
}

func TestAnotherJobSettlesAnInterruption(t *testing.T) {
	dir := t.TempDir()
	killed(t, dir, `trap 'exit 1' INT; echo 0; while :; do sleep 0.02; done`)
	e, _ := reopen(t, dir, time.Minute)
	done := make(chan struct{})
	e.Start(Job{Unit: unit("x", "a"), ID: "plan-2", Do: func(context.Context, *Run) (any, error) {
		close(done)
		return nil, nil
	}})
	<-done
	if left := e.Interrupted(); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

// TestInnocentProcesses: a PID that now is another process's is left alone.
func TestInnocentProcesses(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	id, err := identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]Process{
		"start time": {PID: cmd.Process.Pid, StartTime: id.startTime + 1, Boot: boot},
		"boot":       {PID: cmd.Process.Pid, StartTime: id.startTime, Boot: "before"},
	} {
		rec := Record{Run: "r", Processes: []Process{p}}
		orphaned, killed, err := end(t.Context(), rec, time.Millisecond)
		if orphaned || killed || err != nil {
			t.Errorf("another %s: %v %v %v", name, orphaned, killed, err)
		}
	}
	select {
	case <-ended:
		t.Error("an innocent process was ended")
	default:
	}
	p := Process{PID: cmd.Process.Pid, StartTime: id.startTime, Boot: boot}
	if orphaned, _, err := end(t.Context(), Record{Run: "r", Processes: []Process{p}}, time.Minute); !orphaned || err != nil {
		t.Errorf("the process itself: %v %v", orphaned, err)
	}
	<-ended
}

func TestStartedChecksWhatItIsTold(t *testing.T) {
	e := open(t, Options{})
	errs := make(chan error, 3)
	done := make(chan struct{})
	e.Start(job(unit("x", "a"), func(_ context.Context, r *Run) (any, error) {
		defer close(done)
		id, err := identify(os.Getpid())
		if err != nil {
			return nil, err
		}
		errs <- r.Started(os.Getpid(), id.startTime, "plan")
		errs <- r.Started(os.Getpid(), id.startTime+1, "plan")
		errs <- r.Started(1<<30, 0, "plan")
		return nil, nil
	}))
	<-done
	if err := <-errs; err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-errs; err == nil {
			t.Error("a process that is not: no error")
		}
	}
}

func TestTornJournal(t *testing.T) {
	dir := t.TempDir()
	killed(t, dir, `trap 'exit 1' INT; echo 0; while :; do sleep 0.02; done`)
	names, _ := filepath.Glob(filepath.Join(dir, activeName, "*"))
	if len(names) != 1 {
		t.Fatalf("journals: %v", names)
	}
	whole, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, activeName, "20000101T000000.000000000Z-plan-0.jsonl")
	if err := errors.Join(
		os.WriteFile(names[0], append(whole, []byte(`{"ended":{"at":"20`)...), 0o600),
		os.WriteFile(empty, []byte(`{"beg`), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	e, s := reopen(t, dir, time.Minute)
	if !errors.Is(s.Err, ErrInterrupted) {
		t.Errorf("state: %+v", s)
	}
	if _, err := os.Stat(empty); err == nil {
		t.Error("a journal without a first entry stays for ever")
	}
	e.Forget(unit("x", "a"), "plan-1")
	recs, err := e.Records(unit("x", "a"))
	if err != nil || len(recs) != 1 || recs[0].Outcome != Interrupted {
		t.Errorf("records: %+v, %v", recs, err)
	}
}

// TestEndedButNotArchived: the crash came between the last entry and its move.
func TestEndedButNotArchived(t *testing.T) {
	dir := t.TempDir()
	first := open(t, Options{Dir: dir})
	u := unit("x", "a")
	first.Start(job(u, func(_ context.Context, r *Run) (any, error) { return nil, r.Record(map[string]string{"k": "v"}) }))
	if err := first.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	run := mustGet(t, first, u).Run
	if err := os.Rename(first.store.recordPath(u, run), first.store.activePath(u, run)); err != nil {
		t.Fatal(err)
	}
	e := open(t, Options{Dir: dir})
	if _, ok := e.Get(u); ok {
		t.Error("a run that ended is taken for interrupted")
	}
	recs, err := e.Records(u)
	if err != nil || len(recs) != 1 || recs[0].Facts["k"] != "v" {
		t.Errorf("records: %+v, %v", recs, err)
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add(`{"begun":{"run":"r","id":"i","facts":{"a":"b"}}}` + "\n" + `{"process":{"pid":1}}` + "\n" + `{"ended":{}}`)
	f.Add(`{"facts":{"a":"b"}}` + "\n\x00{")
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := parseRecord(strings.NewReader(s)); err != nil {
			t.Error(err)
		}
	})
}
