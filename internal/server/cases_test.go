// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

// The tests here are the inputs on which other Terraform controllers fail or
// surprise, each with the right outcome.

func modA() map[string]string { return map[string]string{"main.tf": moduleA} }

// output waits until the output Secret has a value.
func (w *world) output(secret, key, want string) {
	w.t.Helper()
	w.secret(secret, func(d map[string][]byte) bool { return string(d[key]) == want })
}

// An approval by a commit in the repository that also holds the code moves the
// revision. The plan is the same, so the approval holds.
func TestApprovalByCommitInTheSameRepositoryConverges(t *testing.T) {
	manifest := func(approve string) string {
		return "# approvePlan: " + approve + "\n"
	}
	w := newWorld(t, map[string]string{"main.tf": moduleA, "unit.yaml": manifest("")})
	w.unit("u", `approvePlan: ""`)
	id := w.awaitPending("u")
	rev := w.commit(map[string]string{"unit.yaml": manifest(id)})
	w.change("u", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = id })
	tf := w.await("u", "applied", func(tf *infra.Terraform) bool { return isReady(tf) && tf.Status.Plan.LastApplied == id })
	w.awaitRevision("u", rev)
	if tf.Status.Plan.Pending != "" {
		t.Errorf("a plan is pending still: %s", tf.Status.Plan.Pending)
	}
}

// Drift, and inputs that change without a new revision, give a manual unit a plan
// that can be approved; it does not loop.
func TestChangedSecretInManualModeGivesOnePlanToApprove(t *testing.T) {
	w := newWorld(t, modA())
	w.putSecret("vars", map[string]string{"v": "one"})
	w.unit("u", `
approvePlan: ""
retryInterval: 1s
varsFrom: [{kind: Secret, name: vars}]
writeOutputsToSecret: {name: out}`)
	first := w.awaitPending("u")
	w.change("u", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = first })
	w.output("out", "o", "one")
	w.awaitReady("u")
	plans := w.spawned("plan")

	w.putSecret("vars", map[string]string{"v": "two"})
	tf := w.await("u", "waiting for the approval of another plan", func(tf *infra.Terraform) bool {
		return tf.Status.Plan.Pending != "" && tf.Status.Plan.Pending != first
	})
	if !strings.Contains(readyOf(tf).Message, "set approvePlan: ") {
		t.Errorf("the message does not say how to approve: %q", readyOf(tf).Message)
	}
	if tf.Status.ReconciliationFailures != 0 {
		t.Errorf("a plan that waits counts as %d failures", tf.Status.ReconciliationFailures)
	}
	if condition(tf, "Reconciling").Status == metav1.ConditionTrue {
		t.Error("Reconciling is True while nothing happens")
	}
	w.change("u", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = tf.Status.Plan.Pending })
	w.output("out", "o", "two")
	if n := w.spawned("plan") - plans; n != 1 {
		t.Errorf("%d plans for one change", n)
	}
}

// After a restart in the middle of something, the conditions tell the truth again
// without a new run.
func TestRestartRunsNothingAndClearsReconciling(t *testing.T) {
	w := newWorld(t, modA())
	w.unit("u", `approvePlan: auto`)
	before := w.awaitReady("u")
	w.stop()
	spawned := w.spawned("")

	tf := w.terraform("u")
	base := tf.DeepCopy()
	for i, c := range tf.Status.Conditions {
		if c.Type == "Ready" {
			tf.Status.Conditions[i].Status, tf.Status.Conditions[i].Reason, tf.Status.Conditions[i].Message = "Unknown", "Progressing", "Terraform Planning"
		}
	}
	tf.Status.Conditions = append(tf.Status.Conditions, metav1.Condition{Type: "Reconciling", Status: "True", Reason: "Progressing", Message: "x", LastTransitionTime: metav1.Now()})
	if err := w.client.Status().Patch(w.ctx(), tf, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
	w.start()
	after := w.await("u", "Ready without Reconciling", func(tf *infra.Terraform) bool {
		return isReady(tf) && condition(tf, "Reconciling").Type == ""
	})
	if n := w.spawned("") - spawned; n != 0 {
		t.Errorf("the restart ran %d processes", n)
	}
	if !after.Status.LastPlanAt.Equal(before.Status.LastPlanAt) {
		t.Error("the restart planned")
	}
}

// A unit can be deleted after its source: with nothing to destroy, and with.
func TestDeletionAfterTheSourceIsGone(t *testing.T) {
	for name, spec := range map[string]string{
		"keep":    "approvePlan: auto\ndestroyResourcesOnDeletion: false",
		"destroy": "approvePlan: auto\ndestroyResourcesOnDeletion: true\nvarsFrom: [{kind: Secret, name: vars}]",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, modA())
			w.putSecret("vars", map[string]string{"v": "one"})
			w.unit("u", spec)
			w.awaitReady("u")
			must(t, w.client.Delete(w.ctx(), &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "src"}}))
			must(t, w.client.Delete(w.ctx(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "vars"}}))
			w.delete("u")
			w.awaitGone("u")
			if name == "destroy" && w.spawned("apply") != 2 {
				t.Errorf("%d applies: one to create and one to destroy were wanted", w.spawned("apply"))
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestVarsValueFromIsResolved(t *testing.T) {
	w := newWorld(t, modA())
	w.putSecret("s", map[string]string{"k": "from the secret"})
	w.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {k: from the map}")
	w.unit("u", `
approvePlan: auto
vars: [{name: v, valueFrom: {secretKeyRef: {name: s, key: k}}}]
writeOutputsToSecret: {name: out}`)
	w.output("out", "o", "from the secret")
	w.unit("u2", `
approvePlan: auto
vars: [{name: v, valueFrom: {configMapKeyRef: {name: c, key: k}}}]
writeOutputsToSecret: {name: out2}`)
	w.output("out2", "o", "from the map")
}

func TestEnvironmentOfTheRunnerReachesTheRun(t *testing.T) {
	w := newWorld(t, modA())
	w.unit("u", `
approvePlan: auto
runnerPodTemplate:
  spec:
    image: ignored
    env: [{name: TF_VAR_v, value: b}, {name: TF_LOG, value: info}, {name: TF_CLI_ARGS_plan, value: -compact-warnings}]
writeOutputsToSecret: {name: out}`)
	w.output("out", "o", "b")
	tf := w.awaitReady("u")
	if !slices.Equal(tf.Status.UnusedFields, []string{"spec.runnerPodTemplate.spec.image"}) {
		t.Errorf("unused fields: %v", tf.Status.UnusedFields)
	}
}

func TestLargeArtifactHasNoCliff(t *testing.T) {
	big := make([]byte, 5<<20)
	for i, x := 0, uint32(1); i < len(big); i++ {
		x = x*1664525 + 1013904223
		big[i] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[x>>26]
	}
	w := newWorld(t, map[string]string{"main.tf": moduleA, "big.txt": string(big)})
	w.unit("u", `approvePlan: auto`)
	w.awaitReady("u")
}

func TestLabelsAreNotTheIdentityOfTheState(t *testing.T) {
	w := newWorld(t, modA())
	w.unit("u", "approvePlan: auto\nvars: [{name: v, value: one}]")
	w.awaitReady("u")
	w.change("u", func(tf *infra.Terraform) {
		tf.Labels = map[string]string{"team": "other"}
		tf.Spec.Vars[0].Value.Raw = []byte(`"two"`)
	})
	tf := w.await("u", "applied twice", func(tf *infra.Terraform) bool {
		return isReady(tf) && tf.Status.LastPlan != nil && tf.Status.LastPlan.Update == 1
	})
	if tf.Status.LastPlan.Create != 0 {
		t.Errorf("the plan creates %d resources: the state was lost", tf.Status.LastPlan.Create)
	}
}

func TestFailingHealthCheckKeepsTheUnitAndItsDependantsFromReady(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := l.Addr().String()
	must(t, l.Close())
	w := newWorld(t, modA())
	w.unit("u", `
approvePlan: auto
retryInterval: 1s
healthChecks: [{name: h, type: tcp, address: "`+address+`", timeout: 1s}]`)
	w.unit("dependant", "approvePlan: auto\ndependsOn: [{name: u}]")
	tf := w.awaitReason("u", infra.ReasonHealthChecksFailed)
	if condition(tf, "HealthCheck").Status != metav1.ConditionFalse {
		t.Errorf("HealthCheck is %+v", condition(tf, "HealthCheck"))
	}
	w.awaitReason("dependant", infra.ReasonDependencyNotReady)

	l, err = net.Listen("tcp", address)
	must(t, err)
	defer l.Close()
	w.awaitReady("u")
	w.awaitReady("dependant")
}

func TestOutputSecretIsRepairedWithoutARun(t *testing.T) {
	w := newWorld(t, modA())
	w.unit("u", "approvePlan: auto\nwriteOutputsToSecret: {name: out}")
	w.output("out", "o", "a")
	w.awaitReady("u")
	spawned := w.spawned("")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "out"}}
	must(t, w.client.Delete(w.ctx(), secret))
	w.output("out", "o", "a")
	w.putSecret("out", map[string]string{"o": "tampered"})
	w.output("out", "o", "a")
	if n := w.spawned("") - spawned; n != 0 {
		t.Errorf("the repair ran %d processes", n)
	}
}

func TestOutputSecretFollowsTheSpecAndTheModule(t *testing.T) {
	w := newWorld(t, map[string]string{"main.tf": `
output "l" { value = [1, 2] }
output "s" { value = "text" }
`})
	w.unit("u", `
approvePlan: auto
writeOutputsToSecret: {name: out, labels: {a: "1"}, outputs: ["l:alias", s]}`)
	s := w.secret("out", func(d map[string][]byte) bool { return len(d) == 3 })
	var list []int
	if json.Unmarshal(s.Data["alias"], &list) != nil || !slices.Equal(list, []int{1, 2}) || string(s.Data["s"]) != "text" {
		t.Errorf("data: %q", s.Data)
	}
	var typ any
	if json.Unmarshal(s.Data["alias__type"], &typ) != nil {
		t.Errorf("alias__type: %q", s.Data["alias__type"])
	}
	w.awaitReady("u")
	version := w.secret("out", nil).ResourceVersion

	w.change("u", func(tf *infra.Terraform) { tf.Annotations = map[string]string{"reconcile.fluxcd.io/requestedAt": "1"} })
	tf := w.await("u", "reconciled", func(tf *infra.Terraform) bool {
		return tf.Status.LastHandledReconcileAt == "1" && isReady(tf)
	})
	if got := w.secret("out", nil).ResourceVersion; got != version {
		t.Error("the Secret is rewritten though nothing changed")
	}
	if r := readyOf(tf).Reason; r != infra.ReasonNoDrift && r != infra.ReasonPlannedNoChanges {
		t.Errorf("Ready reason is %s", r)
	}

	w.change("u", func(tf *infra.Terraform) { tf.Spec.WriteOutputsToSecret.Labels = map[string]string{"b": "2"} })
	if !w.watch(&corev1.SecretList{}, named("out"), func(o client.Object) bool {
		return o != nil && o.GetLabels()["b"] == "2" && o.GetLabels()["a"] == ""
	}) {
		t.Error("labels do not follow the spec")
	}
	w.change("u", func(tf *infra.Terraform) { tf.Spec.WriteOutputsToSecret.Outputs = nil })
	w.secret("out", func(d map[string][]byte) bool { _, ok := d["alias"]; return !ok && len(d) == 3 })
	w.commit(map[string]string{"main.tf": `output "s" { value = "text" }`})
	w.secret("out", func(d map[string][]byte) bool { return len(d) == 1 && string(d["s"]) == "text" })
	w.change("u", func(tf *infra.Terraform) { tf.Spec.WriteOutputsToSecret.Name = "renamed" })
	w.output("renamed", "s", "text")
	w.secretGone("out")
	w.delete("u")
	w.awaitGone("u")
	w.secretGone("renamed")
}

func TestOutputSecretOfSomebodyElseSurvivesTheUnit(t *testing.T) {
	w := newWorld(t, modA())
	w.putSecret("out", map[string]string{"other": "kept"})
	w.unit("u", "approvePlan: auto\nwriteOutputsToSecret: {name: out}")
	w.output("out", "o", "a")
	w.awaitReady("u")
	w.delete("u")
	w.awaitGone("u")
	w.secret("out", func(d map[string][]byte) bool { return string(d["other"]) == "kept" })
}

func TestTemplatesOfValuesTakeAnyBytes(t *testing.T) {
	nasty := "a\"b\nc\\ ${x} \",\"admin\":\"true"
	w := newWorld(t, map[string]string{"main.tf": `
variable "values" { type = any }
output "p" { value = var.values.p }
output "n" { value = length(keys(var.values)) }
`})
	w.putSecret("in1", map[string]string{"p": nasty})
	w.unit("u", `
approvePlan: auto
values: {p: "${{ .i.p }}"}
readInputsFromSecrets: [{name: in1, as: i}]
writeOutputsToSecret: {name: out}`)
	s := w.secret("out", func(d map[string][]byte) bool { return len(d["p"]) > 0 })
	if string(s.Data["p"]) != nasty || strings.TrimSpace(string(s.Data["n"])) != "1" {
		t.Errorf("p is %q, %q keys", s.Data["p"], s.Data["n"])
	}
}

func TestRemediationWithoutRetriesStillTriesOnce(t *testing.T) {
	w := newWorld(t, modA())
	w.unit("none", "approvePlan: auto\nremediation: {}")
	w.unit("zero", "approvePlan: auto\nremediation: {retries: 0}")
	w.awaitReady("none")
	w.awaitReady("zero")
}

func TestExhaustedRetriesStallAndAChangeOfTheSpecResetsThem(t *testing.T) {
	w := newWorld(t, map[string]string{"main.tf": `variable "v" {}` + "\n" + `output "o" { value = var.v }`})
	w.unit("u", "approvePlan: auto\nretryInterval: 1s\nremediation: {retries: 1}")
	tf := w.await("u", "Stalled", func(tf *infra.Terraform) bool {
		return condition(tf, "Stalled").Reason == infra.ReasonRetryLimitReached
	})
	if tf.Status.ReconciliationFailures != 2 {
		t.Errorf("%d failures: the attempt and one retry were wanted", tf.Status.ReconciliationFailures)
	}
	w.change("u", func(tf *infra.Terraform) {
		tf.Spec.Vars = []infra.Variable{{Name: "v"}}
		tf.Spec.Vars[0].Value = jsonValue(`"x"`)
	})
	w.awaitReady("u")
}

func TestSuspendedUnitCanBeDeleted(t *testing.T) {
	w := newWorld(t, modA())
	w.unit("u", "approvePlan: auto\ndestroyResourcesOnDeletion: true")
	w.awaitReady("u")
	w.change("u", func(tf *infra.Terraform) { tf.Spec.Suspend = true })
	w.delete("u")
	w.awaitGone("u")
	if w.spawned("apply") != 1 {
		t.Error("a suspended unit was destroyed")
	}
}

func TestApprovalNeverRunsWhatWasNotShown(t *testing.T) {
	w := newWorld(t, modA())
	w.putSecret("vars", map[string]string{"v": "shown"})
	w.unit("u", "approvePlan: \"\"\nvarsFrom: [{kind: Secret, name: vars}]\nwriteOutputsToSecret: {name: out}")
	shown := w.awaitPending("u")
	w.stop()
	w.putSecret("vars", map[string]string{"v": "another"})
	w.change("u", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = shown })
	w.start()
	tf := w.await("u", "waiting with another plan", func(tf *infra.Terraform) bool {
		return tf.Status.Plan.Pending != "" && tf.Status.Plan.Pending != shown && tf.Status.ObservedGeneration == tf.Generation
	})
	if w.spawned("apply") != 0 || tf.Status.LastAppliedRevision != "" {
		t.Error("something was applied that nobody saw")
	}
}

func TestPathsThatLeaveTheArtifactAreRefused(t *testing.T) {
	w := newWorld(t, modA())
	must(t, os.Symlink("/etc", filepath.Join(w.repo, "link")))
	w.commit(nil)
	for name, path := range map[string]string{"up": "../x", "gone": "./nowhere"} {
		w.unit(name, "approvePlan: auto\npath: "+path)
		tf := w.awaitReason(name, infra.ReasonArtifactFailed)
		if !strings.Contains(readyOf(tf).Message, strings.TrimPrefix(path, "./")) {
			t.Errorf("the message does not name the path: %q", readyOf(tf).Message)
		}
	}
	w.commit(map[string]string{"nowhere/main.tf": moduleA})
	w.awaitReady("gone")
}

func jsonValue(s string) *apiextensionsv1.JSON { return &apiextensionsv1.JSON{Raw: []byte(s)} }

// Manifests from the field.

func TestManifestWithoutIntervalAndApproval(t *testing.T) {
	w := newWorld(t, map[string]string{"infra/db/main.tf": moduleA})
	w.apply(`
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: infra-repo}
spec: {interval: 1h, url: "file://` + w.repo + `", ref: {branch: main}}
---
apiVersion: infra.contrib.fluxcd.io/v1alpha1
kind: Terraform
metadata: {name: example-db}
spec:
  path: ./infra/db
  sourceRef: {kind: GitRepository, name: infra-repo}
`)
	w.awaitPending("example-db")
	if got := w.terraform("example-db").Spec.Interval.Duration; got != 10*time.Minute {
		t.Errorf("the interval is %s", got)
	}
}

func TestManifestThatWritesOutputs(t *testing.T) {
	w := newWorld(t, map[string]string{"terraform/checkout-db/main.tf": moduleA})
	w.unit("checkout-db", "path: ./terraform/checkout-db\napprovePlan: auto\nwriteOutputsToSecret: {name: checkout-db-outputs}")
	w.output("checkout-db-outputs", "o", "a")
	w.awaitReady("checkout-db")
}

func TestBackendOfTheModuleIsUsedAndSaidSo(t *testing.T) {
	state := filepath.Join(t.TempDir(), "own.tfstate")
	w := newWorld(t, map[string]string{"main.tf": "terraform {\n  backend \"local\" { path = \"" + state + "\" }\n}\n" + moduleA})
	w.unit("u", `approvePlan: ""`)
	w.awaitPending("u")
	tf := w.terraform("u")
	if m := condition(tf, "Plan").Message; !strings.Contains(m, `backend "local"`) {
		t.Errorf("the condition does not tell of the module's backend: %q", m)
	}
	w.change("u", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = tf.Status.Plan.Pending })
	w.awaitReady("u")
	if _, err := os.Stat(state); err != nil {
		t.Errorf("the module's own backend was not used: %v", err)
	}
}

func TestWorkspacesOfOnePathAreApart(t *testing.T) {
	w := newWorld(t, modA())
	w.putSecret("staging", map[string]string{"v": "s"})
	w.putSecret("production", map[string]string{"v": "p"})
	for _, env := range []string{"staging", "production"} {
		w.unit(env, `
approvePlan: auto
workspace: `+env+`
backendConfig: {secretSuffix: shared}
varsFrom: [{kind: Secret, name: `+env+`}]
writeOutputsToSecret: {name: out-`+env+`}`)
	}
	w.output("out-staging", "o", "s")
	w.output("out-production", "o", "p")
	w.secret("tfstate-staging-shared", nil)
	w.secret("tfstate-production-shared", nil)
}
