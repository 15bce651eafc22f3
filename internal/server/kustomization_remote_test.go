// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/internal/config"
	"github.com/terrace-dev/terrace/internal/testenv"
)

// leash runs a program until it ends or its own standard input does, which is when the
// test process ends, however that comes about.
const leash = `exec 3<&0
"$@" 3<&- </dev/null &
p=$!
(cat <&3; kill $p) >/dev/null 2>&1 &
wait $p`

// elsewhere starts a second API server. It returns the world's namespace there, and the
// kubeconfig that leads to it.
func (w *world) elsewhere() (far *world, kubeconfig string) {
	w.t.Helper()
	dir := privateDir(w.t)
	cmd := exec.Command("sh", "-c", leash, "sh", filepath.Join(testenv.Root(w.t), "bin", "terrace"),
		"up", "--without-controllers", "--data-dir", dir, "--api-address", "127.0.0.1:0")
	input, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	ended := make(chan struct{})
	ready := make(chan bool, 1)
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "Terrace is ready") {
				ready <- true
			}
		}
		ready <- false
	}()
	w.t.Cleanup(func() {
		_ = input.Close()
		<-ended
		_ = cmd.Wait()
	})
	if !<-ready {
		w.t.Fatalf("the second API server has ended:\n%s", log.String())
	}
	path := filepath.Join(dir, "kubeconfig")
	raw, err := os.ReadFile(path)
	if err != nil {
		w.t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(raw)
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: testenv.Scheme()})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := c.Create(w.ctx(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}}); err != nil {
		w.t.Fatal(err)
	}
	return &world{t: w.t, client: c, api: config, ns: w.ns}, string(raw)
}

// TestKustomizationInAnotherCluster applies to an API server that is not the one of the
// units: health, drift, pruning, accounts and the end of a unit are all seen there, and
// here is nothing of it.
func TestKustomizationInAnotherCluster(t *testing.T) {
	w := newWorld(t, nil)
	far, kubeconfig := w.elsewhere()
	w.putSecret("far", map[string]string{"value.yaml": kubeconfig})
	rev := w.commit(map[string]string{
		"app/a.yaml":     w.cm("a", map[string]string{"k": "1"}),
		"app/b.yaml":     w.cm("b", map[string]string{"k": "1"}),
		"app/d.yaml":     w.deployment("d", "one"),
		"tenant/cm.yaml": w.cm("t", nil),
	})
	w.applyTo(w.ns, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\ndata: {k: here}")
	w.app("app", "path: ./app\nprune: true\nwait: true\ntimeout: 10m\nkubeConfig: {secretRef: {name: far}}")
	w.awaitApp("app", "waiting for the Deployment there", func(ks *kustomizev1.Kustomization) bool {
		return strings.Contains(appCondition(ks, "Reconciling").Message, "Deployment/"+w.ns+"/d")
	})
	far.rollOut("d", "one")
	ks := w.awaitAppAt("app", rev)
	if got := len(inventory(ks)); got != 3 {
		t.Errorf("inventory %v", inventory(ks))
	}
	if w.configMap("a") != nil || w.configMap("b").Data["k"] != "here" {
		t.Errorf("an object of the other cluster is in this one: a %v, b %v", w.configMap("a"), w.configMap("b"))
	}
	far.patchConfigMap("a", "k", "by hand")
	far.awaitConfigMap("a", "repaired", func(cm *corev1.ConfigMap) bool { return cm != nil && cm.Data["k"] == "1" })
	far.deleteConfigMap("b")
	far.awaitConfigMap("b", "back", func(cm *corev1.ConfigMap) bool { return cm != nil && cm.Data["k"] == "1" })
	w.awaitAppReady("app")

	w.awaitAppAt("app", w.commit(map[string]string{"app/b.yaml": ""}))
	far.awaitConfigMap("b", "pruned", func(cm *corev1.ConfigMap) bool { return cm == nil })
	if w.configMap("b") == nil {
		t.Error("the object of that name in this cluster was pruned")
	}

	// A unit here and one there want objects of the same names: neither hands anything over.
	same := func(dir string) map[string]string {
		return map[string]string{dir + "/x.yaml": w.cm("x", map[string]string{"for": dir}), dir + "/y.yaml": w.cm("y", map[string]string{"for": dir})}
	}
	w.commit(same("here"))
	rev = w.commit(same("there"))
	w.app("here", "path: ./here\nprune: true")
	w.app("there", "path: ./there\nprune: true\nkubeConfig: {secretRef: {name: far}}")
	w.awaitAppAt("here", rev)
	w.awaitAppAt("there", rev)
	if near, distant := w.configMap("x").Data["for"], far.configMap("x").Data["for"]; near != "here" || distant != "there" {
		t.Errorf("x is for %q and %q", near, distant)
	}
	rev = w.commit(map[string]string{"here/x.yaml": ""})
	w.awaitAppAt("here", rev)
	w.awaitAppAt("there", rev)
	if w.configMap("x") != nil || far.configMap("x") == nil {
		t.Errorf("after it was dropped here, x is %v here and %v there", w.configMap("x"), far.configMap("x"))
	}
	w.deleteApp("there")
	w.awaitAppGone("there")
	far.awaitConfigMap("y", "gone", func(cm *corev1.ConfigMap) bool { return cm == nil })
	if w.configMap("y") == nil {
		t.Error("y went here with the unit there")
	}

	// An account is one of the other cluster.
	w.account("limited", "edit")
	w.app("tenant", "path: ./tenant\nprune: true\nserviceAccountName: limited\nretryInterval: 1s\nkubeConfig: {secretRef: {name: far}}")
	ks = w.awaitAppReason("tenant", "ReconciliationFailed")
	if m := appReady(ks).Message; !strings.Contains(m, "system:serviceaccount:"+w.ns+":limited") || !strings.Contains(m, "forbidden") {
		t.Errorf("message: %s", m)
	}
	far.account("limited", "edit")
	w.awaitAppReady("tenant")
	if err := w.client.Delete(w.ctx(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "limited"}}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tenant", "app"} {
		w.deleteApp(name)
		w.awaitAppGone(name)
	}
	for _, name := range []string{"t", "a"} {
		far.awaitConfigMap(name, "gone", func(cm *corev1.ConfigMap) bool { return cm == nil })
	}
}

// TestKustomizationByAccountToken applies to a cluster by a ConfigMap that says where it
// is, with a token of a ServiceAccount of the unit's namespace; no key is stored.
func TestKustomizationByAccountToken(t *testing.T) {
	w := newWorld(t, nil)
	w.account("deployer", "edit")
	// To see drift it has to watch, and Terrace watches all namespaces of a cluster at once.
	reader := w.ns + "-deployer"
	w.applyCluster("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: " + reader + "}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}\nsubjects: [{kind: ServiceAccount, name: deployer, namespace: " + w.ns + "}]")
	w.cleanCluster("ClusterRoleBinding", "rbac.authorization.k8s.io/v1", reader)
	// The audience that this API server wants is not its address.
	request := &authenticationv1.TokenRequest{}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "deployer"}}
	if err := w.client.SubResource("token").Create(w.ctx(), account, request); err != nil {
		t.Fatal(err)
	}
	target := func(name, serviceAccount, more string) {
		w.applyTo(w.ns, fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata:\n  provider: generic\n  address: %s\n  ca.crt: %q\n  serviceAccountName: %s\n%s",
			name, w.api.Host, string(w.api.CAData), serviceAccount, more))
	}
	audiences := fmt.Sprintf("  audiences: %q\n", strings.Join(request.Spec.Audiences, "\n"))
	rev := w.commit(map[string]string{
		"app/cm.yaml":    w.cm("a", map[string]string{"k": "1"}),
		"other/cm.yaml":  w.cm("other", nil),
		"role/role.yaml": "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: " + w.ns + "}\nrules: []\n",
	})
	target("target", "nobody", audiences)
	w.app("app", "path: ./app\nprune: true\nwait: true\nretryInterval: 1h\nkubeConfig: {configMapRef: {name: target}}")
	ks := w.awaitAppReason("app", "ReconciliationFailed")
	if m := appReady(ks).Message; !strings.Contains(m, "ConfigMap '"+w.ns+"/target'") || !strings.Contains(m, w.ns+"/nobody") {
		t.Errorf("message: %s", m)
	}
	mark := w.log.mark()
	target("target", "deployer", audiences) // the change is enough
	w.awaitAppAt("app", rev)
	if w.configMap("a") == nil {
		t.Fatal("nothing was applied")
	}
	w.patchConfigMap("a", "k", "by hand")
	w.awaitConfigMap("a", "repaired", func(cm *corev1.ConfigMap) bool { return cm != nil && cm.Data["k"] == "1" })
	tokens := 0
	own, _ := w.log.since(mark)
	for _, r := range own {
		if strings.Contains(r.path, "/serviceaccounts/deployer/token") {
			tokens++
		}
	}
	if tokens != 1 {
		t.Errorf("%d tokens were fetched; one holds for all requests", tokens)
	}

	// It can do what the account may, and no more.
	w.app("role", "path: ./role\nprune: true\nretryInterval: 1h\nkubeConfig: {configMapRef: {name: target}}")
	ks = w.awaitAppReason("role", "ReconciliationFailed")
	if m := appReady(ks).Message; !strings.Contains(m, "system:serviceaccount:"+w.ns+":deployer") || !strings.Contains(m, "clusterroles") {
		t.Errorf("message: %s", m)
	}
	for name, tc := range map[string]struct{ content, says string }{
		"none":    {"", "not found"},
		"unknown": {"provider: elsewhere", "elsewhere"},
	} {
		if tc.content != "" {
			w.applyTo(w.ns, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "+name+"}\ndata: {"+tc.content+"}")
		}
		w.app(name, "path: ./other\nprune: true\nretryInterval: 1h\nkubeConfig: {configMapRef: {name: "+name+"}}")
		ks := w.awaitAppReason(name, "ReconciliationFailed")
		if m := appReady(ks).Message; !strings.Contains(m, w.ns+"/"+name) || !strings.Contains(m, tc.says) {
			t.Errorf("%s: message: %s", name, m)
		}
	}
	w.deleteApp("app")
	w.awaitAppGone("app")
	w.awaitConfigMap("a", "gone", func(cm *corev1.ConfigMap) bool { return cm == nil })
}

// TestKustomizationByDefaultAccountToken never sends Terrace's own token to a server that
// a ConfigMap names, where there is a default account.
func TestKustomizationByDefaultAccountToken(t *testing.T) {
	w := newWorld(t, nil, func(c *config.Config) { c.DefaultServiceAccount = "tenant" })
	w.account("tenant", "edit")
	issued := &authenticationv1.TokenRequest{}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "tenant"}}
	if err := w.client.SubResource("token").Create(w.ctx(), account, issued); err != nil {
		t.Fatal(err)
	}
	rev := w.commit(map[string]string{"unnamed/cm.yaml": w.cm("unnamed", nil), "empty/cm.yaml": w.cm("empty", nil)})
	for name, line := range map[string]string{"unnamed": "", "empty": "  serviceAccountName: \"\"\n"} {
		w.applyTo(w.ns, fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: target-%s}\ndata:\n  provider: generic\n  address: %s\n  ca.crt: %q\n  audiences: %q\n%s",
			name, w.api.Host, string(w.api.CAData), strings.Join(issued.Spec.Audiences, "\n"), line))
		mark := w.log.mark()
		w.app(name, "path: ./"+name+"\nprune: true\nretryInterval: 1h\nkubeConfig: {configMapRef: {name: target-"+name+"}}")
		w.awaitAppAt(name, rev)
		own, _ := w.log.since(mark)
		if !slices.ContainsFunc(own, func(r request) bool { return strings.Contains(r.path, "/serviceaccounts/tenant/token") }) {
			t.Errorf("%s: no token of the default account was fetched", name)
		}
	}
}

// encryptedFor is a Secret that SOPS has encrypted for the key of a cloud.
func encryptedFor(key string) string {
	return `apiVersion: v1
kind: Secret
metadata: {name: db}
stringData:
  password: ENC[AES256_GCM,data:AAAA,iv:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=,tag:AAAAAAAAAAAAAAAAAAAAAA==,type:str]
sops:
` + indent(key) + `  lastmodified: "2026-01-01T00:00:00Z"
  mac: ENC[AES256_GCM,data:AAAA,iv:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=,tag:AAAAAAAAAAAAAAAAAAAAAA==,type:str]
  version: 3.9.0
`
}

// TestKustomizationDecryptsAsAccount asks the clouds as the account that the spec names.
// No cloud is there; the message says what the account lacks to be known to it.
func TestKustomizationDecryptsAsAccount(t *testing.T) {
	w := newWorld(t, nil)
	w.apply("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: decrypter, annotations: {gcp.auth.fluxcd.io/workload-identity-provider: not-one}}")
	const enc = "  created_at: \"2026-01-01T00:00:00Z\"\n  enc: AAAA\n"
	for name, tc := range map[string]struct{ key, account, says string }{
		"aws":     {"kms:\n- arn: arn:aws:kms:eu-west-1:111111111111:key/a\n" + enc, "decrypter", "eks.amazonaws.com/role-arn"},
		"gcp":     {"gcp_kms:\n- resource_id: projects/p/locations/l/keyRings/r/cryptoKeys/k\n" + enc, "decrypter", "gcp.auth.fluxcd.io/workload-identity-provider"},
		"missing": {"kms:\n- arn: arn:aws:kms:eu-west-1:111111111111:key/a\n" + enc, "nobody", "not found"},
	} {
		t.Run(name, func(t *testing.T) {
			w.commit(map[string]string{name + "/secret.yaml": encryptedFor(tc.key), name + "/kustomization.yaml": "namespace: " + w.ns + "\nresources: [secret.yaml]\n"})
			w.app(name, "path: ./"+name+"\nprune: true\nretryInterval: 1h\ndecryption: {provider: sops, serviceAccountName: "+tc.account+"}")
			ks := w.awaitAppReason(name, "BuildFailed")
			for _, text := range []string{"ServiceAccount " + w.ns + "/" + tc.account, tc.says, name + "/secret.yaml"} {
				if m := appReady(ks).Message; !strings.Contains(m, text) {
					t.Errorf("the condition does not say %q: %s", text, m)
				}
			}
		})
	}
}
