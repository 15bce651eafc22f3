// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/internal/config"
)

// repository reads a repository of testdata/repos, with this test's namespaces and path.
func (w *world) repository(name string) map[string]string {
	w.t.Helper()
	files := map[string]string{}
	replace := strings.NewReplacer("NAMESPACE", w.ns, "REPOSITORY", w.repo)
	root := os.DirFS("testdata/repos/" + name)
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(root, path)
		files[path] = replace.Replace(string(content))
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return files
}

// appIn returns a Kustomization of another namespace once its Ready condition has a reason.
func (w *world) appIn(namespace, name, reason string) *kustomizev1.Kustomization {
	w.t.Helper()
	other := *w
	other.ns = namespace
	return other.awaitAppReason(name, reason)
}

// TestRepositoryOfEnvironments brings up a cluster from a repository with overlays, and
// then the other environment in its place, and looks at what Flux would have made.
func TestRepositoryOfEnvironments(t *testing.T) {
	w := newWorld(t, nil)
	for _, ns := range []string{"-system", "-shop"} {
		w.cleanCluster("Namespace", "v1", w.ns+ns)
	}
	w.cleanCluster("CustomResourceDefinition", "apiextensions.k8s.io/v1", "backups."+w.ns+".example.com")
	rev := w.commit(w.repository("environments"))
	w.app("flux-system", "path: ./clusters/production\nprune: true\nwait: true")
	for _, name := range []string{"infra-controllers", "infra-configs", "apps", "flux-system"} {
		w.awaitAppAt(name, rev)
	}
	get := func(o client.Object, name string) {
		t.Helper()
		if err := w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns + "-shop", Name: name}, o); err != nil {
			t.Fatal(err)
		}
	}
	var d appsv1.Deployment
	get(&d, "shop")
	c := d.Spec.Template.Spec.Containers[0]
	if *d.Spec.Replicas != 3 || c.Image != "registry.example.com/shop:1.9.4" {
		t.Errorf("production has %d replicas of %s", *d.Spec.Replicas, c.Image)
	}
	generated := c.EnvFrom[0].ConfigMapRef.Name
	var cm corev1.ConfigMap
	get(&cm, generated)
	if cm.Data["ENVIRONMENT"] != "production" || cm.Data["LOG_LEVEL"] != "warn" {
		t.Errorf("%s: %v", generated, cm.Data)
	}
	want := map[string]string{"app.kubernetes.io/part-of": "shop", "kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": w.ns}
	for k, v := range want {
		if d.Labels[k] != v {
			t.Errorf("label %s is %q, want %q", k, d.Labels[k], v)
		}
	}
	ids := inventory(w.ks("infra-controllers"))
	for _, id := range []string{"__" + w.ns + "__backup_rbac.authorization.k8s.io_ClusterRole", "_" + w.ns + "-critical_scheduling.k8s.io_PriorityClass"} {
		// A colon in the name of a role is written as two underscores.
		if !slices.Contains(ids, id) && !slices.Contains(ids, strings.TrimPrefix(id, "_")) {
			t.Errorf("inventory %v lacks %s", ids, id)
		}
	}

	// The cluster becomes staging: the generated ConfigMap is another, the old one is pruned.
	w.changeApp("flux-system", func(ks *kustomizev1.Kustomization) { ks.Spec.Path = "./clusters/staging" })
	w.awaitApp("apps", "at the path of staging", func(ks *kustomizev1.Kustomization) bool {
		return ks.Spec.Path == "./apps/staging" && appIsReady(ks)
	})
	get(&d, "shop")
	if *d.Spec.Replicas != 1 || !strings.HasSuffix(d.Spec.Template.Spec.Containers[0].Image, ":2.0.0-rc1") {
		t.Errorf("staging has %d replicas of %s", *d.Spec.Replicas, d.Spec.Template.Spec.Containers[0].Image)
	}
	if err := w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns + "-shop", Name: generated}, &cm); !apierrors.IsNotFound(err) && cm.DeletionTimestamp == nil {
		t.Errorf("the ConfigMap of production is still there: %v", err)
	}
}

// TestRepositoryOfTenants keeps a tenant within its namespace and its account.
func TestRepositoryOfTenants(t *testing.T) {
	w := newWorld(t, nil, func(c *config.Config) {
		ns := c.WatchNamespaces[0]
		c.WatchNamespaces = append(c.WatchNamespaces, ns+"-blue", ns+"-red")
		c.NoCrossNamespaceRefs = true
		c.DefaultServiceAccount = "nobody"
	})
	w.account("nobody", "view")
	w.apply(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: platform}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: ` + w.ns + `-platform}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: platform, namespace: ` + w.ns + `}]`)
	w.cleanCluster("ClusterRoleBinding", "rbac.authorization.k8s.io/v1", w.ns+"-platform")
	blue, red := w.ns+"-blue", w.ns+"-red"
	for _, ns := range []string{blue, red} {
		w.cleanCluster("Namespace", "v1", ns)
	}
	w.commit(w.repository("tenants"))
	w.app("tenants", "path: ./tenants\nprune: true\nserviceAccountName: platform")
	w.awaitAppReady("tenants")
	w.appIn(blue, "blue", "ReconciliationSucceeded")
	var cm corev1.ConfigMap
	if err := w.client.Get(w.ctx(), client.ObjectKey{Namespace: blue, Name: "blue"}, &cm); err != nil {
		t.Error(err)
	}
	ks := w.appIn(red, "red", "ReconciliationFailed")
	if m := appReady(ks).Message; !strings.Contains(m, "ClusterRoleBinding") || !strings.Contains(m, "system:serviceaccount:"+red+":red") {
		t.Errorf("message: %s", m)
	}
	var binding rbacv1.ClusterRoleBinding
	if err := w.client.Get(w.ctx(), client.ObjectKey{Name: red + "-admin"}, &binding); !apierrors.IsNotFound(err) {
		t.Errorf("the tenant gave itself the cluster: %v", err)
	}
	if ks := w.appIn(red, "stolen", "AccessDenied"); appCondition(ks, "Stalled").Status != "True" {
		t.Error("a source of another namespace is not refused for good")
	}
	ks = w.appIn(red, "noaccount", "ReconciliationFailed")
	if m := appReady(ks).Message; !strings.Contains(m, "system:serviceaccount:"+red+":nobody") {
		t.Errorf("a unit without an account does not act as the default one: %s", m)
	}
}

// TestRepositoryOfTwoHundredApps reconciles a monorepo with an overlay for each app.
func TestRepositoryOfTwoHundredApps(t *testing.T) {
	const apps = 200
	w := newWorld(t, nil)
	files := map[string]string{
		"base/kustomization.yaml": "resources: [cm.yaml]\n",
		"base/cm.yaml":            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: app}\ndata: {owner: platform}\n",
	}
	var units []string
	for i := range apps {
		dir := fmt.Sprintf("apps/app-%03d/", i)
		files[dir+"kustomization.yaml"] = fmt.Sprintf("namespace: %s\nnamePrefix: a%03d-\nresources: [../../base]\npatches:\n- target: {kind: ConfigMap}\n  patch: |\n    - {op: add, path: /data/number, value: \"%d\"}\n", w.ns, i, i)
		unit := appManifest(fmt.Sprintf("app-%03d", i), "prune: true\npath: ./"+dir)
		units = append(units, strings.TrimSpace(unit))
	}
	files["root/kustomization.yaml"] = "namespace: " + w.ns + "\nresources: [units.yaml]\n"
	files["root/units.yaml"] = strings.Join(units, "\n---\n") + "\n"
	rev := w.commit(files)
	w.app("root", "path: ./root\nprune: true\nwait: true")
	w.awaitAppAt("root", rev)
	mark := w.log.mark()
	rev = w.commit(map[string]string{"base/cm.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: app}\ndata: {owner: someone-else}\n"})
	for i := range apps {
		w.awaitAppAt(fmt.Sprintf("app-%03d", i), rev)
	}
	own, _ := w.log.since(mark)
	applied := 0
	for _, r := range own {
		if strings.Contains(r.path, "fieldManager=kustomize-controller") && !strings.Contains(r.path, "dryRun") {
			applied++
		}
	}
	if applied != apps {
		t.Errorf("a commit to the base made %d applies, want one for each of %d apps", applied, apps)
	}
	if got := w.configMap("a123-app"); got == nil || got.Data["owner"] != "someone-else" || got.Data["number"] != "123" {
		t.Errorf("a123-app: %v", got)
	}
}
