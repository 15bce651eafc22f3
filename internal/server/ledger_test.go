// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/audit"
)

// The tests here are about whom the ledger names.

// verified reads the whole ledger, which has to hold.
func (w *world) verified() audit.Report {
	w.t.Helper()
	key, err := audit.ReadPublicKey(filepath.Join(w.cfg.DataDir, "keys", "audit.pub"))
	must(w.t, err)
	report, err := audit.Verify(w.ctx(), filepath.Join(w.cfg.DataDir, "audit"), key, audit.VerifyOptions{})
	if err != nil || len(report.Findings) != 0 {
		w.t.Errorf("the ledger does not hold: %v %+v", err, report)
	}
	return report
}

// ledger has the entries that a filter matches, in short.
func (w *world) ledger(f audit.Filter) []string {
	w.t.Helper()
	var out []string
	for e, err := range audit.Query(w.ctx(), filepath.Join(w.cfg.DataDir, "audit"), f) {
		if err != nil {
			w.t.Fatal(err)
		}
		s := fmt.Sprintf("%s %s by %s", e.Action, strings.Replace(e.Unit, "/"+w.ns+"/", "/", 1), e.Actor)
		if e.Phase == audit.PhaseOutcome {
			s += " " + e.Outcome
		}
		if e.Detail != "" {
			s += ": " + e.Detail
		}
		out = append(out, s)
	}
	return out
}

func (w *world) wantLedger(what string, f audit.Filter, want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.ledger(f)); diff != "" {
		w.t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func isSuspended(conditions []metav1.Condition) bool {
	return apimeta.IsStatusConditionTrue(conditions, v1alpha1.ConditionSuspended)
}

func TestSuspensionsAreRecordedOnce(t *testing.T) {
	w := newWorld(t, map[string]string{"a/main.tf": moduleA, "app/c.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n"})
	w.unit("a", "path: ./a\napprovePlan: auto")
	w.app("app", "path: ./app\nprune: true\ntargetNamespace: "+w.ns)
	w.awaitReady("a")
	w.awaitAppReady("app")

	// As terrace suspend does it, and nobody in another's name.
	vouched := func(suspend bool, user string) error {
		tf := w.terraform("a")
		base := tf.DeepCopy()
		tf.Spec.Suspend = suspend
		metav1.SetMetaDataAnnotation(&tf.ObjectMeta, v1alpha1.SuspensionByAnnotation, v1alpha1.FormatSuspension(suspend, tf.Generation+1, "jane", user))
		return w.client.Patch(w.ctx(), tf, client.MergeFrom(base))
	}
	if err := vouched(true, "somebody-else"); !apierrors.IsForbidden(err) {
		t.Fatalf("a suspension in another's name: %v", err)
	}
	must(t, vouched(true, "admin"))
	tf := w.await("a", "known to be suspended", func(tf *infra.Terraform) bool { return isSuspended(tf.Status.Conditions) })
	if got := condition(tf, "Suspended").Message; got != "Suspended by kubernetes:jane as admin" {
		t.Errorf("the condition says %q", got)
	}
	// By hand, as any client can.
	w.changeApp("app", func(ks *kustomizev1.Kustomization) { ks.Spec.Suspend = true })
	w.awaitApp("app", "known to be suspended", func(ks *kustomizev1.Kustomization) bool { return isSuspended(ks.Status.Conditions) })
	src := &sourcev1.GitRepository{}
	suspendSource := func(suspend bool) {
		t.Helper()
		must(t, w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: "src"}, src))
		base := src.DeepCopy()
		src.Spec.Suspend = suspend
		must(t, w.client.Patch(w.ctx(), src, client.MergeFrom(base)))
		if !w.watch(&sourcev1.GitRepositoryList{}, named("src"), func(o client.Object) bool {
			return o != nil && isSuspended(o.(*sourcev1.GitRepository).Status.Conditions) == suspend
		}) {
			t.Fatalf("nobody has seen that the source has suspend: %v", suspend)
		}
	}
	suspendSource(true)
	test := w.manager(src)

	w.restart()
	must(t, vouched(false, "admin"))
	w.await("a", "resumed", func(tf *infra.Terraform) bool { return !isSuspended(tf.Status.Conditions) })
	suspendSource(false)

	byHand := func(action, unit string) string {
		return fmt.Sprintf("%s %s by kubernetes:unknown: spec.suspend was changed by field manager %q, which says a program and no user", action, unit, test)
	}
	want := []string{
		"suspend Terraform/a by kubernetes:jane as admin", byHand("suspend", "Kustomization/app"), byHand("suspend", "GitRepository/src"),
		"resume Terraform/a by kubernetes:jane as admin",
	}
	got := slices.Concat(w.ledger(audit.Filter{Action: audit.Suspend}), w.ledger(audit.Filter{Action: audit.Resume}))
	if len(got) != 5 || !slices.Equal(got[:4], want) || !strings.HasPrefix(got[4], "resume GitRepository/src by kubernetes:unknown: ") {
		t.Errorf("the ledger has\n%s\nwant\n%s\nand the source's resumption by an unknown", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	w.wantLedger("by name", audit.Filter{Actor: "jane as admin"}, want[0], want[3])
}

// manager is the field manager that patched an object last, as this test does.
func (w *world) manager(o client.Object) string {
	w.t.Helper()
	for _, m := range o.GetManagedFields() {
		if m.Operation == metav1.ManagedFieldsOperationUpdate && m.Subresource == "" && m.Manager != "source-controller" {
			return m.Manager
		}
	}
	w.t.Fatalf("nobody patched %s: %+v", o.GetName(), o.GetManagedFields())
	return ""
}

func TestLedgerNamesTheAuthorOfACommit(t *testing.T) {
	unit := func(name, approve string) string {
		return fmt.Sprintf("apiVersion: infra.contrib.fluxcd.io/v1alpha2\nkind: Terraform\nmetadata: {name: %s}\nspec: {interval: 1h, path: ./%s, approvePlan: %q, sourceRef: {kind: GitRepository, name: src}}\n", name, name, approve)
	}
	w := newWorld(t, map[string]string{"auto/main.tf": moduleA, "asks/main.tf": moduleA})
	w.app("fleet", "path: ./fleet\nprune: true\ntargetNamespace: "+w.ns)
	first := w.commitAs("Alice <alice@example.com>", map[string]string{"fleet/auto.yaml": unit("auto", "auto"), "fleet/asks.yaml": unit("asks", ""), "fleet/c.yaml": w.cm("c", nil)})
	w.awaitAppAt("fleet", first)
	w.awaitReady("auto")
	id := w.awaitPending("asks")

	// A commit approves the plan, and another unit of it goes.
	second := w.commitAs("Bob <bob@example.com>", map[string]string{"fleet/asks.yaml": unit("asks", id), "fleet/c.yaml": ""})
	w.awaitAppAt("fleet", second)
	w.await("asks", "applied", func(tf *infra.Terraform) bool { return tf.Status.Plan.LastApplied == id })

	how := ": approvePlan is as Kustomization/" + w.ns + "/fleet applies it at " + second
	w.wantLedger("what Alice let happen", audit.Filter{Actor: "git:Alice"},
		"apply Kustomization/fleet by git:Alice", "apply Kustomization/fleet by git:Alice succeeded",
		"apply Terraform/auto by git:Alice", "apply Terraform/auto by git:Alice succeeded")
	w.wantLedger("what Bob approved", audit.Filter{Actor: "bob@example.com", Unit: "Terraform//"},
		"approve Terraform/asks by git:Bob"+how, "apply Terraform/asks by git:Bob", "apply Terraform/asks by git:Bob succeeded")
	w.wantLedger("what Bob's commit has no more", audit.Filter{Actor: "Bob", Action: audit.Prune},
		"prune Kustomization/fleet by git:Bob: the revision has them no more", "prune Kustomization/fleet by git:Bob succeeded: the revision has them no more")
	w.wantRuns("auto", "plan succeeded +1 ~0 -0", "apply succeeded +1 ~0 -0 by auto")
	w.wantRuns("asks", "plan succeeded +1 ~0 -0", "apply succeeded +1 ~0 -0 by git:Bob")

	// The committer is another than the author, and both are in the entry.
	for e, err := range audit.Query(w.ctx(), filepath.Join(w.cfg.DataDir, "audit"), audit.Filter{Action: audit.Approve}) {
		must(t, err)
		want := audit.Actor{Kind: "git", Name: "Bob", Email: "bob@example.com", Committer: "t", CommitterEmail: "t@example.com"}
		if diff := cmp.Diff(want, e.Actor); diff != "" {
			t.Errorf("the actor of the approval (-want +got):\n%s", diff)
		}
	}

	// What no commit brought about is nobody's: the same revision with another value.
	w.await("auto", "at that revision", func(tf *infra.Terraform) bool { return isReady(tf) && tf.Status.LastPlannedRevision == second })
	w.change("auto", func(tf *infra.Terraform) {
		tf.Spec.Vars = []infra.Variable{{Name: "v", Value: jsonValue(`"b"`)}}
	})
	w.await("auto", "applied with the value", func(tf *infra.Terraform) bool { return isReady(tf) && tf.Status.LastAppliedRevision == second })
	got := w.ledger(audit.Filter{Action: audit.Apply, Unit: "Terraform//auto"})
	if last := got[len(got)-1]; len(got) != 4 || last != "apply Terraform/auto by terrace:auto succeeded" {
		t.Errorf("applies of the unit: %q", got)
	}
}
