// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/audit"
)

func (w *world) annotate(name, key, value string) {
	w.t.Helper()
	w.change(name, func(tf *infra.Terraform) { metav1.SetMetaDataAnnotation(&tf.ObjectMeta, key, value) })
}

func TestPolicyDeniesAPlan(t *testing.T) {
	w := newWorld(t, map[string]string{"a/main.tf": moduleA, "b/main.tf": moduleA})
	w.apply(`
apiVersion: terrace.dev/v1alpha1
kind: Policy
metadata: {name: no-data}
spec:
  kinds: [Terraform]
  selector: {matchLabels: {strict: "yes"}}
  rego: |
    package main
    import rego.v1
    deny contains msg if {
      some r in input.resource_changes
      r.type == "terraform_data"
      msg := sprintf("%s is not allowed here", [r.address])
    }
`)
	w.apply(`
apiVersion: infra.contrib.fluxcd.io/v1alpha2
kind: Terraform
metadata: {name: a, labels: {strict: "yes"}}
spec: {interval: 1h, path: ./a, approvePlan: auto, force: true, sourceRef: {kind: GitRepository, name: src}}
`)
	w.unit("b", "path: ./b\napprovePlan: auto") // is not selected
	w.awaitReady("b")
	tf := w.awaitReason("a", v1alpha1.ReasonPolicyDenied)
	if m := readyOf(tf).Message; !strings.Contains(m, "no-data") || !strings.Contains(m, "terraform_data.x is not allowed here") {
		t.Errorf("the message does not say which policy and why: %s", m)
	}
	// The plan says it as well, to people and to programs, below the changes.
	const said = "  denied: %s/no-data: deny: terraform_data.x is not allowed here\n"
	plan := "/api/v1/units/terraform/" + w.ns + "/a/plan"
	if code, text := w.get(plan, ""); code != http.StatusOK || !strings.HasSuffix(text, "\n\nPolicies: 1 denied.\n"+fmt.Sprintf(said, w.ns)) || !strings.Contains(text, "Plan: 1 to add") {
		t.Errorf("the text of the plan is %d\n%s", code, text)
	}
	var value struct{ Policies []map[string]string }
	_, text := w.get(plan+"?format=json", "")
	must(t, json.Unmarshal([]byte(text), &value))
	want := []map[string]string{{"policy": w.ns + "/no-data", "rule": "deny", "message": "terraform_data.x is not allowed here", "effect": "deny"}}
	if diff := cmp.Diff(want, value.Policies); diff != "" {
		t.Errorf("policies in the JSON of the plan (-want +got):\n%s", diff)
	}
	if w.spawned("apply") != 1 {
		t.Errorf("%d applies ran; only that of the other unit was wanted", w.spawned("apply"))
	}
	// Overridden for this very plan, it goes on.
	w.annotate("a", v1alpha1.PolicyOverrideAnnotation, "plan-of-another")
	w.annotate("a", "reconcile.fluxcd.io/requestedAt", "1")
	w.await("a", "denied still", func(tf *infra.Terraform) bool {
		return tf.Status.LastHandledReconcileAt == "1" && readyOf(tf).Reason == v1alpha1.ReasonPolicyDenied
	})
	w.annotate("a", v1alpha1.PolicyOverrideAnnotation, tf.Status.Plan.Pending)
	w.awaitReady("a")
}

func TestPolicyThatGoesLetsThePlanGo(t *testing.T) {
	w := newWorld(t, map[string]string{"a/main.tf": moduleA})
	w.apply(`
apiVersion: terrace.dev/v1alpha1
kind: Policy
metadata: {name: broken}
spec: {rego: "package main\ndeny contains msg if { undefined_function(1) }\n"}
`)
	w.unit("a", "path: ./a\napprovePlan: auto")
	tf := w.awaitReason("a", v1alpha1.ReasonPolicyDenied)
	if m := readyOf(tf).Message; !strings.Contains(m, "broken") {
		t.Errorf("the message does not name the policy that is broken: %s", m)
	}
	if err := w.client.Delete(w.ctx(), &v1alpha1.Policy{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "broken"}}); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	w.awaitReady("a")
}

func TestAutoApproveWithoutDestroy(t *testing.T) {
	w := newWorld(t, map[string]string{"main.tf": moduleA})
	w.apply(`
apiVersion: infra.contrib.fluxcd.io/v1alpha2
kind: Terraform
metadata: {name: a, annotations: {terrace.dev/auto-approve: no-destroy}}
spec: {interval: 1h, sourceRef: {kind: GitRepository, name: src}}
`)
	w.awaitReady("a")
	w.awaitRevision("a", w.commit(map[string]string{"main.tf": strings.ReplaceAll(moduleA, `"a"`, `"b"`)}))
	w.commit(map[string]string{"main.tf": "output \"o\" { value = 1 }\n"})
	tf := w.await("a", "waiting for an approval of what it would destroy", func(tf *infra.Terraform) bool {
		return tf.Status.Plan.Pending != "" && tf.Status.LastPlan != nil && tf.Status.LastPlan.Delete == 1 && !isReady(tf) && readyOf(tf).Reason != infra.ReasonProgressing
	})
	if m := readyOf(tf).Message; !strings.Contains(m, tf.Status.Plan.Pending) {
		t.Errorf("the message does not say how to approve: %s", m)
	}
	w.change("a", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = tf.Status.Plan.Pending })
	w.await("a", "Ready without resources", func(tf *infra.Terraform) bool { return isReady(tf) && tf.Status.Plan.Pending == "" })
}

func TestApplyWindow(t *testing.T) {
	w := newWorld(t, map[string]string{"main.tf": moduleA})
	w.apply(`
apiVersion: infra.contrib.fluxcd.io/v1alpha2
kind: Terraform
metadata: {name: a, annotations: {terrace.dev/apply-window: "Mon-Fri 09:00 Europe"}}
spec: {interval: 1h, approvePlan: auto, sourceRef: {kind: GitRepository, name: src}}
`)
	tf := w.awaitReason("a", v1alpha1.ReasonOutsideWindow)
	if m := readyOf(tf).Message; !strings.Contains(m, v1alpha1.ApplyWindowAnnotation) || !strings.Contains(m, "09:00") {
		t.Errorf("the message does not say what is wrong with the window: %s", m)
	}
	w.annotate("a", v1alpha1.ApplyWindowAnnotation, "Mon-Sun 00:00-24:00 UTC")
	w.awaitReady("a")
}

func TestPolicyHoldsAKustomization(t *testing.T) {
	w := newWorld(t, nil)
	first := w.commit(map[string]string{"app/c.yaml": w.cm("c", map[string]string{"k": "1"})})
	w.apply(`
apiVersion: terrace.dev/v1alpha1
kind: Policy
metadata: {name: no-twos}
spec:
  kinds: [Kustomization]
  cel:
    - expression: "!has(object.data) || !has(object.data.k) || object.data.k != '2'"
      message: two is not allowed
`)
	w.app("app", "path: ./app\nprune: true")
	w.awaitAppAt("app", first)
	second := w.commit(map[string]string{"app/c.yaml": w.cm("c", map[string]string{"k": "2"})})
	ks := w.awaitAppReason("app", v1alpha1.ReasonPolicyDenied)
	if m := appReady(ks).Message; !strings.Contains(m, "no-twos") || !strings.Contains(m, "two is not allowed") {
		t.Errorf("the message does not say which policy and why: %s", m)
	}
	w.awaitConfigMap("c", "as it was", func(cm *corev1.ConfigMap) bool { return cm != nil && cm.Data["k"] == "1" })
	w.wantLedger("the plan that waits", audit.Filter{Action: audit.Plan, Unit: "Kustomization//app"}, "plan Kustomization/app by terrace:terrace")
	code, text := w.get("/api/v1/units/kustomization/"+w.ns+"/app/policies", "")
	if want := fmt.Sprintf(`[{"policy":"%s/no-twos","rule":"cel[0]","address":"ConfigMap/%[1]s/c","message":"two is not allowed","effect":"deny"}]`, w.ns); code != http.StatusOK || strings.TrimSpace(text) != want {
		t.Errorf("policies of the unit's plan: %d %s, want %s", code, text, want)
	}
	if ks.Status.LastAppliedRevision != first {
		t.Errorf("applied: %s, want %s", ks.Status.LastAppliedRevision, first)
	}
	if err := w.client.Delete(w.ctx(), &v1alpha1.Policy{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "no-twos"}}); err != nil {
		t.Fatal(err)
	}
	w.awaitAppAt("app", second)
	w.awaitConfigMap("c", "changed", func(cm *corev1.ConfigMap) bool { return cm != nil && cm.Data["k"] == "2" })
}

func TestApplyWindowHoldsAKustomization(t *testing.T) {
	w := newWorld(t, nil)
	revision := w.commit(map[string]string{"app/c.yaml": w.cm("c", nil)})
	w.apply(strings.Replace(appManifest("app", "path: ./app\nprune: true"), "{name: app}", `{name: app, annotations: {terrace.dev/apply-window: "never"}}`, 1))
	ks := w.awaitAppReason("app", v1alpha1.ReasonOutsideWindow)
	if m := appReady(ks).Message; !strings.Contains(m, v1alpha1.ApplyWindowAnnotation) {
		t.Errorf("the message does not say what is wrong with the window: %s", m)
	}
	w.changeApp("app", func(ks *kustomizev1.Kustomization) {
		ks.Annotations[v1alpha1.ApplyWindowAnnotation] = "Mon-Sun 00:00-24:00 UTC"
	})
	w.awaitAppAt("app", revision)
}
