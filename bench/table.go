// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// print writes the results as two tables: what each phase cost, and how that
// stands to the budgets.
func (b *bench) print(out io.Writer) {
	fmt.Fprintf(out, "%s; %s; %d cores, %d runs at a time, %d units\n\n", version(b.terrace), version(b.tofu), runtime.NumCPU(), b.concurrent, b.units)

	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "PER UNIT\tWALL\tCPU TERRACE\tCPU TOFU\tCPU API\tTOFU PROCESSES\tREQUESTS TERRACE\tREQUESTS TOFU\tETCD WRITES\t")
	for _, r := range []result{b.floorLocal, b.floor, b.created, b.floorLocalDrift, b.floorDrift, b.drifted, b.unrelated, b.oneUnit, b.restarted} {
		fmt.Fprintln(w, strings.Join(r.cells(), "\t")+"\t")
	}
	_ = w.Flush() // out's own errors are the terminal's affair
	fmt.Fprintf(out, "\nA drift check is divided by the number of checks, %d; the commit that touches one unit by 1, and all %d units take note of it.\n", b.drifted.units, b.units)
	fmt.Fprintf(out, "Resident with all units applied: API server and etcd %.0f MiB, controllers %.0f MiB.\n\n", b.apiMemory, b.controllerMemory)

	fmt.Fprintln(out, "What Terrace asks of the API, in all:")
	for _, r := range []result{b.created, b.drifted, b.unrelated, b.oneUnit, b.restarted} {
		fmt.Fprintf(out, "  %s: %s; tofu %s\n", r.name, counts(r.requests.kinds), counts(r.commands))
	}
	fmt.Fprintln(out)

	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "BUDGET\tLIMIT\tMEASURED\t")
	for _, l := range b.budgets() {
		verdict := "ok"
		if math.Round(l.measured*100) > l.limit*100 { // as it is printed
			verdict = "OVER"
		}
		fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%s\n", l.what, l.limit, l.measured, verdict)
	}
	_ = w.Flush()
}

// forUnits counts what is asked for the units and not for the source that they
// share, which makes a few requests for all of them together.
func (r requests) forUnits() int {
	n := 0
	for kind, count := range r.kinds {
		if _, resource, _ := strings.Cut(kind, " "); !strings.HasPrefix(resource, "gitrepositories") && resource != "events" {
			n += count
		}
	}
	return n
}

// cells are a row: what the phase cost for one unit.
func (r result) cells() []string {
	n := float64(r.units)
	per := func(d time.Duration) string { return fmt.Sprintf("%.3f s", d.Seconds()/n) }
	cells := []string{r.name, per(r.wall)}
	if r.paced {
		cells[1] = "-"
	}
	if r.raw {
		return append(cells, "-", per(r.tofu), "-", fmt.Sprintf("%.1f", float64(r.processes())/n), "-", fmt.Sprintf("%.1f", float64(r.requests.tofu)/n), fmt.Sprintf("%.1f", float64(r.revisions)/n))
	}
	return append(cells, per(r.terrace), per(r.tofu), per(r.api),
		fmt.Sprintf("%.1f", float64(r.processes())/n),
		fmt.Sprintf("%.1f", float64(r.requests.terrace)/n),
		fmt.Sprintf("%.1f", float64(r.requests.tofu)/n),
		fmt.Sprintf("%.1f", float64(r.revisions)/n))
}

// budget is a limit and what was measured.
type budget struct {
	what            string
	limit, measured float64
}

// budgets are what Terrace holds itself to.
func (b *bench) budgets() []budget {
	per := func(n int, r result) float64 { return float64(n) / float64(r.units) }
	ratio := func(r, floor result, commands ...string) float64 {
		var cli time.Duration
		for _, c := range commands {
			cli += floor.perCommand[c]
		}
		return ((r.terrace + r.tofu).Seconds() / float64(r.units)) / (cli.Seconds() / float64(floor.units))
	}
	return []budget{
		{"create: CPU of Terrace and tofu, to that of the CLI's init, plan and apply", 1.25, ratio(b.created, b.floor, "init", "plan", "apply")},
		{"create: requests of Terrace itself, a unit", 12, per(b.created.requests.terrace, b.created)},
		{"drift check: CPU of Terrace and tofu, to that of one plan", 1.1, ratio(b.drifted, b.floorDrift, "plan")},
		{"drift check: requests of Terrace itself", 2, per(b.drifted.requests.terrace, b.drifted)},
		{"drift check: tofu processes", 1, per(b.drifted.processes(), b.drifted)},
		{"commit that touches no unit: tofu processes, in all", 0, float64(b.unrelated.processes())},
		{"commit that touches no unit: requests of Terrace itself, a unit", 1, per(b.unrelated.requests.forUnits(), b.unrelated)},
		{"restart: tofu processes, in all", 0, float64(b.restarted.processes())},
		{"resident memory, API server and controllers, MiB", 700, b.apiMemory + b.controllerMemory},
	}
}

// counts writes a map of counters, in the order of its keys.
func counts(of map[string]int) string {
	if len(of) == 0 {
		return "nothing"
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(of)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, of[k]))
	}
	return strings.Join(parts, ", ")
}

// version is the first line that a binary says of itself.
func version(binary string) string {
	cmd := exec.Command(binary, "version")
	cmd.Env = []string{"HOME=" + os.TempDir(), "CHECKPOINT_DISABLE=1"}
	out, err := cmd.Output()
	if err != nil {
		return binary
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line)
}
