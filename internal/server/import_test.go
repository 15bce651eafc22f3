// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/config"
)

// askImport asks for an import as terrace import does, and returns the name of the request.
func (w *world) askImport(unit, address, id string, more ...func(*infra.Terraform)) string {
	w.t.Helper()
	value := infra.ImportRequest{Address: address, ID: id, RequestedAt: time.Now().String()}.String()
	name := infra.ImportName(value)
	w.change(unit, func(tf *infra.Terraform) {
		if tf.Annotations == nil {
			tf.Annotations = map[string]string{}
		}
		tf.Annotations[infra.ImportAnnotation] = value
		tf.Annotations[v1alpha1.ApprovedByAnnotation] = v1alpha1.FormatApproval(name, "jane", "admin")
		for _, m := range more {
			m(tf)
		}
	})
	return name
}

// awaitImport waits for the answer to a request.
func (w *world) awaitImport(unit, name string) *infra.ImportStatus {
	w.t.Helper()
	return w.await(unit, "answering "+name, func(tf *infra.Terraform) bool {
		return tf.Status.LastImport != nil && tf.Status.LastImport.Request == name
	}).Status.LastImport
}

// entriesOf are the entries of an action, oldest first.
func (w *world) entriesOf(action audit.Action) []audit.Entry {
	w.t.Helper()
	_, text := w.ask(http.MethodGet, "/api/v1/audit", true)
	var out []audit.Entry
	for line := range strings.Lines(text) {
		var e audit.Entry
		must(w.t, json.Unmarshal([]byte(line), &e))
		if e.Action == action {
			out = append(out, e)
		}
	}
	return out
}

const importing = `
variable "v" { sensitive = true }
resource "terraform_data" "x" { input = "wanted" }
resource "terraform_data" "each" {
  for_each = toset(["a.b", "c"])
}
`

// An import changes the state and nothing else, is one run among the others, and leaves no
// plan behind that was made before it.
func TestImport(t *testing.T) {
	w := newWorld(t, map[string]string{"main.tf": importing})
	w.putSecret("in", map[string]string{"v": "canary-import-3Jd8"})
	w.unit("u", "varsFrom: [{kind: Secret, name: in}]")
	stale := w.awaitPending("u")

	// Approved in the same breath: the import comes first, and what was approved is not what
	// there is to do any more.
	name := w.askImport("u", "terraform_data.x", "id-1", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = stale })
	end := w.awaitImport("u", name)
	if end.Outcome != "succeeded" || end.Address != "terraform_data.x" || end.Message != "" {
		t.Fatalf("the import ended as %+v", end)
	}
	tf := w.await("u", "waiting with another plan", func(tf *infra.Terraform) bool {
		return tf.Status.Plan.Pending != "" && tf.Status.Plan.Pending != stale && tf.Status.RunningID == ""
	})
	if p := tf.Status.LastPlan; p.Create != 2 || p.Update != 1 {
		t.Errorf("the plan after the import: %+v; want the resource to be changed, and the others made", p)
	}
	if tf.Status.LastAppliedRevision != "" || w.spawned("apply") != 0 {
		t.Error("a plan from before the import was applied")
	}
	w.wantRuns("u", "plan succeeded +3 ~0 -0", "import succeeded by jane as admin", "plan succeeded +2 ~1 -0")
	var run v1alpha1.Run
	must(t, w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: end.Run}, &run))
	if i := run.Spec.Import; i == nil || i.Address != "terraform_data.x" || i.ID != "id-1" {
		t.Errorf("the Run says that %+v was imported", i)
	}
	s := w.state("u")
	if s.Status.Resources != 1 || s.Status.Lock != nil || s.Status.Versions[0].Run != end.Run {
		t.Errorf("the state: %d resources, lock %+v, by run %q; want one, none, %q", s.Status.Resources, s.Status.Lock, s.Status.Versions[0].Run, end.Run)
	}
	entries := w.entriesOf(audit.Import)
	if len(entries) != 2 || entries[0].Phase != audit.PhaseIntent || entries[1].Outcome != audit.Succeeded ||
		entries[0].Actor.Name != "jane as admin" || entries[0].Detail != "terraform_data.x as id-1" || entries[0].Run != end.Run {
		t.Errorf("the ledger has %+v", entries)
	}
	w.awaitEvent("u", infra.ReasonImported)
	if log := w.runLog("u"); !strings.Contains(log, "Import successful!") || strings.Contains(log, "canary-import-3Jd8") {
		t.Errorf("the log: %s", log)
	}

	// Asked for again, it is done already; for another object the address is taken.
	if end := w.awaitImport("u", w.askImport("u", "terraform_data.x", "id-1")); end.Outcome != "succeeded" {
		t.Errorf("the same import again: %+v", end)
	}
	end = w.awaitImport("u", w.askImport("u", "terraform_data.x", "id-2"))
	if end.Outcome != "failed" || !strings.Contains(end.Message, `"id-1"`) {
		t.Errorf("another object at the same address: %+v", end)
	}
	if n := w.spawned("import"); n != 1 {
		t.Errorf("the tool imported %d times", n)
	}
	// What the tool refuses is told in its words. A key is one instance, an id no flag.
	end = w.awaitImport("u", w.askImport("u", "terraform_data.none", "x"))
	if end.Outcome != "failed" || !strings.Contains(end.Message, "does not exist in the configuration") {
		t.Errorf("a resource that the module does not declare: %+v", end)
	}
	w.awaitEvent("u", infra.ReasonImportFailed)
	if end := w.awaitImport("u", w.askImport("u", `terraform_data.each["a.b"]`, "--help")); end.Outcome != "succeeded" {
		t.Errorf("an instance with an odd id: %+v", end)
	}
	id := w.await("u", "planned", func(tf *infra.Terraform) bool {
		return tf.Status.Plan.Pending != "" && tf.Status.LastPlan.Create == 1
	}).Status.Plan.Pending
	w.change("u", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = id })
	w.awaitReady("u")
	if n := w.state("u").Status.Resources; n != 2 {
		t.Errorf("%d resources after the apply, want both", n)
	}
}

func TestImportIsRefused(t *testing.T) {
	w := newWorld(t, map[string]string{"main.tf": importing})
	w.putSecret("in", map[string]string{"v": "x"})
	tests := map[string]struct{ reason, spec, value, says string }{
		"syntax":    {"what is no request", "", `{"address": "terraform_data.x"`, "no JSON object"},
		"field":     {"a field that nobody knows", "", `{"address": "terraform_data.x", "id": "i", "requestedAt": "1", "force": true}`, "no JSON object"},
		"missing":   {"an object without an id", "", `{"address": "terraform_data.x", "requestedAt": "1"}`, "a field is missing"},
		"long":      {"more than is read", "", `{"address": "terraform_data.x", "id": "` + strings.Repeat("i", infra.MaxImportRequest) + `", "requestedAt": "1"}`, "longer than"},
		"flag":      {"an address that is a flag", "", `{"address": "-config=/etc", "id": "i", "requestedAt": "1"}`, "begins like a flag"},
		"data":      {"what is only read", "", `{"address": "data.terraform_data.x", "id": "i", "requestedAt": "1"}`, "managed resource"},
		"version":   {"an id that is a flag wherever it stands", "", `{"address": "terraform_data.x", "id": "-version", "requestedAt": "1"}`, "for a flag"},
		"destroy":   {"a unit that is there to be destroyed", "destroy: true", `{"address": "terraform_data.x", "id": "i", "requestedAt": "1"}`, "spec.destroy"},
		"suspended": {"a unit that is to be left alone", "suspend: true", `{"address": "terraform_data.x", "id": "i", "requestedAt": "1"}`, "suspended"},
	}
	for unit, tc := range tests {
		w.unit(unit, "varsFrom: [{kind: Secret, name: in}]\n"+tc.spec)
		w.change(unit, func(tf *infra.Terraform) {
			tf.Annotations = map[string]string{infra.ImportAnnotation: tc.value}
		})
		end := w.awaitImport(unit, infra.ImportName(tc.value))
		if end.Outcome != "refused" || !strings.Contains(end.Message, tc.says) {
			t.Errorf("%s: %+v, want %q", tc.reason, end, tc.says)
		}
		w.awaitEvent(unit, infra.ReasonImportFailed)
	}
	// A refusal keeps a unit from nothing else.
	w.awaitPending("data")
	if n := w.spawned("import"); n != 0 {
		t.Errorf("the tool imported %d times", n)
	}
}

// An import that is killed anywhere is carried out once: also where the id that it is asked
// for by is not the id that the object has then.
func TestKilledImportIsDoneOnce(t *testing.T) {
	const rounds = 6
	var keys []string
	for n := range rounds {
		keys = append(keys, fmt.Sprintf("%q", fmt.Sprint("r", n)))
	}
	w := newWorld(t, map[string]string{"main.tf": `
terraform {
  required_providers { time = { source = "terrace.test/hashicorp/time" } }
}
resource "time_offset" "x" {
  for_each    = toset([` + strings.Join(keys, ", ") + `])
  offset_days = 7
}
`}, withMirror(t), func(c *config.Config) { c.WatchNamespaces = []string{"nobody"} })
	w.stop()
	p := w.startProcess()
	w.unit("u", "approvePlan: \"\"\nretryInterval: 1s")
	w.awaitPending("u")
	j := w.watchJournal()
	for round := range rounds {
		j.forget()
		// The journal of an import: the look at the state, what it found, the import, its lock.
		step := 1 + round
		name := w.askImport("u", fmt.Sprintf("time_offset.x[%s]", keys[round]), fmt.Sprintf("2026-01-0%dT00:00:00Z,0,0,7,0,0,0", round+1))
		j.await(step, fmt.Sprintf("round %d", round))
		p.kill()
		if round%2 == 1 {
			w.killTool()
		}
		p = w.startProcess()
		if end := w.awaitImport("u", name); end.Outcome != "succeeded" {
			t.Errorf("round %d: killed at entry %d of the journal, the import ended as %+v", round, step, end)
		}
		w.await("u", "planned again", func(tf *infra.Terraform) bool { return tf.Status.RunningID == "" && tf.Status.InputDigest != "" })
		s := w.state("u")
		if s.Status.Resources != 1 || s.Status.Lock != nil {
			t.Errorf("round %d: %d resources with lock %+v", round, s.Status.Resources, s.Status.Lock)
		}
	}
	if tf := w.terraform("u"); tf.Status.LastAppliedRevision != "" {
		t.Error("something was applied")
	}
}

// Import blocks are a plan's affair: what is imported is counted, shown, and part of what is approved.
func TestImportBlocks(t *testing.T) {
	block := func(id string) map[string]string {
		return map[string]string{"main.tf": "import {\n  to = terraform_data.x\n  id = \"" + id + "\"\n}\nresource \"terraform_data\" \"x\" {}\n"}
	}
	w := newWorld(t, block("one"))
	w.unit("asks", "approvePlan: \"\"")
	first := w.awaitPending("asks")
	tf := w.terraform("asks")
	if p := tf.Status.LastPlan; p.Import != 1 || p.Create != 0 {
		t.Errorf("the plan is recorded as %+v", p)
	}
	if m := condition(tf, infra.ConditionPlan).Message; !strings.Contains(m, "1 to import, 0 to add") {
		t.Errorf("the condition says %q", m)
	}
	if _, text := w.get("/api/v1/units/terraform/"+w.ns+"/asks/plan?format=json", ""); !strings.Contains(text, `"importID":"one"`) {
		t.Errorf("the plan as shown: %s", text)
	}
	w.unit("auto", "approvePlan: auto")
	w.awaitReady("auto")
	w.awaitEvent("auto", infra.ReasonAppliedSucceed)
	if e := w.events("auto", infra.ReasonAppliedSucceed); len(e) != 1 || !strings.Contains(e[0], "1 to import") {
		t.Errorf("events %q", e)
	}
	w.commit(block("two"))
	second := w.await("asks", "planned anew", func(tf *infra.Terraform) bool {
		return tf.Status.Plan.Pending != "" && tf.Status.Plan.Pending != first
	}).Status.Plan.Pending
	w.change("asks", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = second })
	w.awaitReady("asks")
	if n := w.state("asks").Status.Resources; n != 1 {
		t.Errorf("%d resources, want the imported one", n)
	}
}
