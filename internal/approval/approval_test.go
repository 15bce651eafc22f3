// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package approval

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/plan"
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

// TestDecideMore has what annotations, policies and the time add.
func TestDecideMore(t *testing.T) {
	const id, digest = "plan-main-0123456789", "sha256:0123456789abcdef"
	with := func(c plan.Counts) *Pending {
		return &Pending{ID: id, Digest: digest, RevisionID: "plan-main-b8e362c206", Counts: c}
	}
	harmless, harmful := with(plan.Counts{Create: 2, Update: 1}), with(plan.Counts{Create: 1, Delete: 2, Replace: 3})
	approved := func(by, why string) Decision {
		return Decision{Approved: true, By: by, Why: why, Message: "Plan generated"}
	}
	wait := func(why string) Decision {
		return Decision{Why: why, Message: "Plan generated: " + why + ": set approvePlan: \"" + id + "\" to approve this plan."}
	}
	denied := func(tail string) Decision {
		const why = "a policy denies the plan: prod/acl: deny: no"
		return Decision{Obstacle: PolicyDenies, Why: why, Message: "Plan generated: " + why + tail}
	}
	overridden := func(d Decision) Decision { d.Overridden = true; return d }
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	at := func(day, hour, minute int) time.Time { // of June 2026; the 1st is a Monday
		return time.Date(2026, time.June, day, hour, minute, 0, 0, berlin)
	}
	const office = "Mon-Fri 09:00-17:00 Europe/Berlin"
	shut := func(by string, until time.Time, when string) Decision {
		why := "the plan is approved and waits for the apply window \"" + office + "\", which opens at " + when
		return Decision{By: by, Obstacle: WindowShut, WaitUntil: until, Why: why, Message: "Plan generated: " + why}
	}
	unreadable := `annotation terrace.dev/apply-window cannot be understood: "always" is not days, hours and zone, as "Mon-Fri 09:00-17:00 Europe/Berlin"`
	forbids, asks := Policy{Denied: "prod/acl: deny: no"}, Policy{NeedsApproval: "prod/size: deny: big"}
	const asked = "a policy asks for an approval: prod/size: deny: big"
	specNames, annotationNames := "spec.approvePlan is the plan's id", "annotation terrace.dev/approved-plan is the plan's id"

	cases := map[string]struct {
		reason string
		in     Request
		want   Decision
	}{
		"NoDestroy":         {"What destroys nothing is applied by itself.", Request{AutoApprove: "no-destroy", Pending: harmless}, approved(ByNoDestroy, "the plan destroys and replaces nothing")},
		"NoDestroyHarm":     {"What destroys or replaces waits, and it says what that is.", Request{AutoApprove: "no-destroy", Pending: harmful}, wait("the plan destroys 2 and replaces 3, which annotation terrace.dev/auto-approve does not apply by itself")},
		"NoDestroyDelete":   {"Without replacements none are told of.", Request{AutoApprove: "no-destroy", Pending: with(plan.Counts{Delete: 1})}, wait("the plan destroys 1, which annotation terrace.dev/auto-approve does not apply by itself")},
		"NoDestroyReplace":  {"A replacement destroys what may hold data.", Request{AutoApprove: "no-destroy", Pending: with(plan.Counts{Replace: 1})}, wait("the plan replaces 1, which annotation terrace.dev/auto-approve does not apply by itself")},
		"NoDestroyAll":      {"A plan that destroys everything does so whatever its counts.", Request{AutoApprove: "no-destroy", Pending: &Pending{ID: id, Destroy: true}}, wait("the plan destroys everything, which annotation terrace.dev/auto-approve does not apply by itself")},
		"NoDestroyAuto":     {"It restricts a unit that applies everything by itself.", Request{AutoApprove: "no-destroy", ApprovePlan: "auto", Pending: harmful}, wait("the plan destroys 2 and replaces 3, which annotation terrace.dev/auto-approve does not apply by itself")},
		"NoDestroyAutoFine": {"And leaves it what is harmless.", Request{AutoApprove: "no-destroy", ApprovePlan: "auto", Pending: harmless}, approved(ByNoDestroy, "the plan destroys and replaces nothing")},
		"NoDestroyAutoNone": {"Without a plan nobody knows what it will destroy.", Request{AutoApprove: "no-destroy", ApprovePlan: "auto"}, Decision{Why: "there is no plan to approve"}},
		"NoDestroyNamed":    {"A person can let it destroy.", Request{AutoApprove: "no-destroy", ApprovePlan: id, Pending: harmful}, approved(BySpec, specNames)},
		"NoDestroyForce":    {"Force asks nobody.", Request{AutoApprove: "no-destroy", Force: true, Pending: harmful}, approved(ByForce, "spec.force is set")},
		"NoDestroyOnly":     {"planOnly never applies.", Request{AutoApprove: "no-destroy", PlanOnly: true, Pending: harmless}, Decision{Why: "spec.planOnly is set", Message: "Plan generated: This object is in the plan only mode."}},
		"NoDestroyReplan":   {"A plan that is to be dropped is not applied.", Request{AutoApprove: "no-destroy", ApprovePlan: "replan", Pending: harmless}, Decision{Replan: true, Why: "spec.approvePlan asks for a new plan", Message: `Plan generated: set approvePlan: "plan-main-0123456789" to approve this plan.`}},
		"NoDestroyReplaned": {"The new one is.", Request{AutoApprove: "no-destroy", ApprovePlan: "replan", Replanned: true, Pending: harmless}, approved(ByNoDestroy, "the plan destroys and replaces nothing")},
		"AutoUnknown":       {"A value that is not known approves nothing, and says what would.", Request{AutoApprove: "nodestroy", ApprovePlan: "auto", Pending: harmless}, wait(`annotation terrace.dev/auto-approve is "nodestroy", and can only be "no-destroy"`)},
		"AutoUnknownNamed":  {"A person can approve all the same.", Request{AutoApprove: "yes", ApprovedPlan: id, Pending: harmless}, approved(ByAnnotation, annotationNames)},

		"Denied":          {"A policy stands above auto.", Request{ApprovePlan: "auto", Policy: forbids, Pending: harmless}, denied("")},
		"DeniedNamed":     {"And above a person's approval.", Request{ApprovePlan: id, Policy: forbids, Pending: harmless}, denied("")},
		"DeniedForce":     {"And above force.", Request{Force: true, Policy: forbids, Pending: harmless}, denied("")},
		"DeniedNoDestroy": {"And above what destroys nothing.", Request{AutoApprove: "no-destroy", Policy: forbids, Pending: harmless}, denied("")},
		"DeniedNoPlan":    {"A plan to come would be denied too.", Request{ApprovePlan: "auto", Policy: forbids}, denied("")},
		"DeniedReplan":    {"One can ask for another plan.", Request{ApprovePlan: "replan", Policy: forbids, Pending: harmless}, func() Decision { d := denied(""); d.Replan = true; return d }()},
		"DeniedOnly":      {"Of a plan that is never applied nothing else need be said.", Request{PlanOnly: true, Policy: forbids, Pending: harmless}, Decision{Why: "spec.planOnly is set", Message: "Plan generated: This object is in the plan only mode."}},
		"Override":        {"An override takes the denial away, and approves nothing.", Request{Policy: forbids, PolicyOverride: id, Pending: harmless}, overridden(Decision{Why: "nobody has approved the plan", Message: `Plan generated: set approvePlan: "plan-main-0123456789" to approve this plan.`})},
		"OverrideNamed":   {"With an approval the plan is applied.", Request{ApprovePlan: id, Policy: forbids, PolicyOverride: digest, Pending: harmless}, overridden(approved(BySpec, specNames))},
		"OverrideAuto":    {"Or where the unit applies by itself.", Request{ApprovePlan: "auto", Policy: forbids, PolicyOverride: id, Pending: harmless}, overridden(approved(ByAuto, `spec.approvePlan is "auto"`))},
		"OverrideOther":   {"It is for one plan.", Request{Force: true, Policy: forbids, PolicyOverride: "plan-main-9999999999", Pending: harmless}, denied(` (annotation terrace.dev/policy-override is "plan-main-9999999999", which is not this plan, plan-main-0123456789)`)},
		"OverrideBegin":   {"Exactly.", Request{Policy: forbids, PolicyOverride: "plan-main-0123", Pending: harmless}, denied(` (annotation terrace.dev/policy-override is "plan-main-0123", which is not this plan, plan-main-0123456789)`)},
		"OverrideRev":     {"The id of a revision could be that of the next plan.", Request{Policy: forbids, PolicyOverride: "plan-main-b8e362c206", Pending: harmless}, denied(` (annotation terrace.dev/policy-override is "plan-main-b8e362c206", which is not this plan, plan-main-0123456789)`)},
		"OverrideEmpty":   {"A plan without names is not overridden by nothing.", Request{Policy: forbids, Pending: &Pending{}}, denied("")},
		"OverrideNoPlan":  {"Without a plan there is none to override.", Request{ApprovePlan: "auto", Policy: forbids, PolicyOverride: id}, denied("")},
		"OverrideIdle":    {"An override that is not needed does nothing.", Request{ApprovePlan: "auto", PolicyOverride: id, Pending: harmless}, approved(ByAuto, `spec.approvePlan is "auto"`)},

		"Asks":          {"A policy that wants an approval holds what applies by itself.", Request{ApprovePlan: "auto", Policy: asks, Pending: harmless}, wait(asked)},
		"AsksForce":     {"Force is no approval.", Request{Force: true, Policy: asks, Pending: harmless}, wait(asked)},
		"AsksNoDestroy": {"Nor is harmlessness.", Request{AutoApprove: "no-destroy", Policy: asks, Pending: harmless}, wait(asked)},
		"AsksNamed":     {"A person's word is.", Request{ApprovePlan: id, Policy: asks, Pending: harmless}, approved(BySpec, specNames)},
		"AsksAnnotated": {"In the annotation as well.", Request{ApprovePlan: "auto", ApprovedPlan: digest, Policy: asks, Pending: harmless}, approved(ByAnnotation, "annotation terrace.dev/approved-plan is the plan's digest")},
		"AsksNoPlan":    {"There is no plan yet.", Request{ApprovePlan: "auto", Policy: asks}, Decision{Why: "there is no plan to approve"}},
		"AsksOverride":  {"An override is not for this.", Request{ApprovePlan: "auto", Policy: asks, PolicyOverride: id, Pending: harmless}, wait(asked)},

		"WindowOpen":     {"In the window nothing is different.", Request{ApprovePlan: "auto", Window: office, Now: at(1, 9, 0), Pending: harmless}, approved(ByAuto, `spec.approvePlan is "auto"`)},
		"WindowShut":     {"Out of it an approved plan waits until it opens.", Request{ApprovePlan: "auto", Window: office, Now: at(1, 8, 59), Pending: harmless}, shut(ByAuto, at(1, 9, 0), "2026-06-01 09:00 CEST")},
		"WindowEnd":      {"The end is outside; over the weekend it is long.", Request{ApprovePlan: id, Window: office, Now: at(5, 17, 0), Pending: harmless}, shut(BySpec, at(8, 9, 0), "2026-06-08 09:00 CEST")},
		"WindowForce":    {"Force is about who, not about when.", Request{Force: true, Window: office, Now: at(6, 12, 0), Pending: harmless}, shut(ByForce, at(8, 9, 0), "2026-06-08 09:00 CEST")},
		"WindowNotYet":   {"What is not approved waits for that first.", Request{Window: office, Now: at(6, 12, 0), Pending: harmless}, Decision{Why: "nobody has approved the plan", Message: `Plan generated: set approvePlan: "plan-main-0123456789" to approve this plan.`}},
		"WindowDenied":   {"A denial is told first.", Request{ApprovePlan: "auto", Window: office, Now: at(6, 12, 0), Policy: forbids, Pending: harmless}, denied("")},
		"WindowOverride": {"An override waits as well.", Request{ApprovePlan: "auto", Window: office, Now: at(6, 12, 0), Policy: forbids, PolicyOverride: id, Pending: harmless}, overridden(shut(ByAuto, at(8, 9, 0), "2026-06-08 09:00 CEST"))},
		"WindowUnread":   {"A window that cannot be understood is shut, and says why.", Request{ApprovePlan: "auto", Window: "always", Now: at(1, 12, 0), Pending: harmless}, Decision{By: ByAuto, Obstacle: WindowShut, Why: unreadable, Message: "Plan generated: " + unreadable}},
		"WindowNoPlan":   {"A plan to come would wait.", Request{ApprovePlan: "auto", Window: office, Now: at(6, 12, 0)}, shut(ByAuto, at(8, 9, 0), "2026-06-08 09:00 CEST")},
		"WindowDisabled": {"What is disabled is disabled at any time.", Request{ApprovePlan: "disable", Window: "always"}, Decision{Disabled: true, Why: `spec.approvePlan is "disable"`, Message: "Plan and apply are disabled"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Decide(tc.in)); diff != "" {
				t.Errorf("%s\n(-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestWindowAt(t *testing.T) {
	const office = "Mon-Fri 09:00-17:00 Europe/Berlin"
	cases := map[string]struct {
		reason string
		window string
		now    string // RFC 3339
		open   bool
		change string // RFC 3339, in the zone of the window; "" for none
	}{
		"Morning":      {"Opens today.", office, "2026-06-01T08:59:59+02:00", false, "2026-06-01T09:00:00+02:00"},
		"Begin":        {"The first moment is inside.", office, "2026-06-01T09:00:00+02:00", true, "2026-06-01T17:00:00+02:00"},
		"End":          {"The last is not.", office, "2026-06-01T17:00:00+02:00", false, "2026-06-02T09:00:00+02:00"},
		"Friday":       {"The next day is a Monday.", office, "2026-06-05T18:00:00+02:00", false, "2026-06-08T09:00:00+02:00"},
		"OtherZone":    {"The moment counts, not how it is written.", office, "2026-06-01T07:30:00Z", true, "2026-06-01T17:00:00+02:00"},
		"FarZone":      {"It is Tuesday already where the window is.", "Tue 00:00-01:00 Pacific/Kiritimati", "2026-06-01T10:30:00Z", true, "2026-06-02T01:00:00+14:00"},
		"List":         {"Days in a list.", "Mon,Wed-Thu,Sat 10:00-11:00 UTC", "2026-06-02T10:30:00Z", false, "2026-06-03T10:00:00Z"},
		"Wrap":         {"A range over the end of the week.", "Sat-Mon 10:00-11:00 UTC", "2026-06-07T10:30:00Z", true, "2026-06-07T11:00:00Z"},
		"WrapOut":      {"And what it leaves out.", "Sat-Mon 10:00-11:00 UTC", "2026-06-02T10:30:00Z", false, "2026-06-06T10:00:00Z"},
		"Midnight":     {"Hours go on into the next day.", "Fri 22:00-06:00 UTC", "2026-06-06T05:59:00Z", true, "2026-06-06T06:00:00Z"},
		"MidnightOut":  {"The day is that on which they begin.", "Fri 22:00-06:00 UTC", "2026-06-05T05:59:00Z", false, "2026-06-05T22:00:00Z"},
		"Day":          {"A whole day.", "Sun 00:00-24:00 UTC", "2026-06-07T23:59:59Z", true, "2026-06-08T00:00:00Z"},
		"Touching":     {"Windows that touch shut together.", "Sat 12:00-24:00 UTC; Sun 00:00-10:00 UTC", "2026-06-06T13:00:00Z", true, "2026-06-07T10:00:00Z"},
		"Overlapping":  {"So do those that overlap.", "Mon 09:00-12:00 UTC; Mon 11:00-15:00 Europe/Berlin", "2026-06-01T09:30:00Z", true, "2026-06-01T15:00:00+02:00"},
		"Several":      {"The first to open counts.", "Wed 09:00-12:00 UTC; Tue 09:00-12:00 UTC", "2026-06-01T09:30:00Z", false, "2026-06-02T09:00:00Z"},
		"Always":       {"Without an end there is no change.", "Mon-Sun 00:00-24:00 UTC", "2026-06-01T09:30:00Z", true, ""},
		"Spring":       {"Clocks are put forward at 02:00: 02:30 is the moment of that.", "Sun 02:30-04:00 Europe/Berlin", "2026-03-29T00:59:59Z", false, "2026-03-29T03:00:00+02:00"},
		"SpringIn":     {"From then on it is open.", "Sun 02:30-04:00 Europe/Berlin", "2026-03-29T01:00:00Z", true, "2026-03-29T04:00:00+02:00"},
		"SpringAround": {"A window around the change is an hour shorter.", "Sun 01:00-04:00 Europe/Berlin", "2026-03-29T01:30:00Z", true, "2026-03-29T04:00:00+02:00"},
		"SpringGone":   {"One that no clock shows does not open that day.", "Sun 02:15-02:45 Europe/Berlin", "2026-03-28T12:00:00Z", false, "2026-04-05T02:15:00+02:00"},
		"SpringAfter":  {"The next day is as the author wrote it.", office, "2026-03-30T06:59:00Z", false, "2026-03-30T09:00:00+02:00"},
		"Autumn":       {"Clocks are put back at 03:00: the first 02:30 opens.", "Sun 02:30-04:00 Europe/Berlin", "2026-10-25T00:29:59Z", false, "2026-10-25T02:30:00+02:00"},
		"AutumnEnd":    {"And the first 02:30 shuts.", "Sun 01:00-02:30 Europe/Berlin", "2026-10-25T00:29:00Z", true, "2026-10-25T02:30:00+02:00"},
		"AutumnTwice":  {"The second does not open again.", "Sun 02:15-02:45 Europe/Berlin", "2026-10-25T01:20:00Z", false, "2026-11-01T02:15:00+01:00"},
		"AutumnAround": {"A window around the change is an hour longer.", "Sun 01:00-04:00 Europe/Berlin", "2026-10-25T02:59:59Z", true, "2026-10-25T04:00:00+01:00"},
		"HalfHour":     {"Clocks that change by half an hour.", "Sun 02:15-05:00 Australia/Lord_Howe", "2026-10-03T15:29:59Z", false, "2026-10-04T02:30:00+11:00"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w, err := ParseWindow(tc.window)
			if err != nil {
				t.Fatal(err)
			}
			now, err := time.Parse(time.RFC3339, tc.now)
			if err != nil {
				t.Fatal(err)
			}
			open, at := w.At(now)
			change := ""
			if !at.IsZero() {
				change = at.Format(time.RFC3339)
			}
			if open != tc.open || change != tc.change {
				t.Errorf("%s\n%s at %s: open %v until %s, want %v, %s", tc.reason, tc.window, tc.now, open, change, tc.open, tc.change)
			}
		})
	}
	if open, change := (Window{}).At(time.Now()); open || !change.IsZero() {
		t.Errorf("no window is open %v until %v", open, change)
	}
}

func TestParseWindowErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   `"" is not days, hours and zone`,
		"always":                             `"always" is not days, hours and zone`,
		"Mon-Fri 09:00-17:00":                "is not days, hours and zone",
		"Mon-Fri 09:00-17:00 Europe/Berlin;": `"" is not days, hours and zone`,
		"Mon-Fri 09:00 - 17:00 UTC":          "is not days, hours and zone",
		"mon-fri 09:00-17:00 UTC":            `"mon-fri" is not a day`,
		"Monday 09:00-17:00 UTC":             `"Monday" is not a day`,
		"Mon- 09:00-17:00 UTC":               `"Mon-" is not a day`,
		"Mon, 09:00-17:00 UTC":               `"" is not a day`,
		"Mon-Wed-Fri 09:00-17:00 UTC":        `"Mon-Wed-Fri" is not a day`,
		"Mon 9:00-17:00 UTC":                 `"9:00-17:00" is not hours`,
		"Mon 09:00-17 UTC":                   `"09:00-17" is not hours`,
		"Mon 09:60-17:00 UTC":                "has a time that there is not",
		"Mon 24:00-25:00 UTC":                "has a time that there is not",
		"Mon 23:00-24:01 UTC":                "has a time that there is not",
		"Mon 09:00-09:00 UTC":                "has no length; a whole day is 00:00-24:00",
		"Mon 09:00-17:00 Berlin":             `"Berlin" is not a time zone`,
		"Mon 09:00-17:00 Local":              `"Local" is not a time zone`,
		"Mon 09:00-17:00 ../../etc/passwd":   "is not a time zone",
		"Mon 09:00-17:00 /etc/localtime":     "is not a time zone",
		"Mon 09:00-17:00 +02:00":             "is not a time zone",
		strings.Repeat("Mon 09:00-17:00 UTC;", 32) + "Mon 09:00-17:00 UTC": "there are 33 windows, at most 32 are taken",
	} {
		if _, err := ParseWindow(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
}

// FuzzParseWindow: a text that is taken gives a window that opens and shuts in order.
func FuzzParseWindow(f *testing.F) {
	f.Add("Mon-Fri 09:00-17:00 Europe/Berlin", int64(1_780_000_000))
	f.Add("Sat,Sun 22:00-04:00 UTC; Wed 00:00-24:00 America/New_York", int64(0))
	f.Add("Sun 02:15-02:45 Australia/Lord_Howe", int64(1_791_000_000))
	f.Fuzz(func(t *testing.T, text string, seconds int64) {
		w, err := ParseWindow(text)
		if err != nil {
			return
		}
		now := time.Unix(seconds%4_000_000_000, 0)
		open, change := w.At(now)
		if change.IsZero() {
			return
		}
		if !change.After(now) {
			t.Fatalf("%q at %s changes at %s", text, now, change)
		}
		if then, _ := w.At(change); then == open {
			t.Errorf("%q at %s is open %v, and at %s still", text, now, open, change)
		}
		if before, _ := w.At(change.Add(-time.Second)); before != open {
			t.Errorf("%q at %s is open %v until %s, but not a second before that", text, now, open, change)
		}
	})
}

func TestWords(t *testing.T) {
	got := []string{auto, disable, replanPrefix}
	want := []string{v1alpha2.ApprovePlanAuto, v1alpha2.ApprovePlanDisable, v1alpha2.ApprovePlanReplanPrefix}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("words of spec.approvePlan (-api +approval):\n%s", diff)
	}
	got = []string{noDestroy, ByNoDestroy, ByAnnotation}
	want = []string{v1alpha1.AutoApproveNoDestroy, v1alpha1.AutoApproveAnnotation, v1alpha1.ApprovedPlanAnnotation}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("annotations (-api +approval):\n%s", diff)
	}
	office := "Mon 09:00-10:00 UTC"
	for annotation, d := range map[string]Decision{
		v1alpha1.ApplyWindowAnnotation:    Decide(Request{ApprovePlan: auto, Window: "x"}),
		v1alpha1.PolicyOverrideAnnotation: Decide(Request{Policy: Policy{Denied: "x"}, PolicyOverride: "y", Pending: &Pending{}, Window: office}),
	} {
		if !strings.Contains(d.Message, annotation) {
			t.Errorf("the message %q does not name %s", d.Message, annotation)
		}
	}
}
