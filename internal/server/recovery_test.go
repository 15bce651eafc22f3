// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/config"
)

// The tests here are about what must not be lost, or stay for ever, when something
// fails or changes at an awkward moment.

// A tool that is killed cannot give its lock back; nobody else will.
func TestToolThatIsKilledLeavesNoLock(t *testing.T) {
	w := newWorld(t, map[string]string{"main.tf": `
resource "terraform_data" "x" {
  provisioner "local-exec" { command = "kill -9 $PPID" }
}`})
	w.unit("u", "approvePlan: auto\nremediation: {retries: 1}\nretryInterval: 1s")
	w.awaitEvent("u", infra.ReasonApplyFailed)
	w.change("u", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = "" })
	w.awaitPending("u") // a plan, which needs the lock
	if got := w.holder("u"); got != "" {
		t.Errorf("the lock is left with %q", got)
	}
}

// A deletion goes on when what depended on the unit depends on it no more.
func TestDeletionGoesOnWhenADependantLetsGo(t *testing.T) {
	w := newWorld(t, modA())
	w.unit("base", "approvePlan: auto")
	w.unit("spec", "approvePlan: auto\ndependsOn: [{name: base}]")
	w.unit("annotated", "approvePlan: auto")
	w.change("annotated", func(tf *infra.Terraform) {
		tf.Annotations = map[string]string{infra.DependsOnAnnotation: "Terraform/base"}
	})
	w.awaitReady("spec")
	w.delete("base")
	w.await("base", "held up by both", func(tf *infra.Terraform) bool {
		return strings.Contains(readyOf(tf).Message, "/spec") && strings.Contains(readyOf(tf).Message, "/annotated")
	})
	w.change("spec", func(tf *infra.Terraform) { tf.Spec.DependsOn = nil })
	w.await("base", "held up by one", func(tf *infra.Terraform) bool {
		return !strings.Contains(readyOf(tf).Message, "/spec") && strings.Contains(readyOf(tf).Message, "/annotated")
	})
	w.change("annotated", func(tf *infra.Terraform) { delete(tf.Annotations, infra.DependsOnAnnotation) })
	w.awaitGone("base")
}

// The artifact that was applied is kept, also when it is not the one that was planned.
func TestDeletionAfterAnApprovalByCommitAndWithoutSource(t *testing.T) {
	w := newWorld(t, modA())
	w.unit("u", "approvePlan: \"\"\ndestroyResourcesOnDeletion: true")
	id := w.awaitPending("u")
	revision := w.commit(map[string]string{"approval.txt": id})
	w.await("u", "aware of the commit", func(tf *infra.Terraform) bool { return tf.Status.LastPlannedRevision == revision })
	w.change("u", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = id })
	w.awaitReady("u")
	must(t, w.client.Delete(w.ctx(), &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "src"}}))
	w.restart() // so that no unpacked tree helps
	w.delete("u")
	w.awaitGone("u")
	if n := w.spawned("apply"); n != 2 {
		t.Errorf("%d applies: one to create and one to destroy were wanted", n)
	}
}

// Outputs that could not be written are written later.
func TestOutputsAreWrittenAfterAFailure(t *testing.T) {
	w := newWorld(t, modA())
	w.stop()
	var broken atomic.Bool
	w.api.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if broken.Load() && r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/secrets/out") {
				return nil, errors.New("the network is away")
			}
			return next.RoundTrip(r)
		})
	})
	w.start()
	w.unit("u", "approvePlan: auto\nwriteOutputsToSecret: {name: out}")
	w.output("out", "o", "a")
	w.awaitReady("u")
	broken.Store(true)
	w.change("u", func(tf *infra.Terraform) { tf.Spec.Vars = []infra.Variable{{Name: "v", Value: jsonValue(`"b"`)}} })
	w.awaitReason("u", infra.ReasonOutputsWritingFailed)
	broken.Store(false)
	w.output("out", "o", "b")
	w.awaitReady("u")
}

// A run that is cancelled before its turn does not begin again by itself.
func TestCancelledInTheQueue(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	w := newWorld(t, holding(t, pipe, "create"), oneRun)
	w.unit("long", "approvePlan: auto")
	w.awaitApplying("long")
	w.unit("short", "approvePlan: auto\npath: ./quick")
	w.await("short", "queued", func(tf *infra.Terraform) bool {
		return strings.HasPrefix(readyOf(tf).Message, "Waiting for a free run slot")
	})
	w.change("short", func(tf *infra.Terraform) { tf.Annotations = map[string]string{infra.CancelAnnotation: "1"} })
	w.awaitReason("short", infra.ReasonCancelled)
	release(t, pipe)
	w.awaitReady("long")
	if got := readyOf(w.terraform("short")).Reason; got != infra.ReasonCancelled {
		t.Errorf("Ready has reason %q", got)
	}
	w.change("short", func(tf *infra.Terraform) { tf.Annotations["reconcile.fluxcd.io/requestedAt"] = "1" })
	w.awaitReady("short")
}

// Without its health checks a unit is not unhealthy.
func TestHealthChecksAreTakenAway(t *testing.T) {
	w := newWorld(t, modA())
	w.unit("u", "approvePlan: auto\nhealthChecks: [{name: h, type: http, url: \"http://127.0.0.1:1/\"}]")
	w.awaitReason("u", infra.ReasonHealthChecksFailed)
	w.change("u", func(tf *infra.Terraform) { tf.Spec.HealthChecks = nil })
	w.awaitReady("u")
}

// An apply that ended while no Terrace was there to see it has changed the outputs;
// the plan after it has no changes, and they are read all the same.
func TestOutputsOfAnApplyThatNobodySawEnd(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	must(t, syscall.Mkfifo(pipe, 0o600))
	w := newWorld(t, map[string]string{"main.tf": moduleA + `
resource "terraform_data" "slow" {
  triggers_replace = var.v
  provisioner "local-exec" { command = "cat ` + pipe + `" }
}`}, func(c *config.Config) { c.WatchNamespaces = []string{"nobody"} })
	w.stop()
	p := w.startProcess()
	w.unit("u", "approvePlan: auto\nwriteOutputsToSecret: {name: out}")
	release(t, pipe)
	w.output("out", "o", "a")
	w.awaitReady("u")
	w.change("u", func(tf *infra.Terraform) { tf.Spec.Vars = []infra.Variable{{Name: "v", Value: jsonValue(`"b"`)}} })
	writer, err := os.OpenFile(pipe, os.O_WRONLY, 0) // opens once the apply reads
	must(t, err)
	p.kill()
	must(t, writer.Close())
	w.startProcess()
	w.output("out", "o", "b")
}
