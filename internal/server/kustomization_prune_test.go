// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/terrace-dev/terrace/api/v1alpha1"
)

func (w *world) deleteApp(name string) {
	w.t.Helper()
	if err := w.client.Delete(w.ctx(), &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) uidOf(name string) types.UID {
	w.t.Helper()
	cm := w.configMap(name)
	if cm == nil {
		w.t.Fatalf("ConfigMap %s does not exist", name)
	}
	return cm.UID
}

// TestKustomizationDeletion has a row for each way in which the objects go, or stay,
// with their unit.
func TestKustomizationDeletion(t *testing.T) {
	w := newWorld(t, nil)
	for name, tc := range map[string]struct {
		reason, spec string
		suspend      bool
		stays        bool
	}{
		"prune":     {"MirrorPrune follows prune: true", "prune: true", false, false},
		"noprune":   {"MirrorPrune follows prune: false", "prune: false", false, true},
		"delete":    {"Delete deletes whatever prune says", "prune: false\ndeletionPolicy: Delete", false, false},
		"wait":      {"WaitForTermination deletes too", "prune: true\ndeletionPolicy: WaitForTermination", false, false},
		"orphan":    {"Orphan leaves everything", "prune: true\ndeletionPolicy: Orphan", false, true},
		"suspended": {"a suspended unit touches nothing", "prune: true", true, true},
		"noaccount": {"without its account nothing can be deleted, and the unit goes", "prune: true\nserviceAccountName: gone", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			w.commit(map[string]string{name + "/cm.yaml": w.cm(name, map[string]string{"k": "v"})})
			if name == "noaccount" {
				w.account("gone", "edit")
			}
			w.app(name, "path: ./"+name+"\n"+tc.spec)
			w.awaitAppReady(name)
			if tc.suspend {
				w.changeApp(name, func(ks *kustomizev1.Kustomization) { ks.Spec.Suspend = true })
			}
			if name == "noaccount" {
				if err := w.client.Delete(w.ctx(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "gone"}}); err != nil {
					t.Fatal(err)
				}
			}
			w.deleteApp(name)
			w.awaitAppGone(name)
			if tc.stays {
				if w.configMap(name) == nil {
					t.Errorf("%s: the object is gone", tc.reason)
				}
				return
			}
			w.awaitConfigMap(name, "gone: "+tc.reason, func(cm *corev1.ConfigMap) bool { return cm == nil })
		})
	}
}

// account makes a ServiceAccount with a ClusterRole in the world's namespace.
func (w *world) account(name, role string) {
	w.t.Helper()
	w.apply(fmt.Sprintf("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: %[1]s}\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: %[1]s}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[2]s}\nsubjects: [{kind: ServiceAccount, name: %[1]s, namespace: %[3]s}]", name, role, w.ns))
}

// TestKustomizationMoves moves objects between units in one commit, in each of the
// ways that people do it; no object may be deleted on the way.
func TestKustomizationMoves(t *testing.T) {
	w := newWorld(t, nil)
	root := func(units ...string) map[string]string {
		files := map[string]string{"root/units.yaml": ""}
		var docs []string
		for _, u := range units {
			name, path, _ := strings.Cut(u, "=")
			docs = append(docs, strings.TrimSpace(strings.Replace(appManifest(name, "path: "+path+"\nprune: true"), "metadata: {name: "+name+"}", "metadata: {name: "+name+", namespace: "+w.ns+"}", 1)))
		}
		files["root/units.yaml"] = strings.Join(docs, "\n---\n") + "\n"
		return files
	}
	files := root("a=./a", "b=./b")
	files["a/x.yaml"], files["a/y.yaml"], files["b/z.yaml"] = w.cm("x", nil), w.cm("y", nil), w.cm("z", nil)
	rev := w.commit(files)
	w.app("root", "path: ./root\nprune: true\nwait: true")
	w.awaitAppAt("root", rev)
	x, y, z := w.uidOf("x"), w.uidOf("y"), w.uidOf("z")
	same := func(step string) {
		t.Helper()
		for name, uid := range map[string]types.UID{"x": x, "y": y, "z": z} {
			if got := w.uidOf(name); got != uid {
				t.Errorf("%s: %s was deleted and made again", step, name)
			}
		}
	}
	owner := func(name string) string { return w.configMap(name).Labels["kustomize.toolkit.fluxcd.io/name"] }

	rev = w.commit(map[string]string{"a/x.yaml": "", "b/x.yaml": w.cm("x", nil)})
	w.awaitAppAt("a", rev)
	w.awaitAppAt("b", rev)
	same("an object moves to another unit")
	if owner("x") != "b" {
		t.Errorf("x belongs to %s", owner("x"))
	}

	rev = w.commit(root("renamed=./a", "b=./b"))
	w.awaitAppAt("renamed", rev)
	w.awaitAppGone("a")
	same("a unit is renamed")

	files = root("b=./all")
	files["all/kustomization.yaml"] = "resources: [x.yaml, y.yaml, z.yaml]\n"
	files["all/x.yaml"], files["all/y.yaml"], files["all/z.yaml"] = w.cm("x", nil), w.cm("y", nil), w.cm("z", nil)
	rev = w.commit(files)
	w.awaitAppAt("b", rev)
	w.awaitAppGone("renamed")
	same("units are merged")

	files = root("b=./b", "c=./c", "d=./d")
	files["all/kustomization.yaml"], files["all/x.yaml"], files["all/y.yaml"], files["all/z.yaml"] = "", "", "", ""
	files["b/x.yaml"], files["b/z.yaml"] = "", w.cm("z", nil)
	files["c/x.yaml"], files["d/y.yaml"] = w.cm("x", nil), w.cm("y", nil)
	rev = w.commit(files)
	for _, u := range []string{"b", "c", "d"} {
		w.awaitAppAt(u, rev)
	}
	same("a unit is split")
	if owner("x") != "c" || owner("y") != "d" || owner("z") != "b" {
		t.Errorf("owners %s %s %s", owner("x"), owner("y"), owner("z"))
	}
}

// TestKustomizationPruneLimit stops a revision that would prune most of a unit until a
// person agrees to that revision.
func TestKustomizationPruneLimit(t *testing.T) {
	w := newWorld(t, nil)
	files, fewer := map[string]string{}, map[string]string{}
	for i := range 14 {
		name := fmt.Sprintf("c%02d", i)
		files["app/"+name+".yaml"] = w.cm(name, nil)
		if i >= 2 {
			fewer["app/"+name+".yaml"] = ""
		}
	}
	w.app("app", "path: ./app\nprune: true")
	w.awaitAppAt("app", w.commit(files))
	fewer["app/new.yaml"] = w.cm("new", nil)
	rev := w.commit(fewer)
	ks := w.awaitAppReason("app", v1alpha1.ReasonPruneLimit)
	if m := appReady(ks).Message; !strings.Contains(m, "12 of 14 objects") || !strings.Contains(m, "prune-approved: "+rev) {
		t.Errorf("message: %s", m)
	}
	if w.configMap("c13") == nil || w.configMap("new") != nil {
		t.Error("the revision was begun although it has to wait")
	}
	w.changeApp("app", func(ks *kustomizev1.Kustomization) {
		ks.Annotations = map[string]string{v1alpha1.PruneApprovedAnnotation: rev}
	})
	ks = w.awaitAppAt("app", rev)
	if n := len(inventory(ks)); n != 3 {
		t.Errorf("%d objects are left in the inventory, want 3", n)
	}
	w.awaitConfigMap("c13", "gone", func(cm *corev1.ConfigMap) bool { return cm == nil })
}

// TestKustomizationKeepsInhabitedNamespaces never prunes a namespace in which another
// unit's objects, or other units, live.
func TestKustomizationKeepsInhabitedNamespaces(t *testing.T) {
	w := newWorld(t, nil)
	shared, empty := w.ns+"-shared", w.ns+"-empty"
	for _, ns := range []string{shared, empty} {
		w.cleanCluster("Namespace", "v1", ns)
	}
	namespace := func(name string) string {
		return "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + name + "}\n"
	}
	w.commit(map[string]string{
		"ns/shared.yaml": namespace(shared), "ns/empty.yaml": namespace(empty), "ns/cm.yaml": w.cm("c", nil),
		"guest/cm.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: g, namespace: " + shared + "}\n",
	})
	w.app("ns", "path: ./ns\nprune: true")
	w.awaitAppReady("ns")
	w.app("guest", "path: ./guest\nprune: true")
	w.awaitAppReady("guest")
	rev := w.commit(map[string]string{"ns/shared.yaml": "", "ns/empty.yaml": ""})
	w.awaitAppAt("ns", rev)
	get := func(name string) *corev1.Namespace {
		var ns corev1.Namespace
		if err := w.client.Get(w.ctx(), client.ObjectKey{Name: name}, &ns); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		return &ns
	}
	if ns := get(shared); ns.Name == "" || ns.DeletionTimestamp != nil {
		t.Error("a namespace with another unit's object was pruned")
	}
	if ns := get(empty); ns.Name != "" && ns.DeletionTimestamp == nil {
		text, _ := yaml.Marshal(w.ks("ns"))
		t.Errorf("an empty namespace was not pruned:\n%s", text)
	}
	w.awaitEventAbout("ns", "still holds ConfigMap/"+shared+"/g")
}

// awaitEventAbout waits for an event of a Kustomization whose message has a text.
func (w *world) awaitEventAbout(name, text string) {
	w.t.Helper()
	var seen []string
	if !w.watch(&corev1.EventList{}, client.MatchingFields{"involvedObject.name": name, "involvedObject.kind": "Kustomization"}, func(o client.Object) bool {
		e, ok := o.(*corev1.Event)
		if ok {
			seen = append(seen, e.Message)
		}
		return ok && strings.Contains(e.Message, text)
	}) {
		w.t.Fatalf("%s has no event with %q; it has\n%s", name, text, strings.Join(seen, "\n"))
	}
}

// TestKustomizationSkipsWhatIsNotOurs leaves an object alone that has another owner's
// label by the time it would be pruned.
func TestKustomizationSkipsWhatIsNotOurs(t *testing.T) {
	w := newWorld(t, nil)
	w.commit(map[string]string{"app/a.yaml": w.cm("a", nil), "app/b.yaml": w.cm("b", nil)})
	w.app("app", "path: ./app\nprune: true")
	w.awaitAppReady("app")
	w.stop() // it would take the label for drift, and put its own back
	cm := w.configMap("a")
	base := cm.DeepCopy()
	cm.Labels["kustomize.toolkit.fluxcd.io/name"] = "other"
	if err := w.client.Patch(w.ctx(), cm, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
	w.deleteApp("app")
	w.start()
	w.awaitAppGone("app")
	w.awaitConfigMap("b", "gone", func(cm *corev1.ConfigMap) bool { return cm == nil })
	if w.configMap("a") == nil {
		t.Error("an object with another owner's label was pruned")
	}
}

// TestDeletionFollowsTheGraph deletes a root: what depends on something goes before it,
// over both kinds, and a namespace goes after what is in it.
func TestDeletionFollowsTheGraph(t *testing.T) {
	w := newWorld(t, nil)
	inner := w.ns + "-inner"
	w.cleanCluster("Namespace", "v1", inner)
	in := func(manifest, name string) string {
		return strings.TrimSpace(strings.Replace(manifest, "{name: "+name, "{namespace: "+w.ns+", name: "+name, 1))
	}
	app := strings.Replace(appManifest("app", "path: ./app\nprune: true"), "{name: app}", "{name: app, annotations: {terrace.dev/depends-on: Terraform/db}}", 1)
	db := `
apiVersion: infra.contrib.fluxcd.io/v1alpha2
kind: Terraform
metadata: {name: db}
spec: {interval: 1h, path: ./db, approvePlan: auto, destroyResourcesOnDeletion: true, sourceRef: {kind: GitRepository, name: src}}`
	w.commit(map[string]string{
		"root/units.yaml": strings.Join([]string{in(appManifest("base", "path: ./base\nprune: true"), "base"), in(db, "db"), in(app, "app")}, "\n---\n") + "\n",
		"base/ns.yaml":    "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + inner + "}\n",
		"app/cm.yaml":     "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: " + inner + ", finalizers: [example.com/hold]}\n",
		"db/main.tf":      moduleA,
	})
	w.app("root", "path: ./root\nprune: true")
	w.awaitAppReady("app")
	destroyed := w.spawned("destroy")
	w.deleteApp("root")
	w.awaitAppGone("app")
	w.awaitGone("db")
	w.awaitAppGone("base")
	if w.spawned("destroy") == destroyed && w.spawned("apply") == 0 {
		t.Error("the Terraform unit was not destroyed")
	}
	var ns corev1.Namespace
	if err := w.client.Get(w.ctx(), client.ObjectKey{Name: inner}, &ns); err != nil {
		t.Fatal(err) // the object's finalizer holds it
	}
	if ns.DeletionTimestamp == nil {
		t.Error("the namespace was left behind")
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: inner, Name: "c"}}
	if err := w.client.Patch(w.ctx(), cm, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
		t.Fatal(err)
	}
}
