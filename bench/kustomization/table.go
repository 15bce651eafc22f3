// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/terrace-dev/terrace/bench/rig"
)

// print writes what each phase cost, how that compares to the bare client, and how it
// stands to the budgets.
func (b *bench) print(out io.Writer) {
	b.table(out)
	b.comparison(out)
	b.budgets().Print(out)
}

// table writes what each phase has cost that is over.
func (b *bench) table(out io.Writer) {
	fmt.Fprintf(out, "%s; %d cores, %d Kustomizations of 4 objects, %d at a time\n\n", rig.Version(b.terrace), runtime.NumCPU(), b.apps, b.concurrent)

	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "PER KUSTOMIZATION\tWALL, ALL\tWALL\tCPU CLIENT\tCPU API\tREQUESTS\tDRY-RUNS\tETCD WRITES\tMIB API\tMIB TERRACE\t")
	for _, r := range b.results {
		fmt.Fprintln(w, strings.Join(r.cells(), "\t")+"\t")
	}
	_ = w.Flush() // out's own errors are the terminal's affair
	fmt.Fprint(out, `
The client is Terrace's controllers, or the bare client, which is the benchmark itself.
CPU API is that of the API server and etcd for everybody: also for the status writer, for
the benchmark's own requests, and for being there (see idle). Requests are the client's,
without those for the one source; etcd writes are all but the benchmark's. A new Service
costs the API server a second write, for its address. MiB are resident at the end of the
phase. A phase of Terrace ends, but for the wall clock, when it has asked nothing for 1.5 s.

What Terrace asks of the API for each Kustomization:
`)
	for _, r := range b.results {
		if !r.bare {
			fmt.Fprintf(out, "  %s: %s; for the source, in all, %d\n", r.name, r.each(), r.Requests.Aside)
		}
	}
	fmt.Fprintln(out)
}

// cells are a row: what the phase cost for one unit.
func (r result) cells() []string {
	n := float64(r.units)
	per := func(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1000/n) }
	requests, writes := float64(r.Requests.Terrace), r.Revisions-int64(r.OwnWrites)
	mib := func(m rig.Memory) string { return fmt.Sprintf("%.0f", m.Now) }
	api, controller := mib(r.api), mib(r.controller)
	if r.bare {
		requests, writes, api, controller = float64(r.Own), r.Revisions, "-", "-"
	}
	return []string{
		r.name, fmt.Sprintf("%.1f s", r.Wall.Seconds()), per(r.Wall), per(r.Terrace), per(r.API),
		fmt.Sprintf("%.1f", requests/n), fmt.Sprintf("%.1f", float64(r.dryRuns())/n), fmt.Sprintf("%.1f", float64(writes)/n), api, controller,
	}
}

func (r result) dryRuns() int {
	n := 0
	for kind, count := range r.Requests.Kinds {
		if strings.Contains(kind, "?dryRun") {
			n += count
		}
	}
	return n
}

// each lists the requests for one unit, by verb and resource.
func (r result) each() string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(r.Requests.Kinds)) {
		parts = append(parts, fmt.Sprintf("%s %.4g", k, float64(r.Requests.Kinds[k])/float64(r.units)))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

// comparison sets Terrace beside the bare client's applies and deletes.
func (b *bench) comparison(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "TERRACE TO THE BARE CLIENT\tWALL\tCPU CLIENT\tCPU API\tCPU BOTH\tREQUESTS\t")
	for _, name := range []string{"install", "upgrade", "no change", "delete"} {
		ours, floor := b.result(name), b.result("bare client: "+name)
		ratio := func(a, b float64) string { return fmt.Sprintf("%.2f", a/b) }
		fmt.Fprintln(w, strings.Join([]string{
			name, ratio(ours.Wall.Seconds(), floor.Wall.Seconds()),
			ratio(ours.Terrace.Seconds(), floor.Terrace.Seconds()), ratio(ours.API.Seconds(), floor.API.Seconds()),
			ratio((ours.Terrace + ours.API).Seconds(), (floor.Terrace + floor.API).Seconds()),
			ratio(float64(ours.Requests.Terrace), float64(floor.Own)),
		}, "\t")+"\t")
	}
	_ = w.Flush() // as above
	fmt.Fprintln(out)
}

// result returns the phase whose name begins so.
func (b *bench) result(name string) result {
	i := slices.IndexFunc(b.results, func(r result) bool { return strings.HasPrefix(r.name, name) })
	return b.results[i] // every phase has run, or there is nothing to print
}

// budgets are what Terrace holds itself to.
func (b *bench) budgets() rig.Budgets {
	perUnit := func(r result) float64 { return float64(r.Requests.Terrace) / float64(b.apps) }
	install, one := b.result("install"), b.result("commit that touches one unit")
	peak := 0.0
	for _, r := range b.results {
		if !r.bare {
			peak = max(peak, r.api.Now+r.controller.Now)
		}
	}
	var all rig.Budgets
	all.Add("install: requests (a read of the shared ConfigMap is one of them)", 10, perUnit(install))
	all.Add("install: CPU of Terrace, ms", 30, install.Terrace.Seconds()*1000/float64(b.apps))
	all.Add("no change: requests", 1, perUnit(b.result("no change")))
	all.Add("idle, 10 s: requests, in all", 0, float64(b.result("idle").Requests.Terrace))
	all.Add("commit that touches no unit: requests", 1, perUnit(b.result("commit that touches no unit")))
	all.Add("commit that touches one unit: requests, but for one for each other unit", 10, float64(one.Requests.Terrace-(b.apps-1)))
	all.Add("resident memory, API server and controllers, MiB, largest after a phase", 700, peak)
	return all
}
