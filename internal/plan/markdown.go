// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
)

// Markdown returns the plan for a pull request or an issue: the counts, a table
// of the resources and one of what policies say, and the text, folded, in a form that forges colour. Sensitive
// values are masked. It is as long as the plan; a comment's limit is the caller's
// concern.
func (p *Plan) Markdown() string {
	var b strings.Builder
	what := p.Counts.String()
	if !p.HasChanges() {
		what = "no changes"
	}
	if counts := policyCounts(p.Policies); counts != "" {
		what += "; policies: " + counts
	}
	fmt.Fprintf(&b, "**%s**", what)
	if p.Destroy {
		b.WriteString(" (destroys everything)")
	}
	fmt.Fprintf(&b, " in %s", code(p.ID))
	if p.Revision != "" {
		fmt.Fprintf(&b, " of %s", code(p.Revision))
	}
	b.WriteString("\n")
	if len(p.Changes) > 0 {
		what := "resource"
		if p.Objects {
			what = "object"
		}
		fmt.Fprintf(&b, "\n| | %s | |\n|---|---|---|\n", what)
		var t text
		for i := range p.Changes {
			c := &p.Changes[i]
			note := fate(c)
			if r := reason(c); r != "" {
				note += ": " + r
			}
			if c.Held != "" {
				note += "; held: " + sentence(c.Held)
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n",
				code(strings.TrimSpace(t.sign(c.Action, c.CreateFirst))), cell(code(clean(c.Address))), cell(escape(note)))
		}
	}
	if len(p.Policies) > 0 {
		policyTable(&b, p.Policies)
	}
	if !p.HasChanges() && len(p.Drift) == 0 {
		return b.String()
	}
	body := text{signFirst: true}
	changes := *p
	changes.Policies = nil // they are in their table
	body.plan(&changes)
	diff := body.b.String()
	fence := strings.Repeat("`", max(3, longestRun(diff)+1))
	fmt.Fprintf(&b, "\n<details><summary>Plan</summary>\n\n%sdiff\n%s%s\n\n</details>\n", fence, diff, fence)
	return b.String()
}

// code returns a code span that holds s, whatever s holds.
func code(s string) string {
	if s == "" {
		return ""
	}
	ticks := strings.Repeat("`", longestRun(s)+1)
	if len(ticks) == 1 && !strings.HasPrefix(s, " ") {
		return ticks + s + ticks
	}
	return ticks + " " + s + " " + ticks
}

// cell keeps a text from ending its table cell.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

// escape keeps a text from being read as Markdown or HTML.
func escape(s string) string {
	return strings.NewReplacer(
		`\`, `\\`, "`", "\\`", "*", `\*`, "_", `\_`, "[", `\[`, "]", `\]`, "<", "&lt;", ">", "&gt;", "#", `\#`, "@", "&#64;",
	).Replace(s)
}

// longestRun returns the length of the longest run of backticks in s.
func longestRun(s string) int {
	longest, run := 0, 0
	for _, r := range s {
		if r != '`' {
			run = 0
			continue
		}
		run++
		longest = max(longest, run)
	}
	return longest
}
