// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

// The tests here hold the counting budgets: API requests and processes, never time.

// ofUnits leaves out requests about sources and the discovery of a new client.
func ofUnits(requests []request) []request {
	var out []request
	for _, r := range requests {
		if strings.Contains(r.path, "gitrepositories") || strings.Contains(r.path, "/events/src.") || strings.HasPrefix(r.path, "/apis?") || strings.HasPrefix(r.path, "/api?") ||
			strings.Count(r.path, "/") <= 3 && r.verb == "GET" || strings.Contains(r.path, "limit=") {
			continue
		}
		out = append(out, r)
	}
	return out
}

func (w *world) within(what string, mark, limit int) {
	w.t.Helper()
	own, _ := w.log.since(mark)
	if own = ofUnits(own); len(own) > limit {
		lines := make([]string, len(own))
		for i, r := range own {
			lines[i] = r.verb + " " + r.path
		}
		w.t.Errorf("%s took %d API requests, at most %d are allowed:\n%s", what, len(own), limit, strings.Join(lines, "\n"))
	}
}

func TestBudgetOfOneUnit(t *testing.T) {
	w := newWorld(t, map[string]string{"unit/main.tf": moduleA, "other/file": "1"})
	w.unit("warm", "approvePlan: auto\npath: ./unit") // the source and the caches are ready after it
	w.awaitReady("warm")

	mark, spawned := w.log.mark(), w.spawned("")
	w.unit("u", "approvePlan: auto\npath: ./unit\nwriteOutputsToSecret: {name: out}")
	w.await("u", "Ready with its outputs", func(tf *infra.Terraform) bool {
		return isReady(tf) && tf.Status.Outputs != nil && tf.Status.Outputs.SecretName == "out"
	})
	w.awaitEvent("u", infra.ReasonAppliedSucceed)
	w.awaitEvent("u", infra.ReasonOutputsWritingFailed)
	w.within("create → applied → outputs", mark, 12)
	if n := w.spawned("") - spawned; n != 3 {
		t.Errorf("create → applied → outputs took %d processes: init, plan and apply were wanted", n)
	}

	mark, spawned = w.log.mark(), w.spawned("")
	w.makeDriftDue("u")
	w.awaitReason("u", infra.ReasonNoDrift)
	w.within("a drift check without drift", mark, 2)
	if n := w.spawned("") - spawned; n != 1 {
		t.Errorf("a drift check took %d processes: one plan was wanted", n)
	}

	mark, spawned = w.log.mark(), w.spawned("")
	rev := w.commit(map[string]string{"other/file": "2"})
	w.awaitRevision("u", rev)
	w.awaitRevision("warm", rev)
	w.within("an unrelated commit, two units", mark, 2)
	if n := w.spawned("") - spawned; n != 0 {
		t.Errorf("an unrelated commit ran %d processes", n)
	}
}

// makeDriftDue sets the persisted time of the next drift check to the past. The
// controller looks at it at its own time, so something has to wake it: a label does
// not, an annotation does.
func (w *world) makeDriftDue(name string) {
	w.t.Helper()
	tf := w.terraform(name)
	base := tf.DeepCopy()
	past := metav1.NewTime(time.Now().Add(-time.Minute))
	tf.Status.NextDriftCheckAt = &past
	if err := w.client.Status().Patch(w.ctx(), tf, client.MergeFrom(base)); err != nil {
		w.t.Fatal(err)
	}
	w.change(name, func(tf *infra.Terraform) {
		if tf.Annotations == nil {
			tf.Annotations = map[string]string{}
		}
		tf.Annotations["test/wake"] = fmt.Sprint(time.Now().UnixNano())
	})
}

func TestBudgetOfARestart(t *testing.T) {
	w := newWorld(t, modA())
	const units = 5
	for i := range units {
		w.unit(fmt.Sprintf("u%d", i), "approvePlan: auto\nwriteOutputsToSecret: {name: out"+fmt.Sprint(i)+"}")
	}
	versions := map[string]string{}
	for i := range units {
		name := fmt.Sprintf("u%d", i)
		w.secret("out"+fmt.Sprint(i), nil)
		versions[name] = w.awaitReady(name).Status.LastPlanAt.String()
	}
	spawned := w.spawned("")
	w.restart()
	// A unit that is made after the restart is done last: by then the others were looked at.
	w.unit("last", "approvePlan: auto")
	w.awaitReady("last")
	if n := w.spawned("") - spawned; n != 3 {
		t.Errorf("after the restart %d processes ran: the three of the new unit were wanted", n)
	}
	for name, planned := range versions {
		if got := w.terraform(name).Status.LastPlanAt.String(); got != planned {
			t.Errorf("%s was planned again at %s", name, got)
		}
	}
}

func TestCommitRunsOnlyTheUnitItTouches(t *testing.T) {
	w := newWorld(t, map[string]string{
		"modules/m/main.tf": moduleA,
		"a/main.tf":         `module "m" { source = "../modules/m" }`,
		"b/main.tf":         moduleA,
		"c/main.tf":         `output "f" { value = file("${path.module}/../shared/text") }`,
		"shared/text":       "one",
	})
	for _, name := range []string{"a", "b", "c"} {
		w.unit(name, "approvePlan: auto\npath: ./"+name)
	}
	planned := map[string]string{}
	look := func(rev string) (moved []string) {
		for _, name := range []string{"a", "b", "c"} {
			tf := w.await(name, "Ready at "+rev, func(tf *infra.Terraform) bool {
				return isReady(tf) && (rev == "" || tf.Status.LastPlannedRevision == rev)
			})
			if at := tf.Status.LastPlan.At.String() + tf.Status.InputDigest; planned[name] != at {
				moved = append(moved, name)
				planned[name] = at
			}
		}
		return moved
	}
	look("")
	for _, tc := range []struct{ file, content, want string }{
		{"b/main.tf", moduleA + "# touched\n", "[b]"},
		{"modules/m/main.tf", strings.Replace(moduleA, `"a"`, `"z"`, 1), "[a]"},
		{"shared/text", "two", "[c]"},
		{"README.md", "nobody reads this", "[]"},
	} {
		rev := w.commit(map[string]string{tc.file: tc.content})
		if moved := look(rev); fmt.Sprint(moved) != tc.want {
			t.Errorf("a commit to %s moved %v, want %s", tc.file, moved, tc.want)
		}
	}
}
