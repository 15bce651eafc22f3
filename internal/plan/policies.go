// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
)

// PolicyEffect is what a result of a policy leads to.
type PolicyEffect string

const (
	// PolicyDenies forbids to apply the plan.
	PolicyDenies PolicyEffect = "deny"
	// PolicyAsks wants a person to approve the plan.
	PolicyAsks PolicyEffect = "approve"
	// PolicyWarns forbids nothing.
	PolicyWarns PolicyEffect = "warn"
)

// policyEffects are in the order in which they are written, with their words for one
// result and for several.
var policyEffects = []struct {
	effect    PolicyEffect
	one, many string
	colour    string
}{
	{PolicyDenies, "denied", "denied", "31"},
	{PolicyAsks, "needs approval", "need approval", "33"},
	{PolicyWarns, "warned", "warned", "36"},
}

// PolicyResult is one thing that a policy says of a plan. Whoever makes it has taken the
// secrets out of its texts.
type PolicyResult struct {
	// Policy is the policy's name, "namespace/name" of an object.
	Policy string `json:"policy"`
	// Rule is the name of the rule, empty if the policy could not be evaluated.
	Rule string `json:"rule,omitempty"`
	// Address is the resource or the object that it is about, empty if it is not known.
	Address string `json:"address,omitempty"`
	// Message is for people.
	Message string `json:"message"`
	// Effect is what it leads to.
	Effect PolicyEffect `json:"effect"`
}

// maxPolicyResults bounds what a rendering shows; the plan's JSON has all.
const maxPolicyResults = 100

// policyCounts counts results by their effect, empty if there are none.
func policyCounts(results []PolicyResult) string {
	var parts []string
	for _, e := range policyEffects {
		n := 0
		for _, r := range results {
			if r.Effect == e.effect {
				n++
			}
		}
		switch {
		case n == 1:
			parts = append(parts, "1 "+e.one)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%d %s", n, e.many))
		}
	}
	return strings.Join(parts, ", ")
}

// inOrder gives those of the results that are shown, what denies first, and how many are not.
func inOrder(results []PolicyResult) (shown []PolicyResult, more int) {
	for _, e := range policyEffects {
		for _, r := range results {
			if r.Effect == e.effect {
				shown = append(shown, r)
			}
		}
	}
	if more = len(shown) - maxPolicyResults; more > 0 {
		return shown[:maxPolicyResults], more
	}
	return shown, 0
}

// PolicyText writes what policies say of a plan, for below the text of a plan that is not
// Plan.Text; empty if they say nothing. Characters that a terminal would obey are escaped.
func PolicyText(results []PolicyResult) string {
	if len(results) == 0 {
		return ""
	}
	var t text
	t.policies("Policies: "+policyCounts(results)+".", results)
	return t.b.String()
}

// policies writes results below a heading.
func (t *text) policies(heading string, results []PolicyResult) {
	t.line(heading)
	shown, more := inOrder(results)
	for _, r := range shown {
		word := r.Effect.word()
		if t.color {
			word = "\x1b[" + r.Effect.colour() + "m" + word + "\x1b[0m"
		}
		parts := []string{word}
		for _, s := range []string{r.Policy, r.Rule, r.Address, r.Message} {
			if s = oneLine(s); s != "" {
				parts = append(parts, s)
			}
		}
		t.line("  " + strings.Join(parts, ": "))
	}
	if more > 0 {
		t.line(fmt.Sprintf("  %d more", more))
	}
}

// word says of one result what it leads to.
func (e PolicyEffect) word() string {
	for _, known := range policyEffects {
		if known.effect == e {
			return known.one
		}
	}
	return ""
}

func (e PolicyEffect) colour() string {
	for _, known := range policyEffects {
		if known.effect == e {
			return known.colour
		}
	}
	return "0"
}

// oneLine returns a text on one line.
func oneLine(s string) string { return clean(strings.Join(strings.Fields(s), " ")) }

// policyTable writes results as a Markdown table.
func policyTable(b *strings.Builder, results []PolicyResult) {
	b.WriteString("\n| policies | | | |\n|---|---|---|---|\n")
	shown, more := inOrder(results)
	for _, r := range shown {
		name := code(oneLine(r.Policy))
		if r.Rule != "" {
			name += " " + code(oneLine(r.Rule))
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", r.Effect.word(), cell(name), cell(code(oneLine(r.Address))), cell(escape(oneLine(r.Message))))
	}
	if more > 0 {
		fmt.Fprintf(b, "| | %d more | | |\n", more)
	}
}
