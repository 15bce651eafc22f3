// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// workload is the application of Flux's benchmark: four objects.
func (w *world) workload(name, image string) map[string]string {
	dir := name + "/"
	return map[string]string{
		dir + "sa.yaml":  fmt.Sprintf("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: %s, namespace: %s}\n", name, w.ns),
		dir + "svc.yaml": fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %[1]s, namespace: %[2]s}\nspec: {selector: {app: %[1]s}, ports: [{name: http, port: 80}]}\n", name, w.ns),
		dir + "dep.yaml": w.deployment(name, image),
		dir + "ing.yaml": fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: %[1]s, namespace: %[2]s}\nspec: {rules: [{host: %[1]s.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: %[1]s, port: {name: http}}}}]}}]}\n", name, w.ns),
	}
}

// TestBudgetOfOneKustomization holds the counting budgets of a unit of four objects.
func TestBudgetOfOneKustomization(t *testing.T) {
	w := newWorld(t, nil)
	files := w.workload("warm", "v1")
	files["other/file"] = "1"
	w.commit(files)
	w.app("warm", "path: ./warm\nprune: true\nwait: true") // the kinds are known and watched after it
	w.rollOut("warm", "v1")
	w.awaitAppReady("warm")

	rev := w.commit(w.workload("u", "v1"))
	w.awaitAppAt("warm", rev)
	mark := w.log.mark()
	w.app("u", "path: ./u\nprune: true\nwait: true")
	w.rollOut("u", "v1")
	w.awaitAppAt("u", rev)
	w.awaitEventAbout("u", "Reconciliation finished")
	w.within("the first apply of four objects, with wait", mark, 10)

	mark = w.log.mark()
	rev = w.commit(map[string]string{"other/file": "2"})
	w.awaitAppAt("u", rev)
	w.awaitAppAt("warm", rev)
	w.within("an unrelated commit, two units", mark, 2)

	mark = w.log.mark()
	w.changeApp("u", func(ks *kustomizev1.Kustomization) {
		ks.Annotations = map[string]string{"reconcile.fluxcd.io/requestedAt": "now"}
	})
	ks := w.awaitApp("u", "done with the request", func(ks *kustomizev1.Kustomization) bool { return ks.Status.LastHandledReconcileAt == "now" })
	w.within("a requested reconcile without a change", mark, 1)
	if !appIsReady(ks) {
		t.Errorf("after the request: %v", appReady(ks))
	}

	mark = w.log.mark()
	rev = w.commit(w.workload("u", "v2"))
	w.rollOut("u", "v2")
	w.awaitAppAt("u", rev)
	w.awaitAppAt("warm", rev)
	// One apply, one status and one event of the unit, one status of the other.
	w.within("a commit that changes one object of one unit", mark, 4)

	mark = w.log.mark()
	w.restart()
	w.changeApp("u", func(ks *kustomizev1.Kustomization) {
		ks.Annotations = map[string]string{"reconcile.fluxcd.io/requestedAt": "after the restart"}
	})
	w.awaitApp("u", "done with the request", func(ks *kustomizev1.Kustomization) bool {
		return ks.Status.LastHandledReconcileAt == "after the restart"
	})
	own, _ := w.log.since(mark)
	for _, r := range own {
		if r.verb == "PATCH" && !strings.Contains(r.path, "/kustomizations/u/status") && !strings.Contains(r.path, "/gitrepositories/") {
			t.Errorf("a restart without a change made the request %s %s", r.verb, r.path)
		}
	}
}

// TestBudgetOfAMonorepo is case 17: of a hundred units in one repository a commit to
// one path is applied by one.
func TestBudgetOfAMonorepo(t *testing.T) {
	const units = 100
	w := newWorld(t, nil)
	files := map[string]string{}
	for i := range units {
		files[fmt.Sprintf("apps/%d/cm.yaml", i)] = w.cm(fmt.Sprintf("app-%d", i), map[string]string{"k": "1"})
	}
	rev := w.commit(files)
	for i := range units {
		w.app(fmt.Sprintf("app-%d", i), fmt.Sprintf("path: ./apps/%d\nprune: true", i))
	}
	for i := range units {
		w.awaitAppAt(fmt.Sprintf("app-%d", i), rev)
	}
	mark := w.log.mark()
	rev = w.commit(map[string]string{"apps/7/cm.yaml": w.cm("app-7", map[string]string{"k": "2"})})
	for i := range units {
		w.awaitAppAt(fmt.Sprintf("app-%d", i), rev)
	}
	own, _ := w.log.since(mark)
	applied, statuses := 0, 0
	for _, r := range own {
		switch {
		case strings.Contains(r.path, "fieldManager=kustomize-controller"):
			applied++
		case strings.Contains(r.path, "/kustomizations/") && strings.Contains(r.path, "/status"):
			statuses++
		}
	}
	if applied != 1 || statuses > units {
		t.Errorf("a commit to one path made %d applies and %d status writes of %d units; want 1 and at most one each", applied, statuses, units)
	}
	if got := w.configMap("app-7").Data["k"]; got != "2" {
		t.Errorf("app-7 has %q", got)
	}
}

// TestKustomizationRoot is M3: one Kustomization brings up a whole tree of sources,
// Terraform units and Kustomizations.
func TestKustomizationRoot(t *testing.T) {
	w := newWorld(t, nil)
	stack := fmt.Sprintf(`
apiVersion: infra.contrib.fluxcd.io/v1alpha2
kind: Terraform
metadata: {name: network}
spec: {interval: 1h, path: ./infra/network, approvePlan: auto, sourceRef: {kind: GitRepository, name: flux-system}, writeOutputsToSecret: {name: network}}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: apps}
spec: {interval: 1h, url: "file://%s", ref: {branch: main}}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata:
  name: apps
  annotations: {terrace.dev/depends-on: Terraform/network}
spec:
  interval: 1h
  path: ./apps
  prune: true
  targetNamespace: %s
  sourceRef: {kind: GitRepository, name: apps}
  postBuild: {substituteFrom: [{kind: Secret, name: network}]}
`, w.repo, w.ns)
	w.commit(map[string]string{
		"clusters/production/kustomization.yaml": "namespace: " + w.ns + "\nresources: [stack.yaml]\n",
		"clusters/production/stack.yaml":         strings.TrimSpace(stack) + "\n",
		"infra/network/main.tf":                  moduleA,
		"apps/cm.yaml":                           "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: app\ndata:\n  network: ${o}\n",
	})
	w.apply(fmt.Sprintf("apiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata: {name: flux-system}\nspec: {interval: 1h, url: \"file://%s\", ref: {branch: main}}", w.repo))
	w.apply(`
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: flux-system}
spec: {interval: 10m, path: ./clusters/production, prune: true, wait: true, sourceRef: {kind: GitRepository, name: flux-system}}`)
	w.awaitAppReady("flux-system")
	w.awaitConfigMap("app", "deployed with the network's output", func(cm *corev1.ConfigMap) bool { return cm != nil && cm.Data["network"] == "a" })
	w.deleteApp("flux-system")
	w.awaitAppGone("flux-system")
	w.awaitAppGone("apps")
	w.awaitConfigMap("app", "gone with its unit", func(cm *corev1.ConfigMap) bool { return cm == nil })
}

// TestKustomizationFleets reconciles real manifests, each overlay as a unit of its own.
func TestKustomizationFleets(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", "..", "..", "shared", "fleets"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(root); err != nil {
		t.Skip("the real manifests are not beside this repository")
	}
	w := newWorld(t, nil)
	if err := os.CopyFS(filepath.Join(w.repo, "fleets"), os.DirFS(root)); err != nil {
		t.Fatal(err)
	}
	rev := w.commit(nil)
	paths := map[string]int{
		"podinfo/deploy/overlays/dev": 25, "podinfo/deploy/overlays/staging": 25, "podinfo/deploy/overlays/production": 25,
		"podinfo/deploy/webapp": 0, "podinfo/deploy/secure": 0, "microservices-demo/kustomize": 35,
	}
	components, err := filepath.Glob(filepath.Join(root, "microservices-demo/kustomize/components/*"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]int{}
	n := 0
	unit := func(path, components string, want int) {
		n++
		name := fmt.Sprintf("fleet-%02d", n)
		target := w.ns + fmt.Sprintf("-f%02d", n)
		w.applyTo("", "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+target+"}")
		w.cleanCluster("Namespace", "v1", target)
		// The overlays have a Namespace of their own, which a target namespace renames.
		w.app(name, "prune: false\npath: ./fleets/"+path+"\ntargetNamespace: "+target+components)
		names[name] = want
	}
	for path, want := range paths {
		unit(path, "", want)
	}
	for _, c := range components {
		switch filepath.Base(c) {
		case "service-mesh-istio", "shopping-assistant", "alloydb", "spanner":
			continue // kinds of other CRDs, or patches for a fork of the base
		}
		unit("microservices-demo/kustomize", "\ncomponents: [components/"+filepath.Base(c)+"]", 1)
	}
	for name, want := range names {
		ks := w.awaitApp(name, "applied as far as the kinds are there", func(ks *kustomizev1.Kustomization) bool {
			return appIsReady(ks) && ks.Status.LastAppliedRevision == rev || appReady(ks).Reason == "KindsMissing"
		})
		if reason := appReady(ks).Reason; reason == "KindsMissing" && ks.Spec.Path != "./fleets/podinfo/deploy/secure" {
			t.Errorf("%s: %s", ks.Spec.Path, appReady(ks).Message) // that one needs cert-manager
		}
		if got := len(inventory(ks)); want > 1 && got < want || got == 0 {
			t.Errorf("%s (%s, %v) has %d objects, want %d", name, ks.Spec.Path, ks.Spec.Components, got, want)
		}
	}
}

// TestKustomizationApproval shows the plan of a unit that asks for it, waits, and
// applies what was approved and nothing else.
func TestKustomizationApproval(t *testing.T) {
	w := newWorld(t, nil)
	w.commit(map[string]string{"app/a.yaml": w.cm("a", map[string]string{"k": "1"}), "app/b.yaml": w.cm("b", nil)})
	w.apply(strings.Replace(appManifest("app", "path: ./app\nprune: true"), "{name: app}", "{name: app, annotations: {terrace.dev/approve: manual}}", 1))
	pending := func(not string) string {
		t.Helper()
		ks := w.awaitApp("app", "waiting for an approval", func(ks *kustomizev1.Kustomization) bool {
			return appReady(ks).Reason == "PlanWaiting" && (not == "" || !strings.Contains(appReady(ks).Message, not))
		})
		fields := strings.Fields(appReady(ks).Message)
		return fields[slices.Index(fields, "plan")+1]
	}
	approve := func(id string) {
		t.Helper()
		w.changeApp("app", func(ks *kustomizev1.Kustomization) { ks.Annotations["terrace.dev/approved-plan"] = id })
	}
	first := pending("")
	if w.configMap("a") != nil {
		t.Fatal("something was applied without an approval")
	}
	// Another commit makes another plan; the approval of the old one does not hold for it.
	rev := w.commit(map[string]string{"app/a.yaml": w.cm("a", map[string]string{"k": "2"})})
	second := pending(first)
	approve(first)
	w.awaitApp("app", "still waiting", func(ks *kustomizev1.Kustomization) bool {
		return ks.Annotations["terrace.dev/approved-plan"] == first && strings.Contains(appReady(ks).Message, second)
	})
	if w.configMap("a") != nil {
		t.Fatal("a plan was applied that nobody approved")
	}
	approve(second)
	w.awaitAppAt("app", rev)
	if got := w.configMap("a").Data["k"]; got != "2" {
		t.Errorf("a has %q", got)
	}
	// Drift and prunes wait as well; an approved plan is approved once.
	w.patchConfigMap("a", "k", "by hand")
	third := pending(second)
	if got := w.configMap("a").Data["k"]; got != "by hand" {
		t.Error("drift was repaired without an approval")
	}
	approve(third)
	w.awaitConfigMap("a", "repaired", func(cm *corev1.ConfigMap) bool { return cm.Data["k"] == "2" })
	w.awaitAppReady("app")
	rev = w.commit(map[string]string{"app/b.yaml": ""})
	fourth := pending(third)
	if w.configMap("b") == nil {
		t.Error("an object was pruned without an approval")
	}
	approve(fourth)
	w.awaitAppAt("app", rev)
	w.awaitConfigMap("b", "gone", func(cm *corev1.ConfigMap) bool { return cm == nil })
}

// TestKustomizationSurvivesKill kills Terrace while it applies, again and again, with
// commits that add and drop objects: in the end the cluster is what Git says, nothing
// else is left of the unit, and the inventory is complete.
func TestKustomizationSurvivesKill(t *testing.T) {
	w := newWorld(t, nil)
	w.stop()
	object := func(round, i int) string { return fmt.Sprintf("o-%d-%d", round, i) }
	w.app("app", "path: ./app\nprune: true\nretryInterval: 1s")
	var rev string
	const rounds, objects = 6, 8
	for round := range rounds {
		files := map[string]string{}
		for i := range objects {
			name := object(round, i)
			files["app/"+name+".yaml"] = w.cm(name, nil)
			if round > 0 {
				files["app/"+object(round-1, i)+".yaml"] = ""
			}
		}
		rev = w.commit(files)
		p := w.startProcess()
		// It is killed when an object of the round is there, which is in the middle.
		w.awaitConfigMap(object(round, round), "applied", func(cm *corev1.ConfigMap) bool { return cm != nil })
		p.kill()
	}
	w.startProcess()
	ks := w.awaitAppAt("app", rev)
	var list corev1.ConfigMapList
	if err := w.client.List(w.ctx(), &list, client.InNamespace(w.ns), client.HasLabels{"kustomize.toolkit.fluxcd.io/name"}); err != nil {
		t.Fatal(err)
	}
	var live []string
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp == nil {
			live = append(live, w.ns+"_"+list.Items[i].Name+"__ConfigMap")
		}
	}
	slices.Sort(live)
	got := inventory(ks)
	slices.Sort(got)
	if !slices.Equal(live, got) || len(got) != objects {
		t.Errorf("%d objects are left, %d in the inventory, want %d:\n%v\n%v", len(live), len(got), objects, live, got)
	}
}
