// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package gate_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/internal/state"
	"github.com/terrace-dev/terrace/internal/state/gate"
	"github.com/terrace-dev/terrace/internal/testenv"
)

// module is a working directory of a tool whose state is behind a gate.
type module struct {
	t    *testing.T
	tool string
	dir  string
	gate *gate.Gate
	ns   string
}

func newModule(t *testing.T, tool string, env *testenv.Env, files map[string]string) *module {
	t.Helper()
	g, err := gate.New(gate.Options{Config: env.Config})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- g.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	m := &module{t: t, tool: tool, dir: t.TempDir(), gate: g, ns: env.Namespace(t)}
	m.write(map[string]string{"backend.tf": fmt.Sprintf(`
terraform {
  backend "kubernetes" {
    secret_suffix = "unit"
    namespace     = %q
    config_path   = %q
  }
}`, m.ns, m.kubeconfig())})
	m.write(files)
	return m
}

func (m *module) kubeconfig() string { return filepath.Join(m.dir, "kubeconfig") }

func (m *module) write(files map[string]string) {
	m.t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o600); err != nil {
			m.t.Fatal(err)
		}
	}
}

// grant gives the module access, in place of what it had.
func (m *module) grant(workspace string, write bool, onLock func(string) error) *gate.Access {
	m.t.Helper()
	a, err := m.gate.Grant(gate.Scope{
		Namespace: m.ns, Suffix: "unit", Workspace: workspace, Write: write, Run: "run-1", OnLock: onLock,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(a.Revoke)
	m.write(map[string]string{"kubeconfig": string(a.Kubeconfig)})
	return a
}

func (m *module) command(args ...string) *exec.Cmd {
	cmd := exec.Command(m.tool, args...)
	cmd.Dir = m.dir
	cmd.Env = []string{
		"HOME=" + m.dir, "TMPDIR=" + m.dir, "PATH=" + os.Getenv("PATH"),
		"CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1", "TF_INPUT=0",
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

func (m *module) run(args ...string) string {
	m.t.Helper()
	out, err := m.command(args...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

// tools are OpenTofu as it is built here, and Terraform where there is one.
func tools(t *testing.T) map[string]string {
	found := map[string]string{"tofu": filepath.Join(testenv.Root(t), "bin", "tofu")}
	if path, err := exec.LookPath("terraform"); err == nil {
		found["terraform"] = path
	}
	return found
}

func TestTool(t *testing.T) {
	env := testenv.Start(t)
	for name, tool := range tools(t) {
		t.Run(name, func(t *testing.T) {
			m := newModule(t, tool, env, map[string]string{
				"main.tf": `
variable "text" { default = "one" }
resource "terraform_data" "a" { input = var.text }
output "text" { value = terraform_data.a.output }`,
			})
			var locks []string
			note := func(id string) error { locks = append(locks, id); return nil }

			reader := m.grant("default", false, note)
			m.run("init", "-no-color")
			m.run("plan", "-no-color", "-out=plan")
			if len(locks) != 2 || reader.LockID() != "" {
				t.Errorf("init and plan locked %d times, %q is held", len(locks), reader.LockID())
			}
			out, err := m.command("apply", "-no-color", "-lock=false", "-auto-approve").CombinedOutput()
			if err == nil || !strings.Contains(strings.Join(strings.Fields(string(out)), " "), "the run may only read the state") {
				t.Errorf("a plan's access lets it apply: %v\n%s", err, out)
			}
			if _, ok := reader.LastState(); !ok {
				t.Error("the empty state of init was not seen")
			}
			reader.Revoke()

			writer := m.grant("default", true, note)
			m.run("apply", "-no-color", "plan")
			payload, ok := writer.LastState()
			summary, err := state.Summarize(payload)
			if !ok || err != nil || summary.Resources != 1 || summary.Outputs != 1 {
				t.Errorf("the state that was written: %+v, %v", summary, err)
			}
			t.Logf("apply: %d requests", writer.Forwarded())
			writer.Revoke()
			if out, err := m.command("plan", "-no-color").CombinedOutput(); err == nil {
				t.Errorf("a revoked access still serves:\n%s", out)
			}

			again := m.grant("default", true, note)
			m.run("apply", "-no-color", "-auto-approve")
			if _, ok := again.LastState(); ok {
				t.Error("an apply that changed nothing wrote a state")
			}
			if current, ok := again.CurrentState(); !ok || string(current) != string(payload) {
				t.Error("the state that was read is not the one that was written")
			}

			m.grant("blue", true, note)
			m.run("workspace", "new", "-no-color", "blue")
			m.run("apply", "-no-color", "-auto-approve")
			if out := m.run("workspace", "list", "-no-color"); !strings.Contains(out, "* blue") || !strings.Contains(out, "default") {
				t.Errorf("workspaces:\n%s", out)
			}
			m.run("destroy", "-no-color", "-auto-approve")
			m.run("workspace", "select", "-no-color", "default")
			m.run("workspace", "delete", "-no-color", "blue")
		})
	}
}

// TestKilledTool: the lock of a run that was killed is known, and can be released.
func TestKilledTool(t *testing.T) {
	env := testenv.Start(t)
	for name, tool := range tools(t) {
		t.Run(name, func(t *testing.T) {
			m := newModule(t, tool, env, map[string]string{
				"main.tf": `
resource "terraform_data" "a" {
  provisioner "local-exec" {
    command = "echo >started; sleep 1000"
  }
}`,
			})
			started := filepath.Join(m.dir, "started")
			if err := syscall.Mkfifo(started, 0o600); err != nil {
				t.Fatal(err)
			}
			var last string
			a := m.grant("default", true, func(id string) error { last = id; return nil })
			m.run("init", "-no-color")
			cmd := m.command("apply", "-no-color", "-auto-approve")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() {
				_ = cmd.Wait()
				// Should it have ended before the provisioner began, nobody else will.
				if f, err := os.OpenFile(started, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
					f.Close()
				}
				close(ended)
			}()
			if _, err := os.ReadFile(started); err != nil {
				t.Error(err)
			}
			if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			<-ended
			a.Revoke()

			scope := gate.Scope{Namespace: m.ns, Suffix: "unit", Workspace: "default"}
			held, err := m.gate.Lock(t.Context(), scope)
			if err != nil {
				t.Fatal(err)
			}
			if held == nil || held.ID != last || held.ID != a.LockID() || held.Operation != "OperationTypeApply" {
				t.Errorf("the lock is held by %+v, the journal has %q, the access %q", held, last, a.LockID())
			}
			if err := m.gate.ReleaseLock(t.Context(), scope, "another"); !errors.Is(err, state.ErrLocked) {
				t.Errorf("release by another id: %v", err)
			}
			if err := m.gate.ReleaseLock(t.Context(), scope, last); err != nil {
				t.Error(err)
			}
			m.grant("default", false, nil)
			m.run("plan", "-no-color")
		})
	}
}

// TestLargeState: Terraform cuts a state that is too large for one Secret.
func TestLargeState(t *testing.T) {
	tool, ok := tools(t)["terraform"]
	if !ok {
		t.Skip("there is no terraform; OpenTofu does not cut states")
	}
	env := testenv.Start(t)
	random := make([]byte, 600<<10)
	_, _ = rand.Read(random)
	m := newModule(t, tool, env, map[string]string{
		"main.tf": `resource "terraform_data" "a" { input = file("large") }`,
		"large":   hex.EncodeToString(random),
	})
	a := m.grant("default", true, nil)
	m.run("init", "-no-color")
	m.run("apply", "-no-color", "-auto-approve")
	payload, ok := a.LastState()
	if summary, err := state.Summarize(payload); !ok || err != nil || summary.Resources != 1 || len(payload) < 2*len(random) {
		t.Errorf("the state that was written: %d bytes, %+v, %v", len(payload), summary, err)
	}
	var secrets corev1.SecretList
	if err := env.Client.List(t.Context(), &secrets, client.InNamespace(m.ns)); err != nil {
		t.Fatal(err)
	}
	if len(secrets.Items) < 2 {
		t.Errorf("%d Secrets: the state was not cut", len(secrets.Items))
	}
	m.write(map[string]string{"large": "small"})
	m.run("apply", "-no-color", "-auto-approve")
	if payload, ok := a.LastState(); !ok || len(payload) > len(random) {
		t.Errorf("the state that was written then: %d bytes, %v", len(payload), ok)
	}
	m.run("plan", "-no-color", "-detailed-exitcode")
}
