// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package approval

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

func TestDecide(t *testing.T) {
	pending := func() *Pending {
		return &Pending{ID: "plan-main-0123456789", Digest: "sha256:0123456789abcdef", RevisionID: "plan-main-b8e362c206"}
	}
	wait := func(why string) Decision {
		return Decision{Why: why, Message: `Plan generated: set approvePlan: "plan-main-0123456789" to approve this plan.`}
	}
	other := func(value string) Decision {
		return wait(`spec.approvePlan is "` + value + `", which is another plan`)
	}
	approved := func(by, why string) Decision {
		return Decision{Approved: true, By: by, Why: why, Message: "Plan generated"}
	}
	disabled := Decision{Disabled: true, Why: `spec.approvePlan is "disable"`, Message: "Plan and apply are disabled"}
	planOnly := Decision{Why: "spec.planOnly is set", Message: "Plan generated: This object is in the plan only mode."}
	replanned := func(d Decision) Decision { d.Replan = true; return d }

	cases := map[string]struct {
		reason string
		in     Request
		want   Decision
	}{
		"Manual":        {"An empty value approves nothing.", Request{Pending: pending()}, wait("nobody has approved the plan")},
		"Auto":          {"Every plan.", Request{ApprovePlan: "auto", Pending: pending()}, approved(ByAuto, `spec.approvePlan is "auto"`)},
		"AutoNoPlan":    {"A plan to come will not wait.", Request{ApprovePlan: "auto"}, approved(ByAuto, `spec.approvePlan is "auto"`)},
		"AutoCase":      {"A value is not corrected.", Request{ApprovePlan: "Auto", Pending: pending()}, other("Auto")},
		"ID":            {"The id of the content.", Request{ApprovePlan: "plan-main-0123456789", Pending: pending()}, approved(BySpec, "spec.approvePlan is the plan's id")},
		"Digest":        {"The whole digest, for those who want all of it.", Request{ApprovePlan: "sha256:0123456789abcdef", Pending: pending()}, approved(BySpec, "spec.approvePlan is the plan's digest")},
		"BareDigest":    {"Without its algorithm it is no digest.", Request{ApprovePlan: "0123456789abcdef", Pending: pending()}, other("0123456789abcdef")},
		"RevisionID":    {"A tool of the peer computes it from the revision.", Request{ApprovePlan: "plan-main-b8e362c206", Pending: pending()}, approved(BySpec, "spec.approvePlan is the plan's revision id")},
		"RevisionIDNot": {"C15: at the same revision there was another plan, so the revision names neither.", Request{ApprovePlan: "plan-main-b8e362c206", Pending: &Pending{ID: "plan-main-0123456789", Digest: "sha256:0123456789abcdef"}}, other("plan-main-b8e362c206")},
		"Prefix":        {"A beginning can be that of another plan.", Request{ApprovePlan: "plan-main-012345678", Pending: pending()}, other("plan-main-012345678")},
		"PrefixPlan":    {"The shortest beginning.", Request{ApprovePlan: "plan-", Pending: pending()}, other("plan-")},
		"Longer":        {"Nor something that begins with it.", Request{ApprovePlan: "plan-main-0123456789a", Pending: pending()}, other("plan-main-0123456789a")},
		"Stale":         {"R21: the plan that was approved is not the plan that waits.", Request{ApprovePlan: "plan-main-9999999999", Pending: pending()}, other("plan-main-9999999999")},
		"EmptyNames":    {"A plan without names is not approved by an empty value.", Request{Pending: &Pending{}}, Decision{Why: "nobody has approved the plan", Message: `Plan generated: set approvePlan: "" to approve this plan.`}},
		"NoPlan":        {"There is nothing to say of a plan.", Request{ApprovePlan: "plan-main-0123456789"}, Decision{Why: "there is no plan to approve"}},
		"Annotation":    {"Where the spec belongs to Git, an annotation names the plan.", Request{ApprovedPlan: "plan-main-0123456789", Pending: pending()}, approved(ByAnnotation, "annotation terrace.dev/approved-plan is the plan's id")},
		"AnnotationOld": {"R21 holds for it as well.", Request{ApprovedPlan: "plan-main-9999999999", Pending: pending()}, wait("nobody has approved the plan")},
		"AnnotationOff": {"It approves nothing that is disabled.", Request{ApprovePlan: "disable", ApprovedPlan: "plan-main-0123456789", Pending: pending()}, disabled},
		"Force":         {"Nobody is asked.", Request{Force: true, Pending: pending()}, approved(ByForce, "spec.force is set")},
		"ForceStale":    {"Force does not look at the id.", Request{Force: true, ApprovePlan: "plan-main-9999999999", Pending: pending()}, approved(ByForce, "spec.force is set")},
		"Disable":       {"Drift detection only.", Request{ApprovePlan: "disable", Pending: pending()}, disabled},
		"DisableForce":  {"Disable wins over force.", Request{ApprovePlan: "disable", Force: true, Pending: pending()}, disabled},
		"DisableOnly":   {"Disable wins over planOnly: nothing is planned.", Request{ApprovePlan: "disable", PlanOnly: true}, disabled},
		"PlanOnly":      {"The plan is the result.", Request{PlanOnly: true, Pending: pending()}, planOnly},
		"PlanOnlyAuto":  {"It never applies.", Request{PlanOnly: true, ApprovePlan: "auto", Pending: pending()}, planOnly},
		"PlanOnlyForce": {"It never applies.", Request{PlanOnly: true, Force: true, Pending: pending()}, planOnly},
		"PlanOnlyID":    {"It never applies.", Request{PlanOnly: true, ApprovePlan: "plan-main-0123456789", Pending: pending()}, planOnly},
		"Replan":        {"Drops the plan that waits.", Request{ApprovePlan: "replan", Pending: pending()}, replanned(wait("spec.approvePlan asks for a new plan"))},
		"ReplanMore":    {"Anything behind it makes a new request.", Request{ApprovePlan: "replan-plan-main-0123456789", Pending: pending()}, replanned(wait("spec.approvePlan asks for a new plan"))},
		"ReplanNoPlan":  {"The request outlives the plan it dropped.", Request{ApprovePlan: "replan"}, Decision{Replan: true, Why: "there is no plan to approve"}},
		"ReplanOnly":    {"A plan only object can be planned again.", Request{ApprovePlan: "replan", PlanOnly: true, Pending: pending()}, replanned(planOnly)},
		"ReplanForce":   {"Force plans again at every reconcile anyway.", Request{ApprovePlan: "replan", Force: true, Pending: pending()}, approved(ByForce, "spec.force is set")},
		"ReplanDone":    {"The value stays in the spec and must not plan for ever.", Request{ApprovePlan: "replan", Replanned: true, Pending: pending()}, wait("spec.approvePlan asks for a new plan")},
		"Re":            {"A word that begins alike is no request.", Request{ApprovePlan: "rep", Pending: pending()}, other("rep")},
		"Destroy":       {"A destroy plan is approved as any other.", Request{Pending: &Pending{ID: "plan-main-0123456789", Destroy: true}}, wait("nobody has approved the plan")},
		"Drift":         {"P2: drift in manual mode waits for an approval as any other.", Request{Pending: &Pending{ID: "plan-main-0123456789", Drift: true}}, wait("nobody has approved the plan")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Decide(tc.in)); diff != "" {
				t.Errorf("%s\n(-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestWords(t *testing.T) {
	got := []string{auto, disable, replanPrefix}
	want := []string{v1alpha2.ApprovePlanAuto, v1alpha2.ApprovePlanDisable, v1alpha2.ApprovePlanReplanPrefix}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("words of spec.approvePlan (-api +approval):\n%s", diff)
	}
}
