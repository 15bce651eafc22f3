// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// maxFieldWidth bounds the column of the fields' names.
const maxFieldWidth = 40

// unknownText stands for a value that the apply makes known.
const unknownText = "(known after apply)"

// Text writes the plan for people, in the manner of the CLI. Sensitive values are
// masked, and characters that a terminal would obey are written as escapes. With
// color, the signs are coloured by ANSI sequences. Errors of w are lost; a writer
// that can fail has to remember it.
func (p *Plan) Text(w io.Writer, color bool) {
	t := &text{color: color}
	t.plan(p)
	_, _ = w.Write(t.b.Bytes())
}

// text builds the lines of a rendering.
type text struct {
	b     bytes.Buffer
	color bool
	// signFirst puts signs at the beginning of their lines and writes ~ as !, which is what
	// forges colour in a block of the language diff.
	signFirst bool
}

func (t *text) plan(p *Plan) {
	if len(p.Drift) > 0 {
		t.line("Changed outside of Terraform since the last run:")
		t.line("")
		for i := range p.Drift {
			t.change(&p.Drift[i])
		}
	}
	for i := range p.Changes {
		t.change(&p.Changes[i])
	}
	switch {
	case !p.HasChanges() && p.Destroy:
		t.line("No changes. There is nothing to destroy.")
	case !p.HasChanges() && p.Objects:
		t.line("No changes. The objects match the configuration.")
	case !p.HasChanges():
		t.line("No changes. The infrastructure matches the configuration.")
	default:
		line := "Plan: " + p.Counts.String() + "."
		if counts := policyCounts(p.Policies); counts != "" {
			line += " Policies: " + counts + "."
		}
		t.line(line)
	}
	if len(p.Outputs) > 0 {
		t.line("")
		t.line("Changes to outputs:")
		width := 0
		for _, o := range p.Outputs {
			width = max(width, len(clean(o.Name)))
		}
		for _, o := range p.Outputs {
			f := FieldChange{Action: o.Action, Before: o.Before, After: o.After, Unknown: o.Unknown, Sensitive: o.Sensitive}
			t.field("  ", width, clean(o.Name), &f)
		}
	}
	if len(p.Policies) > 0 {
		t.line("")
		t.policies("Policies:", p.Policies)
	}
}

func (t *text) line(s string) { t.b.WriteString(s + "\n") }

// sign returns the sign of an action, coloured if that is asked for.
func (t *text) sign(a Action, createFirst bool) string {
	s, code := " ", ""
	switch a {
	case ActionCreate:
		s, code = "+", "32"
	case ActionUpdate:
		s, code = "~", "33"
	case ActionDelete:
		s, code = "-", "31"
	case ActionReplace:
		if s, code = "-/+", "31"; createFirst {
			s, code = "+/-", "32"
		}
	case ActionRead:
		s, code = "<=", "36"
	case ActionForget:
		s, code = ".", "31"
	}
	if !t.color || code == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// signed returns a line that begins with a sign.
func (t *text) signed(indent string, a Action, createFirst bool, rest string) string {
	s := t.sign(a, createFirst)
	if !t.signFirst || s == " " {
		return indent + s + " " + rest
	}
	if s == "~" {
		s = "!"
	}
	return s + indent + " " + rest
}

func (t *text) bold(s string) string {
	if !t.color {
		return s
	}
	return "\x1b[1m" + s + "\x1b[0m"
}

// change writes one resource: a comment that says what happens and why, then the
// resource with the fields that differ.
func (t *text) change(c *Change) {
	t.line("  # " + t.bold(clean(c.Address)) + " " + fate(c))
	if r := reason(c); r != "" {
		t.line("  # (" + r + ")")
	}
	if c.Held != "" {
		t.line("  # (held: " + sentence(c.Held) + ")")
	}
	indent := "  "
	switch c.Action {
	case ActionReplace:
		indent = "" // the sign has three characters
	case ActionRead:
		indent = " "
	}
	head := t.signed(indent, c.Action, c.CreateFirst, block(c))
	if len(c.Fields) == 0 {
		t.line(head)
		t.line("")
		return
	}
	t.line(head + " {")
	width := 0
	for i := range c.Fields {
		width = max(width, len(clean(c.Fields[i].Path)))
	}
	if c.Mode == objectMode && width > maxFieldWidth {
		width = 0
	}
	for i := range c.Fields {
		t.field("      ", min(width, maxFieldWidth), clean(c.Fields[i].Path), &c.Fields[i])
	}
	t.line("    }")
	t.line("")
}

// field writes one field with its values.
func (t *text) field(indent string, width int, name string, f *FieldChange) {
	var values, note string
	if f.Replaces {
		note = " # forces replacement"
	}
	before, after := decode(f.Before), decode(f.After)
	head := t.signed(indent, f.Action, false, fmt.Sprintf("%-*s = ", width, name))
	switch {
	case f.Sensitive:
		values = masked
	case f.Unknown && f.Before == nil:
		values = unknownText
	case f.Unknown:
		values = value(before) + " -> " + unknownText
	case multiline(before) || multiline(after):
		t.line(head + "<<-EOT" + note)
		for _, l := range diffLines(lines(before), lines(after)) {
			t.line(strings.TrimRight(t.signed(indent+"    ", l.action, false, clean(l.text)), " "))
		}
		t.line(indent + "  EOT")
		return
	case f.Action == ActionCreate:
		values = value(after)
	case f.Action == ActionDelete:
		values = value(before) + " -> null"
	default:
		values = value(before) + " -> " + value(after)
	}
	t.line(head + values + note)
}

// fate says what happens to a resource.
func fate(c *Change) string {
	if c.Drift {
		switch c.Action {
		case ActionDelete:
			return "is gone"
		case ActionNoop:
			return "has moved"
		}
		return "has changed"
	}
	var s string
	switch c.Action {
	case ActionCreate:
		s = "will be created"
	case ActionUpdate:
		s = "will be updated in-place"
	case ActionDelete:
		s = "will be destroyed"
	case ActionReplace:
		s = "must be replaced"
	case ActionRead:
		s = "will be read during apply"
	case ActionForget:
		s = "will no longer be managed, and not be destroyed"
	default:
		s = "stays as it is"
	}
	if c.Mode == objectMode {
		// Nothing of Terraform's words: an object is deleted, and always updated in place.
		s = strings.NewReplacer("destroyed", "deleted", " in-place", "").Replace(s)
	}
	if c.Held != "" {
		s += " once it can be"
	}
	if c.Deposed != "" {
		s = "(left over from a replacement) " + s
	}
	if c.PreviousAddress != "" {
		s += ", moved from " + clean(c.PreviousAddress)
	}
	if c.ImportID != "" {
		s += ", imported from " + strconv.Quote(c.ImportID)
	}
	return s
}

// block returns the head of a resource's block, its address where the type is not known.
func block(c *Change) string {
	if c.Type == "" {
		return clean(c.Address)
	}
	kind := "resource"
	switch c.Mode {
	case objectMode:
		k, _, _ := strings.Cut(c.Type, ".")
		return fmt.Sprintf("%s %s %s", clean(c.Provider), clean(k), strconv.Quote(c.Name))
	case "data":
		kind = "data"
	}
	return fmt.Sprintf("%s %q %q", kind, c.Type, c.Name)
}

// reasons explains the keywords of plan JSON and, shorter, of the stream.
var reasons = map[string]string{
	"replace_because_tainted":                    "it is tainted",
	"tainted":                                    "it is tainted",
	"replace_by_request":                         "a replacement was asked for",
	"requested":                                  "a replacement was asked for",
	"replace_by_triggers":                        "something in its replace_triggered_by changes",
	"replace_triggered_by":                       "something in its replace_triggered_by changes",
	"delete_because_no_resource_config":          "it is not in the configuration",
	"delete_because_wrong_repetition":            "its index does not fit count or for_each",
	"delete_because_count_index":                 "its index is beyond count",
	"delete_because_each_key":                    "its key is not in for_each",
	"delete_because_enabled_false":               "it is not enabled",
	"delete_because_no_module":                   "its module is not in the configuration",
	"delete_because_no_move_target":              "it was moved to an address that is not in the configuration",
	"read_because_config_unknown":                "its configuration is known only after apply",
	"read_because_dependency_pending":            "it depends on something that changes",
	"read_because_check_nested":                  "a check reads it",
	"forgot_because_lifecycle_destroy_in_config": "its configuration keeps it from being destroyed",
	"forgot_because_lifecycle_destroy_in_state":  "its state keeps it from being destroyed",
}

// reason explains a change's keyword; that a field cannot be updated is said at the
// field. Of an object, the reason is a text already.
func reason(c *Change) string {
	if c.Mode == objectMode {
		return sentence(c.Reason)
	}
	keyword := c.Reason
	switch keyword {
	case "", "replace_because_cannot_update", "cannot_update", "unknown":
		return ""
	}
	if r, ok := reasons[keyword]; ok {
		return r
	}
	return strings.ReplaceAll(clean(keyword), "_", " ")
}

// maxSentence bounds a text of the API server within a line; the whole of it is in
// the plan's JSON.
const maxSentence = 300

// sentence returns a text on one line, shortened if it is long.
func sentence(s string) string {
	s = oneLine(s)
	if r := []rune(s); len(r) > maxSentence {
		s = string(r[:maxSentence]) + "…"
	}
	return s
}

// value writes a value in one line, as HCL does.
func value(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		if v == masked {
			return masked
		}
		return strconv.Quote(v)
	case bool:
		return strconv.FormatBool(v)
	case json.Number:
		return v.String()
	case []any:
		parts := make([]string, len(v))
		for i, e := range v {
			parts[i] = value(e)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case map[string]any:
		parts := make([]string, 0, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			name := k
			if !identifier.MatchString(k) {
				name = strconv.Quote(k)
			}
			parts = append(parts, name+" = "+value(v[k]))
		}
		if len(parts) == 0 {
			return "{}"
		}
		return "{ " + strings.Join(parts, ", ") + " }"
	}
	return fmt.Sprintf("%v", v)
}

// clean writes the characters that a terminal, or a reader, would be led by as
// escapes: control characters and marks that turn the direction of text.
func clean(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !printable(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if printable(r) {
			b.WriteRune(r)
			continue
		}
		q := strconv.QuoteRune(r)
		b.WriteString(q[1 : len(q)-1])
	}
	return b.String()
}

func printable(r rune) bool { return unicode.IsPrint(r) }

func multiline(v any) bool {
	s, ok := v.(string)
	return ok && strings.Contains(strings.TrimSuffix(s, "\n"), "\n")
}

// lines returns the lines of a string; of anything else, its value as one line.
func lines(v any) []string {
	switch v := v.(type) {
	case nil:
		return nil
	case string:
		return strings.Split(strings.TrimSuffix(v, "\n"), "\n")
	}
	return []string{value(v)}
}

type diffLine struct {
	action Action
	text   string
}

// maxDiffCells bounds the table that diffLines fills; longer texts are written as
// the old one followed by the new one.
const maxDiffCells = 4 << 20

// diffLines returns the shortest list of kept, removed and added lines that leads
// from a to b. Kept lines far from a difference are folded into one that counts them.
func diffLines(a, b []string) []diffLine {
	var head, tail []diffLine
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		head = append(head, diffLine{ActionNoop, a[0]})
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		tail = append(tail, diffLine{ActionNoop, a[len(a)-1]})
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	slices.Reverse(tail)
	return fold(slices.Concat(head, shortest(a, b), tail))
}

func shortest(a, b []string) []diffLine {
	var out []diffLine
	if (len(a)+1)*(len(b)+1) > maxDiffCells {
		for _, s := range a {
			out = append(out, diffLine{ActionDelete, s})
		}
		for _, s := range b {
			out = append(out, diffLine{ActionCreate, s})
		}
		return out
	}
	// common[i][j] is the length of the longest common part of a[i:] and b[j:].
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, diffLine{ActionNoop, a[i]})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			out = append(out, diffLine{ActionDelete, a[i]})
			i++
		default:
			out = append(out, diffLine{ActionCreate, b[j]})
			j++
		}
	}
	return out
}

// contextLines is the number of kept lines shown on each side of a difference.
const contextLines = 3

func fold(in []diffLine) []diffLine {
	near := make([]bool, len(in))
	for i, l := range in {
		if l.action == ActionNoop {
			continue
		}
		for j := max(0, i-contextLines); j < min(len(in), i+contextLines+1); j++ {
			near[j] = true
		}
	}
	var out []diffLine
	for i := 0; i < len(in); {
		j := i
		for j < len(in) && !near[j] {
			j++
		}
		if n := j - i; n > 1 {
			out = append(out, diffLine{ActionNoop, fmt.Sprintf("# (%d unchanged lines)", n)})
			i = j
			continue
		}
		out = append(out, in[i])
		i++
	}
	return out
}
