// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package approval decides whether a plan may be applied, from the object's spec and
// annotations, the plan that waits, what policies say of it, and the time. It is a
// function of its arguments: it reads no clock, keeps nothing and has no effect. The rules
// of time zones are those of the program that it is linked into.
package approval

import (
	"fmt"
	"strings"
	"time"

	"github.com/terrace-dev/terrace/internal/plan"
)

// Values of approvePlan that are not a plan id.
const (
	auto         = "auto"
	disable      = "disable"
	replanPrefix = "replan"
)

// noDestroy is the value of the annotation terrace.dev/auto-approve.
const noDestroy = "no-destroy"

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

	// AutoApprove is the value of the annotation terrace.dev/auto-approve. With "no-destroy"
	// a plan is applied without asking if it destroys and replaces nothing, and only then:
	// also where ApprovePlan is "auto".
	AutoApprove string
	// Window is the value of the annotation terrace.dev/apply-window; see ParseWindow. An
	// approved plan waits until it opens. Empty is always.
	Window string
	// Now is the time of the decision. It is looked at only if there is a Window.
	Now time.Time
	// Policy is what policies say of the plan that waits.
	Policy Policy
	// PolicyOverride is the value of the annotation terrace.dev/policy-override. If it is the
	// id or the digest of the plan that waits, no policy denies it.
	PolicyOverride string
}

// Policy is what policies say of a plan, each in one sentence, or empty.
type Policy struct {
	// Denied says which policy forbids the plan, and why.
	Denied string
	// NeedsApproval says which policy wants a person to approve it, and why.
	NeedsApproval string
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
	// Counts are the numbers of what the plan does.
	Counts plan.Counts
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
	// ByNoDestroy is the value of By for a plan that destroys nothing.
	ByNoDestroy = "terrace.dev/auto-approve"
)

// Obstacle is what keeps a plan from being applied beside the want of an approval.
type Obstacle string

const (
	// PolicyDenies: a policy forbids it.
	PolicyDenies Obstacle = "policy"
	// WindowShut: it is not the time, or the window cannot be understood.
	WindowShut Obstacle = "window"
)

// Decision is the answer.
type Decision struct {
	// Approved tells that the plan may be applied.
	Approved bool
	// By is what approved it: ByAuto, BySpec, ByAnnotation, ByForce or ByNoDestroy. It is
	// empty if nothing did; with WindowShut it says what has approved the plan that waits.
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
	// Obstacle is what stands against the plan; empty if it is approved, or waits for nothing
	// but an approval.
	Obstacle Obstacle
	// WaitUntil is when the window opens. It is zero if the plan does not wait for that.
	WaitUntil time.Time
	// Overridden tells that a policy denied the plan and was overridden by the annotation.
	Overridden bool
}

// Decide decides. These rules stand above the others: "disable" wins over force,
// planOnly over every approval, a policy that denies over every approval but its own
// override, and what is approved waits for its window, whoever approved it. A plan is
// named exactly or not at all: no beginning of an id approves it, since it could be that
// of another plan. A value that cannot be understood approves nothing and opens nothing.
//
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
	}
	overridden := false
	if in.Policy.Denied != "" {
		if overridden = in.Pending.content(in.PolicyOverride); !overridden {
			return denied(in)
		}
	}
	d := approve(in)
	d.Overridden = overridden
	if !d.Approved || in.Window == "" {
		return d
	}
	return inWindow(in, d)
}

// approve decides by who has approved the plan, without regard of the time.
func approve(in Request) Decision {
	asked := in.Policy.NeedsApproval != "" // a person has to say so
	switch {
	case in.Force && !asked:
		return approved(ByForce, "spec.force is set")
	case in.ApprovePlan == auto && !asked && in.AutoApprove == "":
		return approved(ByAuto, `spec.approvePlan is "auto"`)
	case in.Pending == nil:
		return Decision{Replan: replan(in), Why: "there is no plan to approve"}
	}
	p := in.Pending
	if name := p.named(in.ApprovePlan); name != "" {
		return approved(BySpec, fmt.Sprintf("spec.approvePlan is the plan's %s", name))
	}
	if name := p.named(in.ApprovedPlan); name != "" {
		return approved(ByAnnotation, fmt.Sprintf("annotation %s is the plan's %s", ByAnnotation, name))
	}
	d := Decision{Replan: replan(in)}
	switch {
	case asked:
		d.Why = "a policy asks for an approval: " + in.Policy.NeedsApproval
	case in.AutoApprove == noDestroy && !d.Replan:
		if d.Why = p.destroys(); d.Why == "" {
			return approved(ByNoDestroy, "the plan destroys and replaces nothing")
		}
		d.Why += fmt.Sprintf(", which annotation %s does not apply by itself", ByNoDestroy)
	case in.AutoApprove != "" && in.AutoApprove != noDestroy:
		d.Why = fmt.Sprintf("annotation %s is %q, and can only be %q", ByNoDestroy, in.AutoApprove, noDestroy)
	default:
		d.Why = why(in.ApprovePlan)
		d.Message = fmt.Sprintf("Plan generated: set approvePlan: %q to approve this plan.", p.ID)
		return d
	}
	d.Message = fmt.Sprintf("Plan generated: %s: set approvePlan: %q to approve this plan.", d.Why, p.ID)
	return d
}

func approved(by, why string) Decision {
	return Decision{Approved: true, By: by, Why: why, Message: "Plan generated"}
}

// denied is the answer to a plan that a policy forbids.
func denied(in Request) Decision {
	d := Decision{Replan: replan(in), Obstacle: PolicyDenies, Why: "a policy denies the plan: " + in.Policy.Denied}
	d.Message = "Plan generated: " + d.Why
	if in.PolicyOverride != "" && in.Pending != nil {
		d.Message += fmt.Sprintf(" (annotation terrace.dev/policy-override is %q, which is not this plan, %s)", in.PolicyOverride, in.Pending.ID)
	}
	return d
}

// inWindow lets an approved plan wait until its window is open.
func inWindow(in Request, d Decision) Decision {
	shut := Decision{By: d.By, Obstacle: WindowShut, Overridden: d.Overridden, Replan: replan(in)}
	w, err := ParseWindow(in.Window)
	if err != nil {
		shut.Why = fmt.Sprintf("annotation terrace.dev/apply-window cannot be understood: %v", err)
		shut.Message = "Plan generated: " + shut.Why
		return shut
	}
	open, change := w.At(in.Now)
	if open {
		return d
	}
	shut.WaitUntil = change
	shut.Why = fmt.Sprintf("the plan is approved and waits for the apply window %q", in.Window)
	if !change.IsZero() {
		shut.Why += ", which opens at " + change.Format("2006-01-02 15:04 MST")
	}
	shut.Message = "Plan generated: " + shut.Why
	return shut
}

// destroys says what a plan destroys, empty if it destroys nothing.
func (p *Pending) destroys() string {
	switch c := p.Counts; {
	case p.Destroy:
		return "the plan destroys everything"
	case c.Delete > 0 && c.Replace > 0:
		return fmt.Sprintf("the plan destroys %d and replaces %d", c.Delete, c.Replace)
	case c.Delete > 0:
		return fmt.Sprintf("the plan destroys %d", c.Delete)
	case c.Replace > 0:
		return fmt.Sprintf("the plan replaces %d", c.Replace)
	}
	return ""
}

// content tells whether a value names the content of the plan. The id of a revision does
// not do: the next plan of that revision can be another one.
func (p *Pending) content(value string) bool {
	return p != nil && value != "" && (value == p.ID || value == p.Digest)
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
