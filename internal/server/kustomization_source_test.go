// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/internal/config"
)

// TestKustomizationBadInput has a row for each thing that can be wrong before a build
// is applied: the condition says what, where and what to do; mended, it goes on.
func TestKustomizationBadInput(t *testing.T) {
	w := newWorld(t, nil)
	good := w.commit(map[string]string{
		"good/cm.yaml":                   w.cm("good", nil),
		"broken/cm.yaml":                 "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x\n",
		"nokind/x.yaml":                  "hello: world\n",
		"outside/kustomization.yaml":     "resources: [../../../etc]\n",
		"remote/kustomization.yaml":      "resources: [\"https://example.invalid/base?ref=v1\"]\n",
		"undefined/cm.yaml":              "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: script\n  namespace: " + w.ns + "\ndata:\n  run.sh: |\n    for f in ${FILES}; do echo $f; done\n",
		"nonamespace/cm.yaml":            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: nons}\n",
		"sops/secret.yaml":               "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: " + w.ns + "}\nstringData: {k: \"ENC[AES256_GCM,data:x,iv:x,tag:x,type:str]\"}\nsops: {mac: x, lastmodified: \"2026-01-01T00:00:00Z\", version: 3.9.0}\n",
		"placeholder/kustomization.yaml": "resources: [missing.yaml]\n",
	})
	for name, tc := range map[string]struct {
		spec   string
		reason string
		says   []string
	}{
		"nopath":      {"path: ./nowhere", "ArtifactFailed", []string{"kustomization path not found", "nowhere"}},
		"climbs":      {"path: ../../etc", "ArtifactFailed", []string{"etc"}},
		"broken":      {"path: ./broken", "BuildFailed", []string{"broken/cm.yaml"}},
		"nokind":      {"path: ./nokind", "BuildFailed", []string{"nokind/x.yaml"}},
		"outside":     {"path: ./outside", "BuildFailed", []string{"etc"}},
		"remote":      {"path: ./remote", "BuildFailed", []string{"example.invalid", "--allow-remote-bases"}},
		"undefined":   {"path: ./undefined\npostBuild: {substitute: {A: b}}", "BuildFailed", []string{"FILES", "ConfigMap", "run.sh", "$${FILES}"}},
		"novars":      {"path: ./good\npostBuild: {substituteFrom: [{kind: ConfigMap, name: none}]}", "BuildFailed", []string{"ConfigMap '" + w.ns + "/none' not found", "optional"}},
		"nonamespace": {"path: ./nonamespace", "ReconciliationFailed", []string{"ConfigMap/nons", "namespace is not specified", "targetNamespace"}},
		"sops":        {"path: ./sops", "BuildFailed", []string{"Secret/" + w.ns + "/s", "SOPS"}},
		"missing":     {"path: ./placeholder", "BuildFailed", []string{"missing.yaml"}},
		"nosecret":    {"path: ./good\ndecryption: {provider: sops, secretRef: {name: keys}}", "BuildFailed", []string{"Secret '" + w.ns + "/keys' not found", "decryption"}},
		"nokubeconf":  {"path: ./good\nkubeConfig: {secretRef: {name: kc}}", "ReconciliationFailed", []string{"Secret '" + w.ns + "/kc' not found"}},
	} {
		t.Run(name, func(t *testing.T) {
			w.app(name, "prune: true\nretryInterval: 1h\n"+tc.spec)
			ks := w.awaitAppReason(name, tc.reason)
			for _, text := range tc.says {
				if m := appReady(ks).Message; !strings.Contains(m, text) {
					t.Errorf("the condition does not say %q: %s", text, m)
				}
			}
			if ks.Status.ObservedGeneration == ks.Generation {
				t.Error("a generation that failed is not observed: tools take it for settled")
			}
			w.changeApp(name, func(ks *kustomizev1.Kustomization) {
				ks.Spec.Path, ks.Spec.PostBuild, ks.Spec.Decryption, ks.Spec.KubeConfig = "./good", nil, nil, nil
			})
			w.awaitAppAt(name, good)
		})
	}
}

// TestKustomizationSources waits for a source, takes any object with an artifact, and
// refuses another namespace where that is forbidden.
func TestKustomizationSources(t *testing.T) {
	w := newWorld(t, map[string]string{"app/cm.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}\n"},
		func(c *config.Config) { c.NoCrossNamespaceRefs = true })
	w.app("app", "path: ./app\nprune: true\ntargetNamespace: "+w.ns+"\nsourceRef: {kind: ExternalArtifact, name: made}")
	ks := w.awaitAppReason("app", "ArtifactFailed")
	if m := appReady(ks).Message; m != "Source 'ExternalArtifact/"+w.ns+"/made' not found" {
		t.Errorf("message: %s", m)
	}
	w.apply("apiVersion: source.toolkit.fluxcd.io/v1\nkind: ExternalArtifact\nmetadata: {name: made}\nspec: {sourceRef: {apiVersion: example.com/v1, kind: Maker, name: m}}")
	w.awaitApp("app", "waiting for an artifact", func(ks *kustomizev1.Kustomization) bool {
		return strings.HasPrefix(appReady(ks).Message, "Source artifact not found")
	})
	// Another controller writes the status: here with the artifact of the Git source, by its URL.
	var src sourcev1.GitRepository
	if err := w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: "src"}, &src); err != nil {
		t.Fatal(err)
	}
	var ea sourcev1.ExternalArtifact
	if err := w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: "made"}, &ea); err != nil {
		t.Fatal(err)
	}
	ea.Status.Artifact = src.Status.Artifact.DeepCopy()
	ea.Status.Artifact.Revision = "latest@" + src.Status.Artifact.Digest
	ea.Status.Artifact.Metadata = map[string]string{"org.opencontainers.image.revision": "main@sha1:abc"}
	if err := w.client.Status().Update(w.ctx(), &ea); err != nil {
		t.Fatal(err)
	}
	ks = w.awaitAppAt("app", ea.Status.Artifact.Revision)
	if ks.Status.LastAppliedOriginRevision != "main@sha1:abc" || ks.Status.History[0].Metadata["originRevision"] != "main@sha1:abc" {
		t.Errorf("origin revision %q, history %v", ks.Status.LastAppliedOriginRevision, ks.Status.History[0].Metadata)
	}
	if w.configMap("a") == nil {
		t.Error("nothing was applied")
	}

	w.app("denied", "path: ./app\nprune: true\nsourceRef: {kind: GitRepository, name: src, namespace: other}")
	ks = w.awaitAppReason("denied", "AccessDenied")
	if c := appCondition(ks, "Stalled"); c.Status != "True" || appReady(ks).Message != "can't access 'GitRepository/other/src', cross-namespace references have been blocked" {
		t.Errorf("Stalled %q: %s", c.Status, appReady(ks).Message)
	}
}

// TestKustomizationImpersonates applies as the unit's account, and names what it lacks (case 24).
func TestKustomizationImpersonates(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: configmaps}
rules: [{apiGroups: [""], resources: [configmaps], verbs: ["*"]}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: limited}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: limited}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: configmaps}
subjects: [{kind: ServiceAccount, name: limited, namespace: ` + w.ns + `}]`)
	w.commit(map[string]string{
		"app/cm.yaml":     w.cm("a", nil),
		"app/secret.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: " + w.ns + "}\nstringData: {k: v}\n",
	})
	w.app("app", "path: ./app\nprune: true\nserviceAccountName: limited\nretryInterval: 1h")
	ks := w.awaitAppReason("app", "ReconciliationFailed")
	user := "system:serviceaccount:" + w.ns + ":limited"
	for _, text := range []string{user, `"secrets"`, "patch"} {
		if m := appReady(ks).Message; !strings.Contains(m, text) {
			t.Errorf("the condition does not name %s: %s", text, m)
		}
	}
	if w.configMap("a") != nil {
		t.Error("an object of the refused stage was applied")
	}
	w.awaitAppAt("app", w.commit(map[string]string{"app/secret.yaml": ""}))
}

// TestKustomizationToAnotherCluster applies by a kubeconfig; here it leads to the same
// API server as another user.
func TestKustomizationToAnotherCluster(t *testing.T) {
	w := newWorld(t, nil)
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["c"] = &clientcmdapi.Cluster{Server: w.api.Host, CertificateAuthorityData: w.api.CAData}
	kubeconfig.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: w.api.CertData, ClientKeyData: w.api.KeyData, Token: w.api.BearerToken}
	kubeconfig.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	kubeconfig.CurrentContext = "x"
	raw, err := clientcmd.Write(*kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	w.putSecret("kc", map[string]string{"wrong": string(raw)})
	rev := w.commit(map[string]string{"app/cm.yaml": w.cm("a", map[string]string{"k": "1"})})
	w.app("app", "path: ./app\nprune: true\nwait: true\nkubeConfig: {secretRef: {name: kc}}\nretryInterval: 1h")
	ks := w.awaitAppReason("app", "ReconciliationFailed")
	if m := appReady(ks).Message; !strings.Contains(m, "KubeConfig secret '"+w.ns+"/kc' does not contain a 'value' key") {
		t.Errorf("message: %s", m)
	}
	w.putSecret("kc", map[string]string{"value": string(raw)})
	w.awaitAppAt("app", rev)
	w.patchConfigMap("a", "k", "by hand")
	w.awaitConfigMap("a", "repaired", func(cm *corev1.ConfigMap) bool { return cm != nil && cm.Data["k"] == "1" })
	w.deleteApp("app")
	w.awaitAppGone("app")
	w.awaitConfigMap("a", "gone", func(cm *corev1.ConfigMap) bool { return cm == nil })
}

// TestKustomizationDecrypts is case 10 and what follows when it is mended: the Secret,
// its keys and the wanted recipient are named; then the content arrives.
func TestKustomizationDecrypts(t *testing.T) {
	w := newWorld(t, nil)
	// A Secret that the sops library has encrypted; see internal/render/sops/testdata/gen.
	fixture, err := txtar.ParseFile(filepath.Join("..", "render", "sops", "testdata", "files", "secret.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	var about struct{ Identity string }
	var encrypted string
	for _, f := range fixture.Files {
		switch f.Name {
		case "about":
			if err := json.Unmarshal(f.Data, &about); err != nil {
				t.Fatal(err)
			}
		case "encrypted":
			encrypted = string(f.Data)
		}
	}
	identity, err := age.ParseX25519Identity(about.Identity)
	if err != nil {
		t.Fatal(err)
	}
	w.commit(map[string]string{
		"app/secret.yaml":        encrypted,
		"app/kustomization.yaml": "namespace: " + w.ns + "\nresources: [secret.yaml]\n",
	})
	w.putSecret("sops-age", map[string]string{"age.key": about.Identity})
	w.app("app", "path: ./app\nprune: true\nretryInterval: 1h\ndecryption: {provider: sops, secretRef: {name: sops-age}}")
	ks := w.awaitAppReason("app", "BuildFailed")
	for _, text := range []string{w.ns + "/sops-age", "age.key", ".agekey", identity.Recipient().String()} {
		if m := appReady(ks).Message; !strings.Contains(m, text) {
			t.Errorf("the condition does not name %q: %s", text, m)
		}
	}
	if strings.Contains(appReady(ks).Message, about.Identity) {
		t.Error("the condition shows the key")
	}
	w.putSecret("sops-age", map[string]string{"a.agekey": about.Identity})
	w.awaitAppReady("app")
	w.secret("db", func(data map[string][]byte) bool {
		return string(data["password"]) == "hunter2" && string(data["version"]) == "004" && string(data["yes"]) == "yes"
	})
}
