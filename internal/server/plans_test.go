// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/config"
)

// The tests here are about plans: where they are kept for other tools, what makes
// them stale, and what approves them.

func withPlanSecrets(c *config.Config) { c.PlanSecrets = true }

func gunzip(t *testing.T, b []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(b))
	must(t, err)
	out, err := io.ReadAll(r)
	must(t, err)
	return out
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// isView checks what every object that holds a view of a plan carries.
func isView(t *testing.T, obj client.Object, tf *infra.Terraform, name, id string) {
	t.Helper()
	for key, want := range map[string]string{
		"savedPlan":                                   id,
		"infra.contrib.fluxcd.io/plan-full-name":      name,
		"infra.contrib.fluxcd.io/plan-full-workspace": "default",
	} {
		if got := obj.GetAnnotations()[key]; got != want {
			t.Errorf("%s: annotation %s is %q, want %q", obj.GetName(), key, got, want)
		}
	}
	if got := obj.GetLabels()["infra.contrib.fluxcd.io/plan-workspace"]; got != "default" {
		t.Errorf("%s: the workspace label is %q", obj.GetName(), got)
	}
	owners := obj.GetOwnerReferences()
	if len(owners) != 1 || owners[0].UID != tf.UID || owners[0].Controller != nil || owners[0].APIVersion != "infra.contrib.fluxcd.io/v1alpha2" {
		t.Errorf("%s: owners are %+v", obj.GetName(), owners)
	}
}

func TestPlansAreKeptWhereToolsLookForThem(t *testing.T) {
	long := strings.Repeat("a", 70)
	w := newWorld(t, modA(), withPlanSecrets)
	w.unit("json", "storeReadablePlan: json")
	w.unit("human", "storeReadablePlan: human")
	w.unit(long, "planOnly: true\nbackendConfig: {secretSuffix: short}") // the suffix is a label of the state

	id := w.awaitPending("json")
	tf := w.terraform("json")
	if c := condition(tf, "Plan"); c.Status != metav1.ConditionTrue || c.Reason != infra.ReasonPlannedWithChanges {
		t.Errorf("Plan is %+v", c)
	}
	file := w.secret("tfplan-default-json", nil)
	isView(t, file, tf, "json", id)
	plain := gunzip(t, file.Data["tfplan"])
	if file.Type != corev1.SecretTypeOpaque || file.Annotations["encoding"] != "gzip" || file.Annotations["infra.contrib.fluxcd.io/plan-hash"] != sum(plain) {
		t.Errorf("type %s, annotations %v", file.Type, file.Annotations)
	}
	if file.Labels["infra.contrib.fluxcd.io/plan-name"] != "json" {
		t.Errorf("labels %v", file.Labels)
	}
	if !bytes.HasPrefix(plain, []byte("PK")) {
		t.Errorf("the plan file begins %q: a zip archive was wanted", plain[:min(8, len(plain))])
	}
	readable := w.secret("tfplan-default-json.json", nil)
	isView(t, readable, tf, "json.json", id)
	var shown struct {
		ResourceChanges []struct{ Address string } `json:"resource_changes"`
	}
	must(t, json.Unmarshal(gunzip(t, readable.Data["tfplan"]), &shown))
	if len(shown.ResourceChanges) != 1 || shown.ResourceChanges[0].Address != "terraform_data.x" {
		t.Errorf("the JSON plan changes %+v", shown.ResourceChanges)
	}

	id = w.awaitPending("human")
	var text corev1.ConfigMap
	must(t, w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: "tfplan-default-human"}, &text))
	isView(t, &text, w.terraform("human"), "human", id)
	if !strings.Contains(text.Data["tfplan"], "# terraform_data.x will be created") || !strings.Contains(text.Data["tfplan"], "Plan: 1 to add") {
		t.Errorf("the text is %q", text.Data["tfplan"])
	}

	tf = w.await(long, "planned", func(tf *infra.Terraform) bool { return tf.Status.Plan.Pending != "" })
	file = w.secret("tfplan-default-"+long, nil)
	isView(t, file, tf, long, tf.Status.Plan.Pending)
	if got, want := file.Labels["infra.contrib.fluxcd.io/plan-name"], long[:46]+"-"+sum([]byte(long))[:16]; got != want {
		t.Errorf("the label of a long name is %q, want %q", got, want)
	}

	for _, name := range []string{"json", "human"} {
		w.delete(name)
		w.awaitGone(name)
	}
	for _, name := range []string{"tfplan-default-json", "tfplan-default-json.json", "tfplan-default-human"} {
		w.secretGone(name)
	}
	if err := w.client.Get(w.ctx(), client.ObjectKeyFromObject(&text), &text); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the text of a deleted unit's plan is still there: %v", err)
	}
}

// noise is text that gzip makes hardly smaller.
func noise(size int) string {
	const letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, size)
	for i := range b {
		b[i] = letters[r.IntN(len(letters))]
	}
	return string(b)
}

func TestLargePlanIsKeptInParts(t *testing.T) {
	w := newWorld(t, map[string]string{
		"main.tf": `resource "terraform_data" "x" { input = file("${path.module}/big") }`,
		"big":     noise(1 << 20),
	})
	w.unit("u", "storeReadablePlan: json")
	id := w.awaitPending("u")
	var packed []byte
	for i := range 2 {
		s := w.secret(fmt.Sprintf("tfplan-default-u.json-%d", i), nil)
		isView(t, s, w.terraform("u"), "u.json", id)
		if s.Annotations["infra.contrib.fluxcd.io/plan-chunk"] != fmt.Sprint(i) || s.Annotations["infra.contrib.fluxcd.io/plan-hash"] != sum(s.Data["tfplan"]) {
			t.Errorf("part %d: annotations %v", i, s.Annotations)
		}
		packed = append(packed, s.Data["tfplan"]...)
	}
	if !json.Valid(gunzip(t, packed)) {
		t.Error("the parts together are no plan")
	}

	w.commit(map[string]string{"big": "small"})
	w.secret("tfplan-default-u.json", nil)
	w.secretGone("tfplan-default-u.json-0")
	w.secretGone("tfplan-default-u.json-1")
}

func TestWhatIsNotApprovedIsNotApplied(t *testing.T) {
	w := newWorld(t, modA())
	w.unit("manual", `approvePlan: ""`)
	w.unit("planonly", "approvePlan: auto\nplanOnly: true")
	w.unit("both", "approvePlan: disable\nforce: true")
	w.unit("forced", "approvePlan: \"\"\nforce: true")

	id := w.awaitPending("manual")
	if got, want := readyOf(w.terraform("manual")).Message, fmt.Sprintf("Plan generated: set approvePlan: %q to approve this plan.", id); got != want {
		t.Errorf("Ready says %q, want %q", got, want)
	}
	w.await("planonly", "planned only", func(tf *infra.Terraform) bool {
		return readyOf(tf).Message == "Plan generated: This object is in the plan only mode." && readyOf(tf).Reason == infra.ReasonPlannedWithChanges
	})
	tf := w.awaitReason("both", infra.ReasonDriftDetected)
	if tf.Status.Plan.Pending != "" {
		t.Errorf("a disabled unit has the plan %s to approve", tf.Status.Plan.Pending)
	}
	tf = w.awaitReady("forced")
	if tf.Status.LastAppliedRevision == "" {
		t.Error("a forced unit is not applied")
	}
	for _, name := range []string{"manual", "planonly", "both"} {
		tf := w.terraform(name)
		if tf.Status.LastAppliedRevision != "" || condition(tf, "Apply").Type != "" {
			t.Errorf("%s was applied", name)
		}
		if condition(tf, "Reconciling").Type != "" {
			t.Errorf("%s is Reconciling though nothing happens", name)
		}
	}
	if n := w.spawned("apply"); n != 1 {
		t.Errorf("%d applies", n)
	}
}

// One unit, from its first plan on: each thing that makes a plan stale, and what
// does and does not approve.
func TestPendingPlanFollowsWhatItIsMadeOf(t *testing.T) {
	w := newWorld(t, modA())
	another := func(old string) string {
		t.Helper()
		return w.await("u", "waiting with a plan that is not "+old, func(tf *infra.Terraform) bool {
			return tf.Status.Plan.Pending != "" && tf.Status.Plan.Pending != old && condition(tf, "Reconciling").Type == ""
		}).Status.Plan.Pending
	}
	approve := func(value string) {
		t.Helper()
		w.change("u", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = value })
	}
	w.unit("u", "approvePlan: \"\"\nwriteOutputsToSecret: {name: out}")
	first := w.awaitPending("u")
	approve(first)
	tf := w.await("u", "applied", func(tf *infra.Terraform) bool { return isReady(tf) && tf.Status.Plan.LastApplied == first })
	if c := condition(tf, "Apply"); c.Status != metav1.ConditionTrue || c.Reason != infra.ReasonAppliedSucceed {
		t.Errorf("Apply is %+v", c)
	}
	w.awaitEvent("u", infra.ReasonPlanSucceed)
	w.awaitEvent("u", infra.ReasonAppliedSucceed)
	want := fmt.Sprintf("Planned.\nPlan generated: set approvePlan: %q to approve this plan.", first)
	if got := w.events("u", infra.ReasonPlanSucceed); !slices.Equal(got, []string{want}) {
		t.Errorf("events %q, want %q", got, want)
	}

	rev := w.commit(map[string]string{"main.tf": strings.Replace(moduleA, `"a"`, `"b"`, 1)})
	second := another(first)
	if tf := w.terraform("u"); tf.Status.LastPlannedRevision != rev || tf.Status.LastAppliedRevision == rev {
		t.Errorf("planned %s, applied %s", tf.Status.LastPlannedRevision, tf.Status.LastAppliedRevision)
	}
	w.commit(map[string]string{"main.tf": strings.Replace(moduleA, `"a"`, `"c"`, 1)})
	third := another(second)
	w.change("u", func(tf *infra.Terraform) {
		tf.Spec.Vars = []infra.Variable{{Name: "v", Value: jsonValue(`"d"`)}}
	})
	fourth := another(third)

	settled := func() *infra.Terraform {
		t.Helper()
		return w.await("u", "waiting as before", func(tf *infra.Terraform) bool {
			return tf.Status.ObservedGeneration == tf.Generation && tf.Status.Plan.Pending == fourth && condition(tf, "Reconciling").Type == ""
		})
	}
	applies := w.spawned("apply")
	for _, value := range []string{third, fourth[:len(fourth)-1], first} {
		approve(value)
		settled()
	}
	if w.spawned("apply") != applies {
		t.Error("the id of another plan, or the beginning of one, approved a plan")
	}
	plans := w.spawned("plan")
	approve("replan-please")
	settled()
	if n := w.spawned("plan") - plans; n != 1 {
		t.Errorf("replan made %d plans", n)
	}
	approve(fourth)
	w.output("out", "o", "d")
	w.await("u", "applied by the last plan", func(tf *infra.Terraform) bool { return tf.Status.Plan.LastApplied == fourth })
}

func TestPlanIsApprovedByItsDigest(t *testing.T) {
	w := newWorld(t, modA())
	w.unit("u", `approvePlan: ""`)
	w.awaitPending("u")
	w.change("u", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = tf.Status.LastPlan.Digest })
	w.awaitReady("u")
}

// A plan of a module without changes, and of a commit that changes nothing.
func TestPlanWithoutChanges(t *testing.T) {
	w := newWorld(t, map[string]string{"main.tf": "locals { a = 1 }\n", "empty/main.tf": moduleA}, withPlanSecrets)
	w.unit("u", `approvePlan: ""`)
	tf := w.awaitReason("u", infra.ReasonPlannedNoChanges)
	if !isReady(tf) || readyOf(tf).Message != "Plan no changes: "+tf.Status.LastPlannedRevision || condition(tf, "Plan").Status != metav1.ConditionFalse {
		t.Errorf("conditions %+v", tf.Status.Conditions)
	}
	w.unit("applied", "approvePlan: auto\npath: ./empty")
	applied := w.awaitReady("applied").Status.LastAppliedRevision
	rev := w.commit(map[string]string{"empty/main.tf": moduleA + "\n# a remark\n"})
	tf = w.awaitRevision("applied", rev)
	if tf.Status.LastAppliedRevision != applied {
		t.Errorf("a remark was applied: %s", tf.Status.LastAppliedRevision)
	}
}

// What a plan leaves in the module's directory is there when it is applied: data
// sources that make archives rely on it.
func TestFilesOfThePlanAreThereWhenItIsApplied(t *testing.T) {
	wrapper := func(c *config.Config) {
		path := filepath.Join(t.TempDir(), "tofu")
		script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = plan ] && echo packed > archive.zip\nexec '%s' \"$@\"\n", c.Tofu)
		writeExecutable(t, path, script)
		c.Tofu = path
	}
	w := newWorld(t, map[string]string{"unit/main.tf": `
resource "terraform_data" "x" {
  provisioner "local-exec" { command = "cat archive.zip mapped > ${path.module}/both" }
}`}, wrapper)
	w.putSecret("files", map[string]string{"f": "mapped\n"})
	w.unit("u", `
path: ./unit
fileMappings: [{secretRef: {name: files, key: f}, location: workspace, path: mapped}]`)
	id := w.awaitPending("u")
	w.restart()
	w.change("u", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = id })
	w.awaitReady("u")
	found := ""
	must(t, filepath.WalkDir(filepath.Join(w.cfg.DataDir, "units"), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Name() == "both" {
			content, err := os.ReadFile(path)
			must(t, err)
			found = string(content)
		}
		return nil
	}))
	if found != "packed\nmapped\n" {
		t.Errorf("the apply saw %q", found)
	}
}

func TestPlansCanBeReviewedWithoutABackendOfOurs(t *testing.T) {
	state := filepath.Join(t.TempDir(), "s.tfstate")
	w := newWorld(t, modA())
	w.unit("disabled", "approvePlan: \"\"\nstoreReadablePlan: human\nbackendConfig: {disable: true}")
	w.unit("custom", `
approvePlan: ""
storeReadablePlan: json
backendConfig:
  customConfiguration: |
    backend "local" { path = "`+state+`" }`)
	w.awaitPending("disabled")
	var text corev1.ConfigMap
	must(t, w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: "tfplan-default-disabled"}, &text))
	if !strings.Contains(text.Data["tfplan"], "terraform_data.x will be created") {
		t.Errorf("the text is %q", text.Data["tfplan"])
	}
	w.awaitPending("custom")
	w.secret("tfplan-default-custom.json", nil)
	for _, name := range []string{"disabled", "custom"} {
		w.change(name, func(tf *infra.Terraform) { tf.Spec.ApprovePlan = tf.Status.Plan.Pending })
		w.awaitReady(name)
	}
	if _, err := os.Stat(state); err != nil {
		t.Errorf("the state is not where customConfiguration says: %v", err)
	}
	var states corev1.SecretList
	must(t, w.client.List(w.ctx(), &states, client.InNamespace(w.ns), client.MatchingLabels{"tfstate": "true"}))
	if len(states.Items) != 0 {
		t.Errorf("%d states are in Secrets", len(states.Items))
	}
	// The state of a disabled backend outlives the run: nothing is created again.
	w.change("disabled", func(tf *infra.Terraform) { tf.Spec.Vars = []infra.Variable{{Name: "v", Value: jsonValue(`"z"`)}} })
	tf := w.await("disabled", "waiting again", func(tf *infra.Terraform) bool {
		return tf.Status.Plan.Pending != "" && tf.Status.ObservedGeneration == tf.Generation
	})
	if tf.Status.LastPlan.Create != 0 || tf.Status.LastPlan.Update != 1 {
		t.Errorf("the plan is %+v", tf.Status.LastPlan)
	}
	// Nor is it deleted with the object: nobody else has it.
	w.delete("disabled")
	w.awaitGone("disabled")
	kept, err := filepath.Glob(filepath.Join(w.cfg.DataDir, "units", w.ns, "disabled", "work", "terraform.tfstate"))
	if err != nil || len(kept) != 1 {
		t.Errorf("the local state of a deleted unit: %v (%v)", kept, err)
	}
}

func TestStateSecretIsAsTheBackendConfigSays(t *testing.T) {
	w := newWorld(t, modA())
	w.putSecret("backend", map[string]string{"secret_suffix": "from-secret", "ignored": "x"})
	w.unit("u", `
approvePlan: auto
backendConfig: {secretSuffix: other, labels: {team: net}}`)
	w.unit("v", `
approvePlan: auto
workspace: blue
backendConfig: {secretSuffix: shared, inClusterConfig: true}
backendConfigsFrom: [{kind: ConfigMap, name: absent, optional: true}]`)
	w.awaitReady("u")
	s := w.secret("tfstate-default-other", nil)
	for key, want := range map[string]string{"team": "net", "tfstate": "true", "tfstateSecretSuffix": "other", "tfstateWorkspace": "default", "app.kubernetes.io/managed-by": "terraform"} {
		if s.Labels[key] != want {
			t.Errorf("label %s is %q, want %q", key, s.Labels[key], want)
		}
	}
	if s.Annotations["encoding"] != "gzip" {
		t.Errorf("annotations %v", s.Annotations)
	}
	var state struct{ Version int }
	if err := json.Unmarshal(gunzip(t, s.Data["tfstate"]), &state); err != nil || state.Version != 4 {
		t.Errorf("the state has version %d: %v", state.Version, err)
	}
	w.awaitReady("v")
	w.secret("tfstate-blue-shared", nil)
	w.delete("u")
	w.awaitGone("u")
	w.secret("tfstate-default-other", nil) // the state is never deleted
}

func TestBackendConfigComesFromSecretsAndConfigMaps(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, map[string]string{"main.tf": "terraform {\n  backend \"local\" {}\n}\n" + moduleA})
	w.putSecret("s", map[string]string{"path": filepath.Join(dir, "wrong"), "other": "unused"})
	w.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {path: \"" + filepath.Join(dir, "right") + "\"}")
	w.unit("u", `
approvePlan: auto
backendConfigsFrom:
- {kind: Secret, name: s, keys: [path]}
- {kind: ConfigMap, name: c}
- {kind: Secret, name: absent, optional: true}`)
	w.awaitReady("u")
	if _, err := os.Stat(filepath.Join(dir, "right")); err != nil {
		t.Errorf("the last entry does not win: %v", err)
	}
	w.unit("missing", "approvePlan: auto\nbackendConfigsFrom: [{kind: Secret, name: s, keys: [nope]}]")
	tf := w.awaitReason("missing", infra.ReasonInitFailed)
	if !strings.Contains(readyOf(tf).Message, `"nope"`) || !strings.Contains(readyOf(tf).Message, "path") {
		t.Errorf("the message names neither the key nor those that there are: %q", readyOf(tf).Message)
	}
}

// targets restrict plan, apply and destroy; parallelism is accepted.
func TestTargets(t *testing.T) {
	w := newWorld(t, map[string]string{"main.tf": `
resource "terraform_data" "a" {}
resource "terraform_data" "b" {}
`})
	w.unit("u", "approvePlan: auto\nparallelism: 1\nenableInventory: true\ntargets: [terraform_data.a]")
	names := func(tf *infra.Terraform) (out []string) {
		if tf.Status.Inventory == nil {
			return nil
		}
		for _, e := range tf.Status.Inventory.Entries {
			if e.Type != "terraform_data" || e.Identifier == "" {
				t.Errorf("inventory entry %+v", e)
			}
			out = append(out, e.Name)
		}
		slices.Sort(out)
		return out
	}
	if got := names(w.awaitReady("u")); !slices.Equal(got, []string{"a"}) {
		t.Errorf("the inventory is %v", got)
	}
	w.change("u", func(tf *infra.Terraform) { tf.Spec.Targets = nil })
	w.await("u", "whole", func(tf *infra.Terraform) bool { return isReady(tf) && slices.Equal(names(tf), []string{"a", "b"}) })
	w.change("u", func(tf *infra.Terraform) { tf.Spec.Targets, tf.Spec.Destroy = []string{"terraform_data.b"}, true })
	w.await("u", "half destroyed", func(tf *infra.Terraform) bool { return isReady(tf) && slices.Equal(names(tf), []string{"a"}) })
}
