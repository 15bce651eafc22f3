// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

const (
	// ApproveAnnotation set to ApproveManual makes a Kustomization show its plan and wait
	// for an approval before it changes anything.
	ApproveAnnotation = "terrace.dev/approve"
	// ApproveManual is the value of ApproveAnnotation that asks for approvals.
	ApproveManual = "manual"
	// ApprovedPlanAnnotation names the plan that may be applied, by its id or its digest.
	ApprovedPlanAnnotation = "terrace.dev/approved-plan"
	// PruneApprovedAnnotation names the revision that may prune more of a Kustomization
	// than the limit allows.
	PruneApprovedAnnotation = "kustomize.toolkit.fluxcd.io/prune-approved"
	// AutoApproveAnnotation set to AutoApproveNoDestroy lets a unit apply by itself what
	// destroys and replaces nothing, and nothing else.
	AutoApproveAnnotation = "terrace.dev/auto-approve"
	// AutoApproveNoDestroy is the only value of AutoApproveAnnotation.
	AutoApproveNoDestroy = "no-destroy"
	// ApplyWindowAnnotation says when plans are applied: "Mon-Fri 09:00-17:00 Europe/Berlin",
	// several of them separated by semicolons.
	ApplyWindowAnnotation = "terrace.dev/apply-window"
	// PolicyOverrideAnnotation names the plan that may be applied although a policy denies
	// it, by its id or its digest. It does not approve the plan.
	PolicyOverrideAnnotation = "terrace.dev/policy-override"
)

// Keys of status.artifact.metadata of a GitRepository: who made the commit that the artifact
// is of, as the commit says. The committer's are there when the committer is not the author.
const (
	CommitAuthorKey         = "terrace.dev/commit-author"
	CommitAuthorEmailKey    = "terrace.dev/commit-author-email"
	CommitCommitterKey      = "terrace.dev/commit-committer"
	CommitCommitterEmailKey = "terrace.dev/commit-committer-email"
)

// ConditionSuspended is True while a unit or a source is suspended, and says by whom. It is not
// there otherwise, so that it also tells what the ledger has recorded.
const ConditionSuspended = "Suspended"

// Reasons of the Ready condition that Flux does not have.
const (
	// ReasonPlanWaiting says that a plan waits for an approval.
	ReasonPlanWaiting = "PlanWaiting"
	// ReasonPruneLimit says that a revision would prune more than the limit allows.
	ReasonPruneLimit = "PruneLimitExceeded"
	// ReasonKindsMissing says that objects are held because their kinds are not served.
	ReasonKindsMissing = "KindsMissing"
	// ReasonDependencyCycle says that units wait for each other.
	ReasonDependencyCycle = "DependencyCycle"
	// ReasonPolicyWarning is the reason of the event that tells what policies warn of.
	ReasonPolicyWarning = "PolicyWarning"
	// ReasonPolicyDenied says that a policy forbids to apply the plan.
	ReasonPolicyDenied = "PolicyDenied"
	// ReasonSuspended is the reason of the Suspended condition.
	ReasonSuspended = "Suspended"
	// ReasonOutsideWindow says that an approved plan waits for its apply window.
	ReasonOutsideWindow = "OutsideApplyWindow"
)
