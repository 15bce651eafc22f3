// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

func TestTable(t *testing.T) {
	got := table([]row{
		{step: "Begin", took: 1500 * time.Millisecond, ok: true},
		{step: "A longer step", ran: "network, cluster", took: 12 * time.Second},
	})
	want := []string{
		"STEP           RAN               TIME",
		"Begin          -                 1.5s",
		"A longer step  network, cluster  12.0s  FAILED",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the columns do not line up (-want +got):\n%s", diff)
	}
}

func TestColoursOnlyWhenAllowed(t *testing.T) {
	for name, color := range map[string]bool{"plain": false, "colour": true} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			w := newTeller(&out, color)
			w.chapter(1, "Begin")
			w.command("terrace", "get")
			w.kept("all is well")
			if got := strings.Contains(out.String(), "\x1b["); got != color {
				t.Errorf("escape sequences: %v, allowed: %v\n%q", got, color, out.String())
			}
		})
	}
}

func TestCut(t *testing.T) {
	cases := map[string]struct {
		reason string
		text   string
		n      int
		want   string
	}{
		"short":      {"what fits stays", "ready", 10, "ready"},
		"long":       {"what does not fit ends in dots, and is as long as allowed", "0123456789ab", 10, "0123456..."},
		"lines":      {"one line of a table is one line", "first\nsecond", 10, "first"},
		"runes":      {"letters are counted, not bytes", "äöüäöü", 6, "äöüäöü"},
		"empty text": {"nothing is nothing", "", 10, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := cut(tc.text, tc.n); got != tc.want {
				t.Errorf("%s: cut(%q, %d) = %q, want %q", tc.reason, tc.text, tc.n, got, tc.want)
			}
		})
	}
}

func tf(name, commit, applied string, planned int64, ready bool) unit {
	status := metav1.ConditionFalse
	if ready {
		status = metav1.ConditionTrue
	}
	at := metav1.Unix(planned, 0)
	return unit{terraform: &infra.Terraform{
		ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 2},
		Status: infra.TerraformStatus{
			ObservedGeneration:  2,
			LastPlannedRevision: "main@sha1:" + commit,
			LastPlanAt:          &at,
			Plan:                infra.PlanStatus{LastApplied: applied},
			Conditions:          []metav1.Condition{{Type: meta.ReadyCondition, Status: status}},
		},
	}}
}

func ks(name, commit, built string, ready bool) unit {
	status := metav1.ConditionFalse
	if ready {
		status = metav1.ConditionTrue
	}
	return unit{kustomization: &kustomizev1.Kustomization{
		ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 2},
		Status: kustomizev1.KustomizationStatus{
			ObservedGeneration:  2,
			LastAppliedRevision: "main@sha1:" + commit,
			History:             meta.History{{Digest: built}},
			Conditions:          []metav1.Condition{{Type: meta.ReadyCondition, Status: status}},
		},
	}}
}

func TestSettledAt(t *testing.T) {
	stale := tf("a", "c2", "p1", 1, true)
	stale.terraform.Generation = 3
	cases := map[string]struct {
		reason string
		a      unit
		want   bool
	}{
		"settled":              {"ready, at the commit", tf("a", "c2", "p1", 1, true), true},
		"behind":               {"ready, but at the commit before", tf("a", "c1", "p1", 1, true), false},
		"not ready":            {"at the commit, but not ready", tf("a", "c2", "p1", 1, false), false},
		"not seen":             {"a unit that is not there is not settled", unit{}, false},
		"not current":          {"ready, but for the spec before", stale, false},
		"kustomization":        {"ready, at the commit", ks("a", "c2", "b1", true), true},
		"kustomization behind": {"ready, but at the commit before", ks("a", "c1", "b1", true), false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			v := view{"b": tf("b", "c2", "p1", 1, true)}
			if tc.a != (unit{}) {
				v["a"] = tc.a
			}
			if got := v.settledAt("c2", "a", "b"); got != tc.want {
				t.Errorf("%s: settledAt = %v", tc.reason, got)
			}
		})
	}
}

func TestRan(t *testing.T) {
	before := view{
		"a": tf("a", "c1", "p1", 1, true), "b": tf("b", "c1", "p1", 1, true), "c": tf("c", "c1", "p1", 1, true),
		"e": ks("e", "c1", "b1", true), "f": ks("f", "c1", "b1", true),
	}
	now := view{
		"a": tf("a", "c2", "p1", 1, true), // only took note of the commit
		"b": tf("b", "c2", "p1", 2, true), // planned, with no change
		"c": tf("c", "c2", "p2", 1, true), // applied
		"d": tf("d", "c2", "p1", 1, true), // new
		"e": ks("e", "c2", "b1", true),    // only took note of the commit
		"f": ks("f", "c2", "b2", true),    // built something else
	}
	if diff := cmp.Diff([]string{"b", "c", "d", "f"}, ran(before, now)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMessageOfWorkUnderWay(t *testing.T) {
	one := ks("a", "c1", "b1", false)
	one.kustomization.Status.Conditions = []metav1.Condition{
		{Type: meta.ReadyCondition, Status: metav1.ConditionUnknown, Message: "Reconciliation in progress"},
		{Type: meta.ReconcilingCondition, Status: metav1.ConditionTrue, Message: "waiting for Deployment/web"},
	}
	if got := one.message(); got != "waiting for Deployment/web" {
		t.Errorf("the message does not say with what it is under way: %q", got)
	}
}

func watched(seen view) *units {
	return &units{seen: seen, changed: make(chan struct{}), say: newTeller(&bytes.Buffer{}, false)}
}

func TestUntilSaysWhatItWaitedFor(t *testing.T) {
	a := tf("a", "c1", "p1", 1, false)
	a.terraform.Status.Conditions[0].Message = "init: provider not found"
	err := watched(view{"a": a}).until(t.Context(), "a to be ready", 1, func(v view) bool { return v.ready("a") })
	if err == nil || !strings.Contains(err.Error(), "a to be ready") || !strings.Contains(err.Error(), "provider not found") {
		t.Errorf("the error does not say what was awaited and what was there instead: %v", err)
	}
}

func TestUntilWakes(t *testing.T) {
	u := watched(view{})
	done := make(chan error, 1)
	go func() {
		done <- u.until(t.Context(), "a to be ready", time.Minute, func(v view) bool { return v.ready("a") })
	}()
	u.note(tf("a", "c1", "p1", 1, true), false)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestReplaceKeepsTheOtherKind(t *testing.T) {
	u := watched(view{"a": tf("a", "c1", "p1", 1, true), "b": ks("b", "c1", "b1", true), "c": tf("c", "c1", "p1", 1, true)})
	u.replace(true, view{"c": tf("c", "c1", "p1", 1, true)})
	if got := slices.Sorted(maps.Keys(u.snapshot())); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("known are %v, want b, which is no Terraform, and c, which is still there", got)
	}
}

func TestRepository(t *testing.T) {
	r := &repository{dir: t.TempDir()}
	ctx := t.Context()
	files := fstest.MapFS{"terraform/x/main.tf": {Data: []byte("a = 1\n")}, "README.md": {Data: []byte("# A\n")}}
	if err := r.create(ctx, files); err != nil {
		t.Fatal(err)
	}
	if err := r.replace("terraform/x/main.tf", "a = 2", "a = 3"); err == nil {
		t.Error("a change whose old text is not there must be refused")
	}
	if err := r.replace("terraform/x/main.tf", "a = 1", "a = 2"); err != nil {
		t.Fatal(err)
	}
	hash, err := r.commit(ctx, "Change")
	if err != nil {
		t.Fatal(err)
	}
	changed, err := r.git(ctx, "diff", "--name-only", hash+"^", hash)
	if err != nil {
		t.Fatal(err)
	}
	if changed != "terraform/x/main.tf" {
		t.Errorf("the commit changes %q", changed)
	}
}

func TestMirrorHost(t *testing.T) {
	cases := map[string]struct {
		reason string
		dirs   []string
		want   string
	}{
		"own host": {"the address in the module must name it", []string{"terrace.test/hashicorp/local"}, "terrace.test"},
		"usual":    {"an address without a host is right", []string{"registry.opentofu.org/hashicorp/local", "terrace.test/hashicorp/local"}, ""},
		"another":  {"a mirror without the provider is the user's to explain", []string{"terrace.test/hashicorp/time"}, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			mirror := t.TempDir()
			for _, dir := range tc.dirs {
				if err := os.MkdirAll(filepath.Join(mirror, dir), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if got := mirrorHost(mirror); got != tc.want {
				t.Errorf("%s: mirrorHost = %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
	if got := mirrorHost(""); got != "" {
		t.Errorf("without a mirror there is no host, not %q", got)
	}
}

func TestRunRefusesADirectoryThatIsNotEmpty(t *testing.T) {
	dir := t.TempDir()
	r := &repository{dir: dir}
	if err := r.create(t.Context(), fstest.MapFS{"x": {}}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := Run(t.Context(), Options{Dir: dir, Out: &out})
	if err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("error %v", err)
	}
	if out.Len() > 0 {
		t.Errorf("it said %q before it looked", out.String())
	}
}

func TestWaitEndsWithThePlane(t *testing.T) {
	p := &plane{exited: make(chan struct{})}
	tale := &tale{plane: p, units: watched(view{})}
	close(p.exited)
	if err := tale.until(t.Context(), "a to be ready", func(view) bool { return false }); !errors.Is(err, errEnded) {
		t.Errorf("the wait did not end with the control plane: %v", err)
	}
}

func TestStopWithoutAPlane(t *testing.T) {
	var p *plane
	if err := errors.Join(p.stop(), (&plane{}).stop()); err != nil {
		t.Error(err)
	}
}
