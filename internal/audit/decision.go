// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/approval"
	"github.com/terrace-dev/terrace/internal/plan"
)

// Itself is the actor of what nobody asked for by hand.
var Itself = Actor{Kind: Terrace, Name: "terrace"}

// CountsOf are a plan's counts as entries have them.
func CountsOf(c plan.Counts) *Counts {
	return &Counts{Add: c.Create + c.Replace, Change: c.Update, Destroy: c.Delete + c.Replace}
}

// ByPerson tells whether what approved a plan is a person's word, and not a rule.
func ByPerson(by string) bool { return by == approval.BySpec || by == approval.ByAnnotation }

// Approver is who let a plan be applied: the user that the unit's annotations name for it, if
// a person approved it, else Terrace, by what did.
func Approver(annotations map[string]string, planID, by string) Actor {
	if who := v1alpha1.Approver(annotations, planID); who != "" && ByPerson(by) {
		return Actor{Kind: Kubernetes, Name: who}
	}
	return Actor{Kind: Terrace, Name: by}
}

// Decided are the entries of what was decided about a plan before it is applied: the approval,
// if a person gave it, and the policies that were overridden, if denied says which. The
// entry names the unit, the plan and the approver; who overrode the policies is another, and
// nobody knows them if the actor is zero.
func Decided(e Entry, by, denied string, overrode Actor) []Entry {
	e.Action, e.Outcome = Approve, Succeeded
	var out []Entry
	if ByPerson(by) {
		out = append(out, e)
	}
	if denied != "" {
		// Who wrote the annotation is in the API server's audit log; the approver need not have.
		if overrode.Name == "" {
			overrode = Actor{Kind: Terrace, Name: v1alpha1.PolicyOverrideAnnotation}
		}
		e.Actor, e.Action, e.Detail = overrode, PolicyOverride, denied
		out = append(out, e)
	}
	return out
}
