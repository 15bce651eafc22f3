// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// app applies a Kustomization named name that lives on the world's source; spec is
// YAML without the fields that every case has.
func (w *world) app(name, spec string) {
	w.t.Helper()
	w.apply(appManifest(name, spec))
}

func appManifest(name, spec string) string {
	return fmt.Sprintf(`
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: %s}
spec:
  interval: 1h
  sourceRef: {kind: GitRepository, name: src}
%s`, name, indent(spec))
}

// ks reads a Kustomization.
func (w *world) ks(name string) *kustomizev1.Kustomization {
	w.t.Helper()
	var ks kustomizev1.Kustomization
	if err := w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: name}, &ks); err != nil {
		w.t.Fatal(err)
	}
	return &ks
}

// changeApp edits a Kustomization.
func (w *world) changeApp(name string, edit func(*kustomizev1.Kustomization)) {
	w.t.Helper()
	ks := w.ks(name)
	base := ks.DeepCopy()
	edit(ks)
	if err := w.client.Patch(w.ctx(), ks, client.MergeFrom(base)); err != nil {
		w.t.Fatal(err)
	}
}

// awaitApp watches a Kustomization until cond holds.
func (w *world) awaitApp(name, what string, cond func(*kustomizev1.Kustomization) bool) *kustomizev1.Kustomization {
	w.t.Helper()
	var last *kustomizev1.Kustomization
	if !w.watch(&kustomizev1.KustomizationList{}, named(name), func(o client.Object) bool {
		if o == nil {
			return false
		}
		last = o.(*kustomizev1.Kustomization)
		return cond(last)
	}) {
		text, _ := yaml.Marshal(last)
		w.t.Fatalf("%s is not %s; it is\n%s", name, what, text)
	}
	return last
}

func (w *world) awaitAppReady(name string) *kustomizev1.Kustomization {
	w.t.Helper()
	return w.awaitApp(name, "Ready", appIsReady)
}

// awaitAppAt waits until a Kustomization is Ready at a revision.
func (w *world) awaitAppAt(name, revision string) *kustomizev1.Kustomization {
	w.t.Helper()
	return w.awaitApp(name, "Ready at "+revision, func(ks *kustomizev1.Kustomization) bool {
		return appIsReady(ks) && ks.Status.LastAppliedRevision == revision
	})
}

// awaitAppReason waits for a reason of the Ready condition.
func (w *world) awaitAppReason(name, reason string) *kustomizev1.Kustomization {
	w.t.Helper()
	return w.awaitApp(name, "Ready with reason "+reason, func(ks *kustomizev1.Kustomization) bool {
		return appReady(ks).Reason == reason
	})
}

func (w *world) awaitAppGone(name string) {
	w.t.Helper()
	if !w.watch(&kustomizev1.KustomizationList{}, named(name), func(o client.Object) bool { return o == nil }) {
		text, _ := yaml.Marshal(w.ks(name))
		w.t.Fatalf("%s is still there:\n%s", name, text)
	}
}

func appReady(ks *kustomizev1.Kustomization) metav1.Condition { return appCondition(ks, "Ready") }

func appCondition(ks *kustomizev1.Kustomization, kind string) metav1.Condition {
	if c := apimeta.FindStatusCondition(ks.Status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

func appIsReady(ks *kustomizev1.Kustomization) bool {
	return appReady(ks).Status == metav1.ConditionTrue && ks.Status.ObservedGeneration == ks.Generation
}

// configMap reads a ConfigMap, nil if it does not exist.
func (w *world) configMap(name string) *corev1.ConfigMap {
	w.t.Helper()
	var cm corev1.ConfigMap
	err := w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: name}, &cm)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return &cm
}

// awaitConfigMap waits for a ConfigMap whose content satisfies cond; nil is one that
// does not exist.
func (w *world) awaitConfigMap(name, what string, cond func(*corev1.ConfigMap) bool) {
	w.t.Helper()
	var last *corev1.ConfigMap
	if !w.watch(&corev1.ConfigMapList{}, named(name), func(o client.Object) bool {
		last, _ = o.(*corev1.ConfigMap)
		return cond(last)
	}) {
		w.t.Fatalf("ConfigMap %s is not %s: %v", name, what, last)
	}
}

// cm is the manifest of a ConfigMap in the world's namespace.
func (w *world) cm(name string, content map[string]string) string {
	text, _ := yaml.Marshal(&corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}, Data: content,
	})
	return string(text)
}

// inventory lists the ids of a Kustomization's inventory.
func inventory(ks *kustomizev1.Kustomization) []string {
	var ids []string
	if ks.Status.Inventory != nil {
		for _, e := range ks.Status.Inventory.Entries {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

func TestKustomizationApplies(t *testing.T) {
	w := newWorld(t, nil)
	first := w.commit(map[string]string{
		"app/a.yaml": w.cm("a", map[string]string{"k": "1"}),
		"app/b.yaml": w.cm("b", map[string]string{"k": "1"}),
	})
	w.app("app", "path: ./app\nprune: true")
	ks := w.awaitAppAt("app", first)
	if got, want := inventory(ks), []string{w.ns + "_a__ConfigMap", w.ns + "_b__ConfigMap"}; !slices.Equal(got, want) {
		t.Errorf("inventory %v, want %v", got, want)
	}
	a := w.configMap("a")
	if a.Labels["kustomize.toolkit.fluxcd.io/name"] != "app" || a.Labels["kustomize.toolkit.fluxcd.io/namespace"] != w.ns {
		t.Errorf("labels %v do not name the unit", a.Labels)
	}
	if m := a.ManagedFields; len(m) != 1 || m[0].Manager != "kustomize-controller" || m[0].Operation != metav1.ManagedFieldsOperationApply {
		t.Errorf("managed by %v", m)
	}
	if c := appReady(ks); c.Reason != "ReconciliationSucceeded" || c.Message != "Applied revision: "+first {
		t.Errorf("Ready says %s: %s", c.Reason, c.Message)
	}
	if h := ks.Status.History; len(h) != 1 || h[0].LastReconciledStatus != "ReconciliationSucceeded" || h[0].Metadata["revision"] != first {
		t.Errorf("history %v", h)
	}
	if ks.Status.LastAttemptedRevision != first {
		t.Errorf("lastAttemptedRevision %s", ks.Status.LastAttemptedRevision)
	}

	// A commit that changes one object, drops another and brings a third.
	second := w.commit(map[string]string{
		"app/a.yaml": w.cm("a", map[string]string{"k": "2"}),
		"app/b.yaml": "",
		"app/c.yaml": w.cm("c", map[string]string{"k": "1"}),
	})
	ks = w.awaitAppAt("app", second)
	if got := w.configMap("a").Data["k"]; got != "2" {
		t.Errorf("a has %q", got)
	}
	if w.configMap("b") != nil {
		t.Error("b was not pruned")
	}
	if got, want := inventory(ks), []string{w.ns + "_a__ConfigMap", w.ns + "_c__ConfigMap"}; !slices.Equal(got, want) {
		t.Errorf("inventory %v, want %v", got, want)
	}

	// Drift is repaired when it happens, and told.
	w.patchConfigMap("a", "k", "by hand")
	w.awaitConfigMap("a", "repaired", func(cm *corev1.ConfigMap) bool { return cm != nil && cm.Data["k"] == "2" })
	w.deleteConfigMap("c")
	w.awaitConfigMap("c", "back", func(cm *corev1.ConfigMap) bool { return cm != nil })
	if !w.watch(&corev1.EventList{}, client.MatchingFields{"involvedObject.name": "app"}, func(o client.Object) bool {
		e, ok := o.(*corev1.Event)
		return ok && strings.Contains(e.Message, `data.k: "by hand" → "2"`)
	}) {
		t.Error("no event tells what drifted")
	}

	// Deleted, it takes its objects along.
	if err := w.client.Delete(w.ctx(), w.ks("app")); err != nil {
		t.Fatal(err)
	}
	w.awaitAppGone("app")
	for _, name := range []string{"a", "c"} {
		w.awaitConfigMap(name, "gone", func(cm *corev1.ConfigMap) bool { return cm == nil })
	}
}

func (w *world) patchConfigMap(name, key, value string) {
	w.t.Helper()
	cm := w.configMap(name)
	base := cm.DeepCopy()
	cm.Data[key] = value
	if err := w.client.Patch(w.ctx(), cm, client.MergeFrom(base), client.FieldOwner("kubectl-edit")); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) deleteConfigMap(name string) {
	w.t.Helper()
	if err := w.client.Delete(w.ctx(), w.configMap(name)); err != nil {
		w.t.Fatal(err)
	}
}
