// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/config"
	"github.com/terrace-dev/terrace/internal/testenv"
)

// process is Terrace as a process of its own, because that is what can be killed.
type process struct {
	cmd *exec.Cmd
	out bytes.Buffer
}

// command is such a process, not started.
func (w *world) command(kubeconfig string, change ...func(*exec.Cmd)) *exec.Cmd {
	w.t.Helper()
	cmd := exec.Command(filepath.Join(testenv.Root(w.t), "bin", "terrace"), "controller",
		"--kubeconfig", kubeconfig, "--data-dir", w.cfg.DataDir, "--tofu", w.cfg.Tofu,
		"--watch-namespace", w.ns, "--leader-election=false", "--allow-local-sources")
	for _, path := range w.cfg.RunAllowRead {
		cmd.Args = append(cmd.Args, "--run-allow-read", path)
	}
	for _, path := range w.cfg.RunAllowWrite {
		cmd.Args = append(cmd.Args, "--run-allow-write", path)
	}
	if w.cfg.TofuCLIConfig != "" {
		cmd.Args = append(cmd.Args, "--tofu-cli-config", w.cfg.TofuCLIConfig)
	}
	for _, c := range change {
		c(cmd)
	}
	return cmd
}

func (w *world) startProcess(change ...func(*exec.Cmd)) *process {
	w.t.Helper()
	return w.startProcessOn(testenv.Start(w.t).Kubeconfig, change...)
}

func (w *world) startProcessOn(kubeconfig string, change ...func(*exec.Cmd)) *process {
	w.t.Helper()
	p := &process{cmd: w.command(kubeconfig, change...)}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		_ = p.cmd.Wait()
		if w.t.Failed() {
			w.t.Logf("output of terrace controller:\n%s", p.out.String())
		}
	})
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// A Terrace that is killed in the middle of an apply finds out what happened: what
// was made is in the state, the lock is given back, and nothing is made twice.
func TestKillInTheMiddleOfAnApplyLosesNothing(t *testing.T) {
	dir := t.TempDir()
	begun, made := filepath.Join(dir, "begun"), filepath.Join(dir, "made")
	must(t, syscall.Mkfifo(begun, 0o600))
	module := `
resource "terraform_data" "first" {
  provisioner "local-exec" { command = "echo x >> ` + made + `" }
}
resource "terraform_data" "slow" {
  depends_on = [terraform_data.first]
  provisioner "local-exec" { command = "echo begun > ` + begun + `; sleep 3" }
}
output "id" { value = terraform_data.first.id }
`
	w := newWorld(t, map[string]string{"main.tf": module}, func(c *config.Config) { c.WatchNamespaces = []string{"nobody"} })
	w.stop() // this test needs only the repository and the namespace
	p := w.startProcess()
	w.unit("u", "approvePlan: auto\nretryInterval: 1s\nwriteOutputsToSecret: {name: out}")
	if _, err := os.ReadFile(begun); err != nil { // returns when the provisioner writes
		t.Fatal(err)
	}
	p.kill()
	if w.terraform("u").Status.RunningID == "" {
		t.Error("the status does not say that an apply had begun")
	}

	go func() { // the second apply, if there is one, must not block on the pipe
		for {
			if _, err := os.ReadFile(begun); err != nil {
				return
			}
		}
	}()
	w.startProcess()
	tf := w.await("u", "Ready again", func(tf *infra.Terraform) bool { return isReady(tf) && tf.Status.RunningID == "" })
	w.secret("out", nil)
	if content, _ := os.ReadFile(made); strings.Count(string(content), "x") != 1 {
		t.Errorf("the first resource was made %d times", strings.Count(string(content), "x"))
	}
	var leases coordinationv1.LeaseList
	must(t, w.client.List(w.ctx(), &leases, client.InNamespace(w.ns)))
	for _, l := range leases.Items {
		if l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity != "" {
			t.Errorf("Lease %s is held by %s", l.Name, *l.Spec.HolderIdentity)
		}
	}
	if tf.Status.Plan.Pending != "" {
		t.Errorf("plan %s is pending", tf.Status.Plan.Pending)
	}
	w.awaitEvent("u", infra.ReasonInterrupted)
}

// A Terrace that is killed while it plans or waits does nothing again but the plan.
func TestKillWhileAPlanWaitsForApproval(t *testing.T) {
	w := newWorld(t, modA(), func(c *config.Config) { c.WatchNamespaces = []string{"nobody"} })
	w.stop()
	p := w.startProcess()
	w.unit("u", "approvePlan: \"\"\nwriteOutputsToSecret: {name: out}")
	id := w.awaitPending("u")
	spawned := w.spawned("")
	p.kill()
	w.startProcess()
	w.change("u", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = id })
	w.output("out", "o", "a")
	if n := w.spawned("") - spawned; n != 1 {
		t.Errorf("%d processes after the restart: the apply of the stored plan was wanted", n)
	}
}
