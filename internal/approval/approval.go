// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package approval decides whether a plan may be applied, from the object's spec
// and the plan that waits. It is a function of its arguments: it reads no clock,
// keeps nothing and has no effect.
package approval

import (
	"fmt"
	"strings"
)

// Values of approvePlan that are not a plan id.
const (
	auto         = "auto"
	disable      = "disable"
	replanPrefix = "replan"
)

// Request is what a decision rests on.
type Request struct {
	// ApprovePlan is the value of spec.approvePlan.
	ApprovePlan string
	// ApprovedPlan is the value of the annotation terrace.dev/approved-plan, which names a
	// plan where the spec belongs to Git.
	ApprovedPlan string
	// Force is the value of spec.force: apply without asking.
	Force bool
	// PlanOnly is the value of spec.planOnly: never apply.
	PlanOnly bool
	// Replanned tells that a plan has been made since ApprovePlan got its value (the spec's
	// generation is the one last planned): a "replan" in it has then had its answer.
	Replanned bool
	// Pending is the plan that waits, nil if there is none.
	Pending *Pending
}

// Pending is a plan that waits to be approved.
type Pending struct {
	// ID is the id of the plan's content; see plan.ID.
	ID string
	// Digest is the digest of the plan's content, "algorithm:hex". It approves as well as
	// the id does.
	Digest string
	// RevisionID is the id that the Terraform Controller would have given the plan. It
	// approves as well, so it is set only where it can name no other plan: when this is the
	// first plan that its revision gave. Empty means that it does not approve.
	RevisionID string
	// Destroy tells that the plan destroys everything.
	Destroy bool
	// Drift tells that the plan repairs drift.
	Drift bool
}

// Who approves a plan, in Decision.By.
const (
	// ByAuto is the value of By for approvePlan "auto".
	ByAuto = "auto"
	// BySpec is the value of By for an approvePlan that names the plan.
	BySpec = "spec.approvePlan"
	// ByAnnotation is the value of By for the annotation that names the plan.
	ByAnnotation = "terrace.dev/approved-plan"
	// ByForce is the value of By for spec.force.
	ByForce = "force"
)

// Decision is the answer.
type Decision struct {
	// Approved tells that the plan may be applied.
	Approved bool
	// By is what approved it: ByAuto, BySpec, ByAnnotation or ByForce; empty if it is not approved.
	By string
	// Why is one sentence for logs and for the record of approvals.
	Why string
	// Message is the message of the Ready condition, without the revision. It is the
	// Terraform Controller's, letter for letter, where that has one.
	Message string
	// Disabled tells that nothing may be planned or applied; drift may be looked for.
	Disabled bool
	// Replan tells that the plan that waits is to be dropped and a new one made.
	Replan bool
}

// Decide decides. Three rules stand above the others: "disable" wins over force,
// planOnly over every approval, and a plan is named exactly or not at all: no
// beginning of an id approves it, since it could be that of another plan.
// Without a plan that waits the answer says what would become of one: Approved
// then means that it would not have to wait.
func Decide(in Request) Decision {
	switch {
	case in.ApprovePlan == disable:
		return Decision{Disabled: true, Why: `spec.approvePlan is "disable"`, Message: "Plan and apply are disabled"}
	case in.PlanOnly:
		return Decision{
			Replan:  replan(in),
			Why:     "spec.planOnly is set",
			Message: "Plan generated: This object is in the plan only mode.",
		}
	case in.Force:
		return Decision{Approved: true, By: ByForce, Why: "spec.force is set", Message: "Plan generated"}
	case in.ApprovePlan == auto:
		return Decision{Approved: true, By: ByAuto, Why: `spec.approvePlan is "auto"`, Message: "Plan generated"}
	case in.Pending == nil:
		return Decision{Replan: replan(in), Why: "there is no plan to approve"}
	}
	p := in.Pending
	if name := p.named(in.ApprovePlan); name != "" {
		return Decision{
			Approved: true, By: BySpec,
			Why:     fmt.Sprintf("spec.approvePlan is the plan's %s", name),
			Message: "Plan generated",
		}
	}
	if name := p.named(in.ApprovedPlan); name != "" {
		return Decision{
			Approved: true, By: ByAnnotation,
			Why:     fmt.Sprintf("annotation %s is the plan's %s", ByAnnotation, name),
			Message: "Plan generated",
		}
	}
	return Decision{
		Replan:  replan(in),
		Why:     why(in.ApprovePlan),
		Message: fmt.Sprintf("Plan generated: set approvePlan: %q to approve this plan.", p.ID),
	}
}

// named says by which of its names a value names the plan, empty if by none.
func (p *Pending) named(value string) string {
	switch value {
	case "":
		return ""
	case p.ID:
		return "id"
	case p.Digest:
		return "digest"
	case p.RevisionID:
		return "revision id"
	}
	return ""
}

// replan tells whether the value asks for a new plan: "replan", with anything
// behind it that makes it another value than the last time.
func replan(in Request) bool {
	return !in.Replanned && strings.HasPrefix(in.ApprovePlan, replanPrefix)
}

func why(value string) string {
	switch {
	case value == "":
		return "nobody has approved the plan"
	case strings.HasPrefix(value, replanPrefix):
		return "spec.approvePlan asks for a new plan"
	}
	return fmt.Sprintf("spec.approvePlan is %q, which is another plan", value)
}
