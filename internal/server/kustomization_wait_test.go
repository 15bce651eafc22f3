// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
)

// deployment is a manifest; no kubelet runs it, the tests write its status.
func (w *world) deployment(name, image string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  replicas: 1
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec: {containers: [{name: c, image: %[3]s}]}
`, name, w.ns, image)
}

// rollOut writes the status that the controllers of Deployments and their kubelets would.
func (w *world) rollOut(name, image string) {
	w.t.Helper()
	var last *appsv1.Deployment
	if !w.watch(&appsv1.DeploymentList{}, named(name), func(o client.Object) bool {
		last, _ = o.(*appsv1.Deployment)
		return last != nil && last.Spec.Template.Spec.Containers[0].Image == image
	}) {
		w.t.Fatalf("Deployment %s was not applied with image %s: %v", name, image, last)
	}
	last.Status = appsv1.DeploymentStatus{
		ObservedGeneration: last.Generation, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1,
		Conditions: []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue},
			{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"},
		},
	}
	if err := w.client.Status().Update(w.ctx(), last); err != nil {
		w.t.Fatal(err)
	}
}

// TestKustomizationWaits is Ready the moment that its objects are, and says meanwhile
// which is not, and why.
func TestKustomizationWaits(t *testing.T) {
	w := newWorld(t, nil)
	rev := w.commit(map[string]string{"app/d.yaml": w.deployment("d", "one")})
	w.app("app", "path: ./app\nprune: true\nwait: true\ntimeout: 10m")
	w.apply(`
apiVersion: v1
kind: Pod
metadata: {name: d-1, labels: {app: d}}
spec: {containers: [{name: c, image: one}]}`)
	pod := &corev1.Pod{}
	if err := w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: "d-1"}, pod); err != nil {
		t.Fatal(err)
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image: one"}}}}
	if err := w.client.Status().Update(w.ctx(), pod); err != nil {
		t.Fatal(err)
	}
	ks := w.awaitApp("app", "telling what it waits for", func(ks *kustomizev1.Kustomization) bool {
		return strings.Contains(appCondition(ks, "Reconciling").Message, "ImagePullBackOff")
	})
	if m := appCondition(ks, "Reconciling").Message; !strings.Contains(m, "Deployment/"+w.ns+"/d") || !strings.Contains(m, "Running health checks for revision "+rev) {
		t.Errorf("Reconciling says %s", m)
	}
	if c := appCondition(ks, "Healthy"); c.Status != metav1.ConditionUnknown {
		t.Errorf("Healthy is %s", c.Status)
	}
	if appReady(ks).Status != metav1.ConditionUnknown || ks.Status.LastAppliedRevision != "" {
		t.Errorf("Ready is %s at %q before the health check has passed", appReady(ks).Status, ks.Status.LastAppliedRevision)
	}
	// Case 3: the commit that mends it is not held up by the wait for the one before.
	rev = w.commit(map[string]string{"app/d.yaml": w.deployment("d", "two")})
	w.rollOut("d", "two")
	ks = w.awaitAppAt("app", rev)
	if c := appCondition(ks, "Healthy"); c.Status != metav1.ConditionTrue || !strings.HasPrefix(c.Message, "Health check passed in ") {
		t.Errorf("Healthy is %s: %s", c.Status, c.Message)
	}
	w.awaitEventAbout("app", "Health checks canceled: GitRepository/"+w.ns+"/src has the new revision "+rev)
}

// TestKustomizationFailsEarly does not wait for an object that has failed for good.
func TestKustomizationFailsEarly(t *testing.T) {
	w := newWorld(t, nil)
	job := func(image string) string {
		return fmt.Sprintf("apiVersion: batch/v1\nkind: Job\nmetadata: {name: j, namespace: %s}\nspec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: %s}]}}}\n", w.ns, image)
	}
	w.commit(map[string]string{"app/j.yaml": job("a")})
	w.app("app", "path: ./app\nprune: true\nwait: true\nforce: true\ntimeout: 10m")
	setJob := func(kind string) {
		t.Helper()
		u := &unstructured.Unstructured{}
		u.SetAPIVersion("batch/v1")
		u.SetKind("Job")
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion("batch/v1")
		list.SetKind("JobList")
		if !w.watch(list, named("j"), func(o client.Object) bool {
			if o != nil {
				u = o.(*unstructured.Unstructured)
			}
			return o != nil
		}) {
			t.Fatal("the Job was not applied")
		}
		now := metav1.Now().UTC().Format("2006-01-02T15:04:05Z")
		u.Object["status"] = map[string]any{"startTime": now, "conditions": []any{
			map[string]any{"type": map[string]string{"Failed": "FailureTarget", "Complete": "SuccessCriteriaMet"}[kind], "status": "True", "lastTransitionTime": now},
			map[string]any{"type": kind, "status": "True", "reason": "BackoffLimitExceeded", "message": "it has failed too often", "lastTransitionTime": now},
		}}
		if kind == "Complete" {
			u.Object["status"].(map[string]any)["completionTime"] = now
			u.Object["status"].(map[string]any)["succeeded"] = int64(1)
		}
		if err := w.client.Status().Update(w.ctx(), u); err != nil {
			t.Fatal(err)
		}
	}
	setJob("Failed")
	ks := w.awaitAppReason("app", "HealthCheckFailed")
	if m := appReady(ks).Message; !strings.Contains(m, "Job/"+w.ns+"/j") || !strings.Contains(m, "failed early") {
		t.Errorf("message: %s", m)
	}
	if c := appCondition(ks, "Healthy"); c.Status != metav1.ConditionFalse {
		t.Errorf("Healthy is %s", c.Status)
	}
	// Case 6: a Job with another image is recreated, by force.
	uid := w.jobUID()
	rev := w.commit(map[string]string{"app/j.yaml": job("b")})
	if !w.watch(jobs(), named("j"), func(o client.Object) bool { return o != nil && o.GetUID() != uid }) {
		t.Fatal("the Job was not recreated")
	}
	setJob("Complete")
	w.awaitAppAt("app", rev)
}

func jobs() *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("batch/v1")
	list.SetKind("JobList")
	return list
}

func (w *world) jobUID() (uid types.UID) {
	w.t.Helper()
	w.watch(jobs(), named("j"), func(o client.Object) bool {
		if o != nil {
			uid = o.GetUID()
		}
		return o != nil
	})
	return uid
}

// TestKustomizationChecksHealthOfOthers waits for objects that it has not applied, by
// kstatus or by the unit's own expressions.
func TestKustomizationChecksHealthOfOthers(t *testing.T) {
	w := newWorld(t, nil)
	crd, group := w.widgetCRD()
	w.cleanCluster("CustomResourceDefinition", "apiextensions.k8s.io/v1", "widgets."+group)
	w.applyCluster(crd)
	rev := w.commit(map[string]string{"app/cm.yaml": w.cm("a", nil)})
	w.app("app", fmt.Sprintf(`path: ./app
prune: true
healthChecks: [{apiVersion: %[1]s/v1, kind: Widget, name: w, namespace: %[2]s}]
healthCheckExprs: [{apiVersion: %[1]s/v1, kind: Widget, current: "status.phase == 'Up'", failed: "status.phase == 'Down'"}]
`, group, w.ns))
	w.awaitApp("app", "waiting for a Widget", func(ks *kustomizev1.Kustomization) bool {
		return strings.Contains(appCondition(ks, "Reconciling").Message, "Widget/"+w.ns+"/w")
	})
	w.apply(w.widget(group, "w"))
	set := func(phase string) {
		t.Helper()
		o := w.getWidget(group, "w")
		o.Object["status"] = map[string]any{"phase": phase}
		if err := w.client.Status().Update(w.ctx(), o); err != nil {
			t.Fatal(err)
		}
	}
	set("Down")
	w.awaitAppReason("app", "HealthCheckFailed")
	set("Up")
	w.awaitAppAt("app", rev)
}

// TestKustomizationRefusesBadExpressions stalls on an expression that cannot be right.
func TestKustomizationRefusesBadExpressions(t *testing.T) {
	w := newWorld(t, map[string]string{"app/README": "x"})
	w.app("checks", "path: ./app\nprune: true\nhealthCheckExprs: [{apiVersion: v1, kind: Pod, current: 'status.phase ==='}]")
	w.app("dep", "path: ./app\nprune: true\nsuspend: true")
	w.app("depends", "path: ./app\nprune: true\ndependsOn: [{name: dep, readyExpr: 'dep.status.'}]")
	for _, name := range []string{"checks", "depends"} {
		ks := w.awaitAppReason(name, "InvalidCELExpression")
		if c := appCondition(ks, "Stalled"); c.Status != metav1.ConditionTrue || ks.Status.ObservedGeneration != ks.Generation {
			t.Errorf("%s: Stalled is %q, observed %d of %d", name, c.Status, ks.Status.ObservedGeneration, ks.Generation)
		}
	}
	w.changeApp("checks", func(ks *kustomizev1.Kustomization) { ks.Spec.HealthCheckExprs = nil })
	w.awaitAppReady("checks")
}

// TestKustomizationDepends is cases 1 and 19: a dependant starts the moment that what
// it needs is ready, at the same revision, and not before.
func TestKustomizationDepends(t *testing.T) {
	w := newWorld(t, nil)
	files := map[string]string{"a/d.yaml": w.deployment("d", "one"), "b/cm.yaml": w.cm("b", map[string]string{"k": "1"}), "c/cm.yaml": w.cm("c", nil)}
	rev := w.commit(files)
	w.app("c", "path: ./c\nprune: true\ndependsOn: [{name: b, readyExpr: \"dep.status.?lastAppliedRevision.orValue('') != ''\"}]")
	w.app("b", "path: ./b\nprune: true\ndependsOn: [{name: a}]")
	ks := w.awaitAppReason("b", "DependencyNotReady")
	if m := appReady(ks).Message; m != "dependency '"+w.ns+"/a' not found" {
		t.Errorf("message: %s", m)
	}
	w.app("a", "path: ./a\nprune: true\nwait: true")
	w.awaitApp("b", "waiting for a", func(ks *kustomizev1.Kustomization) bool {
		return appReady(ks).Message == "dependency '"+w.ns+"/a' is not ready"
	})
	if w.configMap("b") != nil || w.configMap("c") != nil {
		t.Error("a dependant was applied before its dependency was ready")
	}
	w.rollOut("d", "one")
	for _, name := range []string{"a", "b", "c"} {
		w.awaitAppAt(name, rev)
	}
	// A commit that changes both is applied in the same order.
	rev = w.commit(map[string]string{"a/d.yaml": w.deployment("d", "two"), "b/cm.yaml": w.cm("b", map[string]string{"k": "2"})})
	w.awaitApp("b", "waiting for the revision of a", func(ks *kustomizev1.Kustomization) bool {
		return appReady(ks).Reason == "DependencyNotReady"
	})
	if w.configMap("b").Data["k"] != "1" {
		t.Error("b was applied before a")
	}
	w.rollOut("d", "two")
	w.awaitAppAt("b", rev)

	w.changeApp("a", func(ks *kustomizev1.Kustomization) {
		ks.Spec.DependsOn = []kustomizev1.DependencyReference{{Name: "b"}}
	})
	ks = w.awaitAppReason("a", v1alpha1.ReasonDependencyCycle)
	if m := appReady(ks).Message; !strings.Contains(m, "/a → ") || !strings.Contains(m, "/b → ") {
		t.Errorf("the cycle is not named: %s", m)
	}
}

// TestKustomizationSuspendedChild is case 20: a suspended unit below does not hold up
// the one that applied it; neither does the unit itself.
func TestKustomizationSuspendedChild(t *testing.T) {
	w := newWorld(t, nil)
	child := strings.Replace(strings.TrimSpace(appManifest("child", "path: ./child\nprune: true\nsuspend: true")), "{name: child}", "{name: child, namespace: "+w.ns+"}", 1)
	self := strings.Replace(strings.TrimSpace(appManifest("root", "path: ./root\nprune: true\nwait: true")), "{name: root}", "{name: root, namespace: "+w.ns+"}", 1)
	rev := w.commit(map[string]string{"root/child.yaml": child + "\n", "root/self.yaml": self + "\n", "child/cm.yaml": w.cm("c", nil)})
	w.app("root", "path: ./root\nprune: true\nwait: true")
	w.awaitAppAt("root", rev)
	if w.configMap("c") != nil {
		t.Error("a suspended unit was reconciled")
	}
}

// TestKustomizationWithTerraform is M4: a Kustomization waits for a Terraform unit,
// uses its outputs, and is applied again when they change; and the other way round.
func TestKustomizationWithTerraform(t *testing.T) {
	w := newWorld(t, nil)
	w.commit(map[string]string{
		"db/main.tf":  moduleA,
		"app/cm.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: app\n  namespace: " + w.ns + "\ndata:\n  host: ${o}\n",
		"late/main.tf": `terraform { required_version = ">= 1.0" }
output "late" { value = "yes" }`,
	})
	w.apply(strings.Replace(appManifest("app", `path: ./app
prune: true
postBuild: {substituteFrom: [{kind: Secret, name: outputs}]}`), "{name: app}", "{name: app, annotations: {terrace.dev/depends-on: Terraform/db}}", 1))
	ks := w.awaitAppReason("app", "DependencyNotReady")
	if m := appReady(ks).Message; !strings.Contains(m, "Terraform/"+w.ns+"/db") {
		t.Errorf("message: %s", m)
	}
	w.apply(`
apiVersion: infra.contrib.fluxcd.io/v1alpha2
kind: Terraform
metadata: {name: late, annotations: {terrace.dev/depends-on: Kustomization/app}}
spec: {interval: 1h, path: ./late, approvePlan: auto, sourceRef: {kind: GitRepository, name: src}, writeOutputsToSecret: {name: late}}`)
	w.unit("db", "path: ./db\napprovePlan: auto\nvars: [{name: v, value: first}]\nwriteOutputsToSecret: {name: outputs}")
	host := func(want string) {
		t.Helper()
		w.awaitConfigMap("app", "deployed with "+want, func(cm *corev1.ConfigMap) bool { return cm != nil && cm.Data["host"] == want })
	}
	host("first")
	w.secret("late", func(data map[string][]byte) bool { return string(data["late"]) == "yes" })
	w.unit("db", "path: ./db\napprovePlan: auto\nvars: [{name: v, value: second}]\nwriteOutputsToSecret: {name: outputs}")
	host("second")
	w.awaitAppReady("app")
}

// TestTerraformUnderAKustomization approves a Terraform unit whose spec a Kustomization
// puts back: by the annotation, which nobody owns.
func TestTerraformUnderAKustomization(t *testing.T) {
	w := newWorld(t, nil)
	w.commit(map[string]string{
		"db/main.tf": moduleA,
		"units/db.yaml": `apiVersion: infra.contrib.fluxcd.io/v1alpha2
kind: Terraform
metadata: {name: db, namespace: ` + w.ns + `}
spec: {interval: 1h, path: ./db, approvePlan: "", sourceRef: {kind: GitRepository, name: src}}
`,
	})
	w.app("units", "path: ./units\nprune: true")
	id := w.awaitPending("db")
	w.change("db", func(tf *infra.Terraform) { tf.Annotations = map[string]string{v1alpha1.ApprovedPlanAnnotation: id} })
	w.await("db", "applied", func(tf *infra.Terraform) bool { return tf.Status.Plan.LastApplied == id && isReady(tf) })
}

// TestIdleUnitsAreSilent counts the status writes of units that depend on each other,
// over both kinds, when a commit concerns none of them: at most one each.
func TestIdleUnitsAreSilent(t *testing.T) {
	w := newWorld(t, nil)
	w.commit(map[string]string{"a/main.tf": moduleA, "b/main.tf": moduleA, "c/cm.yaml": w.cm("c", nil), "d/cm.yaml": w.cm("d", nil), "other": "1"})
	w.unit("a", "path: ./a\napprovePlan: auto")
	w.unit("b", "path: ./b\napprovePlan: auto\ndependsOn: [{name: a}]")
	w.apply(strings.Replace(appManifest("c", "path: ./c\nprune: true"), "{name: c}", "{name: c, annotations: {terrace.dev/depends-on: Terraform/b}}", 1))
	w.app("d", "path: ./d\nprune: true\ndependsOn: [{name: c}]")
	w.awaitAppReady("d")
	w.awaitEventAbout("d", "Reconciliation finished") // the last of what the first commit makes
	for round := range 3 {
		mark := w.log.mark()
		rev := w.commit(map[string]string{"other": fmt.Sprint(round + 2)})
		for _, name := range []string{"a", "b"} {
			w.await(name, "Ready at "+rev, func(tf *infra.Terraform) bool { return isReady(tf) && tf.Status.LastAttemptedRevision == rev })
		}
		for _, name := range []string{"c", "d"} {
			w.awaitAppAt(name, rev)
		}
		w.within("an unrelated commit, four units", mark, 4)
	}
}
