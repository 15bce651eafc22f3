// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/internal/config"
)

// What is left of the contract that Flux's own tests of kustomize-controller name.

// TestKustomizationDeletedBeforeItBegins lets an object go that never had a finalizer, or
// whose source never came.
func TestKustomizationDeletedBeforeItBegins(t *testing.T) {
	w := newWorld(t, nil)
	w.app("app", "path: ./nowhere\nprune: true\nsourceRef: {kind: GitRepository, name: none}")
	w.deleteApp("app")
	w.awaitAppGone("app")
}

// TestKustomizationGoesWithAFailingDependency deletes a unit that waits for another in vain.
func TestKustomizationGoesWithAFailingDependency(t *testing.T) {
	w := newWorld(t, nil)
	rev := w.commit(map[string]string{"a/cm.yaml": w.cm("a", nil), "b/cm.yaml": w.cm("b", nil)})
	w.app("a", "path: ./a\nprune: true")
	w.app("b", "path: ./b\nprune: true\ndependsOn: [{name: a}]")
	w.awaitAppAt("b", rev)
	w.commit(map[string]string{"a/cm.yaml": "not: [a manifest\n", "b/cm.yaml": w.cm("b", map[string]string{"k": "2"})})
	w.awaitAppReason("a", "BuildFailed")
	w.awaitAppReason("b", "DependencyNotReady")
	w.deleteApp("b")
	w.awaitAppGone("b")
	w.awaitConfigMap("b", "gone", func(cm *corev1.ConfigMap) bool { return cm == nil })
}

// TestKustomizationPrunesToNothing empties a path, and fills it again.
func TestKustomizationPrunesToNothing(t *testing.T) {
	w := newWorld(t, nil)
	w.app("app", "path: ./app\nprune: true\nwait: true")
	w.awaitAppAt("app", w.commit(map[string]string{"app/a.yaml": w.cm("a", nil), "app/README.md": "x"}))
	ks := w.awaitAppAt("app", w.commit(map[string]string{"app/a.yaml": ""}))
	if n := len(inventory(ks)); n != 0 || w.configMap("a") != nil {
		t.Errorf("%d objects in the inventory, a is %v", n, w.configMap("a"))
	}
	w.awaitAppAt("app", w.commit(map[string]string{"app/a.yaml": w.cm("a", nil)}))
	if w.configMap("a") == nil {
		t.Error("a is not back")
	}
}

// TestKustomizationKeepsWhatItCouldNotPrune tries the deletion again that a policy refused
// (kc#1664): the object stays in the inventory until it is gone.
func TestKustomizationKeepsWhatItCouldNotPrune(t *testing.T) {
	w := newWorld(t, nil)
	w.app("app", "path: ./app\nprune: true\nretryInterval: 1s")
	w.awaitAppAt("app", w.commit(map[string]string{"app/a.yaml": w.cm("a", nil), "app/b.yaml": w.cm("b", nil)}))
	name := w.ns + "-keep"
	w.applyCluster(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: ` + name + `}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [DELETE], resources: [configmaps]}]
  validations: [{expression: "oldObject.metadata.name != 'b'", message: it is kept}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: ` + name + `}
spec:
  policyName: ` + name + `
  validationActions: [Deny]
  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ` + w.ns + `}}}`)
	w.cleanCluster("ValidatingAdmissionPolicy", "admissionregistration.k8s.io/v1", name)
	w.cleanCluster("ValidatingAdmissionPolicyBinding", "admissionregistration.k8s.io/v1", name)
	w.awaitRefusal("b")
	rev := w.commit(map[string]string{"app/b.yaml": ""})
	ks := w.awaitAppReason("app", "PruneFailed")
	if m := appReady(ks).Message; !strings.Contains(m, "ConfigMap/"+w.ns+"/b") || !strings.Contains(m, "it is kept") {
		t.Errorf("message: %s", m)
	}
	if got := inventory(ks); len(got) != 2 {
		t.Errorf("inventory %v has lost what is still there", got)
	}
	for _, kind := range []string{"ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"} {
		o := &unstructured.Unstructured{}
		o.SetAPIVersion("admissionregistration.k8s.io/v1")
		o.SetKind(kind)
		o.SetName(name)
		if err := w.client.Delete(w.ctx(), o); err != nil {
			t.Fatal(err)
		}
	}
	if ks = w.awaitAppAt("app", rev); len(inventory(ks)) != 1 {
		t.Errorf("inventory %v", inventory(ks))
	}
}

// awaitRefusal asks, by dry runs, until the API server has taken note of a policy.
func (w *world) awaitRefusal(name string) {
	w.t.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
	for w.ctx().Err() == nil {
		if err := w.client.Delete(w.ctx(), cm, client.DryRunAll); err != nil {
			return
		}
	}
}

// TestKustomizationAppliesRolesFirst applies the kinds of --custom-apply-stage-kinds before
// what needs them.
func TestKustomizationAppliesRolesFirst(t *testing.T) {
	w := newWorld(t, nil, func(c *config.Config) {
		c.CustomApplyStageKinds = "rbac.authorization.k8s.io/Role,rbac.authorization.k8s.io/RoleBinding"
	})
	w.account("limited", "edit")
	w.apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: may-grant}
rules: [{apiGroups: [rbac.authorization.k8s.io], resources: [roles, rolebindings], verbs: ["*"]}, {apiGroups: [coordination.k8s.io], resources: [leases], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: may-grant}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: may-grant}
subjects: [{kind: ServiceAccount, name: limited, namespace: ` + w.ns + `}]`)
	rev := w.commit(map[string]string{
		"app/cm.yaml":   w.cm("a", nil),
		"app/role.yaml": "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: reader, namespace: " + w.ns + "}\nrules: [{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get]}]\n",
	})
	mark := w.log.mark()
	w.app("app", "path: ./app\nprune: true\nserviceAccountName: limited")
	w.awaitAppAt("app", rev)
	own, _ := w.log.since(mark)
	var order []string
	for _, r := range own {
		if strings.Contains(r.path, "fieldManager=kustomize-controller") && !strings.Contains(r.path, "dryRun") {
			order = append(order, r.path[strings.LastIndex(r.path[:strings.Index(r.path, "?")], "/")+1:strings.Index(r.path, "?")])
		}
	}
	if fmt.Sprint(order) != "[reader a]" {
		t.Errorf("applied in the order %v, want the Role first", order)
	}
}

// TestKustomizationPatchesDelete removes objects by patches of the spec, several of them.
func TestKustomizationPatchesDelete(t *testing.T) {
	w := newWorld(t, nil)
	rev := w.commit(map[string]string{"app/a.yaml": w.cm("a", nil), "app/b.yaml": w.cm("b", nil), "app/c.yaml": w.cm("c", nil)})
	patch := func(name string) string {
		return fmt.Sprintf("- patch: |\n    apiVersion: v1\n    kind: ConfigMap\n    metadata: {name: %s, namespace: %s}\n    $patch: delete\n", name, w.ns)
	}
	w.app("app", "path: ./app\nprune: true\npatches:\n"+patch("a")+patch("b"))
	ks := w.awaitAppAt("app", rev)
	if got := inventory(ks); fmt.Sprint(got) != "["+w.ns+"_c__ConfigMap]" || w.configMap("a") != nil {
		t.Errorf("inventory %v", got)
	}
}

// TestKustomizationChecksByGroup uses an expression without a kind for all kinds of a group.
func TestKustomizationChecksByGroup(t *testing.T) {
	w := newWorld(t, nil)
	crd, group := w.widgetCRD()
	w.cleanCluster("CustomResourceDefinition", "apiextensions.k8s.io/v1", "widgets."+group)
	w.applyCluster(crd)
	rev := w.commit(map[string]string{"app/w.yaml": w.widget(group, "w")})
	w.app("app", "path: ./app\nprune: true\nwait: true\nhealthCheckExprs: [{apiVersion: "+group+"/v1, current: \"status.phase == 'Up'\"}]")
	w.awaitApp("app", "waiting for the Widget", func(ks *kustomizev1.Kustomization) bool {
		return strings.Contains(appCondition(ks, "Reconciling").Message, "Widget/"+w.ns+"/w")
	})
	o := w.getWidget(group, "w")
	o.Object["status"] = map[string]any{"phase": "Up"}
	if err := w.client.Status().Update(w.ctx(), o); err != nil {
		t.Fatal(err)
	}
	w.awaitAppAt("app", rev)
}

// TestKustomizationUsesTheGlobalKeys decrypts with the keys of --sops-age-secret.
func TestKustomizationUsesTheGlobalKeys(t *testing.T) {
	w := newWorld(t, nil, func(c *config.Config) { c.SOPSAgeSecret = c.WatchNamespaces[0] + "/global" })
	fixture, err := txtar.ParseFile(filepath.Join("..", "render", "sops", "testdata", "files", "secret.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	var about struct{ Identity string }
	files := map[string]string{"app/kustomization.yaml": "namespace: " + w.ns + "\nresources: [secret.yaml]\n"}
	for _, f := range fixture.Files {
		switch f.Name {
		case "about":
			if err := json.Unmarshal(f.Data, &about); err != nil {
				t.Fatal(err)
			}
		case "encrypted":
			files["app/secret.yaml"] = string(f.Data)
		}
	}
	w.putSecret("global", map[string]string{"a.agekey": about.Identity})
	rev := w.commit(files)
	w.app("app", "path: ./app\nprune: true\ndecryption: {provider: sops}")
	w.awaitAppAt("app", rev)
	w.secret("db", func(data map[string][]byte) bool { return string(data["password"]) == "hunter2" })
}

// TestKustomizationAwaitsATarball goes on when a source's file, which was not there, is.
func TestKustomizationAwaitsATarball(t *testing.T) {
	w := newWorld(t, map[string]string{"app/cm.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"})
	w.apply("apiVersion: source.toolkit.fluxcd.io/v1\nkind: ExternalArtifact\nmetadata: {name: made}\nspec: {sourceRef: {apiVersion: example.com/v1, kind: Maker, name: m}}")
	var src sourcev1.GitRepository
	if err := w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: "src"}, &src); err != nil {
		t.Fatal(err)
	}
	set := func(url string) {
		t.Helper()
		a := src.Status.Artifact.DeepCopy()
		a.URL, a.Path = url, "elsewhere/"+a.Path
		status, err := json.Marshal(map[string]any{"status": map[string]any{"artifact": a}})
		if err != nil {
			t.Fatal(err)
		}
		ea := &sourcev1.ExternalArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "made"}}
		if err := w.client.Status().Patch(w.ctx(), ea, client.RawPatch(types.MergePatchType, status)); err != nil {
			t.Fatal(err)
		}
	}
	// Another digest than that of the Git source's artifact is not in the store, and has to be fetched.
	src.Status.Artifact.Digest = "sha256:" + strings.Repeat("0", 64)
	set(src.Status.Artifact.URL + ".gone")
	w.app("app", "path: ./app\nprune: true\nretryInterval: 1s\ntargetNamespace: "+w.ns+"\nsourceRef: {kind: ExternalArtifact, name: made}")
	ks := w.awaitAppReason("app", "ArtifactFailed")
	if m := appReady(ks).Message; !strings.Contains(m, "not found") {
		t.Errorf("message: %s", m)
	}
	if err := w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: "src"}, &src); err != nil {
		t.Fatal(err)
	}
	set(src.Status.Artifact.URL)
	w.awaitAppReady("app")
}

// TestKustomizationLeavesASuspendedChildAlone is case 21: a child that was suspended by
// hand, as terrace suspend does it, stays suspended while its parent is at work.
func TestKustomizationLeavesASuspendedChildAlone(t *testing.T) {
	w := newWorld(t, nil)
	child := func(path string) string {
		return strings.Replace(strings.TrimSpace(appManifest("child", "path: "+path+"\nprune: true\nsuspend: false")), "{name: child}", "{name: child, namespace: "+w.ns+"}", 1) + "\n"
	}
	w.commit(map[string]string{"root/child.yaml": child("./child"), "child/cm.yaml": w.cm("c", map[string]string{"k": "1"})})
	w.app("root", "path: ./root\nprune: true")
	w.awaitAppReady("child")
	w.changeApp("child", func(ks *kustomizev1.Kustomization) {
		ks.Spec.Suspend = true
		ks.Annotations = map[string]string{"kustomize.toolkit.fluxcd.io/reconcile": "disabled", "terrace.dev/suspended-by-hand": "true"}
	})
	rev := w.commit(map[string]string{"root/child.yaml": child("./child/."), "child/cm.yaml": w.cm("c", map[string]string{"k": "2"})})
	w.awaitAppAt("root", rev)
	if ks := w.ks("child"); !ks.Spec.Suspend || w.configMap("c").Data["k"] != "1" {
		t.Errorf("the child was resumed by its parent: suspend %v, %v", ks.Spec.Suspend, w.configMap("c").Data)
	}
	w.changeApp("child", func(ks *kustomizev1.Kustomization) { ks.Spec.Suspend, ks.Annotations = false, nil })
	w.awaitAppAt("child", rev)
	w.awaitConfigMap("c", "up to date", func(cm *corev1.ConfigMap) bool { return cm != nil && cm.Data["k"] == "2" })
}

// TestKustomizationDependsOnAnyKind is case 2: what dependsOn cannot name, the annotation
// does, whatever its kind; each change of it is seen at once.
func TestKustomizationDependsOnAnyKind(t *testing.T) {
	w := newWorld(t, nil)
	crd, group := w.widgetCRD()
	w.cleanCluster("CustomResourceDefinition", "apiextensions.k8s.io/v1", "widgets."+group)
	w.applyCluster(crd)
	if !w.served(group) {
		t.Fatal("the CRD is not served")
	}
	rev := w.commit(map[string]string{"app/cm.yaml": w.cm("a", nil)})
	named := func(name, ref string) string {
		return strings.Replace(appManifest(name, "path: ./app\nprune: true\nretryInterval: 1h"), "{name: "+name+"}", "{name: "+name+", annotations: {terrace.dev/depends-on: "+ref+"}}", 1)
	}
	w.apply(named("app", "Widget."+group+"/"+w.ns+"/db"))
	says := func(name, text string) {
		t.Helper()
		w.awaitApp(name, "waiting because "+text, func(ks *kustomizev1.Kustomization) bool {
			return appReady(ks).Reason == "DependencyNotReady" && strings.Contains(appReady(ks).Message, text)
		})
	}
	says("app", "it does not exist")
	w.apply(w.widget(group, "db"))
	set := func(status, message string) {
		t.Helper()
		o := w.getWidget(group, "db")
		o.Object["status"] = map[string]any{"observedGeneration": o.GetGeneration(), "conditions": []any{map[string]any{"type": "Ready", "status": status, "message": message}}}
		if err := w.client.Status().Update(w.ctx(), o); err != nil {
			t.Fatal(err)
		}
	}
	w.changeApp("app", func(ks *kustomizev1.Kustomization) { ks.Spec.Suspend = true }) // a new object says nothing of itself
	set("False", "the database starts")
	w.changeApp("app", func(ks *kustomizev1.Kustomization) { ks.Spec.Suspend = false })
	says("app", "the database starts")
	set("True", "")
	w.awaitAppAt("app", rev)

	w.apply(named("unknown", "Gadget."+group+"/"+w.ns+"/x"))
	says("unknown", "does not know kind Gadget")

	// dependsOn is Flux's, and names Kustomizations. A kind in it is refused, not dropped.
	ks := &unstructured.Unstructured{}
	ks.SetAPIVersion("kustomize.toolkit.fluxcd.io/v1")
	ks.SetKind("Kustomization")
	ks.SetNamespace(w.ns)
	ks.SetName("typed")
	ks.Object["spec"] = map[string]any{
		"interval": "1h", "prune": true, "sourceRef": map[string]any{"kind": "GitRepository", "name": "src"},
		"dependsOn": []any{map[string]any{"apiVersion": group + "/v1", "kind": "Widget", "name": "db"}},
	}
	err := w.client.Apply(w.ctx(), client.ApplyConfigurationFromUnstructured(ks), client.FieldOwner("test"))
	if err == nil || !strings.Contains(err.Error(), "field not declared in schema") {
		t.Errorf("a kind in dependsOn: %v", err)
	}
}

// served waits until Widgets of a group can be read.
func (w *world) served(group string) bool {
	w.t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("apiextensions.k8s.io/v1")
	list.SetKind("CustomResourceDefinitionList")
	return w.cluster().watch(list, named("widgets."+group), func(o client.Object) bool {
		u, ok := o.(*unstructured.Unstructured)
		if !ok {
			return false
		}
		conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
				return true
			}
		}
		return false
	})
}

// cluster is the world without a namespace.
func (w *world) cluster() *world { return &world{t: w.t, client: w.client} }

// TestKustomizationRetriesByTheNewInterval does not keep a failed unit waiting for the
// retryInterval that it had when it failed.
func TestKustomizationRetriesByTheNewInterval(t *testing.T) {
	w := newWorld(t, nil)
	w.apply("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: limited}")
	rev := w.commit(map[string]string{"app/cm.yaml": w.cm("a", nil)})
	w.app("app", "path: ./app\nprune: true\nserviceAccountName: limited\nretryInterval: 1h")
	w.awaitAppReason("app", "ReconciliationFailed")
	w.account("limited", "edit") // which no watch tells of
	w.changeApp("app", func(ks *kustomizev1.Kustomization) { ks.Spec.RetryInterval = &metav1.Duration{Duration: time.Second} })
	w.awaitAppAt("app", rev)
}

// TestKustomizationLeavesWhatBecameIgnored does not prune an object that has opted out
// since it was applied, in Git or in the cluster; neither does the end of the unit.
func TestKustomizationLeavesWhatBecameIgnored(t *testing.T) {
	w := newWorld(t, nil)
	files := map[string]string{}
	for _, name := range []string{"git", "cluster", "end", "plain"} {
		files["app/"+name+".yaml"] = w.cm(name, map[string]string{"k": "1"})
	}
	w.app("app", "path: ./app\nprune: true")
	w.awaitAppAt("app", w.commit(files))
	ignored := func(name string) string {
		return strings.Replace(w.cm(name, map[string]string{"k": "2"}), "metadata:\n", "metadata:\n  annotations: {kustomize.toolkit.fluxcd.io/ssa: Ignore}\n", 1)
	}
	w.awaitAppAt("app", w.commit(map[string]string{"app/git.yaml": ignored("git"), "app/end.yaml": ignored("end")}))
	for _, name := range []string{"cluster", "git"} {
		cm := w.configMap(name)
		if cm.Data["k"] != "1" {
			t.Errorf("%s was changed although it opts out", name)
		}
		base := cm.DeepCopy()
		cm.Annotations = map[string]string{"kustomize.toolkit.fluxcd.io/ssa": "Ignore"}
		if err := w.client.Patch(w.ctx(), cm, client.MergeFrom(base), client.FieldOwner("me")); err != nil {
			t.Fatal(err)
		}
	}
	w.awaitAppAt("app", w.commit(map[string]string{"app/git.yaml": "", "app/cluster.yaml": ""}))
	cm := w.configMap("end")
	cm.Annotations = map[string]string{"kustomize.toolkit.fluxcd.io/ssa": "Ignore"}
	if err := w.client.Update(w.ctx(), cm); err != nil {
		t.Fatal(err)
	}
	w.deleteApp("app")
	w.awaitAppGone("app")
	w.awaitConfigMap("plain", "gone", func(cm *corev1.ConfigMap) bool { return cm == nil })
	for _, name := range []string{"git", "cluster", "end"} {
		if w.configMap(name) == nil {
			t.Errorf("%s was pruned although it opts out", name)
		}
	}
}

// TestKustomizationBringsItsKinds applies a CRD together with objects of its kind, deletes
// both, and does it again: what was known of the kind is not believed for ever.
func TestKustomizationBringsItsKinds(t *testing.T) {
	w := newWorld(t, nil)
	crd, group := w.widgetCRD()
	w.cleanCluster("CustomResourceDefinition", "apiextensions.k8s.io/v1", "widgets."+group)
	rev := w.commit(map[string]string{"app/crd.yaml": crd, "app/widget.yaml": w.widget(group, "w")})
	for range 2 {
		w.app("app", "path: ./app\nprune: true\nwait: true\ndeletionPolicy: WaitForTermination")
		w.awaitAppAt("app", rev)
		if w.getWidget(group, "w") == nil {
			t.Fatal("the Widget is not there")
		}
		w.deleteApp("app")
		w.awaitAppGone("app")
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion("apiextensions.k8s.io/v1")
		list.SetKind("CustomResourceDefinitionList")
		if !w.cluster().watch(list, named("widgets."+group), func(o client.Object) bool { return o == nil }) {
			t.Fatal("the CRD is still there")
		}
	}
}

// TestKustomizationDisallowedManagers takes back what a manager has set that may set
// nothing, and leaves what others have set.
func TestKustomizationDisallowedManagers(t *testing.T) {
	w := newWorld(t, nil, func(c *config.Config) { c.OverrideManagers = []string{"stranger"} })
	first := w.commit(map[string]string{"app/c.yaml": w.cm("c", map[string]string{"k": "1"})})
	w.app("app", "path: ./app\nprune: true")
	w.awaitAppAt("app", first)
	for manager, key := range map[string]string{"stranger-cli": "extra", "injector": "kept"} {
		cm := &corev1.ConfigMap{}
		if err := w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: "c"}, cm); err != nil {
			t.Fatal(err)
		}
		base := cm.DeepCopy()
		cm.Data[key] = "by hand"
		if err := w.client.Patch(w.ctx(), cm, client.MergeFrom(base), client.FieldOwner(manager)); err != nil {
			t.Fatal(err)
		}
	}
	w.commit(map[string]string{"app/c.yaml": w.cm("c", map[string]string{"k": "2"})})
	w.awaitConfigMap("c", "without what the stranger has set", func(cm *corev1.ConfigMap) bool {
		return cm != nil && cm.Data["k"] == "2" && cm.Data["extra"] == "" && cm.Data["kept"] == "by hand"
	})
}
