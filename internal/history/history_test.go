// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package history

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/terrace-dev/terrace/api/v1alpha1"
)

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func testClient(t *testing.T, f interceptor.Funcs, objects ...client.Object) client.Client {
	t.Helper()
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithInterceptorFuncs(f).Build()
}

func newRun(unit string, n int, ended time.Time) *v1alpha1.Run {
	r := &v1alpha1.Run{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("2026-%03d-apply", n), CreationTimestamp: metav1.NewTime(ended)},
		Spec:       v1alpha1.RunSpec{Unit: v1alpha1.UnitReference{Kind: "Terraform", Name: unit}, Operation: "apply"},
		Status:     v1alpha1.RunStatus{Outcome: "succeeded", Began: metav1.NewTime(ended), Ended: metav1.NewTime(ended)},
	}
	r.Labels = map[string]string{v1alpha1.UnitLabel: Label(r.Spec.Unit)}
	return r
}

func names(t *testing.T, c client.Client) []string {
	t.Helper()
	var list v1alpha1.RunList
	if err := c.List(context.Background(), &list); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range list.Items {
		out = append(out, r.Spec.Unit.Name+" "+r.Name)
	}
	return out
}

func TestKeepsTheLastOfEachUnit(t *testing.T) {
	c := testClient(t, interceptor.Funcs{})
	k := New(Options{Client: c, Reader: c, Keep: 2, Clock: clocktesting.NewFakeClock(begin)})
	for n := range 4 {
		for _, unit := range []string{"a", "b"} {
			r := newRun(unit, n, begin)
			r.Name += unit
			if err := k.Record(context.Background(), r); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := []string{"a 2026-002-applya", "b 2026-002-applyb", "a 2026-003-applya", "b 2026-003-applyb"}
	if diff := cmp.Diff(want, names(t, c)); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
}

func TestTheSameRunAgain(t *testing.T) {
	c := testClient(t, interceptor.Funcs{})
	k := New(Options{Client: c, Reader: c, Keep: 1, Clock: clocktesting.NewFakeClock(begin)})
	for range 2 { // a reconcile that could not write its status comes again
		if err := k.Record(context.Background(), newRun("a", 1, begin)); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(t, c); len(got) != 1 {
		t.Errorf("runs: %v", got)
	}
}

func TestAgeAndWhatWasThereBefore(t *testing.T) {
	now := begin.Add(100 * 24 * time.Hour)
	c := testClient(t, interceptor.Funcs{}, newRun("a", 1, begin), newRun("a", 2, now.Add(-time.Hour)), newRun("gone", 3, begin))
	k := New(Options{Client: c, Reader: c, KeepFor: 30 * 24 * time.Hour, Clock: clocktesting.NewFakeClock(now)})
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // the first sweep is made in any case
	if err := k.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a 2026-002-apply"}, names(t, c)); diff != "" {
		t.Errorf("runs after the start (-want +got):\n%s", diff)
	}
}

// What belongs to a Run is kept as long as it, and while nobody knows which Runs there are.
func TestKeeps(t *testing.T) {
	resource := schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "runs"}
	now := begin.Add(100 * 24 * time.Hour)
	a := v1alpha1.UnitReference{Kind: "Terraform", Name: "a"}
	for name, tc := range map[string]struct {
		reason string
		err    error // of the first look
		early  bool  // known after it
		late   bool  // "2026-002-apply" is kept in the end
	}{
		"Listed":      {reason: "the ordinary case", early: true, late: true},
		"Unavailable": {reason: "it is looked again an hour later", err: apierrors.NewServiceUnavailable("later"), late: true},
		"Forbidden":   {reason: "what is not allowed does not keep logs for ever", err: apierrors.NewForbidden(resource, "", errors.New("no")), early: true},
		"KindMissing": {reason: "the same", err: apierrors.NewNotFound(resource, ""), early: true},
	} {
		t.Run(name, func(t *testing.T) {
			looks := make(chan struct{}, 10)
			failing := tc.err
			c := testClient(t, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
				defer func() { looks <- struct{}{} }()
				if err := failing; err != nil {
					failing = nil
					return err
				}
				return c.List(ctx, list, o...)
			}}, newRun("a", 1, begin), newRun("a", 2, now.Add(-time.Hour)))
			clock := clocktesting.NewFakeClock(now)
			k := New(Options{Client: c, Reader: c, Clock: clock})
			if !k.Keeps("ns", a, "2026-001-apply") || !k.Keeps("ns", a, "any") {
				t.Error("something is not kept before it is known what there is")
			}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error)
			go func() { done <- k.Start(ctx) }()
			<-looks
			if tc.early {
				<-k.Loaded()
			} else {
				clock.Step(time.Hour + time.Second) // the ticker is there before the first look
				<-looks
				<-k.Loaded()
			}
			cancel()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if k.Keeps("ns", a, "2026-001-apply") || k.Keeps("other", a, "2026-002-apply") || k.Keeps("ns", v1alpha1.UnitReference{Kind: "Terraform", Name: "b"}, "2026-002-apply") {
				t.Errorf("%s: a Run is kept that is not there", tc.reason)
			}
			if got := k.Keeps("ns", a, "2026-002-apply"); got != tc.late {
				t.Errorf("%s: the Run that is there is kept: %t", tc.reason, got)
			}
			if err := k.Record(context.Background(), newRun("a", 3, now)); err != nil || !k.Keeps("ns", a, "2026-003-apply") {
				t.Errorf("%s: a new Run is not kept: %v", tc.reason, err)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	resource := schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "runs"}
	terminating := apierrors.NewForbidden(resource, "x", errors.New("the namespace is going"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: "NamespaceTerminating"}}
	for name, tc := range map[string]struct {
		reason string
		err    error
		fails  bool
	}{
		"KindMissing": {reason: "an older installation must not stop its units", err: apierrors.NewNotFound(resource, "")},
		"Terminating": {reason: "the record goes with the namespace anyway", err: terminating},
		"Unavailable": {reason: "it is tried again", err: apierrors.NewServiceUnavailable("later"), fails: true},
		"Forbidden":   {reason: "a quota or a missing permission must not keep the result of an apply from the status", err: apierrors.NewForbidden(resource, "x", errors.New("no"))},
	} {
		t.Run(name, func(t *testing.T) {
			c := testClient(t, interceptor.Funcs{Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return tc.err }})
			err := New(Options{Client: c, Reader: c}).Record(context.Background(), newRun("a", 1, begin))
			if (err != nil) != tc.fails {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
}

func TestLabel(t *testing.T) {
	long := v1alpha1.UnitReference{Kind: "Kustomization", Name: strings.Repeat("x", 200)}
	other := v1alpha1.UnitReference{Kind: "Kustomization", Name: strings.Repeat("x", 199) + "y"}
	if got := Label(v1alpha1.UnitReference{Kind: "Terraform", Name: "net"}); got != "Terraform.net" {
		t.Errorf("label %q", got)
	}
	if l := Label(long); len(l) > 63 || l == Label(other) {
		t.Errorf("labels of long names: %q and %q", l, Label(other))
	}
}
