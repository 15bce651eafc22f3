// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/config"
)

// killRounds says how many applies are killed; more than in the ordinary run are for
// whoever changes the journal: TERRACE_KILL_ROUNDS=50.
func killRounds(t *testing.T) int {
	s := os.Getenv("TERRACE_KILL_ROUNDS")
	if s == "" {
		return 6
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("TERRACE_KILL_ROUNDS: %v", err)
	}
	return n
}

// TestKilledAnywhereItHeals kills Terrace, tofu or both, in turns: at one entry of the journal
// after another, from the first of a plan to the last of its apply, and at random moments of an
// apply whose provisioner takes its time. Every time it wants what was committed, without a
// person, and nothing made twice that was known to be made.
func TestKilledAnywhereItHeals(t *testing.T) {
	dir := t.TempDir()
	made := filepath.Join(dir, "made")
	module := func(n int) string {
		return fmt.Sprintf(`
resource "terraform_data" "x" { input = %d }
resource "terraform_data" "made" {
  for_each   = toset([for i in range(%d + 1) : tostring(i)])
  depends_on = [terraform_data.x]
  provisioner "local-exec" { command = "echo ${each.key} >> %s" }
}
resource "terraform_data" "slow" {
  triggers_replace = %d
  depends_on       = [terraform_data.made]
  provisioner "local-exec" { command = "sleep 2" }
}
output "n" { value = terraform_data.x.output }
`, n, n, made, n)
	}
	w := newWorld(t, map[string]string{"main.tf": module(0)}, func(c *config.Config) { c.WatchNamespaces = []string{"nobody"} })
	w.stop()
	p := w.startProcess()
	w.unit("u", "approvePlan: auto\nretryInterval: 1s\nwriteOutputsToSecret: {name: out}")
	w.awaitReady("u")

	j := w.watchJournal()
	// So many entries has the journal of a plan with its apply; at applyEntry it has the
	// process of the apply.
	const entries, applyEntry = 8, 6
	seed := time.Now().UnixNano()
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	for round := range killRounds(t) {
		victim, step := turn(round/2, entries)
		late := time.Duration(0)
		if round%2 == 1 {
			step, late = applyEntry, time.Duration(random.IntN(2500))*time.Millisecond
		}
		at := fmt.Sprintf("round %d (seed %d): %s was killed %s after entry %d of the journal", round, seed, victim, late, step)
		j.forget()
		revision := w.commit(map[string]string{"main.tf": module(round + 1)})
		j.await(step, at)
		<-time.After(late) // the moment is what is tried
		p = w.kill(victim, p)
		w.await("u", "healed; "+at, func(tf *infra.Terraform) bool {
			return isReady(tf) && tf.Status.LastPlannedRevision == revision && tf.Status.RunningID == ""
		})
		s := w.state("u")
		if s.Status.Lock != nil {
			t.Errorf("%s: the lock is held by %s", at, s.Status.Lock.Holder)
		}
		if s.Status.Resources != 3 {
			t.Errorf("%s: the state has %d resources", at, s.Status.Resources)
		}
		for i, v := range s.Status.Versions[1:] {
			if newer := s.Status.Versions[i]; newer.Version != v.Version+1 || newer.Serial <= v.Serial {
				t.Errorf("%s: version %d (serial %d) follows %d (serial %d)", at, newer.Version, newer.Serial, v.Version, v.Serial)
			}
		}
		w.madeOnce(made, strconv.Itoa(round+1), "u", fmt.Sprintf("terraform_data.made[\"%d\"]", round+1), at)
	}
	w.output("out", "n", strconv.Itoa(killRounds(t)))
	if got := w.events("u", infra.ReasonOrphaned); len(got) != 0 {
		t.Errorf("orphaned: %q", got)
	}
	if report := w.verified(); report.Unfinished != 0 {
		t.Errorf("the ledger has %d intents without an outcome", report.Unfinished)
	}
}

// TestKilledFromInitToDestroyItHeals does so in the first run of a unit, which begins with an
// init, and in its destroy: the unit is Ready, and then gone with all that it has made.
func TestKilledFromInitToDestroyItHeals(t *testing.T) {
	made := filepath.Join(t.TempDir(), "made")
	w := newWorld(t, map[string]string{"main.tf": fmt.Sprintf(`
variable "name" { type = string }
resource "terraform_data" "x" {
  input = var.name
  provisioner "local-exec" { command = "echo made ${self.input} >> %[1]s" }
  provisioner "local-exec" {
    when    = destroy
    command = "echo gone ${self.input} >> %[1]s"
  }
}
output "name" { value = terraform_data.x.output }
`, made)}, func(c *config.Config) { c.WatchNamespaces = []string{"nobody"} })
	w.stop()
	p := w.startProcess()
	j := w.watchJournal()
	// So many entries have the journals of a plan with its init and apply, and of a destroy.
	const firstEntries, destroyEntries = 9, 6
	for round := range killRounds(t) {
		name := fmt.Sprintf("u%d", round)
		victim, first := turn(round, firstEntries)
		at := fmt.Sprintf("round %d: %s was killed after entry %d of the journal of the first run", round, victim, first)
		j.forget()
		w.unit(name, fmt.Sprintf("approvePlan: auto\nretryInterval: 1s\ndestroyResourcesOnDeletion: true\nwriteOutputsToSecret: {name: %[1]s}\nvars: [{name: name, value: %[1]s}]", name))
		j.await(first, at)
		p = w.kill(victim, p)
		w.await(name, "healed; "+at, func(tf *infra.Terraform) bool { return isReady(tf) && tf.Status.RunningID == "" })
		w.output(name, "name", name)
		w.madeOnce(made, "made "+name, name, "terraform_data.x", at)

		victim, destroy := turn(round, destroyEntries)
		at = fmt.Sprintf("round %d: %s was killed after entry %d of the journal of the destroy", round, victim, destroy)
		j.forget()
		w.delete(name)
		j.await(destroy, at)
		p = w.kill(victim, p)
		w.awaitGone(name)
		if s := w.state(name); s.Status.Resources != 0 || s.Status.Lock != nil {
			t.Errorf("%s: the state is %+v", at, s.Status)
		}
		if !strings.Contains(content(t, made), "gone "+name+"\n") {
			t.Errorf("%s: what was made is still there; the logs\n%s", at, w.runLog(name))
		}
		if got := w.events(name, infra.ReasonOrphaned); len(got) != 0 {
			t.Errorf("%s: orphaned: %q", at, got)
		}
	}
	if report := w.verified(); report.Unfinished != 0 {
		t.Errorf("the ledger has %d intents without an outcome", report.Unfinished)
	}
}

// victims are what is killed: this process, the tool, or one after the other.
var victims = []string{"Terrace", "tofu", "both"}

// turn says who is killed in a round, and at which entry of a journal: each at each of them, as
// rounds go by.
func turn(round, entries int) (victim string, entry int) {
	return victims[(round%entries+round/entries)%len(victims)], 1 + round*5%entries
}

// kill kills a victim, and starts Terrace again where it was one.
func (w *world) kill(victim string, p *process) *process {
	w.t.Helper()
	if victim != "tofu" {
		p.kill()
	}
	if victim != "Terrace" {
		w.killTool()
	}
	if victim != "tofu" {
		p = w.startProcess()
	}
	return p
}

// journal tells how many entries the journals of runs have.
type journal struct {
	w       *world
	watcher *fsnotify.Watcher
	known   map[string]bool // runs of before
}

func (w *world) activeRuns() string { return filepath.Join(w.cfg.DataDir, "runs", "_active") }

func (w *world) watchJournal() *journal {
	w.t.Helper()
	watcher, err := fsnotify.NewWatcher()
	must(w.t, err)
	w.t.Cleanup(func() { _ = watcher.Close() })
	must(w.t, watcher.Add(w.activeRuns()))
	return &journal{w, watcher, nil}
}

// entries counts those of each run, of one that has ended where its record is.
func (j *journal) entries() map[string]int {
	j.w.t.Helper()
	count := map[string]int{}
	must(j.w.t, filepath.WalkDir(filepath.Dir(j.w.activeRuns()), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".jsonl" {
			return nil // what is gone has been renamed, and the next look finds it
		}
		content, err := os.ReadFile(path)
		if m := journalledRun.FindSubmatch(content); err == nil && m != nil {
			run := string(m[1])
			count[run] = max(count[run], bytes.Count(content, []byte("\n")))
		}
		return nil
	}))
	return count
}

// forget passes over the runs that there are.
func (j *journal) forget() {
	j.known = map[string]bool{}
	for run := range j.entries() {
		j.known[run] = true
	}
}

// await returns when runs that began since have so many entries.
func (j *journal) await(entries int, at string) {
	j.w.t.Helper()
	for late := time.After(patience); ; {
		n := 0
		for run, count := range j.entries() {
			if !j.known[run] {
				n += count
			}
		}
		if n >= entries {
			return
		}
		select {
		case <-j.watcher.Events:
		case <-late:
			j.w.t.Fatalf("%s: the journal has no %d entries", at, entries)
		}
	}
}

var journalledRun = regexp.MustCompile(`^\{"begun":\{"run":"([^"]+)"`)

// madeOnce fails when a resource was made again although the log of a run of the unit says that
// it was complete: only one that was at work when the tool was killed is known to nobody. What
// makes it leaves a line in the file.
func (w *world) madeOnce(made, line, unit, resource, at string) {
	w.t.Helper()
	n, complete := 0, 0
	for l := range strings.Lines(content(w.t, made)) {
		if strings.TrimSpace(l) == line {
			n++
		}
	}
	for log := range strings.SplitSeq(w.runLog(unit), "\n-- ") {
		if strings.Contains(log, resource+": Creation complete") {
			complete++
		}
	}
	if n == 0 || n > 1 && complete > 1 {
		w.t.Errorf("%s: made %d times, and complete %d times; the logs\n%s", at, n, complete, w.runLog(unit))
	}
}

var journalledPID = regexp.MustCompile(`"pid":(\d+)`)

// killTool kills the process groups that the journal of running runs names.
func (w *world) killTool() {
	w.t.Helper()
	files, err := filepath.Glob(filepath.Join(w.activeRuns(), "*.jsonl"))
	must(w.t, err)
	var pids []int
	for _, f := range files {
		content, err := os.ReadFile(f)
		if err != nil {
			continue // the run has ended
		}
		for line := range strings.Lines(string(content)) {
			if m := journalledPID.FindStringSubmatch(line); m != nil {
				pid, err := strconv.Atoi(m[1])
				if err == nil && !slices.Contains(pids, pid) {
					pids = append(pids, pid)
				}
			}
		}
	}
	for _, pid := range pids {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
}
