// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/config"
	"github.com/terrace-dev/terrace/internal/testenv"
)

// The tests here are about runs: the queue, cancelling, work by hand, and what a
// run's texts give away.

// holding is a module whose create or destroy goes on until somebody writes to the pipe, so that
// a test and an apply meet without a clock.
func holding(t *testing.T, pipe, when string) map[string]string {
	t.Helper()
	must(t, syscall.Mkfifo(pipe, 0o600))
	return map[string]string{"main.tf": `
resource "terraform_data" "x" {
  provisioner "local-exec" {
    when    = ` + when + `
    command = "cat ` + pipe + `"
  }
}`, "quick/main.tf": moduleA}
}

func oneRun(c *config.Config) { c.ConcurrentRuns = 1 }

func (w *world) awaitApplying(name string) {
	w.t.Helper()
	w.await(name, "applying", func(tf *infra.Terraform) bool { return tf.Status.RunningID != "" })
}

// release lets a holding apply end; it waits for the reader.
func release(t *testing.T, pipe string) {
	t.Helper()
	must(t, os.WriteFile(pipe, []byte("go on\n"), 0o600))
}

func TestUnitSaysThatItWaitsForARun(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	w := newWorld(t, holding(t, pipe, "create"), oneRun)
	w.unit("long", "approvePlan: auto")
	w.awaitApplying("long")
	w.unit("short", "approvePlan: auto\npath: ./quick")
	tf := w.await("short", "queued", func(tf *infra.Terraform) bool {
		return strings.HasPrefix(readyOf(tf).Message, "Waiting for a free run slot")
	})
	if c := readyOf(tf); c.Status != metav1.ConditionUnknown || c.Reason != infra.ReasonProgressing || condition(tf, "Reconciling").Status != metav1.ConditionTrue {
		t.Errorf("conditions %+v", tf.Status.Conditions)
	}
	if c := condition(w.terraform("long"), "Apply"); c.Status != metav1.ConditionUnknown || c.Message != infra.MessageApplyStarted {
		t.Errorf("Apply is %+v while it runs", c)
	}
	release(t, pipe)
	w.awaitReady("long")
	w.awaitReady("short")
}

func TestCancelledApplyGivesItsLockBack(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	w := newWorld(t, holding(t, pipe, "create"))
	w.unit("u", "approvePlan: auto")
	w.awaitApplying("u")
	writer, err := os.OpenFile(pipe, os.O_WRONLY, 0) // opens once the apply reads
	must(t, err)
	defer writer.Close()
	if w.holder("u") == "" {
		t.Error("a running apply holds no lock")
	}
	w.change("u", func(tf *infra.Terraform) { tf.Annotations = map[string]string{infra.CancelAnnotation: "1"} })
	tf := w.awaitReason("u", infra.ReasonCancelled)
	if got := w.holder("u"); got != "" {
		t.Errorf("the lock is left with %q", got)
	}
	if readyOf(tf).Status != metav1.ConditionFalse || tf.Status.RunningID != "" || tf.Status.Plan.Pending != "" {
		t.Errorf("status %+v", tf.Status)
	}
	w.awaitEvent("u", infra.ReasonCancelled)
	// It stays as it is until somebody asks.
	spawned := w.spawned("")
	w.change("u", func(tf *infra.Terraform) {
		tf.Labels = map[string]string{"looked": "at"}
		tf.Spec.Interval.Duration *= 2
	})
	w.await("u", "looked at", func(tf *infra.Terraform) bool { return tf.Status.ObservedGeneration == tf.Generation })
	if n := w.spawned("") - spawned; n != 0 {
		t.Errorf("%d processes ran after the cancellation", n)
	}
	must(t, os.Remove(pipe))
	must(t, os.WriteFile(pipe, nil, 0o600))
	w.change("u", func(tf *infra.Terraform) { tf.Annotations["reconcile.fluxcd.io/requestedAt"] = "1" })
	w.awaitReady("u")
}

// The destroy of a deletion can be cancelled too, and goes on when somebody asks.
func TestCancelledDestroyWaitsForAWord(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	w := newWorld(t, holding(t, pipe, "destroy"))
	w.unit("u", "approvePlan: auto\ndestroyResourcesOnDeletion: true")
	w.awaitReady("u")
	w.delete("u")
	w.awaitApplying("u")
	writer, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	must(t, err)
	w.change("u", func(tf *infra.Terraform) { tf.Annotations = map[string]string{infra.CancelAnnotation: "1"} })
	w.awaitReason("u", infra.ReasonCancelled)
	must(t, writer.Close())
	if got := w.holder("u"); got != "" {
		t.Errorf("the lock is left with %q", got)
	}
	applies := w.spawned("apply")
	w.change("u", func(tf *infra.Terraform) { tf.Annotations["looked"] = "at" })
	w.unit("marker", "approvePlan: \"\"\npath: ./quick")
	w.awaitPending("marker")
	if n := w.spawned("apply") - applies; n != 0 {
		t.Errorf("%d applies after the cancellation", n)
	}
	must(t, os.Remove(pipe))
	must(t, os.WriteFile(pipe, nil, 0o600))
	w.change("u", func(tf *infra.Terraform) { tf.Annotations["reconcile.fluxcd.io/requestedAt"] = "1" })
	w.awaitGone("u")
}

func TestBreakTheGlass(t *testing.T) {
	w := newWorld(t, modA(), func(c *config.Config) { c.AllowBreakTheGlass = true })
	w.unit("u", "approvePlan: auto")
	w.awaitReady("u")
	w.change("u", func(tf *infra.Terraform) { tf.Spec.BreakTheGlass = true })
	tf := w.await("u", "open for work by hand", func(tf *infra.Terraform) bool {
		return readyOf(tf).Message == infra.MessageBreakingTheGlass && tf.Status.ObservedGeneration == tf.Generation
	})
	if readyOf(tf).Status != metav1.ConditionUnknown {
		t.Errorf("Ready is %+v", readyOf(tf))
	}
	var door struct {
		Dir string
		Env []string
	}
	code, text := w.get("/api/v1/units/terraform/"+w.ns+"/u/glass", "")
	if err := json.Unmarshal([]byte(text), &door); err != nil {
		t.Fatalf("%d %s: %v", code, text, err)
	}
	byHand := exec.Command(w.cfg.Tofu, "state", "list")
	byHand.Dir, byHand.Env = door.Dir, door.Env
	if out, err := byHand.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "terraform_data.x" {
		t.Errorf("work by hand: %v: %s", err, out)
	}
	applies := w.spawned("apply")
	w.commit(map[string]string{"main.tf": strings.Replace(moduleA, `"a"`, `"b"`, 1)})
	w.unit("marker", "approvePlan: auto")
	w.awaitReady("marker")
	if n := w.spawned("apply") - applies; n != 1 {
		t.Errorf("%d applies: only that of the marker was wanted", n)
	}
	w.change("u", func(tf *infra.Terraform) { tf.Spec.BreakTheGlass = false })
	w.await("u", "going on with what came meanwhile", func(tf *infra.Terraform) bool {
		return isReady(tf) && tf.Status.LastPlan.Update == 1
	})
}

func TestBreakTheGlassHasToBeAllowed(t *testing.T) {
	w := newWorld(t, modA())
	w.unit("u", "approvePlan: auto\nbreakTheGlass: true")
	tf := w.awaitReason("u", infra.ReasonAccessDenied)
	if m := readyOf(tf).Message; !strings.Contains(m, "--allow-break-the-glass") {
		t.Errorf("the message does not name the way out: %q", m)
	}
	w.change("u", func(tf *infra.Terraform) { tf.Spec.BreakTheGlass = false })
	w.awaitReady("u")
}

func TestErrorsOfTheToolAreReadable(t *testing.T) {
	w := newWorld(t, map[string]string{
		"syntax/main.tf":   `resource "terraform_data" "x" {`,
		"missing/main.tf":  `variable "needed" {}`,
		"module/main.tf":   `module "m" { source = "./nowhere" }`,
		"ref/main.tf":      `output "o" { value = terraform_data.nothing.id }`,
		"provider/main.tf": "terraform {\n  required_providers {\n    x = { source = \"terrace.test/none/x\" }\n  }\n}\n",
		"apply/main.tf":    "resource \"terraform_data\" \"x\" {\n  provisioner \"local-exec\" { command = \"echo boom >&2; exit 7\" }\n}\n",
	}, withMirror(t))
	for name, tc := range map[string]struct {
		reason string
		want   []string
		mended map[string]string
	}{
		"syntax":   {infra.ReasonInitFailed, []string{"main.tf"}, map[string]string{"syntax/main.tf": moduleA}},
		"missing":  {infra.ReasonPlanFailed, []string{"needed"}, nil},
		"module":   {infra.ReasonInitFailed, []string{"nowhere"}, nil},
		"ref":      {infra.ReasonPlanFailed, []string{"main.tf", "nothing"}, nil},
		"provider": {infra.ReasonInitFailed, []string{"terrace.test/none/x"}, nil},
		"apply":    {infra.ReasonApplyFailed, []string{"local-exec", "7"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			w.unit(name, "approvePlan: auto\npath: ./"+name)
			tf := w.awaitReason(name, tc.reason)
			for _, part := range tc.want {
				if !strings.Contains(readyOf(tf).Message, part) {
					t.Errorf("the message does not say %q: %q", part, readyOf(tf).Message)
				}
			}
			w.awaitEvent(name, tc.reason)
			if tc.mended != nil {
				w.commit(tc.mended)
				w.awaitReady(name)
			}
		})
	}
}

// What a unit was given in confidence is in no text that leaves the run.
func TestSecretsStayInTheRun(t *testing.T) {
	canaries := map[string]string{
		"variable": "canary-variable-7Gk2", "environment": "canary-environment-9Qx4", "file": "canary-file-3Wp8",
		"output": "canary-output-5Zr1", "backend": "canary-backend-6Tn0", "marked": "canary-marked-2Lm7",
	}
	const leaky = `
variable "v" {}
variable "marked" {
  default   = "canary-marked-2Lm7"
  sensitive = true
}
resource "terraform_data" "x" {
  input = var.v
  provisioner "local-exec" { command = "echo $SHOWN; cat ${path.module}/mapped; echo ${var.v}; BREAK" }
}
output "o" {
  value     = var.marked
  sensitive = true
}
output "p" { value = var.v }
`
	w := newWorld(t, map[string]string{
		"good/main.tf":  strings.Replace(leaky, "BREAK", "true", 1),
		"apply/main.tf": strings.Replace(leaky, "BREAK", "false", 1),
		"plan/main.tf":  leaky + "output \"q\" { value = tobool(var.v) }\noutput \"r\" { value = tonumber(file(\"${path.module}/mapped\")) }\n",
		"init/main.tf":  `module "m" { source = "git::https://user:canary-backend-6Tn0@127.0.0.1:1/x.git" }`,
	})
	w.putSecret("in", map[string]string{"v": canaries["variable"], "SHOWN": canaries["environment"], "mapped": canaries["file"]})
	for name, reason := range map[string]string{"good": "", "apply": infra.ReasonApplyFailed, "plan": infra.ReasonPlanFailed, "init": infra.ReasonInitFailed} {
		w.unit(name, `
path: ./`+name+`
approvePlan: auto
retryInterval: 1h
storeReadablePlan: human
varsFrom: [{kind: Secret, name: in, varsKeys: [v]}]
runnerPodTemplate: {spec: {env: [{name: SHOWN, valueFrom: {secretKeyRef: {name: in, key: SHOWN}}}]}}
fileMappings: [{secretRef: {name: in, key: mapped}, location: workspace, path: mapped}]`)
		if reason == "" {
			w.awaitReady(name)
			continue
		}
		w.awaitReason(name, reason)
		w.awaitEvent(name, reason)
	}
	texts := map[string]string{}
	for _, name := range []string{"good", "apply", "plan", "init"} {
		tf := w.terraform(name)
		tf.ManagedFields = nil
		b, err := yaml.Marshal(tf)
		must(t, err)
		texts["object "+name] = string(b)
		if texts["log "+name] = w.runLog(name); texts["log "+name] == "" {
			t.Errorf("%s has no log", name)
		}
	}
	var events corev1.EventList
	must(t, w.client.List(w.ctx(), &events, client.InNamespace(w.ns)))
	b, err := json.Marshal(events.Items)
	must(t, err)
	texts["events"] = string(b)
	var maps corev1.ConfigMapList
	must(t, w.client.List(w.ctx(), &maps, client.InNamespace(w.ns)))
	texts["readable plans"] = fmt.Sprint(maps.Items)
	for _, what := range []string{"log", "plan", "plan?format=json"} {
		_, texts["endpoint "+what] = w.get("/api/v1/units/terraform/"+w.ns+"/good/"+what, "")
	}
	for where, text := range texts {
		for what, canary := range canaries {
			if strings.Contains(text, canary) {
				t.Errorf("%s shows the %s", where, what)
			}
		}
	}
	// Nothing that was prepared for a run is left for another to find.
	must(t, filepath.WalkDir(filepath.Join(w.cfg.DataDir, "units"), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if err == nil && (strings.Contains(string(b), canaries["file"]) || strings.Contains(string(b), canaries["variable"])) {
			t.Errorf("%s holds a secret after the run", strings.TrimPrefix(path, w.cfg.DataDir))
		}
		return err
	}))
}

// terrace runs the command line against the world's Terrace, and returns what it prints.
func (w *world) terrace(args ...string) (string, error) {
	w.t.Helper()
	return w.terraceTo(io.Discard, args...)
}

// terraceTo does the same, and gives what is printed to another as well, as soon as it is.
func (w *world) terraceTo(also io.Writer, args ...string) (string, error) {
	w.t.Helper()
	cfg, err := clientcmd.LoadFromFile(testenv.Start(w.t).Kubeconfig)
	if err == nil {
		err = clientcmd.ResolveLocalPaths(cfg)
	}
	if err == nil {
		// Beside it lies what tells where the server is.
		err = clientcmd.WriteToFile(*cfg, filepath.Join(w.cfg.DataDir, "kubeconfig"))
	}
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(w.ctx(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(testenv.Root(w.t), "bin", "terrace"), append(args, "--data-dir", w.cfg.DataDir, "-n", w.ns)...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&stdout, also), &stderr
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("terrace %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), err
}

// seen is a writer that waits for a text.
type seen struct {
	text  string
	there chan struct{}
	so    strings.Builder
	once  sync.Once
}

func newSeen(text string) *seen { return &seen{text: text, there: make(chan struct{})} }

func (s *seen) Write(p []byte) (int, error) {
	s.so.Write(p)
	if strings.Contains(s.so.String(), s.text) {
		s.once.Do(func() { close(s.there) })
	}
	return len(p), nil
}

// logLine is a line of a log as "terrace logs -o json" has it.
type logLine struct {
	Run          string
	Line         int
	Stream, Text string
}

// logLines reads what "terrace logs -o json" printed, of one run from its first line on.
func (w *world) logLines(text string) []logLine {
	w.t.Helper()
	var out []logLine
	for line := range strings.Lines(text) {
		var l logLine
		must(w.t, json.Unmarshal([]byte(line), &l))
		if l.Line != len(out)+1 || len(out) > 0 && l.Run != out[0].Run {
			w.t.Errorf("line %d is %s", len(out)+1, line)
		}
		out = append(out, l)
	}
	return out
}

// runsOf are the names of the Runs of a unit that did one thing, oldest first.
func (w *world) runsOf(unit, operation string) []string {
	w.t.Helper()
	var list v1alpha1.RunList
	must(w.t, w.client.List(w.ctx(), &list, client.InNamespace(w.ns), client.MatchingLabels{v1alpha1.UnitLabel: "Terraform." + unit}))
	var out []string
	for _, r := range list.Items {
		if r.Spec.Operation == operation {
			out = append(out, r.Name)
		}
	}
	slices.Sort(out)
	return out
}

// The log of a run is there as long as its Run: whatever runs afterwards, and when the unit is gone.
func TestLogIsKeptAsLongAsItsRun(t *testing.T) {
	const module = "resource \"terraform_data\" \"x\" {\n  provisioner \"local-exec\" { command = \"echo boom; exit 7\" }\n}\n"
	w := newWorld(t, map[string]string{"fail/main.tf": module, "a/main.tf": moduleA}, func(c *config.Config) { c.RunLogsKept = 1 })
	w.unit("a", "path: ./a\napprovePlan: auto")
	w.awaitReady("a")
	applies := w.runsOf("a", "apply")
	if len(applies) != 1 {
		t.Fatalf("applies of a: %q", applies)
	}
	for i := range 3 { // plans that find nothing, and so have no Run
		w.awaitRevision("a", w.commit(map[string]string{"a/main.tf": moduleA + strings.Repeat("# more\n", i+1)}))
	}
	if text, err := w.terrace("logs", "run/"+applies[0]); err != nil || !strings.Contains(text, "Apply complete") {
		t.Errorf("the log of the apply: %v\n%s", err, text)
	}
	if text, err := w.terrace("logs", "tf/a"); err != nil || !strings.Contains(text, "No changes") {
		t.Errorf("the log of the last plan: %v\n%s", err, text)
	}

	w.unit("fail", "path: ./fail\napprovePlan: auto\nretryInterval: 1h")
	w.awaitReason("fail", infra.ReasonApplyFailed)
	name := w.runsOf("fail", "apply")[0]
	w.delete("fail")
	w.awaitGone("fail")
	w.restart() // what is old is removed when Terrace starts
	text, err := w.terrace("logs", "run/"+name, "-o", "json")
	must(t, err)
	said := map[string]string{}
	for _, l := range w.logLines(text) {
		said[l.Stream] += l.Text + "\n"
	}
	for stream, want := range map[string]string{
		"stdout": "terraform_data.x (local-exec): boom", "stderr": "on main.tf line 2, in resource \"terraform_data\" \"x\":", "terrace": "terrace: run failed: ",
	} {
		if !strings.Contains(said[stream], want) || strings.Count(strings.Join(slices.Collect(maps.Values(said)), ""), want) != 1 {
			t.Errorf("%s does not say %q, or another does too: %s", stream, want, text)
		}
	}
	if files, err := filepath.Glob(filepath.Join(w.cfg.DataDir, "runs", w.ns, "*", "*.log*")); err != nil || len(files) == 0 {
		t.Errorf("logs: %v, %v", files, err)
	} else {
		for _, f := range files {
			if content, _ := os.ReadFile(f); len(unzipped(content)) <= len(content) {
				t.Errorf("%s is not compressed", f)
			}
		}
	}
}

// Who follows a log follows it over a kill of Terrace, and hears how the run ended.
func TestLogIsFollowedOverAKill(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	w := newWorld(t, holding(t, pipe, "create"), func(c *config.Config) { c.WatchNamespaces = []string{"nobody"} })
	w.stop()
	p := w.startProcess()
	w.unit("u", "approvePlan: auto\nretryInterval: 1s")
	w.awaitApplying("u")
	writer, err := os.OpenFile(pipe, os.O_WRONLY, 0) // opens once the apply reads
	must(t, err)
	defer writer.Close()
	// A follower that has come so far has a connection.
	followed, seen := make(chan string, 1), newSeen("Creating...")
	go func() {
		text, err := w.terraceTo(seen, "logs", "tf/u", "-f", "-o", "json")
		if err != nil {
			t.Error(err)
		}
		followed <- text
	}()
	select {
	case <-seen.there:
	case <-time.After(patience):
		t.Fatal("the log does not say that something is created")
	}
	p.kill()
	must(t, os.Remove(pipe))
	must(t, os.WriteFile(pipe, nil, 0o600))
	w.startProcess()
	text := <-followed
	lines := w.logLines(text)
	if last := lines[len(lines)-1]; last.Stream != "terrace" || !strings.Contains(last.Text, "run interrupted") || strings.Count(text, "run interrupted") != 1 {
		t.Errorf("the last line is %+v of\n%s", last, text)
	}
	w.awaitReady("u")
	again, err := w.terrace("logs", "run/"+lines[0].Run, "-o", "json")
	if err != nil || again != text {
		t.Errorf("%v: the log is now\n%s\nand was\n%s", err, again, text)
	}
}

// A cloud block is written for the tool; its token stays out of every text.
func TestCloudIsAskedWithItsToken(t *testing.T) {
	cloud := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(cloud.Close)
	host := strings.TrimPrefix(cloud.URL, "http://")
	w := newWorld(t, modA())
	w.unit("u", `
approvePlan: auto
retryInterval: 1h
cloud: {organization: acme, hostname: "`+host+`", token: canary-cloud-4Hd6, workspaces: {name: net}}`)
	tf := w.awaitReason("u", infra.ReasonInitFailed)
	if m := readyOf(tf).Message; !strings.Contains(m, host) {
		t.Errorf("the message does not name the host: %q", m)
	}
	if text := readyOf(tf).Message + w.runLog("u"); strings.Contains(text, "canary-cloud-4Hd6") {
		t.Errorf("the token is shown: %s", text)
	}
}
