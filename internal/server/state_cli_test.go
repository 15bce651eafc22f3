// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/state"
	"github.com/terrace-dev/terrace/internal/testenv"
)

// The tests here are about "terrace state" as a person uses it: the built binary in a
// process of its own, with the data directory that a Terrace works in.

// The exit codes of the CLI that these tests tell apart.
const (
	exitFailed  = 1
	exitChanges = 2
	exitUsage   = 64
)

// said is how a command ended.
type said struct {
	code      int
	out, errs string
}

// cli runs the built binary beside the world's Terrace, as its administrator, with nobody
// at a terminal. Verbs are about the world's namespace, but for the ledger, which is one.
func (w *world) cli(stdin string, args ...string) said {
	w.t.Helper()
	kubeconfig := filepath.Join(w.cfg.DataDir, "kubeconfig")
	if _, err := os.Stat(kubeconfig); errors.Is(err, fs.ErrNotExist) {
		// Beside the address of the server, where "terrace up" has it.
		c, err := clientcmd.LoadFromFile(testenv.Start(w.t).Kubeconfig)
		must(w.t, err)
		must(w.t, clientcmdapi.FlattenConfig(c))
		must(w.t, clientcmd.WriteToFile(*c, kubeconfig))
	}
	args = append(args, "--data-dir", w.cfg.DataDir)
	if args[0] != "audit" {
		args = append(args, "-n", w.ns)
	}
	cmd := exec.CommandContext(w.ctx(), filepath.Join(testenv.Root(w.t), "bin", "terrace"), args...)
	cmd.Dir = w.repo
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Dir(w.spawns)}
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatal(err)
	}
	return said{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// does runs a command that must succeed, and returns what it wrote to stdout.
func (w *world) does(args ...string) string {
	w.t.Helper()
	s := w.cli("", args...)
	if s.code != 0 {
		w.t.Fatalf("terrace %s: exit code %d\n%s%s", strings.Join(args, " "), s.code, s.out, s.errs)
	}
	return s.out
}

// refuses runs a command that must fail with a code, and say why.
func (w *world) refuses(code int, why string, args ...string) {
	w.t.Helper()
	if s := w.cli("", args...); s.code != code || !strings.Contains(s.errs, why) {
		w.t.Errorf("terrace %s: exit code %d, want %d with %q\n%s%s", strings.Join(args, " "), s.code, code, why, s.out, s.errs)
	}
}

// versions are those that the CLI lists of a state, the newest first.
func (w *world) versions(name string) []v1alpha1.StateVersion {
	w.t.Helper()
	var list []v1alpha1.StateVersion
	if err := json.Unmarshal([]byte(w.does("state", "versions", name, "-o", "json")), &list); err != nil {
		w.t.Fatal(err)
	}
	return list
}

// audited is what "terrace audit" says of an action, in short.
func (w *world) audited(action audit.Action) []string {
	w.t.Helper()
	var got []string
	for line := range strings.Lines(w.does("audit", "--action", string(action), "-o", "json")) {
		var e audit.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			w.t.Fatalf("%v: %s", err, line)
		}
		got = append(got, strings.Join([]string{e.Actor.String(), strings.Replace(e.Unit, "/"+w.ns+"/", "/", 1), e.Phase, e.Outcome, e.Detail}, " | "))
	}
	return got
}

// inLedger fails unless an action has an entry with each of the words.
func (w *world) inLedger(action audit.Action, words ...string) {
	w.t.Helper()
	entries := w.audited(action)
	if !slices.ContainsFunc(entries, func(e string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(e, word) })
	}) {
		w.t.Errorf("the ledger has no %s with %q; it has\n%s", action, words, strings.Join(entries, "\n"))
	}
}

// onDisk reports whether the content of a version is there.
func (w *world) onDisk(v v1alpha1.StateVersion) bool {
	w.t.Helper()
	found := false
	must(w.t, filepath.WalkDir(filepath.Join(w.cfg.DataDir, "states"), func(path string, d fs.DirEntry, err error) error {
		found = found || err == nil && !d.IsDir() && d.Name() == strings.TrimPrefix(v.Blob, "sha256:")
		return ignoreGone(err)
	}))
	return found
}

// facts are what a state says of itself.
type facts struct {
	Serial  int64
	Lineage string
}

func factsOf(t *testing.T, payload string) facts {
	t.Helper()
	var f facts
	if err := json.Unmarshal([]byte(payload), &f); err != nil || f.Lineage == "" {
		t.Fatalf("no state: %v: %.200s", err, payload)
	}
	return f
}

// login is a module with a value that everybody may see and one that nobody may.
func login(text, password string) map[string]string {
	return map[string]string{"main.tf": fmt.Sprintf(`
variable "password" {
  sensitive = true
  default   = %q
}
resource "terraform_data" "x" { input = %q }
resource "terraform_data" "login" { input = var.password }
output "o" { value = terraform_data.x.output }
output "password" {
  value     = var.password
  sensitive = true
}
`, password, text)}
}

func TestStateVerbsThatLook(t *testing.T) {
	w := newWorld(t, login("one", "hunter-of-one"))
	w.unit("net", "approvePlan: auto")
	w.awaitReady("net")
	w.awaitRevision("net", w.commit(login("two", "hunter-of-two")))
	s := w.state("net")

	list := w.does("state", "list")
	if !strings.Contains(list, "net ") || strings.Contains(list, "NAMESPACE") || !strings.Contains(w.does("state", "list", "-A"), w.ns) {
		t.Errorf("list:\n%s", list)
	}
	show := w.does("state", "show", "net")
	for _, line := range []string{
		"Name:      " + w.ns + "/net\n", fmt.Sprintf("Serial:    %d\n", s.Status.Serial), "Lineage:   " + s.Status.Lineage + "\n",
		"Resources: 2\n", "Versions:  2, 1 to 2\n", "by Terraform/" + w.ns + "/net\n", "Locked by: -\n",
	} {
		if !strings.Contains(show, line) {
			t.Errorf("show has no %q:\n%s", line, show)
		}
	}
	if got := w.does("state", "show", "net", "--resources"); got != "terraform_data.login\nterraform_data.x\n" {
		t.Errorf("resources: %q", got)
	}
	if got := w.does("state", "show", "net", "--resources", "--version", "1", "-o", "json"); !strings.Contains(got, `"terraform_data.x"`) {
		t.Errorf("resources of version 1: %q", got)
	}
	versions := w.versions("net")
	if len(versions) != 2 || versions[0].Version != 2 || versions[0].Serial <= versions[1].Serial {
		t.Fatalf("versions: %+v", versions)
	}
	for _, v := range versions {
		if !strings.HasSuffix(v.Run, "-apply") || v.By != "Terraform/"+w.ns+"/net" || v.Operation != "apply" || v.Resources != 2 {
			t.Errorf("version %d does not say who wrote it: %+v", v.Version, v)
		}
	}

	diff := w.cli("", "state", "diff", "net", "1", "2", "--exit-code")
	if diff.code != exitChanges || !strings.Contains(diff.out, `"one" -> "two"`) || !strings.Contains(diff.out, "~ terraform_data.login") ||
		!strings.Contains(diff.out, "output password: ") || !strings.Contains(diff.out, "0 added, 2 changed, 0 removed") {
		t.Errorf("diff: %+v", diff)
	}
	if strings.Contains(diff.out+diff.errs, "hunter-of-") {
		t.Errorf("diff shows a sensitive value:\n%s", diff.out)
	}
	if same := w.cli("", "state", "diff", "net", "2", "--exit-code"); same.code != 0 {
		t.Errorf("a version differs from itself: %+v", same)
	}
	if one, two := w.does("state", "pull", "net", "--version", "1"), w.does("state", "pull", "net"); !strings.Contains(one, "hunter-of-one") ||
		!strings.Contains(two, "hunter-of-two") || factsOf(t, two) != (facts{s.Status.Serial, s.Status.Lineage}) {
		t.Errorf("pull:\n%s\n%s", one, two)
	}
	w.refuses(exitFailed, "no such version: 9; kept are 1 to 2", "state", "pull", "net", "--version", "9")
	w.refuses(exitFailed, "not found", "state", "pull", "none")
	w.refuses(exitUsage, "needs A", "state", "diff", "net")
}

func TestStateRollsBack(t *testing.T) {
	w := newWorld(t, login("one", "p"))
	w.unit("net", "approvePlan: auto")
	w.awaitReady("net")
	w.awaitRevision("net", w.commit(login("two", "p")))
	w.change("net", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = "" })
	w.await("net", "planned with the new spec", func(tf *infra.Terraform) bool { return isReady(tf) && tf.Status.LastPlannedGeneration == tf.Generation })
	before := w.versions("net")
	contents := []string{w.does("state", "pull", "net", "--version", "1"), w.does("state", "pull", "net", "--version", "2")}

	w.refuses(exitUsage, "the input is not a terminal", "state", "rollback", "net", "1")
	w.refuses(exitUsage, "is no version", "state", "rollback", "net", "zero", "--yes")
	w.refuses(exitFailed, "no such version: 9", "state", "rollback", "net", "9", "--yes")
	if s := w.state("net"); s.Status.Lock != nil || len(w.versions("net")) != len(before) {
		t.Errorf("what was refused left something: %+v", s.Status)
	}
	out := w.does("state", "rollback", "net", "1", "--yes")
	if want := fmt.Sprintf("back to version 1: it is version 3, serial %d\n", before[0].Serial+1); !strings.HasSuffix(out, want) {
		t.Errorf("it says %q, want %q", out, want)
	}
	after := w.versions("net")
	if len(after) != 3 || after[0].Version != 3 || after[0].Serial != before[0].Serial+1 || after[0].Operation != "rollback" || after[0].By != "admin" {
		t.Fatalf("versions: %+v", after)
	}
	for i, want := range contents {
		if got := w.does("state", "pull", "net", "--version", fmt.Sprint(i+1)); got != want {
			t.Errorf("version %d is another:\n%s", i+1, got)
		}
	}
	if got, was := factsOf(t, w.does("state", "pull", "net")), factsOf(t, contents[0]); got != (facts{before[0].Serial + 1, was.Lineage}) {
		t.Errorf("the newest version is %+v", got)
	}
	if diff := w.does("state", "diff", "net", "1", "3"); !strings.Contains(diff, "0 added, 0 changed, 0 removed") {
		t.Errorf("it is not what it was:\n%s", diff)
	}
	if s := w.state("net"); s.Status.Lock != nil {
		t.Errorf("the lock is left with %s", s.Status.Lock.Holder)
	}
	w.inLedger(audit.Rollback, "kubernetes:admin | State/net", "intent", "to version 1")
	w.inLedger(audit.Rollback, "outcome | succeeded | version 3")

	// The next plan shows what has to be done again.
	if s := w.cli("", "reconcile", "tf/net", "--wait", "--exit-code"); s.code != exitChanges {
		t.Fatalf("the plan after the rollback: %+v\n%s", s, w.runLog("net"))
	}
	id := w.awaitPending("net")
	if plan := w.does("show", "plan", "tf/net"); !strings.Contains(plan, "terraform_data.x") || w.terraform("net").Status.LastPlan.Update != 1 {
		t.Errorf("the plan: %+v\n%s", w.terraform("net").Status.LastPlan, plan)
	}
	w.does("approve", "tf/net", "--plan", id)
	w.await("net", "applied again", func(tf *infra.Terraform) bool { return isReady(tf) && tf.Status.Plan.Pending == "" })
	if now := w.versions("net"); len(now) != 4 || now[0].Serial <= after[0].Serial {
		t.Errorf("versions after the apply: %+v", now)
	}
}

func TestStateVersionsAreRetained(t *testing.T) {
	w := newWorld(t, login("0", "p"))
	w.apply("apiVersion: terrace.dev/v1alpha1\nkind: State\nmetadata: {name: net}\nspec: {keepVersions: 3}\n")
	w.unit("net", "approvePlan: auto")
	w.awaitReady("net")
	written := w.versions("net")
	for i := 1; i < 5; i++ {
		w.awaitRevision("net", w.commit(login(fmt.Sprint(i), "p")))
		written = append(w.versions("net")[:1], written...)
	}
	kept := w.versions("net")
	if len(kept) != 3 || kept[0].Version != 5 || kept[2].Version != 3 {
		t.Fatalf("kept are %+v", kept)
	}
	for _, v := range written {
		if want := v.Version >= 3; w.onDisk(v) != want {
			t.Errorf("version %d is on disk: %v, want %v", v.Version, !want, want)
		}
	}
	w.does("state", "pull", "net", "--version", "3")
	w.refuses(exitFailed, "no such version: 2; kept are 3 to 5", "state", "pull", "net", "--version", "2")
	w.refuses(exitFailed, "no such version: 1", "state", "rollback", "net", "1", "--yes")
}

func TestStateVerbsThatChange(t *testing.T) {
	w := newWorld(t, login("one", "p"))
	w.unit("net", "approvePlan: auto")
	w.awaitReady("net")
	dir := t.TempDir()
	file := func(name, content string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	original := w.does("state", "pull", "net")
	was := factsOf(t, original)
	withSerial := func(n int64) string {
		t.Helper()
		changed, err := state.WithSerial([]byte(original), n)
		must(t, err)
		return string(changed)
	}

	// Push.
	next := file("next", withSerial(was.Serial+5))
	w.refuses(exitUsage, "the input is not a terminal", "state", "push", "net", next)
	if s := w.cli(original, "state", "push", "net", "-"); s.code != exitUsage || !strings.Contains(s.errs, "give --yes") {
		t.Errorf("push of stdin: %+v", s)
	}
	if out := w.does("state", "push", "net", next, "--yes"); !strings.HasPrefix(out, "wrote version 2 of ") {
		t.Errorf("push: %s", out)
	}
	w.refuses(exitFailed, "serial", "state", "push", "net", file("old", original), "--yes")
	w.refuses(exitFailed, "lineage", "state", "push", "net", file("other", stateText(99, "another", "x")), "--yes")
	w.refuses(exitFailed, "state", "state", "push", "net", file("none", "{}"), "--yes")
	w.does("state", "push", "net", file("old", original), "--yes", "--force")
	if got := factsOf(t, w.does("state", "pull", "net")); got != (facts{was.Serial + 6, was.Lineage}) {
		t.Errorf("after a push by force: %+v", got)
	}
	w.inLedger(audit.StateWrite, "kubernetes:admin | State/net", "intent", "by force")

	// A stranger's lock.
	service := w.service()
	token := strings.TrimSpace(w.does("state", "token", "net", "--for", "10m"))
	const id = "0f6b1b2c-0000-4000-8000-000000000001"
	lock := lockText(id, "jane@laptop")
	if code, text := service.ask(token, "LOCK", w.ns+"/net", lock); code != http.StatusOK {
		t.Fatalf("lock: %d %s", code, text)
	}
	if list := w.does("state", "list"); !strings.Contains(list, "jane@laptop") {
		t.Errorf("the list does not say who has the lock:\n%s", list)
	}
	for _, verb := range [][]string{{"rollback", "net", "1", "--yes"}, {"push", "net", file("old", original), "--yes", "--force"}, {"mv", "net", "new", "--yes"}, {"rm", "net", "--yes", "--force"}} {
		w.refuses(exitFailed, "jane@laptop", append([]string{"state"}, verb...)...)
	}
	if code, text := service.ask(token, "UNLOCK", w.ns+"/net", ""); code != http.StatusForbidden {
		t.Errorf("a token breaks a lock: %d %s", code, text)
	}
	w.refuses(exitUsage, "the input is not a terminal", "state", "unlock", "net")
	w.refuses(exitFailed, "its lock is "+id, "state", "unlock", "net", "--lock-id", "another", "--yes")
	w.does("state", "unlock", "net", "--lock-id", id, "--yes")
	w.refuses(exitFailed, "it is not locked", "state", "unlock", "net", "--yes")
	w.inLedger(audit.Unlock, "kubernetes:admin | State/net", "intent", "jane@laptop")
	w.inLedger(audit.Unlock, "kubernetes:admin | State/net", "outcome | succeeded")
	if code, text := service.ask(token, http.MethodPost, w.ns+"/net?ID="+id, withSerial(was.Serial+50)); code != http.StatusConflict {
		t.Errorf("who lost the lock writes: %d %s", code, text)
	}

	// Another name, and none.
	w.does("state", "push", "scratch", file("scratch", stateText(1, "scratch", "x")), "--yes")
	w.refuses(exitUsage, "the input is not a terminal", "state", "mv", "scratch", "kept")
	w.refuses(exitFailed, "net", "state", "mv", "scratch", "net", "--yes")
	w.does("state", "mv", "scratch", "kept", "--yes")
	w.refuses(exitFailed, "not found", "state", "show", "scratch")
	if got := w.does("state", "pull", "kept"); got != stateText(1, "scratch", "x") {
		t.Errorf("the state that was moved: %s", got)
	}
	w.inLedger("state-move", "kubernetes:admin | State/scratch", "to kept")
	kept := w.versions("kept")
	w.refuses(exitUsage, "the input is not a terminal", "state", "rm", "kept", "--force")
	w.refuses(exitFailed, "has resources", "state", "rm", "kept", "--yes")
	if len(kept) != 1 || !w.onDisk(kept[0]) {
		t.Fatalf("what was not removed is gone: %+v", kept)
	}
	w.does("state", "rm", "kept", "--yes", "--force")
	w.refuses(exitFailed, "not found", "state", "show", "kept")
	if w.onDisk(kept[0]) {
		t.Error("what was removed is on disk")
	}
	w.inLedger("state-delete", "kubernetes:admin | State/kept", "outcome | succeeded")

	// A token to read does that and no more.
	made := struct{ Token string }{}
	must(t, json.Unmarshal([]byte(w.does("state", "token", "net", "--read", "-o", "json")), &made))
	w.inLedger(audit.Token, "kubernetes:admin | State/net", "reads, until ")
	for what, tc := range map[string]struct {
		method, path, body string
		want               int
	}{
		"read":             {http.MethodGet, "net", "", http.StatusOK},
		"read a version":   {http.MethodGet, "net/versions/1", "", http.StatusOK},
		"write":            {http.MethodPost, "net", withSerial(was.Serial + 60), http.StatusForbidden},
		"write by force":   {http.MethodPost, "net?force", withSerial(was.Serial + 60), http.StatusForbidden},
		"lock":             {"LOCK", "net", lock, http.StatusForbidden},
		"unlock":           {"UNLOCK", "net", lock, http.StatusForbidden},
		"break a lock":     {"UNLOCK", "net", "", http.StatusForbidden},
		"roll back":        {http.MethodPost, "net/rollback?version=1", "", http.StatusForbidden},
		"remove":           {http.MethodDelete, "net?force", "", http.StatusForbidden},
		"move":             {http.MethodPost, "net/move?to=new", "", http.StatusForbidden},
		"ask for another":  {http.MethodPost, "net/tokens", "", http.StatusForbidden},
		"read another one": {http.MethodGet, "other", "", http.StatusForbidden},
	} {
		if code, text := service.ask(made.Token, tc.method, w.ns+"/"+tc.path, tc.body); code != tc.want {
			t.Errorf("a token to read: %s: %d %.200s, want %d", what, code, text, tc.want)
		}
	}
	if out := w.does("audit", "verify"); out == "" {
		t.Error("verify does not say how far the ledger goes")
	}
}

func TestStateMigratesBothWays(t *testing.T) {
	w := newWorld(t, login("one", "p"), inSecrets)
	w.unit("net", "approvePlan: auto")
	w.awaitReady("net")
	inSecret := func() facts {
		t.Helper()
		zr, err := gzip.NewReader(bytes.NewReader(w.secret("tfstate-default-net", nil).Data["tfstate"]))
		must(t, err)
		text, err := io.ReadAll(zr)
		must(t, err)
		return factsOf(t, string(text))
	}
	applies, was := w.spawned("apply"), inSecret()
	noChange := func(where string) {
		t.Helper()
		tf := w.terraform("net")
		if !isReady(tf) || tf.Status.Plan.Pending != "" || !strings.Contains(readyOf(tf).Message, "no changes") {
			t.Errorf("the plan with the state in %s changes something: pending %q, %s", where, tf.Status.Plan.Pending, readyOf(tf).Message)
		}
	}
	w.refuses(exitUsage, "the input is not a terminal", "state", "migrate", "tf/net")
	w.refuses(exitUsage, "--to nowhere", "state", "migrate", "tf/net", "--to", "nowhere", "--yes")
	w.refuses(exitFailed, "not found", "state", "pull", "net")

	w.does("state", "migrate", "tf/net", "--yes")
	noChange("the service")
	if got := factsOf(t, w.does("state", "pull", "net")); got != was {
		t.Errorf("in the service is %+v, in the Secret was %+v", got, was)
	}
	if v := w.versions("net"); len(v) != 1 || v[0].Operation != "migrate" || v[0].Resources != 2 {
		t.Errorf("versions: %+v", v)
	}

	w.awaitRevision("net", w.commit(login("two", "p")))
	now := factsOf(t, w.does("state", "pull", "net"))
	if now.Serial <= was.Serial || now.Lineage != was.Lineage || inSecret() != was {
		t.Errorf("after an apply the service has %+v, the Secret %+v", now, inSecret())
	}
	w.does("state", "migrate", "tf/net", "--to", "kubernetes", "--yes")
	noChange("a Secret")
	// The tool that writes the Secret counts on from what it found there.
	if got := inSecret(); got.Lineage != now.Lineage || got.Serial < now.Serial {
		t.Errorf("in the Secret is %+v, in the service was %+v", got, now)
	}
	if n := w.spawned("apply") - applies; n != 1 {
		t.Errorf("%d applies: that of the commit was wanted", n)
	}
	w.awaitRevision("net", w.commit(login("three", "p")))
	if got := inSecret(); got.Serial <= now.Serial || got.Lineage != now.Lineage {
		t.Errorf("the apply after the way back left %+v", got)
	}
	w.does("audit", "verify")
}

// TestStateKeyRotatesUnderLoad has units apply and clients write, also in the middle of an
// apply, while the key changes several times. Nobody notices, and at the end one key opens
// every version.
func TestStateKeyRotatesUnderLoad(t *testing.T) {
	const rotations = 4
	pipe := filepath.Join(t.TempDir(), "pipe")
	files := holding(t, pipe, "create")
	units := []string{"a", "b", "c"}
	module := func(n int) map[string]string {
		files := map[string]string{}
		for _, name := range units {
			files[name+"/main.tf"] = login(fmt.Sprint(name, n), "p")["main.tf"]
		}
		return files
	}
	for name, text := range module(0) {
		files[name] = text
	}
	w := newWorld(t, files)
	for _, name := range units {
		w.unit(name, "path: ./"+name+"\napprovePlan: auto")
	}
	for _, name := range units {
		w.awaitReady(name)
	}
	w.unit("long", "approvePlan: auto")
	w.awaitApplying("long")
	w.refuses(exitUsage, "the input is not a terminal", "state", "rotate-key")

	service := w.service()
	done := make(chan struct{})
	var clients sync.WaitGroup
	for _, name := range []string{"raw-1", "raw-2", "raw-3"} {
		token := strings.TrimSpace(w.does("state", "token", name))
		clients.Go(func() { service.work(token, w.ns+"/"+name, done) })
	}
	key := filepath.Join(w.cfg.DataDir, "keys", "states.key")
	keys := map[string]bool{}
	for n := range rotations {
		revision := w.commit(module(n + 1))
		if out := w.does("state", "rotate-key", "--yes"); !strings.HasPrefix(out, "rotated: ") {
			t.Errorf("rotation %d says %q", n, out)
		}
		content, err := os.ReadFile(key)
		must(t, err)
		if strings.Count(string(content), "AGE-SECRET-KEY-") != 1 || keys[string(content)] {
			t.Errorf("after rotation %d the file has not one new key", n)
		}
		keys[string(content)] = true
		for _, name := range units {
			w.awaitRevision(name, revision)
		}
	}
	release(t, pipe)
	w.awaitReady("long")
	close(done)
	clients.Wait()

	// Every version of every state opens with what the file has now, also for a process
	// that never knew another key.
	w.restart()
	service = w.service()
	var list v1alpha1.StateList
	must(t, w.client.List(w.ctx(), &list, client.InNamespace(w.ns)))
	if len(list.Items) != len(units)+4 {
		t.Errorf("%d states", len(list.Items))
	}
	for _, s := range list.Items {
		versions, err := s.Status.All()
		must(t, err)
		if s.Status.Lock != nil || len(versions) == 0 {
			t.Errorf("state %s: lock %+v, %d versions", s.Name, s.Status.Lock, len(versions))
		}
		token := strings.TrimSpace(w.does("state", "token", s.Name, "--read"))
		for _, v := range versions {
			code, text := service.ask(token, http.MethodGet, fmt.Sprintf("%s/%s/versions/%d", w.ns, s.Name, v.Version), "")
			if code != http.StatusOK || int64(len(text)) != v.Size {
				t.Errorf("version %d of state %s: %d, %d bytes of %d", v.Version, s.Name, code, len(text), v.Size)
			}
		}
	}
	for _, name := range append(units, "long") {
		for _, run := range w.runs(name) {
			if !strings.Contains(run, " succeeded") {
				t.Errorf("a run of %s: %s", name, run)
			}
		}
		if tf := w.terraform(name); !isReady(tf) || tf.Status.ReconciliationFailures != 0 {
			t.Errorf("%s: %s", name, readyOf(tf).Message)
		}
	}
	succeeded := 0
	for _, e := range w.audited(audit.KeyRotation) {
		if strings.Contains(e, "outcome | succeeded") {
			succeeded++
		}
	}
	if succeeded != rotations {
		t.Errorf("the ledger knows of %d rotations, want %d", succeeded, rotations)
	}
	w.does("audit", "verify")
}

// work writes, reads and locks a state again and again, as a pipeline would, until done
// is closed; what it is told must always be what it wrote.
func (s *service) work(token, path string, done <-chan struct{}) {
	for n := 1; ; n++ {
		id, text := fmt.Sprintf("%s-%d", path, n), stateText(n, path, strings.Repeat("x", n))
		for _, step := range []struct{ method, path, body, want string }{
			{"LOCK", path, lockText(id, "pipeline"), ""}, {http.MethodPost, path + "?ID=" + id, text, ""}, {http.MethodGet, path, "", text},
			{http.MethodGet, path + "/versions/1", "", stateText(1, path, "x")}, {"UNLOCK", path, lockText(id, "pipeline"), ""},
		} {
			// Of 100 versions that are kept the first goes some time.
			gone := strings.HasSuffix(step.path, "/versions/1") && n > 100
			code, got := s.ask(token, step.method, step.path, step.body)
			if !gone && (code != http.StatusOK || step.want != "" && got != step.want) {
				s.t.Errorf("round %d: %s %s: %d %.300s", n, step.method, step.path, code, got)
				return
			}
		}
		select {
		case <-done:
			return
		default:
		}
	}
}
