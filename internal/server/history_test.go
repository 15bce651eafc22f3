// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
)

// runs are the Runs of a unit in short, oldest first.
func (w *world) runs(unit string) []string {
	w.t.Helper()
	var list v1alpha1.RunList
	if err := w.client.List(w.ctx(), &list, client.InNamespace(w.ns), client.MatchingLabels{v1alpha1.UnitLabel: "Terraform." + unit}); err != nil {
		w.t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.Run) int { return strings.Compare(a.Name, b.Name) })
	var out []string
	for _, r := range list.Items {
		s := r.Spec.Operation + " " + r.Status.Outcome
		if c := r.Status.Counts; c != nil {
			s += fmt.Sprintf(" +%d ~%d -%d", c.Add, c.Change, c.Destroy)
		}
		if r.Spec.ApprovedBy != "" {
			s += " by " + r.Spec.ApprovedBy
		}
		if r.Status.Began.IsZero() || r.Status.Ended.Before(&r.Status.Began) || len(r.Status.Steps) == 0 || r.Spec.Revision == "" {
			w.t.Errorf("the record of %s is not whole: %+v %+v", r.Name, r.Spec, r.Status)
		}
		out = append(out, s)
	}
	return out
}

func (w *world) wantRuns(unit string, want ...string) {
	w.t.Helper()
	if got := w.runs(unit); !slices.Equal(got, want) {
		w.t.Errorf("runs of %s:\n%s\nwant\n%s", unit, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestRunsThatMatteredAreRecorded(t *testing.T) {
	w := newWorld(t, map[string]string{
		"a/main.tf":    moduleA,
		"fail/main.tf": "resource \"terraform_data\" \"x\" {\n  provisioner \"local-exec\" { command = \"exit 7\" }\n}\n",
	})
	w.unit("a", "path: ./a\napprovePlan: auto\ndestroyResourcesOnDeletion: true")
	w.awaitReady("a")
	created := []string{"plan succeeded +1 ~0 -0", "apply succeeded +1 ~0 -0 by auto"}
	w.wantRuns("a", created...)

	// Asked for, it is recorded although it finds nothing.
	w.change("a", func(tf *infra.Terraform) {
		tf.Annotations = map[string]string{"reconcile.fluxcd.io/requestedAt": "now"}
	})
	w.await("a", "reconciled as asked", func(tf *infra.Terraform) bool { return tf.Status.LastHandledReconcileAt == "now" && isReady(tf) })
	w.wantRuns("a", append(created, "plan succeeded")...)

	// A commit elsewhere runs nothing, and so leaves nothing.
	w.awaitRevision("a", w.commit(map[string]string{"README": "x"}))
	w.wantRuns("a", append(created, "plan succeeded")...)

	w.delete("a")
	w.awaitGone("a")
	w.wantRuns("a", append(created, "plan succeeded", "destroy succeeded")...)

	w.unit("fail", "path: ./fail\napprovePlan: auto")
	w.await("fail", "failing", func(tf *infra.Terraform) bool { return tf.Status.ReconciliationFailures > 0 })
	if got := w.runs("fail"); len(got) < 2 || got[0] != "plan succeeded +1 ~0 -0" || got[1] != "apply failed +1 ~0 -0 by auto" {
		t.Errorf("runs of a unit whose apply fails: %q", got)
	}
}

func TestApprovalIsGivenInOnesOwnName(t *testing.T) {
	w := newWorld(t, map[string]string{"a/main.tf": moduleA})
	w.unit("a", "path: ./a")
	id := w.awaitPending("a")

	tf := w.terraform("a")
	base := tf.DeepCopy()
	tf.Annotations = map[string]string{v1alpha1.ApprovedByAnnotation: v1alpha1.FormatApproval(id, "", "somebody-else")}
	if err := w.client.Patch(w.ctx(), tf, client.MergeFrom(base)); !apierrors.IsForbidden(err) {
		t.Fatalf("an approval in another's name: %v", err)
	}
	const me = "admin"
	w.change("a", func(tf *infra.Terraform) {
		tf.Annotations = map[string]string{v1alpha1.ApprovedByAnnotation: v1alpha1.FormatApproval(id, "jane", me)}
		tf.Spec.ApprovePlan = id
	})
	w.awaitReady("a")
	w.wantRuns("a", "plan succeeded +1 ~0 -0", "apply succeeded +1 ~0 -0 by jane as "+me)
}
