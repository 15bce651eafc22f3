// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// table prints rows in columns that are three spaces apart. Widths only grow,
// so that rows which a watch brings later stand under the first ones.
type table struct {
	out    io.Writer
	header []string
	widths []int
	// paint colours the text of a cell; nil leaves it.
	paint func(column, text string) string
}

func newTable(out io.Writer, paint func(column, text string) string, header ...string) *table {
	return &table{out: out, header: header, widths: make([]int, len(header)), paint: paint}
}

// fit makes room for rows that are going to be printed.
func (t *table) fit(rows ...[]string) {
	for _, row := range rows {
		for i, cell := range row {
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cell))
		}
	}
}

// print writes the rows, below the header when there is to be one.
func (t *table) print(header bool, rows ...[]string) {
	if header {
		t.fit(t.header)
		rows = append([][]string{t.header}, rows...)
	}
	t.fit(rows...)
	for n, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			shown := cell
			if t.paint != nil && !(header && n == 0) {
				shown = t.paint(t.header[i], cell)
			}
			b.WriteString(shown)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(cell)+3))
			}
		}
		fmt.Fprintln(t.out, strings.TrimRight(b.String(), " "))
	}
}

// Colours of a terminal (ECMA-48, "select graphic rendition").
const (
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	plain  = "\x1b[0m"
)

// paint is how columns are coloured: only where a colour says something that a
// reader looks for.
func paint(column, text string) string {
	switch {
	case column == "READY" && text == "True":
		return green + text + plain
	case column == "READY" && text == "False", column == "TYPE" && text == "Warning":
		return red + text + plain
	case column == "READY", column == "PLAN" && text != none:
		return yellow + text + plain
	}
	return text
}

// painter is paint where colours are allowed.
func (a *app) painter() func(column, text string) string {
	if a.env.Color {
		return paint
	}
	return nil
}
