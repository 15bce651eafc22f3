// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// teller writes the story. Without colours it writes plain lines, which are as
// good in a log as on a terminal.
type teller struct {
	mu    sync.Mutex
	out   io.Writer
	color bool
	begun time.Time
}

func newTeller(out io.Writer, color bool) *teller {
	return &teller{out: out, color: color, begun: time.Now()}
}

// Escape sequences of the few styles that are used.
const (
	bold  = "1"
	faint = "2"
	red   = "31"
	green = "32"
	cyan  = "36"
)

func (w *teller) style(code, text string) string {
	if !w.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (w *teller) print(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintf(w.out, format, args...)
}

// chapter begins a step.
func (w *teller) chapter(n int, title string) {
	w.print("\n%s\n", w.style(bold, fmt.Sprintf("%d. %s", n, title)))
}

// line writes one line of the story.
func (w *teller) line(format string, args ...any) {
	w.print("   %s\n", fmt.Sprintf(format, args...))
}

// command shows what a user would type.
func (w *teller) command(args ...string) {
	w.print("   %s\n", w.style(cyan, "$ "+strings.Join(args, " ")))
}

// quote shows what a command answered, indented, without empty lines at its ends.
func (w *teller) quote(text string) {
	for l := range strings.SplitSeq(strings.Trim(text, "\n"), "\n") {
		w.print("%s\n", strings.TrimRight("     "+l, " "))
	}
}

// seen tells that something happened, with the time since the start.
func (w *teller) seen(who, format string, args ...any) {
	at := fmt.Sprintf("%6.1fs", time.Since(w.begun).Seconds())
	what := hashes.ReplaceAllString(fmt.Sprintf(format, args...), "$1")
	w.print("   %s %-15s %s\n", w.style(faint, at), who, cut(what, 100))
}

// hashes finds commit hashes, of which the first digits are enough to read.
var hashes = regexp.MustCompile(`\b([0-9a-f]{10})[0-9a-f]{30}\b`)

// kept tells that a promise was kept.
func (w *teller) kept(format string, args ...any) {
	w.print("   %s %s\n", w.style(green, "ok"), fmt.Sprintf(format, args...))
}

// summary writes the table at the end.
func (w *teller) summary(rows []row, whole bool) {
	w.print("\n%s\n", w.style(bold, "Summary"))
	for _, l := range table(rows) {
		w.print("   %s\n", l)
	}
	total := time.Since(w.begun).Seconds()
	if whole {
		w.print("\n   %s\n", w.style(green, fmt.Sprintf("All as promised, in %.1f s.", total)))
		return
	}
	w.print("\n   %s\n", w.style(red, fmt.Sprintf("Not as promised; it ended after %.1f s.", total)))
}

// table aligns the summary's columns.
func table(rows []row) []string {
	cells := [][3]string{{"STEP", "RAN", "TIME"}}
	for _, r := range rows {
		took := fmt.Sprintf("%.1fs", r.took.Seconds())
		if !r.ok {
			took += "  FAILED"
		}
		ran := r.ran
		if ran == "" {
			ran = "-"
		}
		cells = append(cells, [3]string{r.step, ran, took})
	}
	var width [2]int
	for _, c := range cells {
		for i := range width {
			width[i] = max(width[i], utf8.RuneCountInString(c[i]))
		}
	}
	var lines []string
	for _, c := range cells {
		lines = append(lines, fmt.Sprintf("%-*s  %-*s  %s", width[0], c[0], width[1], c[1], c[2]))
	}
	return lines
}

// cut shortens a text to its first line and to at most n runes.
func cut(text string, n int) string {
	text, _, _ = strings.Cut(text, "\n")
	if utf8.RuneCountInString(text) <= n {
		return text
	}
	runes := []rune(text)
	return string(runes[:n-3]) + "..."
}
