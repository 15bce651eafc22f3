// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPolicies(t *testing.T) {
	for name, tc := range map[string]struct {
		reason               string
		results              []PolicyResult
		text, below, markdow string
	}{
		"None": {
			reason: "Without policies nothing is said of them.",
			text: `  # a.b will be created
  + resource "a" "b"

Plan: 1 to add, 0 to change, 0 to destroy.
`,
			markdow: "**1 to add, 0 to change, 0 to destroy** in `plan-1`\n\n| | resource | |\n|---|---|---|\n| `+` | `a.b` | will be created |\n",
		},
		"Each": {
			reason: "What denies comes first, whatever the order, and everything is counted.",
			results: []PolicyResult{
				{Policy: "prod/size", Rule: "warn", Message: "it is large", Effect: PolicyWarns},
				{Policy: "prod/owner", Rule: "cel[0]", Address: "a.b", Message: "a person looks at it", Effect: PolicyAsks},
				{Policy: "prod/public", Rule: "deny_acl", Address: "a.b", Message: "it is public", Effect: PolicyDenies},
				{Policy: "prod/broken", Message: "the policy cannot be evaluated: spec.rego:1:1: no", Effect: PolicyDenies},
				{Policy: "prod/owner", Rule: "cel[1]", Message: "and another one", Effect: PolicyAsks},
			},
			text: `  # a.b will be created
  + resource "a" "b"

Plan: 1 to add, 0 to change, 0 to destroy. Policies: 2 denied, 2 need approval, 1 warned.

Policies:
  denied: prod/public: deny_acl: a.b: it is public
  denied: prod/broken: the policy cannot be evaluated: spec.rego:1:1: no
  needs approval: prod/owner: cel[0]: a.b: a person looks at it
  needs approval: prod/owner: cel[1]: and another one
  warned: prod/size: warn: it is large
`,
			below: `Policies: 2 denied, 2 need approval, 1 warned.
  denied: prod/public: deny_acl: a.b: it is public
  denied: prod/broken: the policy cannot be evaluated: spec.rego:1:1: no
  needs approval: prod/owner: cel[0]: a.b: a person looks at it
  needs approval: prod/owner: cel[1]: and another one
  warned: prod/size: warn: it is large
`,
			markdow: "**1 to add, 0 to change, 0 to destroy; policies: 2 denied, 2 need approval, 1 warned** in `plan-1`\n\n| | resource | |\n|---|---|---|\n| `+` | `a.b` | will be created |\n" + `
| policies | | | |
|---|---|---|---|
| denied | ` + "`prod/public` `deny_acl` | `a.b`" + ` | it is public |
| denied | ` + "`prod/broken`" + ` |  | the policy cannot be evaluated: spec.rego:1:1: no |
| needs approval | ` + "`prod/owner` `cel[0]` | `a.b`" + ` | a person looks at it |
| needs approval | ` + "`prod/owner` `cel[1]`" + ` |  | and another one |
| warned | ` + "`prod/size` `warn`" + ` |  | it is large |
`,
		},
		"Hostile": {
			reason:  "Who writes a rule cannot steer a terminal, fake a line, or leave the table's cell.",
			results: []PolicyResult{{Policy: "p", Rule: "deny", Address: "a[\"x|y\"]", Message: "\x1b[2Jall is well\n  0 denied | <b>`no`</b>\u202e", Effect: PolicyDenies}},
			text: `  # a.b will be created
  + resource "a" "b"

Plan: 1 to add, 0 to change, 0 to destroy. Policies: 1 denied.

Policies:
  denied: p: deny: a["x|y"]: \x1b[2Jall is well 0 denied | <b>` + "`no`" + `</b>\u202e
`,
			below: "Policies: 1 denied.\n  denied: p: deny: a[\"x|y\"]: \\x1b[2Jall is well 0 denied | <b>`no`</b>\\u202e\n",
			markdow: "**1 to add, 0 to change, 0 to destroy; policies: 1 denied** in `plan-1`\n\n| | resource | |\n|---|---|---|\n| `+` | `a.b` | will be created |\n" + `
| policies | | | |
|---|---|---|---|
| denied | ` + "`p` `deny` | `a[\"x\\|y\"]`" + ` | \\x1b\[2Jall is well 0 denied \| &lt;b&gt;` + "\\`no\\`" + `&lt;/b&gt;\\u202e |
`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Plan{ID: "plan-1", Changes: []Change{{Address: "a.b", Type: "a", Name: "b", Action: ActionCreate}}, Policies: tc.results}
			p.Counts = count(p.Changes)
			var text bytes.Buffer
			p.Text(&text, false)
			if diff := cmp.Diff(tc.text, text.String()); diff != "" {
				t.Errorf("%s text (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.below, PolicyText(tc.results)); diff != "" {
				t.Errorf("%s below another text (-want +got):\n%s", tc.reason, diff)
			}
			head, body, _ := strings.Cut(p.Markdown(), "\n<details>")
			if diff := cmp.Diff(tc.markdow, head); diff != "" || strings.Contains(body, "denied") {
				t.Errorf("%s Markdown (-want +got):\n%s\nfolded: %s", tc.reason, diff, body)
			}
			checkRoundTrip(t, p)
			checkSafe(t, p)
		})
	}
}

// TestPoliciesAreBounded: a policy that complains of everything does not bury the plan.
func TestPoliciesAreBounded(t *testing.T) {
	var results []PolicyResult
	for i := range maxPolicyResults + 3 {
		results = append(results, PolicyResult{Policy: "p", Rule: "warn", Message: fmt.Sprint(i), Effect: PolicyWarns})
	}
	results = append(results, PolicyResult{Policy: "p", Rule: "deny", Message: "the last of all", Effect: PolicyDenies})
	p := &Plan{Policies: results}
	for what, s := range map[string]string{"text": PolicyText(results), "Markdown": p.Markdown()} {
		if n := strings.Count(s, "warn:") + strings.Count(s, "`warn`"); n != maxPolicyResults-1 || !strings.Contains(s, "the last of all") || !strings.Contains(s, "4 more") {
			t.Errorf("%s shows %d warnings:\n%s", what, n, s)
		}
	}
}
