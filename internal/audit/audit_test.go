// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	clocktesting "k8s.io/utils/clock/testing"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// place is a new place for a ledger and its key.
func place(t testing.TB) Options {
	t.Helper()
	dir := t.TempDir()
	return Options{
		Dir: filepath.Join(dir, "audit"), KeyFile: filepath.Join(dir, "keys", "audit.key"),
		Clock: clocktesting.NewFakePassiveClock(start),
	}
}

// open opens the ledger for the test.
func open(t testing.TB, o Options) *Ledger {
	t.Helper()
	l, err := Open(o)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// entry is something that alice did.
func entry(n int) Entry {
	return Entry{
		Actor: Actor{Kind: Git, Name: "Alice", Email: "alice@example.org"}, Action: Approve,
		Unit: "Terraform/infra/network", Revision: "main@sha1:0a1b2c3d", PlanID: "plan-main-0a1b2c3d4e",
		Counts: &Counts{Add: n}, Detail: fmt.Sprintf("entry %d", n),
	}
}

func appendN(t testing.TB, l *Ledger, n int) {
	t.Helper()
	for i := range n {
		_, err := l.Append(t.Context(), entry(i))
		must(t, err)
	}
}

// all are the entries that match, without their hashes.
func all(t testing.TB, dir string, f Filter) []Entry {
	t.Helper()
	var out []Entry
	for e, err := range Query(t.Context(), dir, f) {
		must(t, err)
		out = append(out, e)
	}
	return out
}

// verify wants the ledger to hold.
func verify(t testing.TB, o Options) Report {
	t.Helper()
	key, err := ReadPublicKey(PublicKeyFile(o.KeyFile))
	must(t, err)
	r, err := Verify(t.Context(), o.Dir, key, VerifyOptions{})
	must(t, err)
	if !r.Holds() {
		t.Fatalf("the ledger does not hold: %v", r.Findings)
	}
	return r
}

func TestLedgerKeepsWhatItWasTold(t *testing.T) {
	o := place(t)
	l := open(t, o)
	want := entry(3)
	seq, err := l.Append(t.Context(), want)
	if err != nil || seq != 2 {
		t.Fatalf("Append = %d, %v; entry 1 is the ledger's own", seq, err)
	}
	must(t, l.Close())
	got := all(t, o.Dir, Filter{})
	want.Seq, want.Time = 2, start
	own := Entry{Seq: 1, Time: start, Actor: Actor{Kind: Terrace, Name: "ledger"}, Action: "ledger-begin", Detail: "a new ledger"}
	if d := cmp.Diff([]Entry{own, want}, got, cmpopts.IgnoreFields(Entry{}, "Prev", "Hash")); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if got[1].Prev != got[0].Hash || len(got[1].Hash) != hashLen {
		t.Errorf("the second entry follows %q, and the first is %q", got[1].Prev, got[0].Hash)
	}

	if _, err := l.Append(t.Context(), want); !errors.Is(err, ErrClosed) {
		t.Errorf("Append after Close: %v", err)
	}
	again := open(t, o)
	if seq, err := again.Append(t.Context(), entry(4)); err != nil || seq != 3 {
		t.Errorf("Append after reopening = %d, %v", seq, err)
	}
	r := verify(t, o) // while it is open
	want2 := Report{Ledger: l.id, Segments: 1, Entries: 3, First: 1, Last: 3, From: start, Until: start, Head: again.Head()}
	if d := cmp.Diff(want2, r); d != "" {
		t.Errorf("report: -want +got:\n%s", d)
	}
}

func TestLedgerIsPrivate(t *testing.T) {
	o := place(t)
	appendN(t, open(t, o), 1)
	if _, err := Open(o); !errors.Is(err, ErrInUse) {
		t.Errorf("a second process: %v", err)
	}
	must(t, filepath.WalkDir(filepath.Dir(o.Dir), func(path string, d fs.DirEntry, err error) error {
		must(t, err)
		info, err := d.Info()
		must(t, err)
		if path != filepath.Dir(o.Dir) && info.Mode().Perm()&0o077 != 0 && filepath.Ext(path) != ".pub" {
			t.Errorf("%s has mode %v", filepath.Base(path), info.Mode())
		}
		return nil
	}))
}

func TestAppendRefuses(t *testing.T) {
	l := open(t, place(t))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		reason string
		ctx    context.Context
		edit   func(*Entry)
		want   string
	}{
		"actor":  {reason: "who vouches for a name must be known", edit: func(e *Entry) { e.Actor.Kind = "ldap" }, want: `actor kind "ldap"`},
		"nobody": {reason: "an entry without an actor says nothing", edit: func(e *Entry) { e.Actor = Actor{} }, want: "actor kind"},
		"action": {reason: "actions are filtered by", edit: func(e *Entry) { e.Action = "Two words" }, want: `action "Two words"`},
		"none":   {reason: "an entry without an action says nothing", edit: func(e *Entry) { e.Action = "" }, want: "action"},
		"intent": {reason: "an intent comes from Begin only", edit: func(e *Entry) { e.Phase = PhaseIntent }, want: "the ledger's to set"},
		"pruned": {reason: "it would excuse missing segments", edit: func(e *Entry) { e.Pruned = 1 }, want: "the ledger's to set"},
		"ended":  {reason: "who has gone needs no entry", ctx: ended, want: "context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			e := entry(1)
			if tc.edit != nil {
				tc.edit(&e)
			}
			if tc.ctx == nil {
				tc.ctx = t.Context()
			}
			before := l.Head()
			if _, err := l.Append(tc.ctx, e); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: Append: %v", tc.reason, err)
			}
			if _, err := l.Begin(tc.ctx, e); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: Begin: %v", tc.reason, err)
			}
			if l.Head() != before {
				t.Error("something was recorded")
			}
		})
	}
}

func TestTextsAreBounded(t *testing.T) {
	o := place(t)
	l := open(t, o)
	e := entry(1)
	e.Detail = strings.Repeat("é", 1<<20)
	e.Actor.Name = "a\x00\n<b>\u2028" + strings.Repeat("\x01", 1<<20) // each byte takes six as JSON
	e.Unit = "Terraform/x/\xff"
	_, err := l.Append(t.Context(), e)
	must(t, err)
	got := all(t, o.Dir, Filter{Limit: 1})[0]
	if len(got.Detail) > detailLimit || !strings.HasSuffix(got.Detail, "é…") {
		t.Errorf("the detail has %d bytes and ends in %q", len(got.Detail), got.Detail[len(got.Detail)-6:])
	}
	if len(got.Actor.Name) > textLimit || !strings.HasPrefix(got.Actor.Name, "a\x00\n<b>\u2028") {
		t.Errorf("the name is %q", got.Actor.Name)
	}
	if got.Unit != "Terraform/x/\uFFFD" {
		t.Errorf("the unit is %q", got.Unit)
	}
	verify(t, o)
}

func TestIntents(t *testing.T) {
	o := place(t)
	l := open(t, o)
	apply := Entry{Actor: Actor{Kind: Kubernetes, Name: "alice"}, Action: Apply, Unit: "Terraform/infra/network", Run: "r1"}
	done, err := l.Begin(t.Context(), apply)
	must(t, err)
	_, err = l.Begin(t.Context(), apply)
	must(t, err)
	apply.Run = "r2"
	_, err = l.Begin(t.Context(), apply)
	must(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	cancel() // what ended the run has ended its context
	if err := done.End(ctx, Outcome{}); err == nil {
		t.Error("an outcome without a result was taken")
	}
	must(t, done.End(ctx, Outcome{Result: Succeeded, Counts: &Counts{Add: 1}, PlanDigest: "sha256:ab"}))
	if err := done.End(ctx, Outcome{Result: Failed}); !errors.Is(err, ErrEnded) {
		t.Errorf("the second outcome: %v", err)
	}
	if got := l.Unfinished(); len(got) != 0 {
		t.Errorf("what this process began is not for recovery: %v", got)
	}
	must(t, l.Close())

	l = open(t, o)
	var seqs []uint64
	for _, e := range l.Unfinished() {
		seqs = append(seqs, e.Seq)
	}
	if d := cmp.Diff([]uint64{3, 4}, seqs); d != "" {
		t.Errorf("unfinished: %s", d)
	}
	for i, want := range []int{1, 0} {
		if n, err := l.Interrupt(t.Context(), "r1", "the process died"); n != want || err != nil {
			t.Errorf("Interrupt %d = %d, %v", i, n, err)
		}
	}
	got := all(t, o.Dir, Filter{Limit: 2})
	want := []Entry{
		{Seq: 5, Actor: apply.Actor, Action: Apply, Unit: apply.Unit, Phase: PhaseOutcome, Intent: 2, Outcome: Succeeded, Run: "r1", Counts: &Counts{Add: 1}, PlanDigest: "sha256:ab"},
		{Seq: 6, Actor: apply.Actor, Action: Apply, Unit: apply.Unit, Phase: PhaseOutcome, Intent: 3, Outcome: Interrupted, Run: "r1", Detail: "the process died"},
	}
	if d := cmp.Diff(want, got, cmpopts.IgnoreFields(Entry{}, "Time", "Prev", "Hash")); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if r := verify(t, o); r.Unfinished != 1 {
		t.Errorf("%d intents are unfinished, want that of r2", r.Unfinished)
	}
}

// TestUnfinishedIntentsOutliveSegments opens a ledger whose last segment knows of
// an older intent by its number only.
func TestUnfinishedIntentsOutliveSegments(t *testing.T) {
	o := place(t)
	o.MaxSegment = 1500
	l := open(t, o)
	first, err := l.Begin(t.Context(), Entry{Actor: Actor{Kind: Terrace, Name: "x"}, Action: Destroy, Run: "old"})
	must(t, err)
	second, err := l.Begin(t.Context(), Entry{Actor: Actor{Kind: Terrace, Name: "x"}, Action: Destroy, Run: "ended"})
	must(t, err)
	appendN(t, l, 10)
	must(t, second.End(t.Context(), Outcome{Result: Failed}))
	must(t, l.Close())
	if n, _ := segments(o.Dir); len(n) < 3 {
		t.Fatalf("only %d segments", len(n))
	}
	l = open(t, o)
	if got := l.Unfinished(); len(got) != 1 || got[0].Run != "old" || got[0].Seq != first.Seq() {
		t.Fatalf("unfinished: %v", got)
	}
	if n, err := l.Interrupt(t.Context(), "old", ""); n != 1 || err != nil {
		t.Errorf("Interrupt = %d, %v", n, err)
	}
	must(t, l.Close())
	if got := open(t, o).Unfinished(); len(got) != 0 {
		t.Errorf("unfinished after all: %v", got)
	}
}

func TestSegmentsRotate(t *testing.T) {
	o := place(t)
	clock := clocktesting.NewFakePassiveClock(start)
	o.Clock, o.MaxAge, o.MaxSegment = clock, time.Hour, 4000
	l := open(t, o)
	for i, tc := range []struct {
		reason string
		later  time.Duration
		append int
		want   int
	}{
		{"a small segment goes on", 59 * time.Minute, 1, 1},
		{"an old segment ends with the next entry", time.Minute, 1, 2},
		{"age counts from the segment's beginning", 59 * time.Minute, 1, 2},
		{"without an entry nothing is written", 300 * time.Hour, 0, 2},
		{"many hours are one segment", 0, 1, 3},
		{"size ends a segment too", 0, 10, 4},
	} {
		clock.SetTime(clock.Now().Add(tc.later))
		appendN(t, l, tc.append)
		if n, _ := segments(o.Dir); len(n) != tc.want {
			t.Errorf("%d: %s: %d segments, want %d", i, tc.reason, len(n), tc.want)
		}
	}
	if r := verify(t, o); r.Entries != 15 || r.Last != 15 || r.Segments != 4 {
		t.Errorf("report: %+v", r)
	}
}

// counting is a segment whose syncs are counted, and that fails when told to.
type counting struct {
	*os.File
	syncs *atomic.Int64
	gate  func()               // called before each sync
	fail  func(op string) bool // "write", "short", "sync", "truncate"
}

func (c *counting) Sync() error {
	if c.gate != nil {
		c.gate()
	}
	if c.fail != nil && c.fail("sync") {
		return syscall.EIO
	}
	if c.syncs != nil {
		c.syncs.Add(1)
	}
	return c.File.Sync()
}

func (c *counting) Write(p []byte) (int, error) {
	if c.fail != nil && c.fail("write") {
		return 0, syscall.ENOSPC
	}
	if c.fail != nil && c.fail("short") {
		n, _ := c.File.Write(p[:len(p)/2])
		return n, syscall.ENOSPC
	}
	return c.File.Write(p)
}

func (c *counting) Truncate(size int64) error {
	if c.fail != nil && c.fail("truncate") {
		return syscall.EIO
	}
	return c.File.Truncate(size)
}

// TestConcurrentAppendsShareASync holds the first sync until all others wait: they
// must then need one more between them.
func TestConcurrentAppendsShareASync(t *testing.T) {
	o := place(t)
	var syncs atomic.Int64
	held, hold := make(chan struct{}), make(chan struct{})
	var once sync.Once
	o.wrap = func(f *os.File) file {
		return &counting{File: f, syncs: &syncs, gate: func() { once.Do(func() { close(held); <-hold }) }}
	}
	l := open(t, o)
	const n = 100
	var wg sync.WaitGroup
	wg.Go(func() { _, err := l.Append(t.Context(), entry(0)); must(t, err) })
	<-held
	var seqs sync.Map
	for i := 1; i < n; i++ {
		wg.Go(func() {
			seq, err := l.Append(t.Context(), entry(i))
			if _, twice := seqs.LoadOrStore(seq, i); err != nil || twice {
				t.Errorf("Append = %d, %v; there before: %v", seq, err, twice)
			}
		})
	}
	for { // until all wait: nothing else tells of it
		l.mu.Lock()
		waiting := l.pending != nil && len(l.pending.entries) == n-1
		l.mu.Unlock()
		if waiting {
			break
		}
		runtime.Gosched()
	}
	close(hold)
	wg.Wait()
	if got := syncs.Load(); got != 2 {
		t.Errorf("%d syncs for %d entries", got, n)
	}
	if r := verify(t, o); r.Last != n+1 {
		t.Errorf("the last entry is %d", r.Last)
	}
	appendN(t, l, 5)
	if got := syncs.Load(); got != 7 {
		t.Errorf("%d syncs; one after the other each entry has one", got)
	}
}

func TestWritersVerifiersAndReadersAtOnce(t *testing.T) {
	o := place(t)
	o.MaxSegment = 8 << 10
	l := open(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	var writers, readers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for i := range 50 {
				in, err := l.Begin(t.Context(), entry(i))
				if err == nil {
					err = in.End(t.Context(), Outcome{Result: Succeeded})
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	readers.Go(func() {
		for ctx.Err() == nil {
			r, err := Verify(t.Context(), o.Dir, l.PublicKey(), VerifyOptions{})
			if err != nil || !r.Holds() {
				t.Errorf("Verify: %v, %v", err, r.Findings)
				return
			}
		}
	})
	readers.Go(func() {
		for ctx.Err() == nil {
			last := uint64(0)
			for e, err := range l.Query(t.Context(), Filter{}) {
				if err != nil || e.Seq != last+1 {
					t.Errorf("Query: %v; entry %d follows %d", err, e.Seq, last)
					return
				}
				last = e.Seq
			}
		}
	})
	writers.Wait()
	cancel()
	readers.Wait()
	if r := verify(t, o); r.Last != 401 || r.Unfinished != 0 || r.Segments < 5 {
		t.Errorf("report: %+v", r)
	}
}

// TestFailedWritesRecordNothing lets each operation fail once, and for good.
func TestFailedWritesRecordNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		fails  []string
		want   error
	}{
		"full disk":                {"nothing was written", []string{"write"}, syscall.ENOSPC},
		"nearly full disk":         {"half an entry was written", []string{"short"}, syscall.ENOSPC},
		"failed sync":              {"the entry may be there, and must not be", []string{"sync"}, syscall.EIO},
		"half an entry that stays": {"what could not be cut off is cut off before the next entry", []string{"short", "truncate"}, syscall.ENOSPC},
		"sync that keeps failing":  {"neither could what was left be cut off for sure", []string{"sync", "sync"}, syscall.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			o := place(t)
			var fails []string
			o.wrap = func(f *os.File) file {
				return &counting{File: f, fail: func(op string) bool {
					if len(fails) == 0 || fails[0] != op {
						return false
					}
					fails = fails[1:]
					return true
				}}
			}
			l := open(t, o)
			appendN(t, l, 1)
			before := l.Head()
			fails = tc.fails
			if _, err := l.Append(t.Context(), entry(1)); !errors.Is(err, tc.want) || !strings.Contains(err.Error(), "record approve of Terraform/infra/network in the ledger") {
				t.Errorf("%s: Append: %v", tc.reason, err)
			}
			if len(fails) > 0 || l.Head() != before {
				t.Errorf("left to fail: %v; head %v, was %v", fails, l.Head(), before)
			}
			// There is room again.
			if seq, err := l.Append(t.Context(), entry(2)); err != nil || seq != 3 {
				t.Errorf("Append afterwards = %d, %v", seq, err)
			}
			if r := verify(t, o); r.Last != 3 || r.Torn != 0 {
				t.Errorf("report: %+v", r)
			}
			// A failure for good ends with the process; what it left is cut off.
			fails = []string{"short", "truncate", "truncate", "truncate"}
			for range 3 {
				if _, err := l.Append(t.Context(), entry(3)); err == nil {
					t.Error("Append succeeded on a broken disk")
				}
			}
			kill(l)
			again := open(t, o)
			if seq, err := again.Append(t.Context(), entry(4)); err != nil || seq != 5 {
				t.Errorf("Append after a restart = %d, %v", seq, err)
			}
			verify(t, o)
			if e := all(t, o.Dir, Filter{Action: "ledger-recover"}); len(e) != 1 || !strings.Contains(e[0].Detail, "after entry 3, ") {
				t.Errorf("the cut was told as %v", e)
			}
		})
	}
}

// kill lets the ledger go as a dead process would.
func kill(l *Ledger) {
	l.closed = true
	_ = l.release()
}

func TestSegmentThatChangesUnderALedgerIsNoticed(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(t *testing.T, file string)
		want string
	}{
		"appended": {func(t *testing.T, file string) { tamper(t, file, func(b string) string { return b + "x" }) }, "were written"},
		"cut":      {func(t *testing.T, file string) { tamper(t, file, func(b string) string { return b[:len(b)-1] }) }, "were written"},
		"replaced": {func(t *testing.T, file string) {
			b, err := os.ReadFile(file)
			must(t, err)
			must(t, os.WriteFile(file+".copy", b, 0o600))
			must(t, os.Rename(file+".copy", file))
		}, "it was replaced"},
		"removed": {func(t *testing.T, file string) { must(t, os.Remove(file)) }, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			o := place(t)
			l := open(t, o)
			appendN(t, l, 1)
			tc.edit(t, l.path())
			if _, err := l.Append(t.Context(), entry(1)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Append: %v", err)
			}
		})
	}
}

// tamper changes a file as its owner could.
func tamper(t testing.TB, file string, edit func(string) string) {
	t.Helper()
	b, err := os.ReadFile(file)
	must(t, err)
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	must(t, err)
	_, err = f.WriteString(edit(string(b)))
	must(t, errors.Join(err, f.Close()))
}
