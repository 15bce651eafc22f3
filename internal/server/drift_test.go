// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/config"
	"github.com/terrace-dev/terrace/internal/testenv"
)

// The tests here are about drift, with a real provider whose resources are files.

// mirror is a CLI configuration that finds the providers that hack/providers.sh built.
func mirror(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(testenv.Root(t), ".cache", "providers")
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("%v: run `hack/providers.sh` first", err)
	}
	return fmt.Sprintf("provider_installation {\n  filesystem_mirror { path = %q }\n}\n", dir)
}

func withMirror(t *testing.T) func(*config.Config) {
	path := filepath.Join(t.TempDir(), "mirror.tfrc")
	must(t, os.WriteFile(path, []byte(mirror(t)), 0o600))
	return func(c *config.Config) { c.TofuCLIConfig = path }
}

// localFile is a module that keeps a file with the content of its variable.
func localFile(path string) string {
	return `
terraform {
  required_providers {
    local = { source = "terrace.test/hashicorp/local" }
  }
}
variable "v" { default = "right" }
resource "local_file" "f" {
  content  = var.v
  filename = "` + path + `"
}
output "name" { value = local_file.f.filename }
`
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(b)
}

func TestDrift(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{}
	for _, name := range []string{"auto", "manual", "blind", "disable"} {
		files[name+"/main.tf"] = localFile(filepath.Join(dir, name))
	}
	w := newWorld(t, files, withMirror(t))
	w.unit("auto", "path: ./auto\napprovePlan: auto\nenableInventory: true\nwriteOutputsToSecret: {name: out}")
	w.unit("blind", "path: ./blind\napprovePlan: auto\ndisableDriftDetection: true")
	w.unit("manual", "path: ./manual\napprovePlan: \"\"\nretryInterval: 1s")
	w.unit("disable", "path: ./disable\napprovePlan: auto")
	w.awaitPending("manual")
	w.change("manual", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = tf.Status.Plan.Pending })
	for _, name := range []string{"auto", "blind", "manual", "disable"} {
		w.awaitReady(name)
		if got := content(t, filepath.Join(dir, name)); got != "right" {
			t.Fatalf("%s made a file with %q", name, got)
		}
	}
	inv := w.terraform("auto").Status.Inventory
	if inv == nil || len(inv.Entries) != 1 || inv.Entries[0].Name != "f" || inv.Entries[0].Type != "local_file" || inv.Entries[0].Identifier == "" {
		t.Errorf("the inventory is %+v", inv)
	}
	w.change("disable", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = infra.ApprovePlanDisable })

	t.Run("auto repairs it", func(t *testing.T) {
		w := w.in(t)
		must(t, os.Remove(filepath.Join(dir, "auto")))
		w.makeDriftDue("auto")
		tf := w.await("auto", "repaired", func(tf *infra.Terraform) bool {
			return isReady(tf) && tf.Status.LastAppliedByDriftDetectionAt != nil
		})
		if got := content(t, filepath.Join(dir, "auto")); got != "right" || tf.Status.LastDriftDetectedAt == nil {
			t.Errorf("the file holds %q, drift was seen at %v", got, tf.Status.LastDriftDetectedAt)
		}
		w.makeDriftDue("auto")
		w.awaitReason("auto", infra.ReasonNoDrift)
	})
	t.Run("manual waits for an approval, once", func(t *testing.T) {
		w := w.in(t)
		must(t, os.WriteFile(filepath.Join(dir, "manual"), []byte("wrong and secret"), 0o600))
		w.makeDriftDue("manual")
		tf := w.await("manual", "drifted", func(tf *infra.Terraform) bool {
			return readyOf(tf).Reason == infra.ReasonDriftDetected && tf.Status.Plan.IsDriftDetectionPlan
		})
		id, planned := tf.Status.Plan.Pending, tf.Status.LastPlanAt.String()
		if m := readyOf(tf).Message; !strings.Contains(m, `set approvePlan: "`+id+`"`) || strings.Contains(m, "wrong and secret") {
			t.Errorf("Ready says %q", m)
		}
		if tf.Status.ReconciliationFailures != 0 {
			t.Errorf("drift counts as %d failures", tf.Status.ReconciliationFailures)
		}
		w.awaitEvent("manual", infra.ReasonDriftDetected)
		w.change("manual", func(tf *infra.Terraform) { tf.Spec.RetryInterval = nil }) // looks again
		tf = w.await("manual", "looked at again", func(tf *infra.Terraform) bool { return tf.Status.ObservedGeneration == tf.Generation })
		if got := tf.Status.LastPlanAt.String(); got != planned || tf.Status.Plan.Pending != id {
			t.Errorf("planned again at %s (before: %s), pending %s", got, planned, tf.Status.Plan.Pending)
		}
		if got := w.events("manual", infra.ReasonDriftDetected); len(got) != 1 || strings.Contains(got[0], "wrong and secret") {
			t.Errorf("events %q", got)
		}
		w.change("manual", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = id })
		w.awaitReady("manual")
		if got := content(t, filepath.Join(dir, "manual")); got != "right" {
			t.Errorf("the file holds %q", got)
		}
	})
	t.Run("switched off it is not looked for", func(t *testing.T) {
		w := w.in(t)
		must(t, os.Remove(filepath.Join(dir, "blind")))
		w.makeDriftDue("blind")
		w.change("blind", func(tf *infra.Terraform) { tf.Spec.DestroyResourcesOnDeletion = true })
		tf := w.await("blind", "looked at", func(tf *infra.Terraform) bool { return tf.Status.ObservedGeneration == tf.Generation })
		if !isReady(tf) || content(t, filepath.Join(dir, "blind")) != "" {
			t.Errorf("conditions %+v", tf.Status.Conditions)
		}
	})
	t.Run("with approvePlan disable it is only told of", func(t *testing.T) {
		w := w.in(t)
		must(t, os.Remove(filepath.Join(dir, "disable")))
		w.makeDriftDue("disable")
		tf := w.awaitReason("disable", infra.ReasonDriftDetected)
		if tf.Status.Plan.Pending != "" || content(t, filepath.Join(dir, "disable")) != "" {
			t.Errorf("pending %q", tf.Status.Plan.Pending)
		}
		w.change("disable", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = infra.ApprovePlanAuto })
		w.makeDriftDue("disable")
		w.awaitReady("disable")
		if content(t, filepath.Join(dir, "disable")) != "right" {
			t.Error("the file is not there again")
		}
	})
}

// A check comes due by time alone, without a word from anybody.
func TestDriftIsLookedForAtEachInterval(t *testing.T) {
	w := newWorld(t, modA())
	w.unit("u", "approvePlan: auto")
	w.awaitReady("u")
	w.change("u", func(tf *infra.Terraform) { tf.Spec.Interval.Duration = time.Second })
	first := w.awaitReason("u", infra.ReasonNoDrift).Status.LastPlanAt
	w.await("u", "looked at again", func(tf *infra.Terraform) bool { return first.Before(tf.Status.LastPlanAt) })
}

// A unit's own CLI configuration, from a Secret, finds the provider.
func TestCLIConfigOfAUnitFindsItsProvider(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	w := newWorld(t, map[string]string{"main.tf": localFile(file)})
	w.putSecret("cli", map[string]string{"own.tfrc": mirror(t)})
	w.unit("without", "approvePlan: auto")
	tf := w.awaitReason("without", infra.ReasonInitFailed)
	if m := readyOf(tf).Message; !strings.Contains(m, "terrace.test/hashicorp/local") {
		t.Errorf("the message does not name the provider: %q", m)
	}
	w.unit("with", "approvePlan: auto\ncliConfigSecretRef: {name: cli}")
	w.awaitReady("with")
	w.change("without", func(tf *infra.Terraform) { tf.Spec.CliConfigSecretRef = &corev1.SecretReference{Name: "cli"} })
	w.awaitReady("without")
}

// destroy: true destroys what there is, and then finds nothing to do.
func TestDestroy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	w := newWorld(t, map[string]string{"main.tf": localFile(file)}, withMirror(t))
	w.unit("u", "approvePlan: auto\nwriteOutputsToSecret: {name: out}")
	w.output("out", "name", file)
	w.awaitReady("u")
	w.change("u", func(tf *infra.Terraform) { tf.Spec.Destroy, tf.Spec.ApprovePlan = true, "" })
	w.awaitPending("u")
	tf := w.terraform("u")
	if !tf.Status.Plan.IsDestroyPlan || content(t, file) != "right" {
		t.Errorf("the plan is %+v", tf.Status.Plan)
	}
	w.change("u", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = infra.ApprovePlanAuto })
	w.await("u", "destroyed", func(tf *infra.Terraform) bool {
		return isReady(tf) && strings.Contains(condition(tf, "Apply").Message, "Destroy applied successfully: main@sha1:")
	})
	if content(t, file) != "" {
		t.Error("the file is still there")
	}
	w.awaitEvent("u", infra.ReasonDestroySucceed)
	w.secretGone("out")
	w.change("u", func(tf *infra.Terraform) { tf.Annotations = map[string]string{"reconcile.fluxcd.io/requestedAt": "1"} })
	tf = w.await("u", "asked again", func(tf *infra.Terraform) bool { return isReady(tf) && tf.Status.LastHandledReconcileAt == "1" })
	if got, want := readyOf(tf).Message, "No objects need to be destroyed: "+tf.Status.LastPlannedRevision; got != want {
		t.Errorf("Ready says %q, want %q", got, want)
	}
	w.unit("never", "approvePlan: auto\ndestroy: true")
	tf = w.awaitReady("never")
	if !strings.HasPrefix(readyOf(tf).Message, "No objects need to be destroyed: ") {
		t.Errorf("Ready says %q", readyOf(tf).Message)
	}
}

// An apply that fails drops its plan; the next attempt plans what is left.
func TestFailedApplyPlansAgain(t *testing.T) {
	dir := t.TempDir()
	blocker := filepath.Join(dir, "blocker")
	must(t, os.WriteFile(blocker, nil, 0o600)) // a file where a directory is needed
	w := newWorld(t, map[string]string{"main.tf": localFile(filepath.Join(blocker, "f")) + `
resource "terraform_data" "first" {}
`}, withMirror(t))
	w.unit("u", "approvePlan: \"\"\nretryInterval: 1s")
	id := w.awaitPending("u")
	if got := w.terraform("u").Status.LastPlan.Create; got != 2 {
		t.Errorf("the plan creates %d resources", got)
	}
	w.change("u", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = id })
	w.await("u", "failed or planned again", func(tf *infra.Terraform) bool {
		return condition(tf, "Apply").Reason == infra.ReasonAppliedFail
	})
	w.awaitEvent("u", infra.ReasonApplyFailed)
	tf := w.await("u", "waiting with what is left", func(tf *infra.Terraform) bool {
		return tf.Status.Plan.Pending != "" && tf.Status.Plan.Pending != id && strings.Contains(readyOf(tf).Message, "set approvePlan: ")
	})
	if tf.Status.LastPlan.Create != 1 {
		t.Errorf("the new plan creates %d resources", tf.Status.LastPlan.Create)
	}
	must(t, os.Remove(blocker))
	w.change("u", func(u *infra.Terraform) { u.Spec.ApprovePlan = tf.Status.Plan.Pending })
	w.awaitReady("u")
	if content(t, filepath.Join(blocker, "f")) != "right" {
		t.Error("the file is not there")
	}
}
