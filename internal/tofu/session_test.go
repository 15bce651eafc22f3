// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/terrace-dev/terrace/internal/tofu"
)

// otherTool names the environment variable with the path of another tofu or
// terraform that these tests shall run.
const otherTool = "TERRACE_TEST_TOFU"

// tool is the binary that `make build` made, or the one of otherTool.
func tool(t *testing.T) *tofu.Tool {
	t.Helper()
	path, err := filepath.Abs("../../bin/tofu")
	if err != nil {
		t.Fatal(err)
	}
	if other := os.Getenv(otherTool); other != "" {
		path = other
	}
	found, err := tofu.Find(t.Context(), path)
	if errors.Is(err, tofu.ErrNotFound) {
		t.Fatalf("%v: run make build first", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// log takes what a process prints, and tells when a text has come.
type log struct {
	mu    sync.Mutex
	text  bytes.Buffer
	until string
	found chan struct{}
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	if l.until != "" && strings.Contains(l.text.String(), l.until) {
		l.until = ""
		close(l.found)
	}
	return len(p), nil
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// waitFor is closed when the text has been printed.
func (l *log) waitFor(text string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until, l.found = text, make(chan struct{})
	return l.found
}

// session makes a module of the files in a directory of its own.
func session(t *testing.T, files map[string]string) (*tofu.Session, *log) {
	t.Helper()
	base := t.TempDir()
	for _, dir := range []string{"module", "data", "home", "tmp"} {
		if err := os.Mkdir(filepath.Join(base, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(base, "module", name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := &log{}
	return &tofu.Session{
		Tool: tool(t), Dir: filepath.Join(base, "module"), DataDir: filepath.Join(base, "data"),
		Home: filepath.Join(base, "home"), Tmp: filepath.Join(base, "tmp"), Output: out,
	}, out
}

const moduleA = `
variable "v" { default = "a" }
resource "terraform_data" "x" { input = var.v }
output "o" { value = terraform_data.x.output }
output "l" { value = [1, 12345678901234567890] }
`

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestVersion(t *testing.T) {
	if os.Getenv(otherTool) != "" {
		t.Skip("it is another tool")
	}
	found := tool(t)
	if found.Product != tofu.OpenTofu || found.Version != "1.12.6" || !strings.HasPrefix(found.Digest, "sha256:") {
		t.Errorf("got %+v", found)
	}
}

// An import takes what people give as it is: keys with quotes, ids that look like flags.
func TestImport(t *testing.T) {
	ctx := t.Context()
	s, out := session(t, map[string]string{"main.tf": `
variable "v" {}
resource "terraform_data" "x" { input = var.v }
module "m" {
  source   = "./m"
  for_each = toset(["a\"b"])
}
`, "x.tfvars": `v = "a"`, "m.tf": ""})
	must(t, os.Mkdir(filepath.Join(s.Dir, "m"), 0o700))
	must(t, os.WriteFile(filepath.Join(s.Dir, "m", "main.tf"), []byte("resource \"terraform_data\" \"y\" { count = 2 }\n"), 0o600))
	must(t, s.Init(ctx, tofu.InitOptions{}))
	for address, id := range map[string]string{"terraform_data.x": "-h", `module.m["a\"b"].terraform_data.y[1]`: "an id"} {
		must(t, s.Import(ctx, tofu.ImportOptions{Address: address, ID: id, VarFiles: []string{"x.tfvars"}}))
	}
	state, err := s.StatePull(ctx)
	must(t, err)
	for _, want := range []string{`"id":"-h"`, `"id":"an id"`, `"module":"module.m[\"a\\\"b\"]"`} {
		if !bytes.Contains(state, []byte(want)) {
			t.Errorf("the state has no %s: %s", want, state)
		}
	}
	var exit *tofu.ExitError
	err = s.Import(ctx, tofu.ImportOptions{Address: "terraform_data.x", ID: "other", VarFiles: []string{"x.tfvars"}})
	if !errors.As(err, &exit) || !strings.Contains(exit.Summary, "already managed") {
		t.Errorf("the same address again: %v", err)
	}
	for address, id := range map[string]string{"-config=/": "x", "data.terraform_data.x": "x", "terraform_data.x": "--version", "terraform_data.y": "", "terraform_data.z": "a\nb"} {
		said := len(out.String())
		if err := s.Import(ctx, tofu.ImportOptions{Address: address, ID: id}); err == nil || errors.As(err, &exit) || len(out.String()) > said {
			t.Errorf("Import %s %q: %v; want that nothing is run", address, id, err)
		}
	}
}

// The life of a module: planned, applied, looked at, destroyed.
func TestLife(t *testing.T) {
	ctx := t.Context()
	s, out := session(t, map[string]string{"main.tf": moduleA})
	var started []string
	s.Started = func(p tofu.Process) error {
		if now, err := tofu.ProcessStart(p.PID); err == nil && now != p.StartTime {
			t.Errorf("start time of %d: told %d, is %d", p.PID, p.StartTime, now)
		}
		started = append(started, p.Subcommand)
		return nil
	}
	must(t, s.Init(ctx, tofu.InitOptions{}))

	plan, stream := filepath.Join(s.Tmp, "plan"), filepath.Join(s.Tmp, "stream")
	withStream := tofu.PlanOptions{Out: plan, JSONInto: stream}
	if !s.Tool.JSONInto() {
		if _, err := s.Plan(ctx, withStream); !errors.Is(err, tofu.ErrUnsupported) {
			t.Errorf("got %v, want ErrUnsupported", err)
		}
		withStream.JSONInto = ""
	}
	changed, err := s.Plan(ctx, withStream)
	must(t, err)
	if !changed {
		t.Error("a first plan changes something")
	}
	if !strings.Contains(out.String(), "terraform_data.x will be created") {
		t.Errorf("the text of the plan is not in the output: %s", out)
	}
	if s.Tool.JSONInto() {
		events, err := os.ReadFile(stream)
		must(t, err)
		if !bytes.Contains(events, []byte(`"type":"planned_change"`)) {
			t.Errorf("the stream tells of no change: %s", events)
		}
	}

	decoded, raw, err := s.Show(ctx, plan)
	must(t, err)
	if len(decoded.ResourceChanges) != 1 || !json.Valid(raw) {
		t.Errorf("got %d changes", len(decoded.ResourceChanges))
	}
	text, err := s.ShowText(ctx, plan)
	must(t, err)
	if !strings.Contains(text, "1 to add") {
		t.Errorf("got %s", text)
	}
	must(t, s.Apply(ctx, tofu.ApplyOptions{Plan: plan}))

	outputs, err := s.Outputs(ctx)
	must(t, err)
	if got := string(outputs["o"].Value); got != `"a"` {
		t.Errorf("output o is %s", got)
	}
	if got := string(outputs["l"].Value); !strings.Contains(got, "12345678901234567890") {
		t.Errorf("output l is %s: the digits must stay", got)
	}
	changed, err = s.Plan(ctx, tofu.PlanOptions{})
	must(t, err)
	if changed {
		t.Error("nothing has changed since")
	}
	state, err := s.ShowState(ctx)
	must(t, err)
	if n := len(state.Values.RootModule.Resources); n != 1 {
		t.Errorf("%d resources in the state", n)
	}
	must(t, s.Destroy(ctx, tofu.ApplyOptions{}))
	pulled, err := s.StatePull(ctx)
	must(t, err)
	if !bytes.Contains(bytes.ReplaceAll(pulled, []byte(" "), nil), []byte(`"resources":[]`)) {
		t.Errorf("the state still holds %s", pulled)
	}
	want := []string{"init", "plan", "show", "show", "apply", "output", "plan", "show", "apply", "state pull"}
	if diff := cmp.Diff(want, started); diff != "" {
		t.Errorf("one process for each call (-want +got)\n%s", diff)
	}
	if left, _ := filepath.Glob(filepath.Join(s.Tmp, "*.out")); len(left) > 0 {
		t.Errorf("output files stay behind: %v", left)
	}
}

// A run sees nothing of the environment of Terrace.
func TestEnvironmentIsPrivate(t *testing.T) {
	t.Setenv("TERRACE_CANARY", "from-the-control-plane")
	t.Setenv("TF_VAR_v", "from-the-control-plane")
	s, out := session(t, map[string]string{"main.tf": moduleA + `
resource "terraform_data" "env" {
  provisioner "local-exec" { command = "echo begin; env; echo end" }
}`})
	s.Env = map[string]string{"TF_VAR_v": "from-the-spec", "MINE": "yes", "TF_CLI_ARGS_plan": "-compact-warnings"}
	must(t, s.Init(t.Context(), tofu.InitOptions{}))
	must(t, s.Apply(t.Context(), tofu.ApplyOptions{}))
	if strings.Contains(out.String(), "from-the-control-plane") {
		t.Errorf("the environment of Terrace is seen: %s", out)
	}
	if !strings.Contains(out.String(), "MINE=yes") || !strings.Contains(out.String(), "HOME="+s.Home) {
		t.Errorf("the environment of the spec is not seen: %s", out)
	}
	outputs, err := s.Outputs(t.Context())
	must(t, err)
	if got := string(outputs["o"].Value); got != `"from-the-spec"` {
		t.Errorf("output o is %s", got)
	}
}

// What is wrong is said in one text that a condition can carry.
func TestMessages(t *testing.T) {
	tests := map[string]struct {
		reason string
		module string
		init   bool // the failure is of init
		want   []string
	}{
		"syntax": {
			module: "resource \"terraform_data\" \"x\" {\n", init: true,
			want: []string{"Error: Unclosed configuration block", "on main.tf line 1"},
		},
		"missing variable": {
			module: `variable "needed" {}`,
			want:   []string{"Error: No value for required variable", "on main.tf line 1", `"needed"`},
		},
		"missing provider": {
			reason: "no registry can be reached: the mirror is empty",
			module: "terraform {\n  required_providers {\n    nope = { source = \"terrace.test/none/nope\" }\n  }\n}\n", init: true,
			want: []string{"Error: Failed to query available provider packages", "terrace.test/none/nope"},
		},
		"unknown argument": {
			module: `resource "terraform_data" "x" { nope = 1 }`,
			want:   []string{"Error: Unsupported argument", "nope"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s, _ := session(t, map[string]string{"main.tf": tc.module})
			s.CLIConfig = mirrorConfig(t, t.TempDir())
			err := s.Init(t.Context(), tofu.InitOptions{})
			if !tc.init {
				must(t, err)
				_, err = s.Plan(t.Context(), tofu.PlanOptions{})
			}
			var exit *tofu.ExitError
			if !errors.As(err, &exit) {
				t.Fatalf("got %v", err)
			}
			for _, want := range tc.want {
				if !strings.Contains(exit.Summary, want) {
					t.Errorf("%s: %q is not in %q", tc.reason, want, exit.Summary)
				}
			}
			if strings.ContainsAny(exit.Summary, "│╷╵\x1b") {
				t.Errorf("frames or colours in %q", exit.Summary)
			}
		})
	}
}

// mirrorConfig is a CLI configuration that takes providers from dir alone.
func mirrorConfig(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cli.tfrc")
	quoted, err := json.Marshal(dir)
	must(t, err)
	must(t, os.WriteFile(path, []byte("provider_installation {\n  filesystem_mirror { path = "+string(quoted)+" }\n}\n"), 0o600))
	return path
}

// An apply that is cancelled stops in order: what was done is in the state, the
// lock is released, and the next apply finishes.
func TestStreamsAreApart(t *testing.T) {
	s, out := session(t, map[string]string{"main.tf": "resource \"terraform_data\" \"x\" {\n  provisioner \"local-exec\" { command = \"exit 7\" }\n}\n"})
	errs := &log{}
	s.Errors = errs
	must(t, s.Init(t.Context(), tofu.InitOptions{}))
	plan := filepath.Join(s.Tmp, "plan")
	_, err := s.Plan(t.Context(), tofu.PlanOptions{Out: plan})
	must(t, err)
	if err := s.Apply(t.Context(), tofu.ApplyOptions{Plan: plan}); err == nil {
		t.Fatal("the provisioner did not fail")
	}
	const standard, failure = "terraform_data.x will be created", "local-exec provisioner error"
	if o, e := out.String(), errs.String(); !strings.Contains(o, standard) || strings.Contains(e, standard) || !strings.Contains(e, failure) || strings.Contains(o, failure) {
		t.Errorf("output:\n%s\nerrors:\n%s", o, e)
	}
}

func TestCancel(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "gate")
	s, out := session(t, map[string]string{"main.tf": `
resource "terraform_data" "first" { input = 1 }
resource "terraform_data" "slow" {
  depends_on = [terraform_data.first]
  provisioner "local-exec" { command = "echo waiting; read x < ` + fifo + `" }
}
resource "terraform_data" "last" { depends_on = [terraform_data.slow] }
`})
	mkfifo(t, fifo)
	must(t, s.Init(t.Context(), tofu.InitOptions{}))
	ctx, cancel := context.WithCancelCause(t.Context())
	alice := errors.New("cancelled by alice")
	waiting := out.waitFor("waiting")
	ended := make(chan error, 1)
	go func() { ended <- s.Apply(ctx, tofu.ApplyOptions{}) }()
	<-waiting
	cancel(alice)
	err := <-ended
	var exit *tofu.ExitError
	if !errors.As(err, &exit) || !errors.Is(err, alice) {
		t.Fatalf("got %v", err)
	}
	if exit.Code < 0 {
		t.Errorf("it was killed, and not asked: %v", err)
	}
	state, err := s.ShowState(t.Context())
	must(t, err)
	if !stateHas(state.Values.RootModule.Resources, "terraform_data.first") {
		t.Error("what was done is not in the state")
	}
	// A lock that is still held would fail this one.
	_, err = s.Plan(t.Context(), tofu.PlanOptions{})
	must(t, err)
}

// A process that does not stop when asked is killed with all that it started.
func TestKill(t *testing.T) {
	s, out := session(t, map[string]string{"main.tf": `
resource "terraform_data" "slow" {
  provisioner "local-exec" { command = "trap '' INT TERM; echo waiting $$; while :; do read x < gate; done" }
}
`})
	s.Grace = time.Millisecond
	mkfifo(t, filepath.Join(s.Dir, "gate"))
	must(t, s.Init(t.Context(), tofu.InitOptions{}))
	ctx, cancel := context.WithCancel(t.Context())
	waiting := out.waitFor("waiting ")
	ended := make(chan error, 1)
	go func() { ended <- s.Apply(ctx, tofu.ApplyOptions{}) }()
	<-waiting
	cancel()
	var exit *tofu.ExitError
	if err := <-ended; !errors.As(err, &exit) || !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}

// A hook that cannot write the journal stops the run before it goes on.
func TestStartedFails(t *testing.T) {
	s, _ := session(t, map[string]string{"main.tf": moduleA})
	full := errors.New("disk full")
	s.Started = func(tofu.Process) error { return full }
	if err := s.Init(t.Context(), tofu.InitOptions{}); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
}

// Two workspaces of one module have states of their own, and choosing the one
// that is chosen runs nothing.
func TestWorkspace(t *testing.T) {
	s, _ := session(t, map[string]string{"main.tf": moduleA})
	processes := 0
	s.Started = func(tofu.Process) error { processes++; return nil }
	must(t, s.Init(t.Context(), tofu.InitOptions{}))
	must(t, s.SelectWorkspace(t.Context(), "")) // the default is chosen
	must(t, s.SelectWorkspace(t.Context(), "staging"))
	must(t, s.SelectWorkspace(t.Context(), "staging"))
	must(t, s.Apply(t.Context(), tofu.ApplyOptions{}))
	must(t, s.SelectWorkspace(t.Context(), "production"))
	changed, err := s.Plan(t.Context(), tofu.PlanOptions{})
	must(t, err)
	if !changed {
		t.Error("production sees the state of staging")
	}
	if processes != 5 {
		t.Errorf("%d processes, want init, select, apply, select, plan", processes)
	}
}

// A lock that someone else holds is told with its holder, and can be removed.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	s, out := session(t, map[string]string{"main.tf": `
resource "terraform_data" "slow" {
  provisioner "local-exec" { command = "echo waiting; read x < gate" }
}
`})
	gate := filepath.Join(s.Dir, "gate")
	mkfifo(t, gate)
	must(t, s.Init(t.Context(), tofu.InitOptions{}))
	waiting := out.waitFor("waiting")
	ended := make(chan error, 1)
	go func() { ended <- s.Apply(t.Context(), tofu.ApplyOptions{}) }()
	<-waiting

	other := *s
	other.Output = nil
	other.Tmp = dir
	_, err := other.Plan(t.Context(), tofu.PlanOptions{})
	var lock *tofu.LockError
	if !errors.As(err, &lock) || lock.ID == "" || lock.Who == "" || lock.Operation != "OperationTypeApply" {
		t.Errorf("got %v", err)
	}
	must(t, os.WriteFile(gate, []byte("go\n"), 0o600))
	must(t, <-ended)
}

// orphanDir names the environment variable that makes this binary the Terrace
// that is killed in TestOrphan.
const orphanDir = "TERRACE_TEST_ORPHAN"

const orphanModule = `
resource "terraform_data" "slow" {
  provisioner "local-exec" { command = "echo waiting; read x < gate; seq 100000" }
}
resource "terraform_data" "last" { depends_on = [terraform_data.slow] }
`

// An apply outlives a Terrace that is killed: it is not killed with it, does not
// die of an output that nobody reads, and its state is whole.
func TestOrphan(t *testing.T) {
	if dir := os.Getenv(orphanDir); dir != "" {
		s := &tofu.Session{
			Tool: tool(t), Dir: dir + "/module", DataDir: dir + "/data", Home: dir + "/home", Tmp: dir + "/tmp",
			Output: os.Stdout,
		}
		must(t, s.Apply(t.Context(), tofu.ApplyOptions{}))
		return
	}
	s, _ := session(t, map[string]string{"main.tf": orphanModule})
	mkfifo(t, filepath.Join(s.Dir, "gate"))
	must(t, s.Init(t.Context(), tofu.InitOptions{}))

	terrace := exec.Command(os.Args[0], "-test.run=^TestOrphan$")
	terrace.Env = append(os.Environ(), orphanDir+"="+filepath.Dir(s.Dir))
	out := &log{}
	waiting := out.waitFor("waiting")
	terrace.Stdout, terrace.Stderr = out, out
	must(t, terrace.Start())
	<-waiting
	must(t, terrace.Process.Kill())
	_ = terrace.Wait()
	must(t, os.WriteFile(filepath.Join(s.Dir, "gate"), []byte("go\n"), 0o600))

	// The orphan holds the lock until it has ended.
	changed, err := s.Plan(t.Context(), tofu.PlanOptions{LockTimeout: "2m"})
	must(t, err)
	if changed {
		t.Error("the orphan did not finish its apply")
	}
}
