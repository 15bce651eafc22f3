// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
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
	"github.com/terrace-dev/terrace/internal/audit"
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

// TestKilledAnywhereItHeals kills Terrace, tofu or both at one step of the journal after
// another, from the first entry of a plan to the last of its apply, and wants every time
// what was committed, without a person.
func TestKilledAnywhereItHeals(t *testing.T) {
	module := func(n int) string {
		return fmt.Sprintf(`
resource "terraform_data" "x" {
  input = %d
  provisioner "local-exec" { command = "true" }
}
resource "terraform_data" "slow" {
  triggers_replace = %d
  depends_on       = [terraform_data.x]
  provisioner "local-exec" { command = "sleep 1" }
}
output "n" { value = terraform_data.x.output }
`, n, n)
	}
	w := newWorld(t, map[string]string{"main.tf": module(0)}, func(c *config.Config) { c.WatchNamespaces = []string{"nobody"} })
	w.stop()
	p := w.startProcess()
	w.unit("u", "approvePlan: auto\nretryInterval: 1s\nwriteOutputsToSecret: {name: out}")
	w.awaitReady("u")

	active := filepath.Join(w.cfg.DataDir, "runs", "_active")
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	if err := watcher.Add(active); err != nil {
		t.Fatal(err)
	}
	victims := []string{"Terrace", "tofu", "both"}
	for round := range killRounds(t) {
		victim, step := victims[round%len(victims)], 1+round*4%9
		for len(watcher.Events) > 0 {
			<-watcher.Events
		}
		revision := w.commit(map[string]string{"main.tf": module(round + 1)})
		for n := 0; n < step; {
			select {
			case e := <-watcher.Events:
				if e.Has(fsnotify.Write) {
					n++
				}
			case <-time.After(patience):
				t.Fatalf("round %d: the journal has no %d entries", round, step)
			}
		}
		if victim != "tofu" {
			p.kill()
		}
		if victim != "Terrace" {
			killJournalled(t, active)
		}
		if victim != "tofu" {
			p = w.startProcess()
		}
		w.await("u", fmt.Sprintf("healed in round %d, after %s was killed at entry %d of the journal", round, victim, step), func(tf *infra.Terraform) bool {
			return isReady(tf) && tf.Status.LastPlannedRevision == revision && tf.Status.RunningID == ""
		})
		s := w.state("u")
		if s.Status.Lock != nil {
			t.Errorf("round %d: the lock is held by %s", round, s.Status.Lock.Holder)
		}
		if s.Status.Resources != 2 {
			t.Errorf("round %d: the state has %d resources", round, s.Status.Resources)
		}
		for i, v := range s.Status.Versions[1:] {
			if newer := s.Status.Versions[i]; newer.Version != v.Version+1 || newer.Serial <= v.Serial {
				t.Errorf("round %d: version %d (serial %d) follows %d (serial %d)", round, newer.Version, newer.Serial, v.Version, v.Serial)
			}
		}
	}
	w.output("out", "n", strconv.Itoa(killRounds(t)))
	key, err := audit.ReadPublicKey(filepath.Join(w.cfg.DataDir, "keys", "audit.pub"))
	if err != nil {
		t.Fatal(err)
	}
	report, err := audit.Verify(w.ctx(), filepath.Join(w.cfg.DataDir, "audit"), key, audit.VerifyOptions{})
	if err != nil || len(report.Findings) != 0 || report.Unfinished != 0 {
		t.Errorf("the ledger: %v, %d intents without an outcome, findings %v", err, report.Unfinished, report.Findings)
	}
}

var journalledPID = regexp.MustCompile(`"pid":(\d+)`)

// killJournalled kills the process groups that the journal of running runs names.
func killJournalled(t *testing.T, active string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(active, "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
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
