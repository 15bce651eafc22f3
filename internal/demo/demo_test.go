// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

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

func unit(name, commit, applied string, planned int64, ready bool) *infra.Terraform {
	status := metav1.ConditionFalse
	if ready {
		status = metav1.ConditionTrue
	}
	at := metav1.Unix(planned, 0)
	return &infra.Terraform{
		ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 2},
		Status: infra.TerraformStatus{
			ObservedGeneration:  2,
			LastPlannedRevision: "main@sha1:" + commit,
			LastPlanAt:          &at,
			Plan:                infra.PlanStatus{LastApplied: applied},
			Conditions:          []metav1.Condition{{Type: meta.ReadyCondition, Status: status}},
		},
	}
}

func TestSettledAt(t *testing.T) {
	stale := unit("a", "c2", "p1", 1, true)
	stale.Generation = 3
	cases := map[string]struct {
		reason string
		a      *infra.Terraform
		want   bool
	}{
		"settled":     {"ready, at the commit", unit("a", "c2", "p1", 1, true), true},
		"behind":      {"ready, but at the commit before", unit("a", "c1", "p1", 1, true), false},
		"not ready":   {"at the commit, but not ready", unit("a", "c2", "p1", 1, false), false},
		"not seen":    {"a unit that is not there is not settled", nil, false},
		"not current": {"ready, but for the spec before", stale, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			v := view{"b": unit("b", "c2", "p1", 1, true)}
			if tc.a != nil {
				v["a"] = tc.a
			}
			if got := v.settledAt("c2", "a", "b"); got != tc.want {
				t.Errorf("%s: settledAt = %v", tc.reason, got)
			}
		})
	}
}

func TestRan(t *testing.T) {
	before := view{"a": unit("a", "c1", "p1", 1, true), "b": unit("b", "c1", "p1", 1, true), "c": unit("c", "c1", "p1", 1, true)}
	now := view{
		"a": unit("a", "c2", "p1", 1, true), // only took note of the commit
		"b": unit("b", "c2", "p1", 2, true), // planned, with no change
		"c": unit("c", "c2", "p2", 1, true), // applied
		"d": unit("d", "c2", "p1", 1, true), // new
	}
	if diff := cmp.Diff([]string{"b", "c", "d"}, ran(before, now)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestUntilSaysWhatItWaitedFor(t *testing.T) {
	u := &units{seen: view{"a": unit("a", "c1", "p1", 1, false)}, changed: make(chan struct{}), say: newTeller(&bytes.Buffer{}, false)}
	u.seen["a"].Status.Conditions[0].Message = "init: provider not found"
	err := u.until(t.Context(), "a to be ready", 1, func(v view) bool { return v.ready("a") })
	if err == nil || !strings.Contains(err.Error(), "a to be ready") || !strings.Contains(err.Error(), "provider not found") {
		t.Errorf("the error does not say what was awaited and what was there instead: %v", err)
	}
}

func TestUntilWakes(t *testing.T) {
	u := &units{seen: view{}, changed: make(chan struct{}), say: newTeller(&bytes.Buffer{}, false)}
	done := make(chan error, 1)
	go func() {
		done <- u.until(t.Context(), "a to be ready", time.Minute, func(v view) bool { return v.ready("a") })
	}()
	u.note(unit("a", "c1", "p1", 1, true), false)
	if err := <-done; err != nil {
		t.Error(err)
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

func TestStopWithoutAPlane(t *testing.T) {
	var p *plane
	if err := errors.Join(p.stop(), (&plane{}).stop()); err != nil {
		t.Error(err)
	}
}
