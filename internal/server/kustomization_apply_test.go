// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/api/v1alpha1"
)

// widgetCRD is a CRD of a kind that only this namespace uses.
func (w *world) widgetCRD() (crd, group string) {
	group = w.ns + ".example.com"
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.%[1]s}
spec:
  group: %[1]s
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, group), group
}

func (w *world) widget(group, name string) string {
	return fmt.Sprintf("apiVersion: %s/v1\nkind: Widget\nmetadata: {name: %s, namespace: %s}\nspec: {size: 1}\n", group, name, w.ns)
}

func (w *world) getWidget(group, name string) *unstructured.Unstructured {
	w.t.Helper()
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(group + "/v1")
	o.SetKind("Widget")
	err := w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: name}, o)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return o
}

// cleanCluster deletes what a test left outside of its namespace.
func (w *world) cleanCluster(kind, apiVersion, name string) {
	w.t.Cleanup(func() {
		o := &unstructured.Unstructured{}
		o.SetAPIVersion(apiVersion)
		o.SetKind(kind)
		o.SetName(name)
		_ = w.client.Delete(context.Background(), o)
	})
}

func TestKustomizationStages(t *testing.T) {
	w := newWorld(t, nil)
	crd, group := w.widgetCRD()
	w.cleanCluster("CustomResourceDefinition", "apiextensions.k8s.io/v1", "widgets."+group)
	inner := w.ns + "-inner"
	w.cleanCluster("Namespace", "v1", inner)
	rev := w.commit(map[string]string{
		"app/widget.yaml": w.widget(group, "w"),
		"app/inner.yaml":  "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: " + inner + "}\n",
		"app/ns.yaml":     "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + inner + "}\n",
		"app/crd.yaml":    crd,
	})
	w.app("app", "path: ./app\nprune: true")
	ks := w.awaitAppAt("app", rev)
	want := []string{"_widgets." + group + "_apiextensions.k8s.io_CustomResourceDefinition", "_" + inner + "__Namespace", inner + "_c__ConfigMap", w.ns + "_w_" + group + "_Widget"}
	if got := inventory(ks); !slices.Equal(got, want) {
		t.Errorf("inventory %v, want %v in the order of the stages", got, want)
	}
}

// TestKustomizationUnknownKinds holds objects of a kind that nobody has installed yet,
// applies the rest, and applies them the moment that the kind is there.
func TestKustomizationUnknownKinds(t *testing.T) {
	w := newWorld(t, nil)
	crd, group := w.widgetCRD()
	w.cleanCluster("CustomResourceDefinition", "apiextensions.k8s.io/v1", "widgets."+group)
	rev := w.commit(map[string]string{"app/widget.yaml": w.widget(group, "w"), "app/cm.yaml": w.cm("a", nil)})
	w.app("app", "path: ./app\nprune: true")
	ks := w.awaitAppReason("app", v1alpha1.ReasonKindsMissing)
	if m := appReady(ks).Message; !strings.Contains(m, "Widget/"+w.ns+"/w") || !strings.Contains(m, "does not know kind Widget") {
		t.Errorf("the condition does not name what is held, and why: %s", m)
	}
	if w.configMap("a") == nil {
		t.Error("what could be applied was not")
	}
	if got := inventory(ks); !slices.Equal(got, []string{w.ns + "_a__ConfigMap"}) {
		t.Errorf("inventory %v has more than what was applied", got)
	}
	w.applyCluster(crd)
	w.awaitAppAt("app", rev)
	if w.getWidget(group, "w") == nil {
		t.Error("the held object was not applied")
	}
}

// applyCluster applies a manifest as it is.
func (w *world) applyCluster(manifest string) {
	w.t.Helper()
	w.applyTo("", manifest)
}

// TestKustomizationValidation applies nothing of a stage in which one object is refused.
func TestKustomizationValidation(t *testing.T) {
	w := newWorld(t, nil)
	bad := "apiVersion: v1\nkind: Service\nmetadata: {name: bad, namespace: " + w.ns + "}\nspec: {ports: [{port: 99999}]}\n"
	w.commit(map[string]string{"app/a.yaml": w.cm("a", nil), "app/b.yaml": w.cm("b", nil), "app/bad.yaml": bad})
	w.app("app", "path: ./app\nprune: true\nretryInterval: 1h")
	ks := w.awaitAppReason("app", "ReconciliationFailed")
	if m := appReady(ks).Message; !strings.Contains(m, "Service/"+w.ns+"/bad") || !strings.Contains(m, "spec.ports[0].port") {
		t.Errorf("the condition does not say what is wrong where: %s", m)
	}
	for _, name := range []string{"a", "b"} {
		if w.configMap(name) != nil {
			t.Errorf("%s was applied although its stage was refused", name)
		}
	}
	rev := w.commit(map[string]string{"app/bad.yaml": ""})
	w.awaitAppAt("app", rev)
}

// TestKustomizationForce recreates an object whose immutable field changes, where it
// is told to, and says which field and what to do where it is not.
func TestKustomizationForce(t *testing.T) {
	w := newWorld(t, nil)
	secret := func(v string, annotations string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: %s, annotations: {%s}}\nimmutable: true\nstringData: {k: %s}\n", w.ns, annotations, v)
	}
	rev := w.commit(map[string]string{"app/s.yaml": secret("one", "")})
	w.app("app", "path: ./app\nprune: true\nretryInterval: 1h")
	w.awaitAppAt("app", rev)
	first := w.secret("s", nil)
	w.commit(map[string]string{"app/s.yaml": secret("two", "")})
	ks := w.awaitAppReason("app", "ReconciliationFailed")
	if m := appReady(ks).Message; !strings.Contains(m, "immutable") || !strings.Contains(m, "force") || strings.Contains(m, "two") {
		t.Errorf("message: %s", m)
	}
	w.changeApp("app", func(ks *kustomizev1.Kustomization) { ks.Spec.Force = true })
	w.awaitAppReady("app")
	second := w.secret("s", func(data map[string][]byte) bool { return string(data["k"]) == "two" })
	if first.UID == second.UID {
		t.Error("the Secret was not recreated")
	}
	w.changeApp("app", func(ks *kustomizev1.Kustomization) { ks.Spec.Force = false })
	rev = w.commit(map[string]string{"app/s.yaml": secret("three", "kustomize.toolkit.fluxcd.io/force: Enabled")})
	w.awaitAppAt("app", rev)
	w.secret("s", func(data map[string][]byte) bool { return string(data["k"]) == "three" })
}

// TestKustomizationOptOuts has a row for each label or annotation by which an object
// is treated otherwise.
func TestKustomizationOptOuts(t *testing.T) {
	w := newWorld(t, nil)
	annotated := func(name, key, value, data string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s, annotations: {kustomize.toolkit.fluxcd.io/%s: %q}}\ndata: {k: %q}\n", name, w.ns, key, value, data)
	}
	w.applyTo(w.ns, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: present}\ndata: {k: old}")
	files := func(v string) map[string]string {
		return map[string]string{
			"app/ignored.yaml":  annotated("ignored", "ssa", "ignore", v),
			"app/disabled.yaml": annotated("disabled", "reconcile", "disabled", v),
			"app/present.yaml":  annotated("present", "ssa", "IfNotPresent", v),
			"app/once.yaml":     annotated("once", "ssa", "IfNotPresent", v),
			"app/kept.yaml":     annotated("kept", "prune", "Disabled", v),
			"app/plain.yaml":    w.cm("plain", map[string]string{"k": v}),
		}
	}
	w.app("app", "path: ./app\nprune: true\nwait: true")
	w.awaitAppAt("app", w.commit(files("1")))
	w.awaitAppAt("app", w.commit(files("2")))
	for name, want := range map[string]string{"ignored": "", "disabled": "", "present": "old", "once": "1", "kept": "2", "plain": "2"} {
		got := ""
		if cm := w.configMap(name); cm != nil {
			got = cm.Data["k"]
		}
		if got != want {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
	rev := w.commit(map[string]string{"app/kept.yaml": "", "app/once.yaml": "", "app/plain.yaml": w.cm("plain", map[string]string{"k": "3"})})
	w.awaitAppAt("app", rev)
	if w.configMap("kept") == nil {
		t.Error("kept was pruned although it opts out")
	}
	if w.configMap("once") != nil {
		t.Error("once was not pruned: IfNotPresent says nothing about pruning")
	}

	// An opt-out in the cluster counts as well.
	cm := w.configMap("plain")
	base := cm.DeepCopy()
	cm.Annotations = map[string]string{"kustomize.toolkit.fluxcd.io/reconcile": "disabled"}
	cm.Data["k"] = "mine"
	if err := w.client.Patch(w.ctx(), cm, client.MergeFrom(base), client.FieldOwner("me")); err != nil {
		t.Fatal(err)
	}
	w.awaitAppAt("app", w.commit(map[string]string{"app/plain.yaml": w.cm("plain", map[string]string{"k": "4"})}))
	if got := w.configMap("plain").Data["k"]; got != "mine" {
		t.Errorf("an object that opts out in the cluster has %q", got)
	}
}

// TestKustomizationTakesOver removes the traces of kubectl apply, so that what Git
// drops goes away, and keeps what others add.
func TestKustomizationTakesOver(t *testing.T) {
	w := newWorld(t, nil)
	last, _ := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap"})
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "a", Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: string(last)}},
		Data:       map[string]string{"k": "kubectl", "dropped": "by git"},
	}
	if err := w.client.Create(w.ctx(), cm, client.FieldOwner("kubectl-client-side-apply")); err != nil {
		t.Fatal(err)
	}
	rev := w.commit(map[string]string{"app/a.yaml": w.cm("a", map[string]string{"k": "git"})})
	w.app("app", "path: ./app\nprune: true")
	w.awaitAppAt("app", rev)
	got := w.configMap("a")
	if got.Data["k"] != "git" || got.Data["dropped"] != "" || got.Annotations[corev1.LastAppliedConfigAnnotation] != "" {
		t.Errorf("after the takeover: %v %v", got.Data, got.Annotations)
	}
	for _, f := range got.ManagedFields {
		if f.Manager != "kustomize-controller" {
			t.Errorf("still managed by %s", f.Manager)
		}
	}
	// Another manager's own field is its own.
	base := got.DeepCopy()
	got.Data["other"] = "theirs"
	if err := w.client.Patch(w.ctx(), got, client.MergeFrom(base), client.FieldOwner("sidecar-injector")); err != nil {
		t.Fatal(err)
	}
	w.awaitAppAt("app", w.commit(map[string]string{"app/a.yaml": w.cm("a", map[string]string{"k": "git2"})}))
	if got := w.configMap("a").Data; got["k"] != "git2" || got["other"] != "theirs" {
		t.Errorf("fields of others were not left alone: %v", got)
	}
}

// TestKustomizationIgnoreRules leaves a field to whoever sets it in the cluster.
func TestKustomizationIgnoreRules(t *testing.T) {
	w := newWorld(t, nil)
	rev := w.commit(map[string]string{"app/a.yaml": w.cm("a", map[string]string{"k": "1", "left": "git"})})
	w.app("app", "path: ./app\nprune: true\nignore: [{paths: [/data/left], target: {kind: ConfigMap}}]")
	w.awaitAppAt("app", rev)
	w.patchConfigMap("a", "left", "cluster")
	w.awaitAppAt("app", w.commit(map[string]string{"app/a.yaml": w.cm("a", map[string]string{"k": "2", "left": "git"})}))
	if got := w.configMap("a").Data; got["k"] != "2" || got["left"] != "cluster" {
		t.Errorf("data %v, want k from Git and left from the cluster", got)
	}
}

// TestKustomizationShapes applies what a spec says about the objects of its path.
func TestKustomizationShapes(t *testing.T) {
	w := newWorld(t, nil)
	rev := w.commit(map[string]string{
		"app/kustomization.yaml": "resources: [cm.yaml]\n",
		"app/cm.yaml":            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  k: ${v}\n  text: \"${quoted}\"\n",
		"extra/kustomization.yaml": `apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
patches:
- target: {kind: ConfigMap}
  patch: |
    - {op: add, path: /data/component, value: yes-it-is}
`,
	})
	w.applyTo(w.ns, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: vars}\ndata: {v: from, quoted: \"004\"}")
	w.app("app", `path: ./app
prune: true
targetNamespace: `+w.ns+`
namePrefix: pre-
nameSuffix: -post
components: [../extra]
commonMetadata: {labels: {team: blue}, annotations: {note: hi}}
patches:
- target: {kind: ConfigMap}
  patch: |
    - {op: add, path: /data/patched, value: p}
postBuild: {substitute: {v: inline}, substituteFrom: [{kind: ConfigMap, name: vars}]}
`)
	w.awaitAppAt("app", rev)
	cm := w.configMap("pre-a-post")
	if cm == nil {
		t.Fatal("the prefix or the suffix is missing")
	}
	if cm.Labels["team"] != "blue" || cm.Annotations["note"] != "hi" {
		t.Errorf("common metadata: %v %v", cm.Labels, cm.Annotations)
	}
	if want := map[string]string{"k": "inline", "text": "004", "component": "yes-it-is", "patched": "p"}; fmt.Sprint(cm.Data) != fmt.Sprint(want) {
		t.Errorf("data %v, want %v", cm.Data, want)
	}
	// A variable that changes in the cluster is applied without waiting for the interval.
	w.applyTo(w.ns, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: vars}\ndata: {v: from, quoted: \"005\"}")
	w.awaitConfigMap("pre-a-post", "substituted anew", func(cm *corev1.ConfigMap) bool { return cm != nil && cm.Data["text"] == "005" })
}

// TestKustomizationStatusDefault is what Flux's own end-to-end test asks of a new object.
func TestKustomizationStatusDefault(t *testing.T) {
	w := newWorld(t, nil)
	ks := &unstructured.Unstructured{}
	ks.SetAPIVersion("kustomize.toolkit.fluxcd.io/v1")
	ks.SetKind("Kustomization")
	ks.SetNamespace(w.ns)
	ks.SetName("new")
	ks.Object["spec"] = map[string]any{"interval": "1h", "prune": true, "suspend": true, "sourceRef": map[string]any{"kind": "GitRepository", "name": "src"}}
	if err := w.client.Create(w.ctx(), ks); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(ks.Object["status"]); got != "map[observedGeneration:-1]" {
		t.Errorf("status of a new object: %s", got)
	}
}
