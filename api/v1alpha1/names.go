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
)

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
)
