// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/terrace-dev/terrace/bench/rig"
)

// print writes the results as two tables: what each phase cost, and how that
// stands to the budgets.
func (b *bench) print(out io.Writer) {
	fmt.Fprintf(out, "%s; %s; %d cores, %d runs at a time, %d units\n\n", rig.Version(b.terrace), rig.Version(b.tofu), runtime.NumCPU(), b.concurrent, b.units)

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
		fmt.Fprintf(out, "  %s: %s; tofu %s\n", r.name, rig.Counts(r.Requests.Kinds), rig.Counts(r.commands))
	}
	fmt.Fprintln(out)

	b.budgets().Print(out)
}

// cells are a row: what the phase cost for one unit.
func (r result) cells() []string {
	n := float64(r.units)
	per := func(d time.Duration) string { return fmt.Sprintf("%.3f s", d.Seconds()/n) }
	cells := []string{r.name, per(r.Wall)}
	if r.paced {
		cells[1] = "-"
	}
	if r.raw {
		return append(cells, "-", per(r.Children), "-", fmt.Sprintf("%.1f", float64(r.processes())/n), "-", fmt.Sprintf("%.1f", float64(r.Requests.Aside)/n), fmt.Sprintf("%.1f", float64(r.Revisions)/n))
	}
	return append(cells, per(r.Terrace), per(r.Children), per(r.API),
		fmt.Sprintf("%.1f", float64(r.processes())/n),
		fmt.Sprintf("%.1f", float64(r.Requests.Terrace)/n),
		fmt.Sprintf("%.1f", float64(r.Requests.Aside)/n),
		fmt.Sprintf("%.1f", float64(r.Revisions)/n))
}

// budgets are what Terrace holds itself to.
func (b *bench) budgets() rig.Budgets {
	per := func(n int, r result) float64 { return float64(n) / float64(r.units) }
	ratio := func(r, floor result, commands ...string) float64 {
		var cli time.Duration
		for _, c := range commands {
			cli += floor.perCommand[c]
		}
		return ((r.Terrace + r.Children).Seconds() / float64(r.units)) / (cli.Seconds() / float64(floor.units))
	}
	var all rig.Budgets
	all.Add("create: CPU of Terrace and tofu, to that of the CLI's init, plan and apply", 1.25, ratio(b.created, b.floor, "init", "plan", "apply"))
	all.Add("create: requests of Terrace itself, a unit", 12, per(b.created.Requests.Terrace, b.created))
	all.Add("drift check: CPU of Terrace and tofu, to that of one plan", 1.1, ratio(b.drifted, b.floorDrift, "plan"))
	all.Add("drift check: requests of Terrace itself", 2, per(b.drifted.Requests.Terrace, b.drifted))
	all.Add("drift check: tofu processes", 1, per(b.drifted.processes(), b.drifted))
	all.Add("commit that touches no unit: tofu processes, in all", 0, float64(b.unrelated.processes()))
	all.Add("commit that touches no unit: requests of Terrace itself, a unit", 1, per(b.unrelated.Requests.Except("gitrepositories", "events"), b.unrelated))
	all.Add("restart: tofu processes, in all", 0, float64(b.restarted.processes()))
	all.Add("resident memory, API server and controllers, MiB", 700, b.apiMemory+b.controllerMemory)
	return all
}
