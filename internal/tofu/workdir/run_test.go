// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package workdir_test

import (
	"archive/zip"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/terrace-dev/terrace/internal/tofu"
	"github.com/terrace-dev/terrace/internal/tofu/workdir"
)

// unit is a Dir with the real tofu in it.
type unit struct {
	t       *testing.T
	dir     *workdir.Dir
	session *tofu.Session
	cache   string
	cli     []byte
	ran     []string
}

func newUnit(t *testing.T) *unit {
	t.Helper()
	path, err := filepath.Abs("../../../bin/tofu")
	must(t, err)
	tool, err := tofu.Find(t.Context(), path)
	if errors.Is(err, tofu.ErrNotFound) {
		t.Fatalf("%v: run make build first", err)
	}
	must(t, err)
	dir, err := workdir.OpenDir(filepath.Join(t.TempDir(), "unit"))
	must(t, err)
	t.Cleanup(func() { _ = dir.Close() })
	u := &unit{t: t, dir: dir}
	u.session = &tofu.Session{Tool: tool, Started: func(p tofu.Process) error {
		u.ran = append(u.ran, p.Subcommand)
		return nil
	}}
	return u
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// prepare makes the directory ready, and runs init when it is needed.
func (u *unit) prepare(root, path string, vars workdir.Variables) error {
	files := map[string][]byte{}
	varsFile, err := vars.JSON()
	if err != nil {
		return err
	}
	if varsFile != nil {
		files[workdir.VarsFile] = varsFile
	}
	reach, err := workdir.ReachOf(root, path, workdir.Options{TofuFiles: true})
	if err != nil {
		return err
	}
	p, err := u.dir.Prepare(workdir.Request{
		Source: root, Reach: reach, Files: files, CLIConfig: u.cli,
		Init: workdir.Init{Tool: u.session.Tool.Digest, PluginCache: u.cache},
	})
	if err != nil {
		return err
	}
	u.session.Dir, u.session.DataDir, u.session.Home, u.session.Tmp = p.Module, p.DataDir, p.Home, p.Tmp
	u.session.CLIConfig, u.session.PluginCache = p.CLIConfig, u.cache
	if !p.InitNeeded {
		return nil
	}
	if err := u.session.Init(u.t.Context(), tofu.InitOptions{}); err != nil {
		return err
	}
	return u.dir.InitDone(p)
}

// apply prepares, applies, and reads the outputs.
func (u *unit) apply(root, path string, vars workdir.Variables) (map[string]string, error) {
	if err := u.prepare(root, path, vars); err != nil {
		return nil, err
	}
	if err := u.session.Apply(u.t.Context(), tofu.ApplyOptions{}); err != nil {
		return nil, err
	}
	outputs, err := u.session.Outputs(u.t.Context())
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for name, o := range outputs {
		values[name] = string(o.Value)
	}
	return values, nil
}

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		at := filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(at), 0o700))
		must(t, os.WriteFile(at, []byte(content), 0o600))
	}
	return root
}

// R16: what comes out is what went in, byte by byte, as variable and as value.
func TestExactBytes(t *testing.T) {
	u := newUnit(t)
	root := tree(t, map[string]string{"main.tf": `
variable "v" {}
variable "values" { type = any }
output "v" { value = var.v }
output "p" { value = var.values.p }
output "keys" { value = keys(var.values) }
`})
	const secret = "x\",\"admin\":\"true\n${v} %{if} <&>é"
	inputs, err := workdir.Inputs([]workdir.Input{{As: "i", Data: map[string][]byte{"p": []byte(secret)}}})
	must(t, err)
	values, err := workdir.Values(json.RawMessage(`{"p": "${{ .i.p }}"}`), inputs)
	must(t, err)
	got, err := u.apply(root, ".", workdir.Variables{From: []map[string][]byte{{"v": []byte(secret)}}, Values: values})
	must(t, err)
	for _, name := range []string{"v", "p"} {
		var s string
		must(t, json.Unmarshal([]byte(got[name]), &s))
		if diff := cmp.Diff(secret, s); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
	if keys := strings.Join(strings.Fields(got["keys"]), ""); keys != `["p"]` {
		t.Errorf("keys are %s: a value became structure", keys)
	}
}

// A second run of a unit, and one whose module changed but not what init reads,
// runs no init; local modules are found where they were. A change of modules
// runs it.
func TestInitIsSkipped(t *testing.T) {
	u := newUnit(t)
	files := map[string]string{
		"u/main.tf": `module "m" { source = "../m" }` + "\n" + `output "o" { value = module.m.o }`,
		"m/main.tf": `output "o" { value = file("${path.module}/../data.txt") }`, "data.txt": "one",
	}
	for _, data := range []string{"one", "one", "two"} {
		files["data.txt"] = data
		got, err := u.apply(tree(t, files), "u", workdir.Variables{})
		must(t, err)
		if got["o"] != `"`+data+`"` {
			t.Errorf("output is %s, want %s", got["o"], data)
		}
	}
	files["u/more.tf"] = `module "n" { source = "../m" }`
	_, err := u.apply(tree(t, files), "u", workdir.Variables{})
	must(t, err)
	want := []string{"init", "apply", "output", "apply", "output", "apply", "output", "init", "apply", "output"}
	if diff := cmp.Diff(want, u.ran); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// R10: the size of an artifact is no obstacle.
func TestLargeArtifact(t *testing.T) {
	u := newUnit(t)
	big := make([]byte, 5<<20)
	_, _ = rand.Read(big)
	root := tree(t, map[string]string{"main.tf": `output "o" { value = filesha256("big.bin") }`, "big.bin": string(big)})
	got, err := u.apply(root, ".", workdir.Variables{})
	must(t, err)
	if len(got["o"]) != 66 {
		t.Errorf("output is %s", got["o"])
	}
}

// Another backend is another state: nothing is moved, and the workspace of the
// unit is made there.
func TestBackendChanges(t *testing.T) {
	u := newUnit(t)
	root := tree(t, map[string]string{"main.tf": `resource "terraform_data" "x" {}`})
	run := func(state string) bool {
		t.Helper()
		hcl, err := workdir.Backend{Custom: fmt.Sprintf("backend \"local\" {\n  workspace_dir = %q\n}", state)}.HCL()
		must(t, err)
		reach, err := workdir.ReachOf(root, ".", workdir.Options{})
		must(t, err)
		p, err := u.dir.Prepare(workdir.Request{Source: root, Reach: reach, Files: map[string][]byte{workdir.BackendFile: hcl}})
		must(t, err)
		u.session.Dir, u.session.DataDir, u.session.Home, u.session.Tmp = p.Module, p.DataDir, p.Home, p.Tmp
		if p.InitNeeded {
			must(t, u.session.Init(t.Context(), tofu.InitOptions{ForceCopy: true}))
			must(t, u.dir.InitDone(p))
		}
		must(t, u.session.SelectWorkspace(t.Context(), "prod"))
		changed, err := u.session.Plan(t.Context(), tofu.PlanOptions{})
		must(t, err)
		must(t, u.session.Apply(t.Context(), tofu.ApplyOptions{}))
		return changed
	}
	for i, step := range []struct {
		state   string
		changed bool
	}{{"a", true}, {"a", false}, {"b", true}, {"a", false}} {
		if got := run(step.state); got != step.changed {
			t.Errorf("step %d: changes is %t, want %t", i, got, step.changed)
		}
	}
}

// A backend that changed behind the back of Prepare: the tool asks for init, and
// that can be acted on.
func TestToolAsksForInit(t *testing.T) {
	u := newUnit(t)
	root := tree(t, map[string]string{"main.tf": `output "o" { value = 1 }`})
	must(t, u.prepare(root, ".", workdir.Variables{}))
	must(t, os.WriteFile(filepath.Join(u.session.Dir, "backend_override.tf"), []byte("terraform {\n  backend \"local\" { path = \"x\" }\n}\n"), 0o600))
	_, err := u.session.Plan(t.Context(), tofu.PlanOptions{})
	var exit *tofu.ExitError
	if !errors.As(err, &exit) || !exit.NeedsInit {
		t.Errorf("got %v", err)
	}
}

const providersModule = `
terraform {
  required_providers {
    time  = { source = "terrace.test/hashicorp/time" }
    local = { source = "terrace.test/hashicorp/local" }
  }
}
resource "time_static" "t" { rfc3339 = "2026-11-30T12:00:00Z" }
resource "local_file" "f" {
  filename = "${path.module}/made.txt"
  content  = tostring(time_static.t.unix)
}
output "o" { value = local_file.f.content }
`

// mirror is the filesystem mirror of real providers, packed as a registry packs
// them, so that init has to unpack them.
func mirror(t *testing.T) string {
	t.Helper()
	build := exec.Command("../../../hack/providers.sh")
	if out, err := build.CombinedOutput(); err != nil {
		t.Skipf("the providers cannot be built here: hack/providers.sh: %v\n%s", err, out)
	}
	from, err := filepath.Abs("../../../.cache/providers")
	must(t, err)
	to := t.TempDir()
	found := 0
	must(t, filepath.WalkDir(filepath.Join(from, "terrace.test"), func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		// HOST/NAMESPACE/TYPE/VERSION/PLATFORM/FILE
		rel, _ := filepath.Rel(from, at)
		p := strings.Split(rel, string(filepath.Separator))
		dir := filepath.Join(to, p[0], p[1], p[2])
		must(t, os.MkdirAll(dir, 0o700))
		found++
		return pack(at, filepath.Join(dir, fmt.Sprintf("terraform-provider-%s_%s_%s.zip", p[2], p[3], p[4])))
	}))
	if found < 2 {
		t.Fatalf("%d providers in %s", found, from)
	}
	return to
}

// pack makes a zip archive, uncompressed, of one executable.
func pack(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	w := zip.NewWriter(f)
	h := &zip.FileHeader{Name: filepath.Base(from), Method: zip.Store}
	h.SetMode(0o755)
	e, err := w.CreateHeader(h)
	if err != nil {
		return err
	}
	if _, err := e.Write(b); err != nil {
		return err
	}
	return w.Close()
}

func mirrorConfig(dir string) []byte {
	quoted, _ := json.Marshal(dir)
	return []byte("provider_installation {\n  filesystem_mirror { path = " + string(quoted) + " }\n}\n")
}

// Ten units start at once with an empty cache: each gets whole providers, which
// are unpacked once. (Three of them apply; the others could.)
func TestTenInitsShareTheCache(t *testing.T) {
	config := mirrorConfig(mirror(t))
	cache := filepath.Join(t.TempDir(), "cache")
	root := tree(t, map[string]string{"main.tf": providersModule})
	units := make([]*unit, 10)
	for i := range units {
		units[i] = newUnit(t)
		units[i].cache, units[i].cli = cache, config
	}
	var all sync.WaitGroup
	for i, u := range units {
		all.Go(func() {
			if i >= 3 {
				if err := u.prepare(root, ".", workdir.Variables{}); err != nil {
					t.Errorf("unit %d: %v", i, err)
				}
				return
			}
			got, err := u.apply(root, ".", workdir.Variables{})
			if err != nil || got["o"] != `"1796040000"` {
				t.Errorf("unit %d: %v, %v", i, got, err)
			}
		})
	}
	all.Wait()
	stamps, err := filepath.Glob(filepath.Join(cache, "*", "*", "*", "*", "*complete"))
	must(t, err)
	if len(stamps) != 2 {
		t.Errorf("%d packages in the cache, want 2: %v", len(stamps), stamps)
	}

	// The file that a resource made stays there for the next run: no drift, and
	// no init. When someone removes it, there is.
	u := units[0]
	u.ran = nil
	must(t, u.prepare(root, ".", workdir.Variables{}))
	changed, err := u.session.Plan(t.Context(), tofu.PlanOptions{})
	must(t, err)
	if changed {
		t.Error("drift although nothing changed")
	}
	must(t, os.Remove(filepath.Join(u.session.Dir, "made.txt")))
	changed, err = u.session.Plan(t.Context(), tofu.PlanOptions{})
	must(t, err)
	if !changed {
		t.Error("no drift although the file is gone")
	}
	if diff := cmp.Diff([]string{"plan", "plan"}, u.ran); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}

	// A cache that was emptied is filled again by the next run.
	must(t, os.RemoveAll(cache))
	u.ran = nil
	_, err = u.apply(root, ".", workdir.Variables{})
	must(t, err)
	if diff := cmp.Diff([]string{"init", "apply", "output"}, u.ran); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
