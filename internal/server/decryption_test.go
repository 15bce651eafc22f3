// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"filippo.io/age/armor"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/config"
)

// The tests here are about SOPS files that a Terraform unit reads.

func identity(t *testing.T) *age.X25519Identity {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	must(t, err)
	return id
}

// sealed is a SOPS file of strings, in JSON or, for a name that says so, as YAML or lines
// of settings. internal/render/sops is held against the SOPS library; this is only small.
func sealed(t *testing.T, id *age.X25519Identity, name string, values map[string]string) string {
	t.Helper()
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	block, err := aes.NewCipher(key)
	must(t, err)
	gcm, err := cipher.NewGCMWithNonceSize(block, 32)
	must(t, err)
	seal := func(value, aad string) string {
		nonce := make([]byte, 32)
		_, _ = rand.Read(nonce)
		out := gcm.Seal(nil, nonce, []byte(value), []byte(aad))
		b := base64.StdEncoding.EncodeToString
		return fmt.Sprintf("ENC[AES256_GCM,data:%s,iv:%s,tag:%s,type:str]", b(out[:len(out)-16]), b(nonce), b(out[len(out)-16:]))
	}
	mac := sha512.New()
	doc := map[string]any{}
	for _, k := range slices.Sorted(maps.Keys(values)) {
		mac.Write([]byte(values[k]))
		doc[k] = seal(values[k], k+":")
	}
	var enc bytes.Buffer
	armored := armor.NewWriter(&enc)
	w, err := age.Encrypt(armored, id.Recipient())
	must(t, err)
	_, err = w.Write(key)
	must(t, err)
	must(t, w.Close())
	must(t, armored.Close())
	at := "2026-01-02T03:04:05Z"
	sum := seal(fmt.Sprintf("%X", mac.Sum(nil)), at)
	meta := map[string]any{
		"age":          []any{map[string]any{"recipient": id.Recipient().String(), "enc": enc.String()}},
		"lastmodified": at, "mac": sum, "unencrypted_suffix": "_unencrypted", "version": "3.9.0",
	}
	if strings.HasSuffix(name, ".env") {
		var b strings.Builder
		for _, k := range slices.Sorted(maps.Keys(values)) {
			fmt.Fprintf(&b, "%s=%s\n", k, doc[k])
		}
		fmt.Fprintf(&b, "sops_age__list_0__map_enc=%s\nsops_age__list_0__map_recipient=%s\nsops_lastmodified=%s\nsops_mac=%s\nsops_unencrypted_suffix=_unencrypted\nsops_version=3.9.0\n",
			strings.ReplaceAll(enc.String(), "\n", `\n`), id.Recipient(), at, sum)
		return b.String()
	}
	if strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".yml") {
		var b strings.Builder
		for _, k := range slices.Sorted(maps.Keys(values)) {
			fmt.Fprintf(&b, "%s: %s\n", k, doc[k])
		}
		m, err := json.MarshalIndent(meta, "    ", "  ")
		must(t, err)
		fmt.Fprintf(&b, "sops:\n    %s\n", m)
		return b.String()
	}
	doc["sops"] = meta
	out, err := json.MarshalIndent(doc, "", "  ")
	must(t, err)
	return string(out)
}

// annotated applies a Terraform with annotations, in YAML's flow style.
func (w *world) annotated(name, annotations, spec string) {
	w.t.Helper()
	w.apply(fmt.Sprintf(`
apiVersion: infra.contrib.fluxcd.io/v1alpha2
kind: Terraform
metadata: {name: %s, annotations: {%s}}
spec:
  interval: 1h
  sourceRef: {kind: GitRepository, name: src}
%s`, name, annotations, indent(spec)))
}

// readsAll outputs what is in each of its SOPS files, as the module sees it.
const readsAll = `
variable "given" { default = "none" }
output "got" {
  value = jsonencode({
    yaml   = yamldecode(file("${path.module}/a.sops.yaml")).password
    env    = file("${path.module}/b.sops.env")
    mapped = jsondecode(file("${path.module}/mapped.json")).password
    given  = var.given
  })
}
`

func sopsModule(t *testing.T, id *age.X25519Identity) map[string]string {
	return map[string]string{
		"m/main.tf":                  readsAll,
		"m/a.sops.yaml":              sealed(t, id, "a.sops.yaml", map[string]string{"password": "canary-yaml-8Vd3"}),
		"m/b.sops.env":               sealed(t, id, "b.sops.env", map[string]string{"PASSWORD": "canary-env-1Bn6"}),
		"vars/prod.sops.tfvars.json": sealed(t, id, "prod.sops.tfvars.json", map[string]string{"given": "canary-tfvars-5Hw2"}),
	}
}

const sopsSpec = `path: ./m
approvePlan: auto
retryInterval: 1h
fileMappings: [{secretRef: {name: mapped, key: doc}, location: workspace, path: mapped.json}]
`

var decrypted = map[string]any{
	"yaml": "canary-yaml-8Vd3", "env": "PASSWORD=canary-env-1Bn6\n", "mapped": "canary-mapped-4Jx9", "given": "canary-tfvars-5Hw2",
}

func TestTerraformReadsSOPSFiles(t *testing.T) {
	id, other := identity(t), identity(t)
	global := identity(t)
	var ns string
	w := newWorld(t, sopsModule(t, id), func(c *config.Config) {
		ns = c.WatchNamespaces[0]
		c.SOPSAgeSecret = ns + "/global"
	})
	w.putSecret("mapped", map[string]string{"doc": sealed(t, id, "mapped.json", map[string]string{"password": "canary-mapped-4Jx9"})})
	w.putSecret("global", map[string]string{"g.agekey": global.String()})
	w.putSecret("keys", map[string]string{"age.agekey": other.String()})
	out := func(name string) string { return "writeOutputsToSecret: {name: out-" + name + "}\n" }

	// The wrong key first: what is wrong is said, and mended by the Secret alone.
	w.annotated("named", "terrace.dev/decryption: keys", sopsSpec+out("named")+"tfVarsFiles: [vars/prod.sops.tfvars.json]\ndestroyResourcesOnDeletion: true")
	m := readyOf(w.awaitReason("named", infra.ReasonNewFailed)).Message
	for _, text := range []string{".sops.", w.ns + "/keys", "age.agekey", id.Recipient().String(), other.Recipient().String()} {
		if !strings.Contains(m, text) {
			t.Errorf("the message does not name %s: %s", text, m)
		}
	}
	w.putSecret("keys", map[string]string{"age.agekey": other.String() + "\n" + id.String()})
	if got := w.got("named"); !maps.Equal(got, decrypted) {
		t.Errorf("with the Secret of the annotation the module reads %v", got)
	}
	w.awaitReady("named")

	// A variable file has no other reader, so without a key that fits it is an error.
	w.annotated("without", `terrace.dev/decryption: ""`, sopsSpec+"tfVarsFiles: [vars/prod.sops.tfvars.json]")
	m = readyOf(w.awaitReason("without", infra.ReasonNewFailed)).Message
	for _, text := range []string{"vars/prod.sops.tfvars.json", "terrace.dev/decryption", id.Recipient().String()} {
		if !strings.Contains(m, text) {
			t.Errorf("the message does not name %s: %s", text, m)
		}
	}
	w.unit("global", sopsSpec+out("global")+"tfVarsFiles: [vars/prod.sops.tfvars.json]")
	m = readyOf(w.awaitReason("global", infra.ReasonNewFailed)).Message
	if !strings.Contains(m, ns+"/global") {
		t.Errorf("the message does not name the Secret for all units: %s", m)
	}
	w.putSecret("global", map[string]string{"g.agekey": id.String()})
	w.reconcile("global")
	if got := w.got("global"); !maps.Equal(got, decrypted) {
		t.Errorf("with the key for all units the module reads %v", got)
	}
	w.awaitReady("global")

	w.unitsHold(map[string]string{"yaml": "canary-yaml-8Vd3", "env": "canary-env-1Bn6", "tfvars": "canary-tfvars-5Hw2", "mapped": "canary-mapped-4Jx9"})

	// Keys are inputs: with other keys the unit plans again, without them it can go.
	plans := w.spawned("plan")
	w.putSecret("keys", map[string]string{"age.agekey": id.String()})
	w.await("named", "planned again", func(tf *infra.Terraform) bool { return isReady(tf) && w.spawned("plan") > plans })
	must(t, w.client.Delete(w.ctx(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "keys"}}))
	w.delete("named")
	w.awaitGone("named")
}

// A module that decrypts for itself, or a unit without keys, gets its files as they are.
func TestSOPSFilesStayWithoutKeys(t *testing.T) {
	id := identity(t)
	w := newWorld(t, map[string]string{
		"main.tf":        `output "got" { value = jsonencode({ a = yamldecode(file("${path.module}/a.sops.yaml")).password, b = yamldecode(file("${path.module}/b.sops.yaml")).password }) }`,
		"a.sops.yaml":    sealed(t, id, "a.sops.yaml", map[string]string{"password": "hidden"}),
		"b.sops.yaml":    "password: plain\n",
		"sub/.sops.yaml": "creation_rules: []\n",
	})
	w.putSecret("keys", map[string]string{"a.agekey": id.String()})
	w.unit("u", "approvePlan: auto\nwriteOutputsToSecret: {name: out-u}")
	if got := w.got("u"); !strings.HasPrefix(fmt.Sprint(got["a"]), "ENC[") || got["b"] != "plain" {
		t.Errorf("without keys the module reads %v", got)
	}
	w.awaitReady("u")
	w.annotated("k", "terrace.dev/decryption: keys", "approvePlan: auto\nwriteOutputsToSecret: {name: out-k}")
	if got := w.got("k"); got["a"] != "hidden" || got["b"] != "plain" {
		t.Errorf("with keys the module reads %v", got)
	}
	w.awaitReady("k")
}

// reconcile asks a unit for a plan.
func (w *world) reconcile(name string) {
	w.t.Helper()
	w.change(name, func(tf *infra.Terraform) {
		if tf.Annotations == nil {
			tf.Annotations = map[string]string{}
		}
		tf.Annotations[infra.ReconcileRequestAnnotation] = time.Now().String()
	})
}

// unitsHold fails for each canary that a file below the units' directories holds.
func (w *world) unitsHold(canaries map[string]string) {
	w.t.Helper()
	must(w.t, filepath.WalkDir(filepath.Join(w.cfg.DataDir, "units"), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return ignoreGone(err)
		}
		b, err := os.ReadFile(path)
		for what, canary := range canaries {
			if bytes.Contains(b, []byte(canary)) {
				w.t.Errorf("%s holds the canary of %s after the run", strings.TrimPrefix(path, w.cfg.DataDir), what)
			}
		}
		return ignoreGone(err)
	}))
}

func ignoreGone(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}
