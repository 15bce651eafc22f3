// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
)

// Budgets are limits that Terrace holds itself to, beside what was measured.
type Budgets []budget

type budget struct {
	what            string
	limit, measured float64
}

// Add adds a line.
func (b *Budgets) Add(what string, limit, measured float64) {
	*b = append(*b, budget{what, limit, measured})
}

// Print writes how the measured stands to the limits. Nothing fails by it: it is for
// people, and for the next change.
func (b Budgets) Print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "BUDGET\tLIMIT\tMEASURED\t")
	for _, l := range b {
		verdict := "ok"
		if math.Round(l.measured*100) > math.Round(l.limit*100) { // as it is printed
			verdict = "OVER"
		}
		fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%s\n", l.what, l.limit, l.measured, verdict)
	}
	_ = w.Flush() // out's own errors are the terminal's affair
}

// Except counts Terrace's own requests but those for some resources and their
// subresources.
func (r Requests) Except(resources ...string) int {
	n := 0
	for kind, count := range r.Kinds {
		_, resource, _ := strings.Cut(kind, " ")
		resource, _, _ = strings.Cut(resource, "/")
		if !slices.Contains(resources, resource) {
			n += count
		}
	}
	return n
}

// Counts writes a map of counters, in the order of its keys.
func Counts(of map[string]int) string {
	if len(of) == 0 {
		return "nothing"
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(of)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, of[k]))
	}
	return strings.Join(parts, ", ")
}

// Version is the first line that a binary says of itself.
func Version(binary string) string {
	cmd := exec.Command(binary, "version")
	cmd.Env = []string{"HOME=" + os.TempDir(), "CHECKPOINT_DISABLE=1"}
	out, err := cmd.Output()
	if err != nil {
		return binary
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line)
}
