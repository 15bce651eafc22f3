// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/server"
)

// state reads the State of a unit.
func (w *world) state(name string) *v1alpha1.State {
	w.t.Helper()
	var s v1alpha1.State
	if err := w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: name}, &s); err != nil {
		w.t.Fatal(err)
	}
	return &s
}

func TestNewUnitsKeepTheirStateInTheService(t *testing.T) {
	w := newWorld(t, map[string]string{"a/main.tf": moduleA})
	w.unit("a", "path: ./a\napprovePlan: auto\ndestroyResourcesOnDeletion: true\nwriteOutputsToSecret: {name: out}")
	w.awaitReady("a")
	w.secret("out", func(data map[string][]byte) bool { return string(data["o"]) == "a" })
	s := w.state("a")
	if s.Status.Resources != 1 || s.Status.Lock != nil || len(s.Status.Versions) == 0 || s.Status.Lineage == "" {
		t.Errorf("the state after an apply: %+v", s.Status)
	}
	run := s.Status.Versions[0].Run
	if !strings.HasSuffix(run, "-apply") || s.Status.Versions[0].By != "Terraform/"+w.ns+"/a" {
		t.Errorf("the newest version was written by %q in run %q", s.Status.Versions[0].By, run)
	}
	var secrets corev1.SecretList
	if err := w.client.List(w.ctx(), &secrets, client.InNamespace(w.ns), client.MatchingLabels{"tfstate": "true"}); err != nil || len(secrets.Items) != 0 {
		t.Errorf("state Secrets of a unit in the service: %d, %v", len(secrets.Items), err)
	}

	// What holds resources is not deleted by a slip of the hand.
	if err := w.client.Delete(w.ctx(), s); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "1 resources") {
		t.Errorf("the deletion of a state with resources: %v", err)
	}

	w.restart()
	w.awaitRevision("a", w.commit(map[string]string{"a/main.tf": strings.ReplaceAll(moduleA, `"a"`, `"b"`)}))
	after := w.state("a")
	if after.Status.Serial <= s.Status.Serial || after.Status.Lineage != s.Status.Lineage || after.Status.Lock != nil {
		t.Errorf("the state after a restart and another apply: %+v", after.Status)
	}

	w.delete("a")
	w.awaitGone("a")
	gone := w.state("a")
	if gone.Status.Resources != 0 || gone.Status.Lock != nil {
		t.Errorf("the state after the destroy: %+v", gone.Status)
	}
	if err := w.client.Delete(w.ctx(), gone); err != nil {
		t.Errorf("the deletion of an empty state: %v", err)
	}
}

func TestStateInASecretStaysThere(t *testing.T) {
	w := newWorld(t, map[string]string{"a/main.tf": moduleA})
	// As the Terraform Controller would have left it, by the tool itself.
	w.unit("a", "path: ./a\napprovePlan: auto\nbackendConfig: {secretSuffix: a, inClusterConfig: true}")
	w.awaitReady("a")
	w.secret("tfstate-default-a", nil)
	w.change("a", func(tf *infra.Terraform) { tf.Spec.BackendConfig = nil })
	w.await("a", "planned with the new spec", func(tf *infra.Terraform) bool { return isReady(tf) && tf.Status.LastPlannedGeneration == tf.Generation })
	w.awaitRevision("a", w.commit(map[string]string{"a/main.tf": strings.ReplaceAll(moduleA, `"a"`, `"b"`)}))
	var states v1alpha1.StateList
	if err := w.client.List(w.ctx(), &states, client.InNamespace(w.ns)); err != nil || len(states.Items) != 0 {
		t.Errorf("states: %d, %v", len(states.Items), err)
	}
}

func TestLockOfAPersonIsNeverBroken(t *testing.T) {
	w := newWorld(t, map[string]string{"a/main.tf": moduleA})
	s := &v1alpha1.State{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "a"}}
	if err := w.client.Create(w.ctx(), s); err != nil {
		t.Fatal(err)
	}
	s.Status.Lock = &v1alpha1.StateLock{ID: "0f6b1b2c-0000-4000-8000-000000000001", Holder: "jane@laptop", Operation: "OperationTypeApply", Since: metav1.Now()}
	if err := w.client.Status().Update(w.ctx(), s); err != nil {
		t.Fatal(err)
	}
	w.unit("a", "path: ./a\napprovePlan: auto\nretryInterval: 1s")
	tf := w.await("a", "told of the lock", func(tf *infra.Terraform) bool {
		return condition(tf, infra.ConditionStateLocked).Status == metav1.ConditionTrue
	})
	if message := condition(tf, infra.ConditionStateLocked).Message; !strings.Contains(message, "jane@laptop") {
		t.Errorf("the message does not say whose lock it is: %s", message)
	}
	s = w.state("a")
	if s.Status.Lock == nil || s.Status.Lock.Holder != "jane@laptop" {
		t.Errorf("the lock: %+v", s.Status.Lock)
	}
	s.Status.Lock = nil
	if err := w.client.Status().Update(w.ctx(), s); err != nil {
		t.Fatal(err)
	}
	w.awaitReady("a")
}

func TestStateKeyIsRotatedUnderWork(t *testing.T) {
	w := newWorld(t, map[string]string{"a/main.tf": moduleA})
	w.unit("a", "path: ./a\napprovePlan: auto")
	w.awaitReady("a")
	key := filepath.Join(w.cfg.DataDir, "keys", "states.key")
	before, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	if status, text := w.ask(http.MethodPost, "/api/v1/states/rotate-key", false); status != http.StatusUnauthorized {
		t.Errorf("without the token: %d %s", status, text)
	}
	status, text := w.ask(http.MethodPost, "/api/v1/states/rotate-key", true)
	if status != http.StatusOK || !strings.Contains(text, `"versions":1`) {
		t.Fatalf("rotate: %d %s", status, text)
	}
	after, err := os.ReadFile(key)
	if err != nil || string(after) == string(before) || strings.Count(string(after), "AGE-SECRET-KEY-") != 1 {
		t.Errorf("the key file is not another with one key: %v", err)
	}
	w.awaitRevision("a", w.commit(map[string]string{"a/main.tf": strings.ReplaceAll(moduleA, `"a"`, `"b"`)}))
	if s := w.state("a"); s.Status.Serial != 2 && len(s.Status.Versions) != 2 {
		t.Errorf("the state after the rotation and an apply: %+v", s.Status)
	}
}

func TestLedgerTellsWhoLetWhatHappen(t *testing.T) {
	w := newWorld(t, map[string]string{"a/main.tf": moduleA, "app/cm.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {k: v}\n"})
	w.unit("a", "path: ./a")
	id := w.awaitPending("a")
	w.change("a", func(tf *infra.Terraform) {
		tf.Annotations = map[string]string{v1alpha1.ApprovedByAnnotation: v1alpha1.FormatApproval(id, "jane", "admin")}
		tf.Spec.ApprovePlan = id
	})
	w.awaitReady("a")
	w.apply(`
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: app}
spec: {interval: 1h, path: ./app, prune: true, targetNamespace: ` + w.ns + `, sourceRef: {kind: GitRepository, name: src}}
`)
	w.awaitEvent("app", "ReconciliationSucceeded")
	_, text := w.ask(http.MethodGet, "/api/v1/audit", true)
	var got []string
	for line := range strings.Lines(text) {
		var e audit.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s %s %s", e.Actor, e.Action, strings.ReplaceAll(e.Unit, w.ns, "NS"), e.Phase, e.Outcome)))
	}
	for _, want := range []string{
		"terrace:terrace plan Terraform/NS/a  succeeded",
		"kubernetes:jane as admin approve Terraform/NS/a  succeeded",
		"kubernetes:jane as admin apply Terraform/NS/a intent",
		"terrace:Terraform/NS/a state-write State/NS/a intent",
		"kubernetes:jane as admin apply Terraform/NS/a outcome succeeded",
		"git:t apply Kustomization/NS/app intent",
		"git:t apply Kustomization/NS/app outcome succeeded",
	} {
		if !slices.Contains(got, strings.ReplaceAll(want, "terrace:Terraform/NS", "terrace:Terraform/"+w.ns)) {
			t.Errorf("the ledger has no %q; it has\n%s", want, strings.Join(got, "\n"))
		}
	}
	w.verified()
}

func TestStateMovesBothWays(t *testing.T) {
	w := newWorld(t, map[string]string{"a/main.tf": moduleA}, inSecrets)
	w.unit("a", "path: ./a\napprovePlan: auto")
	w.awaitReady("a")
	move := func(to string) {
		t.Helper()
		w.change("a", func(tf *infra.Terraform) {
			tf.Annotations = map[string]string{v1alpha1.StateBackendAnnotation: to, "reconcile.fluxcd.io/requestedAt": to}
		})
		tf := w.await("a", "planned with its state in "+to, func(tf *infra.Terraform) bool {
			return tf.Status.LastHandledReconcileAt == to && readyOf(tf).Reason != infra.ReasonProgressing
		})
		if !isReady(tf) || tf.Status.Plan.Pending != "" {
			t.Fatalf("after the move to %s: %s, pending %q", to, readyOf(tf).Message, tf.Status.Plan.Pending)
		}
	}
	applies := w.spawned("apply")
	move(v1alpha1.StateInService)
	s := w.state("a")
	if s.Status.Resources != 1 || s.Status.Versions[0].Operation != "migrate" {
		t.Errorf("the state in the service: %+v", s.Status)
	}
	secret := w.secret("tfstate-default-a", nil)
	if secret.Annotations["terrace.dev/moved-to"] != "State/a" {
		t.Errorf("the Secret does not say where its state went: %v", secret.Annotations)
	}
	w.awaitRevision("a", w.commit(map[string]string{"a/main.tf": strings.ReplaceAll(moduleA, `"a"`, `"b"`)}))
	if after := w.state("a"); after.Status.Serial <= s.Status.Serial || after.Status.Lineage != s.Status.Lineage {
		t.Errorf("the apply after the move did not write to the service: %+v", after.Status)
	}
	move(v1alpha1.StateInSecret)
	if secret := w.secret("tfstate-default-a", nil); secret.Annotations["terrace.dev/moved-to"] != "" {
		t.Errorf("the Secret says that its state is elsewhere: %v", secret.Annotations)
	}
	w.awaitRevision("a", w.commit(map[string]string{"a/main.tf": strings.ReplaceAll(moduleA, `"a"`, `"c"`)}))
	if n := w.spawned("apply") - applies; n != 2 {
		t.Errorf("%d applies: those of the two commits were wanted", n)
	}
}

// ask asks the process's HTTP server, with its token or without.
func (w *world) ask(method, path string, token bool) (int, string) {
	w.t.Helper()
	content, err := os.ReadFile(filepath.Join(w.cfg.DataDir, server.ServerFile))
	if err != nil {
		w.t.Fatal(err)
	}
	var facts struct{ Address, Token string }
	if err := json.Unmarshal(content, &facts); err != nil {
		w.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(w.ctx(), method, "http://"+facts.Address+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if token {
		r.Header.Set("Authorization", "Bearer "+facts.Token)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}
