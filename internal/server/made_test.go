// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/config"
)

// makingAndHolding is a module that makes something, notes it in a file, and then does not
// end before somebody writes into the pipe, which it opens.
func makingAndHolding(t *testing.T, made, pipe string) string {
	t.Helper()
	must(t, syscall.Mkfifo(pipe, 0o600))
	return fmt.Sprintf(`
resource "terraform_data" "first" {
  for_each = toset(["a", "b c"])
  provisioner "local-exec" { command = "echo '${each.key}' >> %s" }
}
resource "terraform_data" "slow" {
  depends_on = [terraform_data.first]
  provisioner "local-exec" { command = "echo begun > %s; cat %s" }
}
output "id" { value = terraform_data.first["b c"].id }
`, made, pipe, pipe)
}

// begun returns when a provisioner has written to the pipe.
func begun(t *testing.T, pipe string) {
	t.Helper()
	if _, err := os.ReadFile(pipe); err != nil {
		t.Fatal(err)
	}
}

// releaseNext lets the next apply go on that says that it has begun.
func releaseNext(t *testing.T, pipe string) {
	go func() {
		if _, err := os.ReadFile(pipe); err == nil {
			release(t, pipe)
		}
	}()
}

// The tool writes its state every 20 seconds and at its end. What it has made when it is
// killed before is not made a second time.
func TestKilledToolMakesNothingTwice(t *testing.T) {
	for _, victim := range []string{"tofu", "both"} {
		t.Run(victim, func(t *testing.T) {
			dir := t.TempDir()
			made, pipe := filepath.Join(dir, "made"), filepath.Join(dir, "pipe")
			w := newWorld(t, map[string]string{"main.tf": makingAndHolding(t, made, pipe)}, func(c *config.Config) { c.WatchNamespaces = []string{"nobody"} })
			w.stop() // this test needs only the repository and the namespace
			p := w.startProcess()
			w.unit("u", "approvePlan: auto\nretryInterval: 1s\nwriteOutputsToSecret: {name: out}")
			begun(t, pipe)
			w.kill(victim, p)
			w.awaitEvent("u", infra.ReasonRecovered)
			releaseNext(t, pipe)
			w.awaitReady("u")
			w.secret("out", nil)
			content, err := os.ReadFile(made)
			must(t, err)
			if got := strings.Fields(strings.ReplaceAll(string(content), " ", "_")); len(got) != 2 {
				t.Errorf("the first resources were made as %q: each once was wanted; events %q, and the log\n%s", got, w.events("u", infra.ReasonOrphaned), w.runLog("u"))
			}
			if s := w.state("u"); s.Status.Resources != 2 || s.Status.Lock != nil {
				t.Errorf("the state: %+v", s.Status)
			}
			if got := w.events("u", infra.ReasonRecovered); len(got) != 1 || !strings.Contains(got[0], `terraform_data.first["b c"]`) {
				t.Errorf("the events: %q", got)
			}
		})
	}
}

// A resource that was replaced is known to the state as the one before, which is gone.
func TestKilledToolHasReplaced(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	must(t, syscall.Mkfifo(pipe, 0o600))
	module := func(n int) string {
		return fmt.Sprintf(`
resource "terraform_data" "again" {
  lifecycle { replace_triggered_by = [terraform_data.turn] }
}
resource "terraform_data" "turn" { input = %d }
resource "terraform_data" "slow" {
  count      = %d
  depends_on = [terraform_data.again]
  provisioner "local-exec" { command = "echo begun > %s; cat %s" }
}
output "id" { value = terraform_data.again.id }
`, n, n, pipe, pipe)
	}
	w := newWorld(t, map[string]string{"main.tf": module(0)})
	w.unit("u", "approvePlan: auto\nretryInterval: 1s\nwriteOutputsToSecret: {name: out}")
	w.awaitReady("u")
	before := string(w.secret("out", nil).Data["id"])
	w.commit(map[string]string{"main.tf": module(1)})
	begun(t, pipe)
	w.killTool()
	w.awaitEvent("u", infra.ReasonRecovered)
	releaseNext(t, pipe)
	w.secret("out", func(data map[string][]byte) bool { return string(data["id"]) != before })
	w.awaitReady("u")
	if got := w.events("u", infra.ReasonRecovered); len(got) != 1 || !strings.Contains(got[0], "terraform_data.again") {
		t.Errorf("the events: %q", got)
	}
	if got := w.events("u", infra.ReasonOrphaned); len(got) != 0 {
		t.Errorf("the events: %q", got)
	}
}

// What cannot be imported is made again, and told of.
func TestKilledToolMadeWhatCannotBeImported(t *testing.T) {
	dir := t.TempDir()
	pipe, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "file")
	must(t, syscall.Mkfifo(pipe, 0o600))
	w := newWorld(t, map[string]string{"main.tf": fmt.Sprintf(`
terraform {
  required_providers {
    local = { source = "terrace.test/hashicorp/local" }
  }
}
resource "local_file" "f" {
  filename = %q
  content  = "x"
}
resource "terraform_data" "slow" {
  depends_on = [local_file.f]
  provisioner "local-exec" { command = "echo begun > %s; cat %s" }
}
`, file, pipe, pipe)}, withMirror(t))
	w.unit("u", "approvePlan: auto\nretryInterval: 1s")
	begun(t, pipe)
	w.killTool()
	w.awaitEvent("u", infra.ReasonOrphaned)
	releaseNext(t, pipe)
	w.awaitReady("u")
	if got := w.events("u", infra.ReasonOrphaned); len(got) != 1 || !strings.Contains(got[0], `local_file.f (id "`) {
		t.Errorf("the events: %q", got)
	}
	if s := w.state("u"); s.Status.Resources != 2 {
		t.Errorf("the state: %+v", s.Status)
	}
}

// A unit that is deleted after its apply was killed destroys what that has made, once.
func TestKilledToolAndThenDeleted(t *testing.T) {
	for _, victim := range []string{"tofu", "both"} {
		t.Run(victim, func(t *testing.T) {
			dir := t.TempDir()
			made, failed, pipe := filepath.Join(dir, "made"), filepath.Join(dir, "failed"), filepath.Join(dir, "pipe")
			must(t, syscall.Mkfifo(pipe, 0o600))
			w := newWorld(t, map[string]string{"vars.tfvars": "v = 1\n", "main.tf": fmt.Sprintf(`
variable "v" { type = number }
resource "terraform_data" "first" {
  for_each = toset(["a", "b"])
  provisioner "local-exec" {
    when    = destroy
    command = "if [ ${each.key} = b ] && [ ! -e %s ]; then touch %s; exit 1; fi; echo ${each.key} >> %s"
  }
}
resource "terraform_data" "slow" {
  depends_on = [terraform_data.first]
  provisioner "local-exec" { command = "echo begun > %s; cat %s" }
}
output "v" { value = var.v }
`, failed, failed, made, pipe, pipe)}, func(c *config.Config) { c.WatchNamespaces = []string{"nobody"} })
			w.stop()
			p := w.startProcess()
			w.unit("u", "approvePlan: \"\"\ndestroyResourcesOnDeletion: true\nretryInterval: 1s\ntfVarsFiles: [./vars.tfvars]")
			id := w.awaitPending("u")
			w.change("u", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = id })
			begun(t, pipe)
			w.kill(victim, p)
			w.await("u", "waiting with another plan", func(tf *infra.Terraform) bool {
				return tf.Status.Plan.Pending != "" && tf.Status.Plan.Pending != id && tf.Status.RunningID == ""
			})
			w.delete("u")
			w.awaitGone("u")
			if got := strings.Fields(content(t, made)); len(got) != 2 {
				t.Errorf("destroyed were %q: both of those that were made was wanted, once", got)
			}
			if content(t, failed) != "" || w.spawned("import") != 2 {
				t.Errorf("%d imports, of two; the destroy of one was to fail once", w.spawned("import"))
			}
		})
	}
}
