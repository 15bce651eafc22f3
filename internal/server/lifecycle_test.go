// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/config"
)

// The tests here are about a unit's life: its first status, its dependencies, its
// deletion.

func TestNewUnitIsNotTakenForAFinishedOne(t *testing.T) {
	w := newWorld(t, modA())
	w.stop()
	w.unit("u", "approvePlan: auto")
	if got := w.terraform("u").Status.ObservedGeneration; got != -1 {
		t.Errorf("observedGeneration begins as %d", got)
	}
	w.start()
	tf := w.awaitReady("u")
	if !slices.Contains(tf.Finalizers, infra.Finalizer) {
		t.Errorf("finalizers %v", tf.Finalizers)
	}
	if tf.Status.LastAppliedRevision == "" || tf.Status.LastAttemptedRevision != tf.Status.LastAppliedRevision || tf.Status.LastPlannedRevision != tf.Status.LastAppliedRevision ||
		tf.Status.LastPlannedGeneration != tf.Generation || tf.Status.LastSuccessfulReconcileAt == nil {
		t.Errorf("status %+v", tf.Status)
	}
	w.change("u", func(tf *infra.Terraform) {
		tf.Annotations = map[string]string{"reconcile.fluxcd.io/requestedAt": "now"}
	})
	w.await("u", "asked", func(tf *infra.Terraform) bool { return isReady(tf) && tf.Status.LastHandledReconcileAt == "now" })
	if n := w.spawned("plan"); n != 2 {
		t.Errorf("%d plans: the first and the one that was asked for were wanted", n)
	}
}

func TestSuspendedUnitStandsStill(t *testing.T) {
	w := newWorld(t, modA())
	w.unit("u", "approvePlan: auto\nsuspend: true")
	w.unit("marker", "approvePlan: auto")
	w.awaitReady("marker")
	tf := w.await("u", "known to be suspended", func(tf *infra.Terraform) bool { return isSuspended(tf.Status.Conditions) })
	if len(tf.Status.Conditions) != 1 || tf.Status.LastPlanAt != nil || len(tf.Finalizers) != 0 {
		t.Errorf("more than that is known of it: %v, %+v", tf.Finalizers, tf.Status)
	}
	w.change("u", func(tf *infra.Terraform) { tf.Spec.Suspend = false })
	w.awaitReady("u")
}

func TestOutputsThatAreMissingAreNamed(t *testing.T) {
	w := newWorld(t, map[string]string{"main.tf": `
output "age_agekey" { value = "k" }
output "pin" {
  value     = "hidden"
  sensitive = true
}`, "none/main.tf": `resource "terraform_data" "x" {}`})
	w.unit("u", "approvePlan: auto\nwriteOutputsToSecret: {name: out, outputs: [\"age_agekey:age.agekey\", pin, nope]}")
	tf := w.awaitReason("u", infra.ReasonOutputsWritingFailed)
	if !strings.Contains(readyOf(tf).Message, `"nope"`) {
		t.Errorf("the message does not name the output: %q", readyOf(tf).Message)
	}
	if !slices.Equal(tf.Status.AvailableOutputs, []string{"age_agekey", "pin"}) {
		t.Errorf("available outputs %v", tf.Status.AvailableOutputs)
	}
	w.change("u", func(tf *infra.Terraform) {
		tf.Spec.WriteOutputsToSecret.Outputs = []string{"age_agekey:age.agekey", "pin"}
	})
	s := w.secret("out", nil)
	if string(s.Data["age.agekey"]) != "k" || string(s.Data["pin"]) != "hidden" || len(s.Data) != 2 {
		t.Errorf("data %q", s.Data)
	}
	tf = w.awaitReady("u")
	if c := condition(tf, "Output"); c.Status != metav1.ConditionTrue || c.Reason != infra.ReasonOutputsWritten {
		t.Errorf("Output is %+v", c)
	}
	if owner := metav1.GetControllerOf(s); owner == nil || owner.UID != tf.UID {
		t.Errorf("owners %+v", s.OwnerReferences)
	}

	w.unit("none", "approvePlan: auto\npath: ./none\nwriteOutputsToSecret: {name: none}")
	tf = w.awaitReady("none")
	if got, want := readyOf(tf).Message, "No Outputs written: "+tf.Status.LastAppliedRevision; got != want {
		t.Errorf("Ready says %q, want %q", got, want)
	}
}

// chain is a module that appends its name to what it reads.
const chain = `
variable "values" { type = any }
output "way" { value = "${var.values.before}${var.values.me}" }
`

func TestDependenciesGiveTheOrder(t *testing.T) {
	w := newWorld(t, map[string]string{"main.tf": chain})
	link := func(name, before string) {
		t.Helper()
		spec := "approvePlan: auto\nwriteOutputsToSecret: {name: out-" + name + "}\n"
		if before == "" {
			spec += "values: {before: \"\", me: " + name + "}"
		} else {
			spec += "dependsOn: [{name: " + before + "}]\nreadInputsFromSecrets: [{name: out-" + before + ", as: i}]\nvalues: {before: \"${{ .i.way }}\", me: " + name + "}"
		}
		w.unit(name, spec)
	}
	link("c", "b") // the last first
	link("b", "a")
	tf := w.awaitReason("c", infra.ReasonDependencyNotReady)
	if m := readyOf(tf).Message; m != "dependency '"+w.ns+"/b' is not ready" && !strings.Contains(m, "does not exist") {
		t.Errorf("Ready says %q", m)
	}
	w.awaitEvent("c", infra.ReasonDependencyNotReady)
	link("a", "")
	w.output("out-c", "way", "abc")
	w.awaitReady("c")

	// A deletion waits for who depends on the unit, in whichever order they go.
	w.delete("a")
	w.delete("b")
	tf = w.awaitReason("a", infra.ReasonDeletionBlockedByDependants)
	if m := readyOf(tf).Message; !strings.Contains(m, w.ns+"/b") {
		t.Errorf("the message does not name who depends on it: %q", m)
	}
	w.awaitReason("b", infra.ReasonDeletionBlockedByDependants)
	w.delete("c")
	for _, name := range []string{"c", "b", "a"} {
		w.awaitGone(name)
		w.secretGone("out-" + name)
	}
}

func TestCycleOfDependenciesIsNamed(t *testing.T) {
	w := newWorld(t, modA())
	w.unit("a", "approvePlan: auto\ndependsOn: [{name: b}]")
	w.unit("b", "approvePlan: auto\ndependsOn: [{name: c}]")
	w.unit("c", "approvePlan: auto\ndependsOn: [{name: a}]")
	w.unit("self", "approvePlan: auto\ndependsOn: [{name: self}]")
	for name, way := range map[string][]string{"a": {"a", "b", "c", "a"}, "b": {"b", "c", "a", "b"}, "c": {"c", "a", "b", "c"}, "self": {"self", "self"}} {
		for i := range way {
			way[i] = w.ns + "/" + way[i]
		}
		tf := w.awaitReason(name, infra.ReasonDependencyCycle)
		if m := readyOf(tf).Message; !strings.Contains(m, strings.Join(way, " → ")) {
			t.Errorf("%s: %q does not name %v", name, m, way)
		}
	}
	w.change("c", func(tf *infra.Terraform) { tf.Spec.DependsOn = nil })
	w.awaitReady("a")
	w.delete("self")
	w.awaitGone("self")
	// Those of a circle can be deleted, though each has one that depends on it.
	w.unit("left", "approvePlan: auto\ndependsOn: [{name: right}]")
	w.unit("right", "approvePlan: auto\ndependsOn: [{name: left}]")
	w.awaitReason("left", infra.ReasonDependencyCycle)
	w.delete("left")
	w.awaitReason("left", infra.ReasonDeletionBlockedByDependants)
	w.delete("right")
	w.awaitGone("left")
	w.awaitGone("right")
}

// Whatever has conditions can be depended on, and what has none when it is there.
func TestAnnotationDependsOnAnyKind(t *testing.T) {
	w := newWorld(t, modA())
	group := "g" + strings.TrimPrefix(w.ns, "test-") + ".test"
	for name, on := range map[string]string{
		"map": "ConfigMap/settings", "deployment": "Deployment/web", "gadget": "Gadget." + group + "/" + w.ns + "/g", "unit": "Terraform/base\nConfigMap/settings", "wrong": "no-slash",
	} {
		tf := &infra.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name, Annotations: map[string]string{infra.DependsOnAnnotation: on}}}
		tf.Spec.RetryInterval = &metav1.Duration{Duration: time.Second}
		tf.Spec.ApprovePlan, tf.Spec.SourceRef = "auto", infra.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "src"}
		must(t, w.client.Create(w.ctx(), tf))
	}
	for name, want := range map[string]string{"map": "settings", "deployment": "web", "gadget": "g", "unit": w.ns + "/base", "wrong": "no-slash"} {
		tf := w.awaitReason(name, infra.ReasonDependencyNotReady)
		if !strings.Contains(readyOf(tf).Message, want) {
			t.Errorf("%s: the message does not name %s: %q", name, want, readyOf(tf).Message)
		}
	}
	w.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}")
	w.awaitReady("map")
	w.unit("base", "approvePlan: auto")
	w.awaitReady("unit")

	w.apply(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}`)
	w.await("deployment", "waiting for the Deployment", func(tf *infra.Terraform) bool {
		return readyOf(tf).Reason == infra.ReasonDependencyNotReady && !strings.Contains(readyOf(tf).Message, "does not exist")
	})
	setStatus := func(apiVersion, kind, name string, status map[string]any) {
		t.Helper()
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
		must(t, w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: name}, o))
		o.Object["status"] = status
		must(t, w.client.Status().Update(w.ctx(), o))
	}
	setStatus("apps/v1", "Deployment", "web", map[string]any{
		"observedGeneration": int64(1), "replicas": int64(1), "updatedReplicas": int64(1), "readyReplicas": int64(1), "availableReplicas": int64(1),
		"conditions": []any{
			map[string]any{"type": "Available", "status": "True"},
			map[string]any{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
		},
	})
	w.awaitReady("deployment")

	gadget := w.gadgets(group) // the kind comes after the unit that waits for it
	w.await("gadget", "aware of the kind", func(tf *infra.Terraform) bool { return strings.Contains(readyOf(tf).Message, "does not exist") })
	must(t, w.client.Create(w.ctx(), gadget))
	ready := func(status, message string) map[string]any {
		return map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": status, "message": message, "reason": "R"}}}
	}
	setStatus(group+"/v1", "Gadget", "g", ready("False", "still warming up"))
	w.await("gadget", "told why", func(tf *infra.Terraform) bool { return strings.Contains(readyOf(tf).Message, "still warming up") })
	setStatus(group+"/v1", "Gadget", "g", ready("True", "warm"))
	w.awaitReady("gadget")
}

// gadgets defines a kind of its own for one test and returns an object of it.
func (w *world) gadgets(group string) *unstructured.Unstructured {
	w.t.Helper()
	preserve := true
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "gadgets." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gadgets", Singular: "gadget", Kind: "Gadget", ListKind: "GadgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: &preserve,
				}},
			}},
		},
	}
	must(w.t, w.client.Create(w.ctx(), crd))
	w.t.Cleanup(func() { _ = w.client.Delete(context.Background(), crd) })
	if !w.watchCluster(&apiextensionsv1.CustomResourceDefinitionList{}, named(crd.Name), func(o client.Object) bool {
		return o != nil && slices.ContainsFunc(o.(*apiextensionsv1.CustomResourceDefinition).Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
		})
	}) {
		w.t.Fatalf("%s is not established", crd.Name)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/v1", "kind": "Gadget", "metadata": map[string]any{"namespace": w.ns, "name": "g"},
	}}
}

func (w *world) watchCluster(list client.ObjectList, fields client.MatchingFields, cond func(client.Object) bool) bool {
	w.t.Helper()
	all := *w
	all.ns = ""
	return all.watch(list, fields, cond)
}

func TestDeletion(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	files := map[string]string{"plain/main.tf": moduleA}
	for _, name := range []string{"kept", "destroyed", "guarded"} {
		files[name+"/main.tf"] = localFile(file(name))
	}
	w := newWorld(t, files, withMirror(t), withPlanSecrets, inSecrets)
	for _, name := range []string{"kept", "destroyed", "guarded"} {
		w.unit(name, fmt.Sprintf("path: ./%s\napprovePlan: auto\nwriteOutputsToSecret: {name: out-%s}\ndestroyResourcesOnDeletion: %v", name, name, name != "kept"))
	}
	w.unit("pending", "path: ./plain\napprovePlan: \"\"\ndestroyResourcesOnDeletion: true")
	w.unit("sourceless", "path: ./nowhere\napprovePlan: auto\ndestroyResourcesOnDeletion: true")
	for _, name := range []string{"kept", "destroyed", "guarded"} {
		w.awaitReady(name)
		w.secret("out-"+name, nil)
		w.secret("tfplan-default-"+name, nil)
	}
	w.awaitPending("pending")
	w.awaitReason("sourceless", infra.ReasonArtifactFailed)

	w.change("guarded", func(tf *infra.Terraform) { tf.Finalizers = append(tf.Finalizers, "example.com/guard") })
	for _, name := range []string{"kept", "destroyed", "guarded", "pending", "sourceless"} {
		w.delete(name)
	}
	for _, name := range []string{"kept", "destroyed", "pending", "sourceless"} {
		w.awaitGone(name)
	}
	// Somebody else's finalizer is waited for in silence: one destroy, no more writes.
	tf := w.await("guarded", "finalized", func(tf *infra.Terraform) bool { return slices.Equal(tf.Finalizers, []string{"example.com/guard"}) })
	version, spawned := tf.ResourceVersion, w.spawned("")
	for _, name := range []string{"kept", "destroyed", "guarded"} {
		w.secretGone("out-" + name)
		w.secretGone("tfplan-default-" + name)
		if _, err := os.Stat(file(name)); (err == nil) != (name == "kept") {
			t.Errorf("%s: the file is there: %v", name, err == nil)
		}
	}
	w.secret("tfstate-default-destroyed", nil)
	w.change("guarded", func(tf *infra.Terraform) { tf.Annotations = map[string]string{"reconcile.fluxcd.io/requestedAt": "1"} })
	w.unit("marker", "path: ./plain\napprovePlan: auto")
	w.awaitReady("marker")
	if got := w.terraform("guarded"); got.Status.LastHandledReconcileAt != "" || got.ResourceVersion == version || w.spawned("") != spawned+3 {
		t.Errorf("after the end of the unit %d processes ran; status %+v", w.spawned("")-spawned-3, got.Status)
	}
	w.change("guarded", func(tf *infra.Terraform) { tf.Finalizers = nil })
	w.awaitGone("guarded")
	left, err := filepath.Glob(filepath.Join(w.cfg.DataDir, "units", "*", "*"))
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "marker" {
		t.Errorf("working directories that are left: %v (%v)", left, err)
	}
}

// A destroy that fails is told of and tried again.
func TestFailedDestroyOfADeletion(t *testing.T) {
	flag := filepath.Join(t.TempDir(), "flag")
	w := newWorld(t, map[string]string{"main.tf": `
resource "terraform_data" "x" {
  provisioner "local-exec" {
    when    = destroy
    command = "test -e ` + flag + `"
  }
}`})
	w.unit("u", "approvePlan: auto\nretryInterval: 1s\ndestroyResourcesOnDeletion: true")
	w.awaitReady("u")
	w.delete("u")
	w.awaitReason("u", infra.ReasonDestroyFailed)
	w.awaitEvent("u", infra.ReasonDestroyFailed)
	must(t, os.WriteFile(flag, nil, 0o600))
	w.awaitGone("u")
}

// A finalizer that the Terraform Controller left on a dependency does not keep it.
func TestFinalizersOfTheTerraformControllerAreRemoved(t *testing.T) {
	w := newWorld(t, modA())
	w.unit("u", "approvePlan: auto")
	w.awaitReady("u")
	w.change("u", func(tf *infra.Terraform) {
		tf.Finalizers = append(tf.Finalizers, infra.DependencyFinalizerPrefix+"gone")
	})
	w.delete("u")
	w.awaitGone("u")
}

// A namespace that ends takes its units along. With it goes the state, so that a
// destroy that was asked for cannot be carried out: that is said, and not passed over.
func TestNamespaceIsDeleted(t *testing.T) {
	w := newWorld(t, modA(), inSecrets)
	w.unit("kept", "approvePlan: auto\nwriteOutputsToSecret: {name: out}")
	w.unit("destroyed", "approvePlan: auto\nretryInterval: 1s\ndestroyResourcesOnDeletion: true")
	w.output("out", "o", "a")
	w.awaitReady("kept")
	w.awaitReady("destroyed")
	must(t, w.client.Delete(w.ctx(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}}))
	// What the namespace controller does in its own time and order, in the worst one.
	must(t, client.IgnoreNotFound(w.client.Delete(w.ctx(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "lock-tfstate-default-destroyed"}})))
	for _, name := range []string{"kept", "destroyed"} {
		must(t, client.IgnoreNotFound(w.client.Delete(w.ctx(), &infra.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}})))
	}
	w.awaitGone("kept")
	tf := w.awaitReason("destroyed", infra.ReasonDestroyFailed)
	if m := readyOf(tf).Message; !strings.Contains(m, "destroyResourcesOnDeletion: false") {
		t.Errorf("the message does not name the way out: %q", m)
	}
	w.change("destroyed", func(tf *infra.Terraform) { tf.Spec.DestroyResourcesOnDeletion = false })
	w.awaitGone("destroyed")
}

// A failure that is over is tried again after the retry interval.
func TestFailureIsRetriedByTime(t *testing.T) {
	flag := filepath.Join(t.TempDir(), "flag")
	w := newWorld(t, map[string]string{"main.tf": `output "f" { value = file("` + flag + `") }`})
	w.unit("u", "approvePlan: auto\nretryInterval: 1s\nretryStrategy: ExponentialBackoff\nmaxRetryInterval: 2s")
	w.await("u", "failed twice", func(tf *infra.Terraform) bool {
		return readyOf(tf).Reason == infra.ReasonPlanFailed && tf.Status.ReconciliationFailures >= 2
	})
	must(t, os.WriteFile(flag, []byte("here"), 0o600))
	tf := w.awaitReady("u")
	if tf.Status.ReconciliationFailures != 0 {
		t.Errorf("%d failures are left", tf.Status.ReconciliationFailures)
	}
}

// A unit that fails is not taken for a finished one when its object or its source
// changes in something that no plan depends on.
func TestFailedUnitStaysFailedAfterAnUnrelatedChange(t *testing.T) {
	w := newWorld(t, map[string]string{"unit/main.tf": `output "o" { value = terraform_data.nothing.id }`})
	w.unit("u", "path: ./unit\napprovePlan: auto\nretryInterval: 1h")
	w.awaitReason("u", infra.ReasonPlanFailed)
	stillFailed := func(why string, seen func(*infra.Terraform) bool) {
		t.Helper()
		tf := w.await("u", "tried again after "+why, func(tf *infra.Terraform) bool { return seen(tf) && condition(tf, "Reconciling").Type == "" })
		if readyOf(tf).Reason != infra.ReasonPlanFailed || tf.Status.ReconciliationFailures != 1 {
			t.Errorf("after %s: %d failures, Ready %+v", why, tf.Status.ReconciliationFailures, readyOf(tf))
		}
	}
	w.change("u", func(tf *infra.Terraform) { tf.Spec.Interval.Duration *= 2 })
	stillFailed("a change of the spec", func(tf *infra.Terraform) bool { return tf.Status.LastPlannedGeneration == tf.Generation })
	rev := w.commit(map[string]string{"README": "unrelated"})
	stillFailed("a commit", func(tf *infra.Terraform) bool { return tf.Status.LastAttemptedRevision == rev })
	if n := w.spawned("plan"); n != 3 {
		t.Errorf("%d attempts", n)
	}
}

// A unit that was planned at most has nothing to destroy, and no run is made to find that out:
// in a namespace that goes away it could not even take its lock.
func TestWhatWasOnlyPlannedIsNotDestroyed(t *testing.T) {
	files := map[string]string{"main.tf": moduleA}
	for name, opts := range map[string][]func(*config.Config){"in the state service": nil, "in a Secret": {inSecrets}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, files, opts...)
			w.unit("u", "approvePlan: \"\"\ndestroyResourcesOnDeletion: true")
			w.awaitPending("u")
			before := w.spawned("")
			w.delete("u")
			w.awaitGone("u")
			if n := w.spawned("") - before; n != 0 {
				t.Errorf("%d processes ran to destroy nothing", n)
			}
			// What an object of the same name has left is its, also if it never applied anything.
			w.unit("u", "approvePlan: auto")
			w.awaitReady("u")
			w.delete("u")
			w.awaitGone("u")
			w.unit("u", "approvePlan: \"\"\ndestroyResourcesOnDeletion: true")
			w.await("u", "planned", func(tf *infra.Terraform) bool { return isReady(tf) && tf.Status.LastAppliedRevision == "" })
			applies := w.spawned("apply")
			w.delete("u")
			w.awaitGone("u")
			if n := w.spawned("apply") - applies; n != 1 {
				t.Errorf("%d applies to destroy what the state holds, want one", n)
			}
		})
	}
}
