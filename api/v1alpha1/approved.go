// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "strings"

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
