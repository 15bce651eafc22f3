// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func TestRunStopsAtFirstPhaseThatDoesNotSayNext(t *testing.T) {
	boom := errors.New("boom")
	type log struct{ ran []string }
	phase := func(name string, res Result, err error) Phase[*log] {
		return func(_ context.Context, l *log) (Result, error) {
			l.ran = append(l.ran, name)
			return res, err
		}
	}
	for name, tc := range map[string]struct {
		reason string
		second Result
		err    error
		want   int
	}{
		"next":    {"all phases run when each says next", Next, nil, 3},
		"wait":    {"a phase that waits ends the changing ones", Wait("R", "m", time.Second), nil, 2},
		"stalled": {"so does one that needs a person", Stalled("R", "m"), nil, 2},
		"error":   {"and one that failed", Next, boom, 2},
	} {
		t.Run(name, func(t *testing.T) {
			l := &log{}
			res, err := Run(t.Context(), l, phase("a", Next, nil), phase("b", tc.second, tc.err), phase("c", Next, nil))
			if len(l.ran) != tc.want || !errors.Is(err, tc.err) || (tc.err == nil && res != tc.second && tc.want == 2) {
				t.Fatalf("%s: ran %v, result %+v, error %v", tc.reason, l.ran, res, err)
			}
		})
	}
}

func TestReasonOf(t *testing.T) {
	inner := errors.New("x")
	err := Fail("TFExecPlanFailed", inner)
	if got := ReasonOf(err, "Other"); got != "TFExecPlanFailed" {
		t.Fatalf("reason %q", got)
	}
	if !errors.Is(err, inner) || ReasonOf(inner, "Other") != "Other" {
		t.Fatal("a failure must wrap its cause and leave other errors alone")
	}
}

func TestSooner(t *testing.T) {
	for _, tc := range []struct{ a, b, want time.Duration }{{0, 0, 0}, {0, 5, 5}, {5, 0, 5}, {3, 5, 3}, {5, 3, 3}} {
		if got := Sooner(tc.a, tc.b); got != tc.want {
			t.Errorf("Sooner(%d, %d) = %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}

func TestWriterPatchesOnlyDifferencesAndKeepsItsOwnNewest(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u1"}}
	c := fake.NewClientBuilder().WithObjects(pod).WithStatusSubresource(pod).Build()
	var read corev1.Pod
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(pod), &read); err != nil {
		t.Fatal(err)
	}
	w := NewWriter[*corev1.Pod](c, "test")

	same := read.DeepCopy()
	if wrote, err := w.Patch(t.Context(), &read, same); wrote || err != nil {
		t.Fatalf("nothing changed: wrote %v, error %v", wrote, err)
	}

	changed := read.DeepCopy()
	changed.Status.Message = "hello"
	if wrote, err := w.Patch(t.Context(), &read, changed); !wrote || err != nil {
		t.Fatalf("wrote %v, error %v", wrote, err)
	}
	if got := w.Newest(&read); got.Status.Message != "hello" {
		t.Fatalf("the stale cache copy won over what was written: %q", got.Status.Message)
	}

	late := read.DeepCopy()
	late.Status.Message = "decided on an old version"
	if _, err := w.Patch(t.Context(), &read, late); err == nil {
		t.Fatal("a status decided on an older version must conflict")
	}

	gone := changed.DeepCopy()
	if err := c.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	gone.Status.Message = "too late"
	if _, err := w.Patch(t.Context(), changed, gone); err != nil {
		t.Fatalf("an object that is gone is not an error: %v", err)
	}
}

// TestWriterKnowsWhatItLetGo holds for the watch cache that lags behind a deletion: the
// version that it shows still has the finalizer, and may even have the same
// resourceVersion as the answer to the write that took it off.
func TestWriterKnowsWhatItLetGo(t *testing.T) {
	now := metav1.Now()
	cached := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "p", UID: "u1", ResourceVersion: "7", DeletionTimestamp: &now, Finalizers: []string{"example.com/x"},
	}}
	letGo := func(w *Writer[*corev1.Pod], meanwhile func()) {
		t.Helper()
		free := cached.DeepCopy()
		free.Finalizers = nil
		if _, err := w.patch(t.Context(), cached, free, func(client.Patch) error { meanwhile(); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	w := NewWriter[*corev1.Pod](nil, "test")
	letGo(w, func() {})
	for range 2 {
		if got := w.Newest(cached); len(got.Finalizers) != 0 {
			t.Fatalf("the cache still shows it, and its deletion would be carried out again: %v", got.Finalizers)
		}
	}
	w.Forget("u1")
	if len(w.latest) != 0 {
		t.Error("what is gone is remembered")
	}
	letGo(w, func() { w.Forget("u1") }) // the watch is faster than the answer
	if len(w.latest) != 0 || len(w.sending) != 0 {
		t.Errorf("what is gone is remembered: %d, %d", len(w.latest), len(w.sending))
	}
}

func TestKeepTimes(t *testing.T) {
	then, later := metav1.NewTime(time.Unix(1, 0)), metav1.NewTime(time.Unix(2, 0))
	was := []metav1.Condition{{Type: "Same", Status: "True", LastTransitionTime: then}, {Type: "Moved", Status: "True", LastTransitionTime: then}}
	now := []metav1.Condition{
		{Type: "Same", Status: "True", LastTransitionTime: later},
		{Type: "Moved", Status: "False", LastTransitionTime: later},
		{Type: "New", Status: "True", LastTransitionTime: later},
	}
	KeepTimes(was, now)
	for i, want := range []metav1.Time{then, later, later} {
		if !now[i].LastTransitionTime.Equal(&want) {
			t.Errorf("%s has the time %s, want %s", now[i].Type, now[i].LastTransitionTime, want)
		}
	}
}
