// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/terrace-dev/terrace/internal/state"
	"github.com/terrace-dev/terrace/internal/state/server"
)

// withTools runs a test with OpenTofu as it is built here, and with Terraform where there
// is one.
func withTools(t *testing.T, test func(t *testing.T, tool string)) {
	t.Run("tofu", func(t *testing.T) { test(t, tofu(t)) })
	t.Run("terraform", func(t *testing.T) {
		path, err := exec.LookPath("terraform")
		if err != nil {
			t.Skip("there is no terraform in PATH; nothing here may fetch it")
		}
		test(t, path)
	})
}

func tofu(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../../bin/tofu")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skip("there is no bin/tofu; \"make build\" makes it")
	}
	return path
}

// module is a working directory of a tool.
type module struct {
	t    *testing.T
	tool string
	dir  string
	env  []string
}

func newModule(t *testing.T, tool string, files map[string]string) *module {
	t.Helper()
	m := &module{t: t, tool: tool, dir: t.TempDir()}
	m.write(files)
	return m
}

func (m *module) write(files map[string]string) {
	m.t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o600); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *module) try(args ...string) (string, error) {
	cmd := exec.Command(m.tool, args...)
	cmd.Dir = m.dir
	cmd.Env = append([]string{
		"HOME=" + m.dir, "TMPDIR=" + m.dir, "PATH=" + os.Getenv("PATH"),
		"CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1", "TF_INPUT=0", "TF_CLI_ARGS=-no-color",
	}, m.env...)
	out, err := cmd.CombinedOutput()
	return strings.Join(strings.Fields(string(out)), " "), err
}

func (m *module) run(args ...string) string {
	m.t.Helper()
	out, err := m.try(args...)
	if err != nil {
		m.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

// refused runs what must fail, with these words.
func (m *module) refused(words string, args ...string) {
	m.t.Helper()
	if out, err := m.try(args...); err == nil || !strings.Contains(out, words) {
		m.t.Errorf("%v: %v, without %q:\n%s", args, err, words, out)
	}
}

// https serves the world by HTTPS, and returns the environment of Terraform's backend.
func (w *world) https() func(token string) []string {
	w.t.Helper()
	l, err := server.Listen(server.ListenOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- l.Serve(ctx, w.handler) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			w.t.Error(err)
		}
	})
	return func(token string) []string {
		address := l.URL() + netPath
		return []string{
			"TF_HTTP_ADDRESS=" + address, "TF_HTTP_LOCK_ADDRESS=" + address, "TF_HTTP_UNLOCK_ADDRESS=" + address,
			"TF_HTTP_USERNAME=terrace", "TF_HTTP_PASSWORD=" + token, "TF_HTTP_CLIENT_CA_CERTIFICATE_PEM=" + string(l.CA()),
			"TF_HTTP_RETRY_MAX=0",
		}
	}
}

func (w *world) grant(g server.Grant) string {
	w.t.Helper()
	g.State = netKey
	token, revoke, err := w.grants.New(g)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(revoke)
	return token
}

// resources are those of the newest version.
func (w *world) resources() (serial int64, n int) {
	w.t.Helper()
	o, err := w.store.Get(w.t.Context(), netKey)
	if err != nil {
		w.t.Fatal(err)
	}
	if o.Status.Lock != nil {
		w.t.Errorf("the lock is still held: %+v", o.Status.Lock)
	}
	return o.Status.Serial, o.Status.Resources
}

const httpTF = `
terraform {
  backend "http" {}
}
`

const mainTF = `
variable "text" { default = "one" }
resource "terraform_data" "a" { input = var.text }
output "text" { value = terraform_data.a.output }
`

func TestToolByHTTP(t *testing.T) {
	withTools(t, func(t *testing.T, tool string) {
		w := newWorld(t)
		env := w.https()
		m := newModule(t, tool, map[string]string{"main.tf": httpTF + mainTF})
		plan := w.grant(server.Grant{Run: "plan-1"})
		m.env = env(plan)
		m.run("init")
		m.run("plan", "-out=plan")
		m.refused("403", "apply", "-auto-approve", "-lock=false")
		if _, err := os.Stat(filepath.Join(m.dir, "errored.tfstate")); err != nil {
			t.Errorf("a state that was not taken is kept by the tool: %v", err)
		}

		m.env = env(w.grant(server.Grant{Run: "apply-1", Unit: "net", Write: true}))
		m.run("apply", "plan")
		if _, n := w.resources(); n != 1 {
			t.Errorf("%d resources after apply", n)
		}
		m.run("apply", "-auto-approve", "-var=text=two")
		serial, _ := w.resources()
		if out := m.run("output", "-raw", "text"); out != "two" {
			t.Errorf("output: %s", out)
		}

		m.env = env("ann-token")
		// Push: a copy with the next serial, and one that is too old.
		pulled := m.run("state", "pull")
		var doc map[string]any
		if err := json.Unmarshal([]byte(pulled), &doc); err != nil {
			t.Fatal(err)
		}
		push := func(serial int64, lineage string) string {
			doc["serial"], doc["lineage"] = serial, lineage
			b, err := json.Marshal(doc)
			if err != nil {
				t.Fatal(err)
			}
			m.write(map[string]string{"pushed.tfstate": string(b)})
			return "pushed.tfstate"
		}
		lineage, _ := doc["lineage"].(string)
		m.run("state", "push", push(serial+5, lineage))
		if now, _ := w.resources(); now < serial+5 {
			t.Errorf("serial %d after a push of %d", now, serial+5)
		}
		m.refused("serial", "state", "push", push(1, lineage))
		m.refused("409", "state", "push", "-force", push(1, lineage))

		// Somebody else's lock.
		if err := w.store.Lock(t.Context(), netKey, state.Lock{ID: "11111111-2222-3333-4444-555555555555", Who: "somebody@else", Operation: "OperationTypeApply", Created: time.Now()}, holder); err != nil {
			t.Fatal(err)
		}
		m.refused("11111111-2222-3333-4444-555555555555", "plan")
		m.env = env("bob-token")
		m.refused("403", "force-unlock", "-force", "11111111-2222-3333-4444-555555555555")
		m.env = env("ann-token")
		m.run("force-unlock", "-force", "11111111-2222-3333-4444-555555555555")
		m.run("plan")
		broken := 0
		for _, e := range w.recorded() {
			if e.Verb == "force-unlock" && e.err == nil && strings.Contains(e.Detail, "somebody@else") {
				broken++
			}
		}
		if broken != 1 {
			t.Errorf("the ledger knows of %d broken locks, want 1", broken)
		}
		m.run("destroy", "-auto-approve")
		if _, n := w.resources(); n != 0 {
			t.Errorf("%d resources after destroy", n)
		}
		m.env = env(plan + "x")
		m.refused("requires auth", "plan")
	})
}

// TestToolEncrypts: OpenTofu's own encryption passes through.
func TestToolEncrypts(t *testing.T) {
	tool := tofu(t)
	w := newWorld(t)
	m := newModule(t, tool, map[string]string{"main.tf": `
terraform {
  backend "http" {}
  encryption {
    key_provider "pbkdf2" "k" {
      passphrase = "correct horse battery staple"
    }
    method "aes_gcm" "m" {
      keys = key_provider.pbkdf2.k
    }
    state {
      method = method.aes_gcm.m
      enforced = true
    }
  }
}` + mainTF})
	m.env = w.https()(w.grant(server.Grant{Write: true}))
	m.run("init")
	m.run("apply", "-auto-approve")
	m.run("apply", "-auto-approve", "-var=text=two")
	o, err := w.store.Get(t.Context(), netKey)
	if err != nil || !o.Status.Encrypted || o.Status.Lineage == "" || len(o.Status.Versions) < 2 {
		t.Errorf("%+v, %v", o.Status, err)
	}
	m.run("plan", "-detailed-exitcode", "-var=text=two")
}

// TestToolMigrates: a state moves in from a file, and out again.
func TestToolMigrates(t *testing.T) {
	withTools(t, func(t *testing.T, tool string) {
		w := newWorld(t)
		m := newModule(t, tool, map[string]string{"main.tf": mainTF})
		m.run("init")
		m.run("apply", "-auto-approve")
		m.write(map[string]string{"backend.tf": httpTF})
		m.env = w.https()(w.grant(server.Grant{Write: true}))
		m.run("init", "-migrate-state", "-force-copy")
		payload, _, err := w.store.Read(t.Context(), netKey, 0)
		if err != nil {
			t.Fatal(err)
		}
		if is, err := state.Summarize(payload); err != nil || is.Resources != 1 || is.Outputs != 1 {
			t.Errorf("what moved in is %+v, %v", is, err)
		}
		m.run("plan", "-detailed-exitcode")
		if err := os.Remove(filepath.Join(m.dir, "backend.tf")); err != nil {
			t.Fatal(err)
		}
		m.run("init", "-migrate-state", "-force-copy")
		m.run("plan", "-detailed-exitcode")
	})
}

func TestToolByCloud(t *testing.T) {
	withTools(t, func(t *testing.T, tool string) {
		w := newWorld(t)
		web := httptest.NewServer(w.handler)
		t.Cleanup(web.Close)
		m := newModule(t, tool, map[string]string{"main.tf": `
terraform {
  cloud {
    hostname     = "states.example.org"
    organization = "ns"
    workspaces { name = "net" }
  }
}` + mainTF})
		as := func(token string) {
			m.write(map[string]string{"rc": fmt.Sprintf(`
host "states.example.org" {
  services = { "tfe.v2" = "%[1]s/api/v2/", "tfe.v2.1" = "%[1]s/api/v2/", "tfe.v2.2" = "%[1]s/api/v2/" }
}
credentials "states.example.org" { token = %[2]q }`, web.URL, token)})
		}
		m.env = []string{"TF_CLI_CONFIG_FILE=" + filepath.Join(m.dir, "rc")}
		as(w.grant(server.Grant{Run: "plan-1"}))
		m.run("init")
		m.run("plan")
		if out, err := m.try("apply", "-auto-approve"); err == nil {
			t.Errorf("a plan's token applies:\n%s", out)
		}
		if o, err := w.store.Get(t.Context(), netKey); err != nil || len(o.Status.Versions) != 0 {
			t.Errorf("and wrote: %+v, %v", o, err)
		}
		// The tool keeps the lock when its state could not be written; so must the server.
		if _, err := w.store.ForceUnlock(t.Context(), netKey); err != nil {
			t.Fatal(err)
		}

		as(w.grant(server.Grant{Run: "apply-1", Unit: "net", Write: true}))
		m.run("apply", "-auto-approve")
		m.run("apply", "-auto-approve", "-var=text=two")
		if _, n := w.resources(); n != 1 {
			t.Errorf("%d resources after apply", n)
		}
		if out := m.run("output", "-raw", "text"); out != "two" {
			t.Errorf("output: %s", out)
		}
		o, err := w.store.Get(t.Context(), netKey)
		if err != nil || o.Status.Versions[0].Run != "apply-1" || o.Status.Versions[0].By != "net" {
			t.Errorf("%+v, %v", o, err)
		}

		if err := w.store.Lock(t.Context(), netKey, state.Lock{ID: "other", Who: "somebody@else"}, holder); err != nil {
			t.Fatal(err)
		}
		as("bob-token")
		m.refused("locked", "plan")
		if out, err := m.try("force-unlock", "-force", "ns/net"); err == nil {
			t.Errorf("force-unlock without the right:\n%s", out)
		}
		as("ann-token")
		m.run("force-unlock", "-force", "ns/net")
		m.run("destroy", "-auto-approve")
		if _, n := w.resources(); n != 0 {
			t.Errorf("%d resources after destroy", n)
		}
		as("eve-token")
		if out, err := m.try("plan"); err == nil {
			t.Errorf("plan without any right:\n%s", out)
		}
	})
}

func TestDiscovery(t *testing.T) {
	w := newWorld(t)
	for path, want := range map[string]int{"/.well-known/terraform.json": http.StatusOK, "/api/v2/ping": http.StatusNoContent} {
		if a := w.as("").ask("GET", path, ""); a.code != want {
			t.Errorf("%s: %d", path, a.code)
		}
	}
	if a := w.as("").ask("GET", "/api/v2/ping", ""); a.header.Get("TFP-API-Version") != "2.6" {
		t.Errorf("%v", a.header)
	}
}
