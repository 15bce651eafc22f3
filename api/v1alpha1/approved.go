// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"strconv"
	"strings"
)

// ApprovedByAnnotation says who approved which plan, as FormatApproval writes it. The
// admission policy that comes with the kinds lets nobody write another's name there.
const ApprovedByAnnotation = "terrace.dev/approved-by"

// FormatApproval is the value of ApprovedByAnnotation: the plan's id and the user as the
// API server knows them, after the account that they have where they ask from, if it has
// another name: "plan-main-0123456789 by jane as admin".
func FormatApproval(plan, account, user string) string {
	if account == "" || account == user {
		return plan + " by " + user
	}
	return plan + " by " + account + " as " + user
}

// Approver is who approved the plan with that id, empty if the annotations of its unit do
// not say: an approval of another plan does not count.
func Approver(annotations map[string]string, plan string) string {
	who, ok := strings.CutPrefix(annotations[ApprovedByAnnotation], plan+" by ")
	if !ok || plan == "" {
		return ""
	}
	return who
}

// SuspensionByAnnotation says who suspended or resumed an object, and by which generation of
// it, as FormatSuspension writes it. The admission policy that comes with the kinds lets nobody
// write another's name there.
const SuspensionByAnnotation = "terrace.dev/suspension-by"

// FormatSuspension is the value of SuspensionByAnnotation for a change of spec.suspend that
// makes the given generation: "suspend 7 by jane as admin", with the names of FormatApproval.
func FormatSuspension(suspend bool, generation int64, account, user string) string {
	return FormatApproval(suspensionOf(suspend, generation), account, user)
}

func suspensionOf(suspend bool, generation int64) string {
	if suspend {
		return fmt.Sprintf("suspend %d", generation)
	}
	return fmt.Sprintf("resume %d", generation)
}

// SuspendedBy is who suspended or resumed an object whose generations after one, up to
// another, have the change; empty if its annotations do not say: what they say of another
// generation is of another change.
func SuspendedBy(annotations map[string]string, suspend bool, after, upTo int64) string {
	does, who, ok := strings.Cut(annotations[SuspensionByAnnotation], " by ")
	_, number, _ := strings.Cut(does, " ")
	generation, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil || does != suspensionOf(suspend, generation) || generation <= after || generation > upTo {
		return ""
	}
	return who
}
