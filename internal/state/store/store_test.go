// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	_ "gocloud.dev/blob/s3blob"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/blob"
	"github.com/terrace-dev/terrace/internal/state"
	"github.com/terrace-dev/terrace/internal/state/store"
)

var key = store.Key{Namespace: "ns", Name: "net"}

// world is an API server that counts, and fails when it is told to, and a store on it.
type world struct {
	*store.Store
	t     *testing.T
	api   client.WithWatch
	blobs *blob.Store
	dir   string
	clock *testingclock.FakeClock

	reads, writes atomic.Int64
	mu            sync.Mutex
	before        func(verb string) error // of a write; an error is its answer
	after         func(verb string) error // of a write that was done
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	w := newWorldAt(t, dir)
	w.dir = dir
	return w
}

// newWorldAt has its blobs anywhere.
func newWorldAt(t *testing.T, location string) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, clock: testingclock.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))}
	w.api = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.State{}).Build()
	var err error
	w.blobs, err = blob.Open(t.Context(), blob.Options{URL: location, KeyFile: filepath.Join(t.TempDir(), "k")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.blobs.Close() })
	counted := interceptor.NewClient(w.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			w.reads.Add(1)
			return c.Get(ctx, k, o, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return w.write("create", func() error { return c.Create(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return w.write("delete", func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return w.write("status", func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
	})
	w.Store = store.New(store.Options{Client: counted, Blobs: w.blobs.Part("states"), Clock: w.clock})
	return w
}

func (w *world) write(verb string, do func() error) error {
	w.writes.Add(1)
	w.mu.Lock()
	before, after := w.before, w.after
	w.mu.Unlock()
	if before != nil {
		if err := before(verb); err != nil {
			return err
		}
	}
	if err := do(); err != nil || after == nil {
		return err
	}
	return after(verb)
}

// once runs f for the first write with that verb.
func once(verb string, f func() error) func(string) error {
	var done atomic.Bool
	return func(v string) error {
		if v != verb || !done.CompareAndSwap(false, true) {
			return nil
		}
		return f()
	}
}

func (w *world) hook(before, after func(string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before, w.after = before, after
}

// must writes a state, or ends the test.
func (w *world) must(content string, opts store.WriteOptions) v1alpha1.StateVersion {
	w.t.Helper()
	v, err := w.Write(w.t.Context(), key, []byte(content), opts)
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

// content is the content of a version, 0 for the newest.
func (w *world) content(version int64) string {
	w.t.Helper()
	b, _, err := w.Read(w.t.Context(), key, version)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(b)
}

// files are how many blobs are kept.
func (w *world) files() int {
	w.t.Helper()
	n := 0
	for _, err := range w.blobs.Part("states").List(w.t.Context()) {
		if err != nil {
			w.t.Fatal(err)
		}
		n++
	}
	return n
}

// whole checks that every version that is named can be read, and that nothing else
// is kept.
func (w *world) whole() {
	w.t.Helper()
	var all v1alpha1.StateList
	if err := w.api.List(w.t.Context(), &all); err != nil {
		w.t.Fatal(err)
	}
	n := 0
	for _, o := range all.Items {
		for _, v := range versionsOf(w.t, &o) {
			n++
			if _, _, err := w.Read(w.t.Context(), client.ObjectKeyFromObject(&o), v.Version); err != nil {
				w.t.Error(err)
			}
		}
	}
	if files := w.files(); files != n {
		w.t.Errorf("%d blobs are kept for %d versions", files, n)
	}
}

// versionsOf are the versions that a State names, packed or not.
func versionsOf(t *testing.T, o *v1alpha1.State) []v1alpha1.StateVersion {
	t.Helper()
	versions, err := o.Status.All()
	if err != nil {
		t.Fatal(err)
	}
	return versions
}

func (w *world) object() *v1alpha1.State {
	w.t.Helper()
	o, err := w.Get(w.t.Context(), key)
	if err != nil {
		w.t.Fatal(err)
	}
	return o
}

// text is a state.
func text(serial int, lineage string, resources int) string {
	return fmt.Sprintf(`{"version":4,"serial":%d,"lineage":%q,"outputs":{"o":{"value":"<&>"}},"resources":[%s]}`,
		serial, lineage, strings.TrimSuffix(strings.Repeat(`{"type":"a"},`, resources), ","))
}

const encrypted = `{"serial":%d,"lineage":"l","meta":{"k":"v"},"encrypted_data":"eA==","encryption_version":"v0"}`

func TestWriteRules(t *testing.T) {
	type write struct {
		content string
		opts    store.WriteOptions
	}
	kept := text(5, "l", 1)
	for name, tc := range map[string]struct {
		reason string
		first  string // what is kept, "" for nothing
		lock   string // who holds the lock
		write  write
		want   error
		same   bool // nothing is written
	}{
		"First":            {reason: "any serial may be the first", write: write{content: text(7, "x", 0)}},
		"Next":             {reason: "a higher serial follows", first: kept, write: write{content: text(6, "l", 2)}},
		"Jump":             {reason: "serials may leave some out", first: kept, write: write{content: text(60, "l", 2)}},
		"Lower":            {reason: "a lower serial would undo a write", first: kept, write: write{content: text(4, "l", 2)}, want: store.ErrSerial},
		"SameSerial":       {reason: "two writers made the same serial", first: kept, write: write{content: text(5, "l", 2)}, want: store.ErrSerial},
		"Identical":        {reason: "a client asks again when the answer was lost", first: kept, write: write{content: kept}, same: true},
		"Lineage":          {reason: "another state by the same address", first: kept, write: write{content: text(6, "m", 2)}, want: store.ErrLineage},
		"NoLineage":        {reason: "no lineage is another one", first: kept, write: write{content: text(6, "", 2)}, want: store.ErrLineage},
		"ForceLineage":     {reason: "somebody insists", first: kept, write: write{content: text(6, "m", 2), opts: store.WriteOptions{Force: true}}},
		"ForceSerial":      {reason: "state push -force says the same of serials", first: kept, write: write{content: text(2, "l", 2), opts: store.WriteOptions{Force: true}}},
		"Holder":           {reason: "who holds the lock writes", first: kept, lock: "a", write: write{content: text(6, "l", 2), opts: store.WriteOptions{LockID: "a"}}},
		"OtherLock":        {reason: "nobody writes under another's lock", first: kept, lock: "a", write: write{content: text(6, "l", 2), opts: store.WriteOptions{LockID: "b"}}, want: state.ErrLocked},
		"NoLock":           {reason: "-lock=false is no way around another's lock", first: kept, lock: "a", write: write{content: text(6, "l", 2)}, want: state.ErrLocked},
		"ForceLock":        {reason: "force does not break locks", first: kept, lock: "a", write: write{content: text(6, "l", 2), opts: store.WriteOptions{Force: true}}, want: state.ErrLocked},
		"LockedIdentical":  {reason: "the rule of locks comes first", first: kept, lock: "a", write: write{content: kept}, want: state.ErrLocked},
		"LockLost":         {reason: "its lock was broken: somebody else may have applied since", first: kept, write: write{content: text(6, "l", 2), opts: store.WriteOptions{LockID: "a"}}, want: store.ErrLockLost},
		"LateRetry":        {reason: "the answer was lost and the lock is released", first: kept, write: write{content: kept, opts: store.WriteOptions{LockID: "a"}}, same: true},
		"Encrypted":        {reason: "OpenTofu's encryption leaves serial and lineage readable", first: kept, write: write{content: fmt.Sprintf(encrypted, 6)}},
		"EncryptedLower":   {reason: "so the rules hold for it", first: kept, write: write{content: fmt.Sprintf(encrypted, 4)}, want: store.ErrSerial},
		"NoJSON":           {reason: "it would be lost on the next read", write: write{content: "state"}, want: store.ErrFormat},
		"Version3":         {reason: "its resources are elsewhere", write: write{content: `{"version":3,"serial":1}`}, want: store.ErrFormat},
		"HugeSerial":       {reason: "there is no next to it", write: write{content: `{"version":4,"serial":18446744073709551615}`}, want: store.ErrFormat},
		"Huge":             {reason: "size is bounded", write: write{content: strings.Repeat(" ", state.MaxPayload+1)}, want: store.ErrTooLarge},
		"LockedFirstWrite": {reason: "a lock can be there before a state", lock: "a", write: write{content: kept, opts: store.WriteOptions{LockID: "a"}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			var first v1alpha1.StateVersion
			if tc.first != "" {
				first = w.must(tc.first, store.WriteOptions{})
			}
			if tc.lock != "" {
				if err := w.Lock(t.Context(), key, state.Lock{ID: tc.lock}, store.Holder{}); err != nil {
					t.Fatal(err)
				}
			}
			w.writes.Store(0)
			v, err := w.Write(t.Context(), key, []byte(tc.write.content), tc.write.opts)
			if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
				t.Fatalf("%s: %v, want %v", tc.reason, err, tc.want)
			}
			switch {
			case tc.want != nil || tc.same:
				if n := w.writes.Load(); n != 0 {
					t.Errorf("%s: %d requests changed something", tc.reason, n)
				}
				if tc.first != "" && w.content(0) != tc.first {
					t.Errorf("%s: the state is now %s", tc.reason, w.content(0))
				}
				if tc.same && (v.Version != first.Version || v.Blob != first.Blob) {
					t.Errorf("%s: version %+v, want the one that is kept", tc.reason, v)
				}
				if tc.first == "" && tc.lock == "" {
					if _, err := w.Get(t.Context(), key); !errors.Is(err, store.ErrNoState) {
						t.Errorf("%s: what is refused made a State: %v", tc.reason, err)
					}
				}
			default:
				if w.content(0) != tc.write.content || v.Version != first.Version+1 {
					t.Errorf("%s: version %d is %s", tc.reason, v.Version, w.content(0))
				}
				if tc.first != "" && w.content(1) != tc.first {
					t.Errorf("%s: version 1 is now %s", tc.reason, w.content(1))
				}
			}
			if tc.first != "" || tc.lock != "" {
				w.whole()
			}
		})
	}
}

func TestStatusTellsOfTheNewest(t *testing.T) {
	w := newWorld(t)
	l := state.Lock{ID: "a", Who: "me@here", Operation: "OperationTypeApply"}
	if err := w.Lock(t.Context(), key, l, store.Holder{Run: "run-1", User: "unit"}); err != nil {
		t.Fatal(err)
	}
	content := text(3, "l", 2)
	v := w.must(content, store.WriteOptions{LockID: "a", Run: "run-1"})
	got := w.object().Status
	want := v1alpha1.StateStatus{Serial: 3, Lineage: "l", Size: int64(len(content)), Resources: 2, Lock: got.Lock, Kept: 1, Versions: []v1alpha1.StateVersion{{
		Version: 1, Serial: 3, Lineage: "l", Size: int64(len(content)), Resources: 2, Created: metav1.NewTime(w.clock.Now()),
		By: "me@here", Run: "run-1", Operation: "apply", Blob: v.Blob, Digest: v.Digest,
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if v.Digest == "" || v.Digest == v.Blob {
		t.Errorf("digest %q", v.Digest)
	}
	// Nothing on disk tells what is in it.
	err := filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte("lineage")) {
			t.Errorf("%s is readable", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	w.must(fmt.Sprintf(encrypted, 4), store.WriteOptions{LockID: "a", Run: "run-1"})
	if o := w.object(); !o.Status.Encrypted || o.Status.Resources != 0 {
		t.Errorf("an encrypted state: %+v", o.Status)
	}
	other := newWorld(t)
	if u := other.must(content, store.WriteOptions{}); u.Digest == v.Digest {
		t.Error("the digest of a content can be known without the key")
	}
}

func TestLocks(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	a := state.Lock{ID: "a", Who: "ann@host", Operation: "OperationTypePlan", Created: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	steps := []struct {
		reason string
		do     func() error
		want   error
	}{
		{"nothing to unlock: there is no State", func() error { return w.Unlock(ctx, key, "a") }, store.ErrNoState},
		{"a lock has an ID", func() error { return w.Lock(ctx, key, state.Lock{}, store.Holder{}) }, store.ErrFormat},
		{"a lock is no place to store things", func() error {
			return w.Lock(ctx, key, state.Lock{ID: "a", Info: strings.Repeat("x", 1<<20)}, store.Holder{})
		}, store.ErrFormat},
		{"the first takes it, without a State before", func() error { return w.Lock(ctx, key, a, store.Holder{}) }, nil},
		{"it asks again: the answer was lost", func() error { return w.Lock(ctx, key, a, store.Holder{}) }, nil},
		{"another does not get it", func() error { return w.Lock(ctx, key, state.Lock{ID: "b"}, store.Holder{}) }, state.ErrLocked},
		{"another does not release it", func() error { return w.Unlock(ctx, key, "b") }, state.ErrLocked},
		{"without an ID nobody does", func() error { return w.Unlock(ctx, key, "") }, state.ErrLocked},
		{"the holder does", func() error { return w.Unlock(ctx, key, "a") }, nil},
		{"the holder asks again", func() error { return w.Unlock(ctx, key, "a") }, nil},
		{"an unknown ID is told that nothing is locked", func() error { return w.Unlock(ctx, key, "b") }, store.ErrNotLocked},
		{"so is none", func() error { return w.Unlock(ctx, key, "") }, store.ErrNotLocked},
		{"the next takes it", func() error { return w.Lock(ctx, key, state.Lock{ID: "b"}, store.Holder{User: "bob"}) }, nil},
		{"the last one cannot release the next one's", func() error { return w.Unlock(ctx, key, "a") }, state.ErrLocked},
	}
	for _, s := range steps {
		if err := s.do(); !errors.Is(err, s.want) || (err == nil) != (s.want == nil) {
			t.Errorf("%s: %v, want %v", s.reason, err, s.want)
		}
	}
	if o := w.object(); o.Status.Lock.Holder != "bob" {
		t.Errorf("a holder that does not say who it is has the name of its user: %+v", o.Status.Lock)
	}
	was, err := w.ForceUnlock(ctx, key)
	if err != nil || was == nil || was.ID != "b" || was.Who != "bob" {
		t.Errorf("ForceUnlock = %+v, %v", was, err)
	}
	if was, err := w.ForceUnlock(ctx, key); err != nil || was != nil {
		t.Errorf("ForceUnlock of a free lock = %+v, %v", was, err)
	}
	if _, err := w.ForceUnlock(ctx, store.Key{Namespace: "ns", Name: "none"}); !errors.Is(err, store.ErrNoState) {
		t.Errorf("ForceUnlock of nothing: %v", err)
	}
	if err := w.Unlock(ctx, key, "b"); err != nil {
		t.Errorf("the holder whose lock was broken gives it back: %v", err)
	}
	// What a loser is told is what the holder said.
	if err := w.Lock(ctx, key, a, store.Holder{}); err != nil {
		t.Fatal(err)
	}
	var locked *state.LockedError
	if err := w.Lock(ctx, key, state.Lock{ID: "c"}, store.Holder{}); !errors.As(err, &locked) {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a, locked.Lock); diff != "" {
		t.Error(diff)
	}
}

// TestCost: what a run asks for is cheap.
func TestCost(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.must(text(1, "l", 1), store.WriteOptions{})
	for _, s := range []struct {
		what          string
		do            func() error
		reads, writes int64
	}{
		{"LOCK", func() error { return w.Lock(ctx, key, state.Lock{ID: "a"}, store.Holder{}) }, 0, 1},
		{"LOCK again", func() error { return w.Lock(ctx, key, state.Lock{ID: "a"}, store.Holder{}) }, 1, 0},
		{"GET", func() error { _, _, err := w.Read(ctx, key, 0); return err }, 1, 0},
		{"POST", func() error {
			_, err := w.Write(ctx, key, []byte(text(2, "l", 1)), store.WriteOptions{LockID: "a"})
			return err
		}, 0, 1},
		{"UNLOCK", func() error { return w.Unlock(ctx, key, "a") }, 0, 1},
		{"UNLOCK again", func() error { return w.Unlock(ctx, key, "a") }, 1, 0},
	} {
		w.reads.Store(0)
		w.writes.Store(0)
		if err := s.do(); err != nil {
			t.Fatal(err)
		}
		if r, n := w.reads.Load(), w.writes.Load(); r != s.reads || n != s.writes {
			t.Errorf("%s: %d reads and %d writes, want %d and %d", s.what, r, n, s.reads, s.writes)
		}
	}
}

// TestAnotherProcess: what another one has done since is not overlooked.
func TestAnotherProcess(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	other := store.New(store.Options{Client: w.api, Blobs: w.blobs, Clock: w.clock})
	w.must(text(1, "l", 1), store.WriteOptions{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(other.Lock(ctx, key, state.Lock{ID: "theirs"}, store.Holder{}))
	if err := w.Lock(ctx, key, state.Lock{ID: "a"}, store.Holder{}); !errors.Is(err, state.ErrLocked) {
		t.Errorf("LOCK of what another process has locked: %v", err)
	}
	_, err := other.Write(ctx, key, []byte(text(2, "l", 1)), store.WriteOptions{LockID: "theirs"})
	must(err)
	must(other.Unlock(ctx, key, "theirs"))
	if _, err := w.Write(ctx, key, []byte(text(2, "l", 9)), store.WriteOptions{}); !errors.Is(err, store.ErrSerial) {
		t.Errorf("a serial that another process has written: %v", err)
	}
	must(w.Lock(ctx, key, state.Lock{ID: "a"}, store.Holder{}))
	_, err = other.ForceUnlock(ctx, key)
	must(err)
	if _, err := w.Write(ctx, key, []byte(text(3, "l", 1)), store.WriteOptions{LockID: "a"}); !errors.Is(err, store.ErrLockLost) {
		t.Errorf("a write under a lock that another process has broken: %v", err)
	}
	must(other.Delete(ctx, key, true))
	if err := w.Unlock(ctx, key, "a"); !errors.Is(err, store.ErrNoState) {
		t.Errorf("UNLOCK of what another process has deleted: %v", err)
	}
	if v := w.must(text(1, "new", 1), store.WriteOptions{}); v.Version != 1 || v.Lineage != "new" {
		t.Errorf("a state of the same name: %+v", v)
	}
}

// TestRace: of many who want a lock, one gets it; the others are told who.
func TestRace(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	const clients, rounds = 64, 5
	for round := range rounds {
		var winner atomic.Pointer[string]
		var wins atomic.Int64
		var wg sync.WaitGroup
		losers := make(chan string, clients)
		for i := range clients {
			wg.Go(func() {
				id := fmt.Sprintf("%d-%d", round, i)
				err := w.Lock(ctx, key, state.Lock{ID: id}, store.Holder{})
				var locked *state.LockedError
				switch {
				case err == nil:
					wins.Add(1)
					winner.Store(&id)
				case errors.As(err, &locked):
					losers <- locked.Lock.ID
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		close(losers)
		if wins.Load() != 1 {
			t.Fatalf("round %d: %d winners", round, wins.Load())
		}
		for id := range losers {
			if id != *winner.Load() {
				t.Errorf("a loser is told of %q, the winner is %q", id, *winner.Load())
			}
		}
		if err := w.Unlock(ctx, key, *winner.Load()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWritersRace: without locks, each serial is written once, and none is lost.
func TestWritersRace(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.must(text(1, "l", 0), store.WriteOptions{})
	var wins atomic.Int64
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			_, err := w.Write(ctx, key, []byte(text(2, "l", i+1)), store.WriteOptions{})
			switch {
			case err == nil:
				wins.Add(1)
			case !errors.Is(err, store.ErrSerial):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if wins.Load() != 1 || len(w.object().Status.Versions) != 2 {
		t.Errorf("%d writers won, %d versions are kept", wins.Load(), len(w.object().Status.Versions))
	}
	w.whole()
}

var errKilled = errors.New("killed")

// TestKillPoints stops a write where it can be stopped. Whatever was acknowledged is
// there, and trying again ends well.
func TestKillPoints(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "states"}, key.Name, errors.New("changed"))
	killed := func() error { return errKilled }
	for name, tc := range map[string]struct {
		reason        string
		before, after func(string) error
		want          error
		version       int64 // that the second try returns
		orphan        bool
	}{
		"BeforeStatus": {reason: "the blob is on disk and nothing names it", before: once("status", killed), want: errKilled, version: 2, orphan: true},
		"AfterStatus":  {reason: "it was written and the answer was lost", after: once("status", killed), want: errKilled, version: 2},
		"Conflict":     {reason: "somebody else changed something else", before: once("status", func() error { return conflict }), version: 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			one, two := text(1, "l", 1), text(2, "l", 2)
			w.must(one, store.WriteOptions{})
			w.hook(tc.before, tc.after)
			if _, err := w.Write(t.Context(), key, []byte(two), store.WriteOptions{}); !errors.Is(err, tc.want) {
				t.Fatalf("%s: %v, want %v", tc.reason, err, tc.want)
			}
			w.hook(nil, nil)
			if w.content(1) != one {
				t.Errorf("%s: version 1 is %s", tc.reason, w.content(1))
			}
			v, err := w.Write(t.Context(), key, []byte(two), store.WriteOptions{})
			if err != nil || v.Version != tc.version || w.content(0) != two {
				t.Errorf("%s: the second try: %+v, %v", tc.reason, v, err)
			}
			if (w.files() == 3) != tc.orphan {
				t.Errorf("%s: %d blobs", tc.reason, w.files())
			}
			// What nobody names goes, when it is old.
			if n, err := w.Collect(t.Context(), 1<<62); n != 0 || err != nil {
				t.Errorf("%s: Collect of young blobs = %d, %v", tc.reason, n, err)
			}
			w.clock.SetTime(time.Now().Add(2 * time.Hour))
			if _, err := w.Collect(t.Context(), time.Hour); err != nil {
				t.Error(err)
			}
			w.whole()
		})
	}
}

// TestKilledCreation: a State without a status is as good as none.
func TestKilledCreation(t *testing.T) {
	w := newWorld(t)
	w.hook(nil, once("create", func() error { return errKilled }))
	if err := w.Lock(t.Context(), key, state.Lock{ID: "a"}, store.Holder{}); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	w.hook(nil, nil)
	if _, _, err := w.Read(t.Context(), key, 0); !errors.Is(err, store.ErrNoState) {
		t.Errorf("Read: %v", err)
	}
	if err := w.Lock(t.Context(), key, state.Lock{ID: "b"}, store.Holder{}); err != nil {
		t.Error(err)
	}
}

func TestRefusedAfterSealing(t *testing.T) {
	w := newWorld(t)
	w.must(text(1, "l", 1), store.WriteOptions{})
	// Between reading and writing, somebody else takes the lock.
	w.hook(once("status", func() error {
		return w.Lock(t.Context(), key, state.Lock{ID: "other"}, store.Holder{})
	}), nil)
	if _, err := w.Write(t.Context(), key, []byte(text(2, "l", 1)), store.WriteOptions{}); !errors.Is(err, state.ErrLocked) {
		t.Fatalf("a write over a lock that was just taken: %v", err)
	}
	w.whole()
}

func TestRetention(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		spec   v1alpha1.StateSpec
		every  time.Duration // between writes
		want   []int64
	}{
		"Count":     {reason: "the newest are kept", spec: v1alpha1.StateSpec{KeepVersions: 3}, want: []int64{6, 5, 4}},
		"One":       {reason: "never less than the newest", spec: v1alpha1.StateSpec{KeepVersions: 1}, want: []int64{6}},
		"Unset":     {reason: "without a count there is the default", want: []int64{6, 5, 4, 3, 2, 1}},
		"Age":       {reason: "age counts from when a newer one came", spec: v1alpha1.StateSpec{KeepFor: &metav1.Duration{Duration: 150 * time.Minute}}, every: time.Hour, want: []int64{6, 5, 4, 3}},
		"AgeNewest": {reason: "age never removes the newest", spec: v1alpha1.StateSpec{KeepFor: &metav1.Duration{Duration: 1}}, every: time.Hour, want: []int64{6, 5}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			o := &v1alpha1.State{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Spec: tc.spec}
			if err := w.api.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			for i := range 6 {
				w.must(text(i+1, "l", 1), store.WriteOptions{})
				w.clock.Step(tc.every)
			}
			var got []int64
			for _, v := range versionsOf(t, w.object()) {
				got = append(got, v.Version)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s:\n%s", tc.reason, diff)
			}
			w.whole()
			if _, _, err := w.Read(t.Context(), key, 99); !errors.Is(err, store.ErrNoVersion) {
				t.Errorf("a version that never was: %v", err)
			}
		})
	}
}

func TestOlderVersionsArePacked(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	o := &v1alpha1.State{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Spec: v1alpha1.StateSpec{KeepVersions: 100}}
	if err := w.api.Create(ctx, o); err != nil {
		t.Fatal(err)
	}
	for i := range 105 {
		w.must(text(i+1, "l", i), store.WriteOptions{By: "Terraform/ns/net", Run: fmt.Sprintf("20260102t030405.%09dz-apply", i), Operation: "apply"})
	}
	o = w.object()
	versions := versionsOf(t, o)
	if len(versions) != 100 || o.Status.Kept != 100 || versions[0].Version != 105 || versions[99].Version != 6 || versions[99].By != "Terraform/ns/net" {
		t.Errorf("%d versions are named, %d are said to be, from %+v to %+v", len(versions), o.Status.Kept, versions[0], versions[len(versions)-1])
	}
	if raw, err := json.Marshal(o.Status); err != nil || len(raw) > 24<<10 {
		t.Errorf("the status of 100 versions has %d bytes, %v", len(raw), err)
	}
	if w.content(6) != text(6, "l", 5) {
		t.Error("the content of the oldest version is another")
	}
	w.whole()
	if v, err := w.Rollback(ctx, key, 7, store.WriteOptions{}); err != nil || v.Serial != 106 || v.Resources != 6 {
		t.Errorf("to a version that is packed: %+v, %v", v, err)
	}
	if err := w.Move(ctx, key, "other"); err != nil {
		t.Fatal(err)
	}
	if err := w.Move(ctx, client.ObjectKey{Namespace: key.Namespace, Name: "other"}, key.Name); err != nil {
		t.Fatal(err)
	}
	if _, err := w.blobs.Rotate(ctx); err != nil {
		t.Fatal(err)
	}
	if done, err := w.Rewrap(ctx); err != nil || done.Versions != 100 {
		t.Errorf("Rewrap = %+v, %v", done, err)
	}
	w.clock.SetTime(time.Now().Add(48 * time.Hour))
	if n, err := w.Collect(ctx, time.Hour); err != nil || n != 0 {
		t.Errorf("Collect took %d blobs, %v", n, err)
	}
	w.whole()
}

func TestDamagedPackedVersionsLoseNothing(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	for i := range 12 {
		w.must(text(i+1, "l", i), store.WriteOptions{})
	}
	o := w.object()
	o.Status.Packed = o.Status.Packed[:len(o.Status.Packed)-9]
	if err := w.api.Status().Update(ctx, o); err != nil {
		t.Fatal(err)
	}
	if w.content(0) != text(12, "l", 11) {
		t.Error("the newest version cannot be read")
	}
	if err := w.Lock(ctx, key, state.Lock{ID: "a"}, store.Holder{}); err != nil {
		t.Error(err)
	}
	if _, _, err := w.Read(ctx, key, 1); err == nil || !strings.Contains(err.Error(), "status.packed") {
		t.Errorf("a version that is packed: %v", err)
	}
	files := w.files()
	if _, err := w.Write(ctx, key, []byte(text(13, "l", 1)), store.WriteOptions{LockID: "a"}); err == nil || !strings.Contains(err.Error(), "status.packed") {
		t.Errorf("a write that would drop the packed versions: %v", err)
	}
	w.clock.SetTime(time.Now().Add(48 * time.Hour))
	if n, err := w.Collect(ctx, time.Hour); err == nil || n != 0 {
		t.Errorf("Collect took %d blobs without knowing what is needed: %v", n, err)
	}
	if w.files() != files {
		t.Errorf("%d of %d blobs are left", w.files(), files)
	}
}

func TestRollback(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	if _, err := w.Rollback(ctx, key, 1, store.WriteOptions{}); !errors.Is(err, store.ErrNoState) {
		t.Errorf("of nothing: %v", err)
	}
	one := `{"version":4,"serial":1,"lineage":"l","outputs":{"o":{"value":12345678901234567890,"x":"<&>"}},"resources":[{}],"check_results":null}`
	w.must(one, store.WriteOptions{})
	w.must(text(5, "l", 3), store.WriteOptions{})
	v, err := w.Rollback(ctx, key, 1, store.WriteOptions{By: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	if v.Version != 3 || v.Serial != 6 || v.By != "ann" || v.Operation != "rollback" || v.Resources != 1 {
		t.Errorf("%+v", v)
	}
	if w.content(1) != one || w.content(2) != text(5, "l", 3) {
		t.Error("rollback changed what was kept")
	}
	back := strings.NewReplacer(" ", "", "\n", "").Replace(w.content(0))
	want := `{"check_results":null,"lineage":"l","outputs":{"o":{"value":12345678901234567890,"x":"<&>"}},"resources":[{}],"serial":6,"version":4}`
	if diff := cmp.Diff(want, back); diff != "" {
		t.Error(diff)
	}
	if _, err := w.Rollback(ctx, key, 9, store.WriteOptions{}); !errors.Is(err, store.ErrNoVersion) {
		t.Errorf("to a version that never was: %v", err)
	}
	// To another lineage and back: the serial goes on.
	w.must(text(2, "m", 1), store.WriteOptions{Force: true})
	if v, err := w.Rollback(ctx, key, 2, store.WriteOptions{}); err != nil || v.Serial != 7 || v.Lineage != "l" {
		t.Errorf("to another lineage: %+v, %v", v, err)
	}
	if err := w.Lock(ctx, key, state.Lock{ID: "a"}, store.Holder{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Rollback(ctx, key, 1, store.WriteOptions{}); !errors.Is(err, state.ErrLocked) {
		t.Errorf("under another's lock: %v", err)
	}
	if _, err := w.Rollback(ctx, key, 1, store.WriteOptions{LockID: "a"}); err != nil {
		t.Errorf("under one's own lock: %v", err)
	}
	w.must(fmt.Sprintf(encrypted, 50), store.WriteOptions{LockID: "a"})
	w.must(fmt.Sprintf(encrypted, 51), store.WriteOptions{LockID: "a"})
	n := w.object().Status.Versions[1].Version
	if _, err := w.Rollback(ctx, key, n, store.WriteOptions{LockID: "a"}); !errors.Is(err, store.ErrEncrypted) {
		t.Errorf("to an encrypted version: %v", err)
	}
	if v, err := w.Rollback(ctx, key, n, store.WriteOptions{LockID: "a", Force: true}); err != nil || v.Serial != 50 {
		t.Errorf("to an encrypted version by force: %+v, %v", v, err)
	}
	w.whole()
}

func TestDelete(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	if err := w.Delete(ctx, key, true); !errors.Is(err, store.ErrNoState) {
		t.Errorf("of nothing: %v", err)
	}
	w.must(text(1, "l", 1), store.WriteOptions{})
	if err := w.Delete(ctx, key, false); !errors.Is(err, store.ErrNotEmpty) {
		t.Errorf("with resources: %v", err)
	}
	w.must(fmt.Sprintf(encrypted, 2), store.WriteOptions{})
	if err := w.Delete(ctx, key, false); !errors.Is(err, store.ErrNotEmpty) {
		t.Errorf("of what nobody can tell: %v", err)
	}
	if err := w.Lock(ctx, key, state.Lock{ID: "a"}, store.Holder{}); err != nil {
		t.Fatal(err)
	}
	if err := w.Delete(ctx, key, true); !errors.Is(err, state.ErrLocked) {
		t.Errorf("while it is locked: %v", err)
	}
	if err := w.Unlock(ctx, key, "a"); err != nil {
		t.Fatal(err)
	}
	w.whole()
	// It fills just before it goes.
	w.must(text(3, "l", 0), store.WriteOptions{})
	w.hook(once("delete", func() error {
		w.must(text(4, "l", 1), store.WriteOptions{})
		return nil
	}), nil)
	if err := w.Delete(ctx, key, false); !errors.Is(err, store.ErrNotEmpty) {
		t.Errorf("of what was just written: %v", err)
	}
	w.hook(nil, nil)
	w.whole()
	if err := w.Delete(ctx, key, true); err != nil {
		t.Errorf("by force: %v", err)
	}
	if _, err := w.Get(ctx, key); !errors.Is(err, store.ErrNoState) || w.files() != 0 {
		t.Errorf("after: %v, %d blobs", err, w.files())
	}
	w.must(text(1, "new", 0), store.WriteOptions{})
	if err := w.Delete(ctx, key, false); err != nil || w.files() != 0 {
		t.Errorf("of an empty state: %v", err)
	}
}

func TestMove(t *testing.T) {
	ctx := t.Context()
	to := store.Key{Namespace: "ns", Name: "new"}
	fill := func(w *world) {
		w.must(text(1, "l", 1), store.WriteOptions{})
		w.must(text(2, "l", 2), store.WriteOptions{})
	}
	moved := func(t *testing.T, w *world) {
		t.Helper()
		if _, err := w.Get(ctx, key); !errors.Is(err, store.ErrNoState) {
			t.Errorf("the old name: %v", err)
		}
		for n := range 2 {
			b, v, err := w.Read(ctx, to, int64(n+1))
			if err != nil || string(b) != text(n+1, "l", n+1) {
				t.Errorf("version %+v: %s, %v", v, b, err)
			}
		}
		w.whole()
	}
	t.Run("Move", func(t *testing.T) {
		w := newWorld(t)
		fill(w)
		if err := w.Move(ctx, key, "new"); err != nil {
			t.Fatal(err)
		}
		moved(t, w)
		if err := w.Move(ctx, to, "new"); err != nil {
			t.Errorf("to its own name: %v", err)
		}
		moved(t, w)
	})
	t.Run("Killed", func(t *testing.T) {
		w := newWorld(t)
		fill(w)
		w.hook(once("delete", func() error { return errKilled }), nil)
		if err := w.Move(ctx, key, "new"); !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		w.whole()
		if err := w.Move(ctx, key, "new"); err != nil {
			t.Fatal(err)
		}
		moved(t, w)
	})
	t.Run("KilledBeforeTheStatus", func(t *testing.T) {
		w := newWorld(t)
		fill(w)
		w.hook(once("status", func() error { return errKilled }), nil)
		if err := w.Move(ctx, key, "new"); !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		if err := w.Move(ctx, key, "new"); err != nil {
			t.Fatal(err)
		}
		w.clock.SetTime(time.Now().Add(2 * time.Hour))
		if n, err := w.Collect(ctx, time.Hour); n != 2 || err != nil {
			t.Errorf("Collect = %d, %v", n, err)
		}
		moved(t, w)
	})
	t.Run("Refused", func(t *testing.T) {
		w := newWorld(t)
		if err := w.Move(ctx, key, "new"); !errors.Is(err, store.ErrNoState) {
			t.Errorf("of nothing: %v", err)
		}
		fill(w)
		if _, err := w.Write(ctx, to, []byte(text(1, "x", 0)), store.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := w.Move(ctx, key, "new"); !errors.Is(err, store.ErrLineage) {
			t.Errorf("over another state: %v", err)
		}
		if err := w.Lock(ctx, key, state.Lock{ID: "a"}, store.Holder{}); err != nil {
			t.Fatal(err)
		}
		if err := w.Move(ctx, key, "free"); !errors.Is(err, state.ErrLocked) {
			t.Errorf("while it is locked: %v", err)
		}
		w.whole()
	})
	t.Run("ChangedMeanwhile", func(t *testing.T) {
		w := newWorld(t)
		fill(w)
		w.hook(once("delete", func() error { return w.Lock(ctx, key, state.Lock{ID: "a"}, store.Holder{}) }), nil)
		if err := w.Move(ctx, key, "new"); err == nil {
			t.Error("a state that was just locked was moved")
		}
		if _, err := w.Get(ctx, to); !errors.Is(err, store.ErrNoState) {
			t.Errorf("the copy: %v", err)
		}
		w.whole()
	})
}

// TestRotationUnderLoad: the key is rotated and retired while states are written and
// read; nothing becomes unreadable.
func TestRotationUnderLoad(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	const writers, writes = 6, 12
	name := func(i int) store.Key { return store.Key{Namespace: "ns", Name: fmt.Sprint("s", i)} }
	for i := range writers {
		if _, err := w.Write(ctx, name(i), []byte(text(1, "l", 0)), store.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for n := range writes {
				if _, err := w.Write(ctx, name(i), []byte(text(n+2, "l", n)), store.WriteOptions{}); err != nil {
					t.Error(err)
				}
				if b, v, err := w.Read(ctx, name(i), 1); err != nil || string(b) != text(1, "l", 0) {
					t.Errorf("%+v: %s, %v", v, b, err)
				}
			}
		})
	}
	for range 3 {
		if _, err := w.blobs.Rotate(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Rewrap(ctx); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	// A write that was sealed just before the last rotation may have come after Rewrap.
	if _, err := w.Rewrap(ctx); err != nil {
		t.Error(err)
	}
	if done, err := w.Rewrap(ctx); err != nil || done != (store.Rewrapped{}) {
		t.Errorf("there was something left to do: %+v, %v", done, err)
	}
	if n, err := w.blobs.Retire(ctx); err != nil || n != 3 {
		t.Errorf("Retire = %d, %v", n, err)
	}
	w.whole()
	for i := range writers {
		o, err := w.Get(ctx, name(i))
		if err != nil || o.Status.Kept != writes+1 || len(versionsOf(t, o)) != writes+1 {
			t.Errorf("%s: %d versions, %v", name(i), o.Status.Kept, err)
		}
		// Digests are the same as before: a client that asks again is still known.
		if v, err := w.Write(ctx, name(i), []byte(text(writes+1, "l", writes-1)), store.WriteOptions{}); err != nil || v.Version != writes+1 {
			t.Errorf("the newest again: %+v, %v", v, err)
		}
	}
}

func TestLostBlob(t *testing.T) {
	w := newWorld(t)
	w.must(text(1, "l", 0), store.WriteOptions{})
	if err := os.RemoveAll(filepath.Join(w.dir, "states")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Read(t.Context(), key, 0); !errors.Is(err, blob.ErrNotFound) || errors.Is(err, store.ErrNoState) {
		t.Errorf("a state whose content is lost is none: %v", err)
	}
}

// TestStatesInS3: versions, rotation and collection where blobs are objects of a bucket.
func TestStatesInS3(t *testing.T) {
	bucket := s3mem.New()
	if err := bucket.CreateBucket("states"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(bucket).Server())
	defer server.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	w, ctx := newWorldAt(t, "s3://states?region=eu-central-1&use_path_style=true&endpoint="+url.QueryEscape(server.URL)), t.Context()
	for n := range 3 {
		w.must(text(n+1, "l", n), store.WriteOptions{})
	}
	if _, err := w.blobs.Rotate(ctx); err != nil {
		t.Fatal(err)
	}
	if done, err := w.Rewrap(ctx); err != nil || done.Versions != 3 {
		t.Errorf("Rewrap = %+v, %v", done, err)
	}
	if n, err := w.blobs.Retire(ctx); err != nil || n != 1 {
		t.Errorf("Retire = %d, %v", n, err)
	}
	// A crash before the object names it leaves a blob.
	w.hook(once("status", func() error { return errKilled }), nil)
	if _, err := w.Write(ctx, key, []byte(text(4, "l", 3)), store.WriteOptions{}); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	if n, err := w.Collect(ctx, time.Hour); n != 0 || err != nil {
		t.Errorf("Collect of young blobs = %d, %v", n, err)
	}
	w.clock.SetTime(time.Now().Add(2 * time.Hour))
	if n, err := w.Collect(ctx, time.Hour); n != 1 || err != nil {
		t.Errorf("Collect = %d, %v", n, err)
	}
	for n := range 3 {
		if b, _, err := w.Read(ctx, key, int64(n+1)); err != nil || string(b) != text(n+1, "l", n) {
			t.Errorf("version %d: %s, %v", n+1, b, err)
		}
	}
}
