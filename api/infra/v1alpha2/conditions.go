// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha2

import "github.com/fluxcd/pkg/apis/meta"

// Condition types of a Terraform. Ready, Reconciling and Stalled follow the
// kstatus convention that Flux uses.
const (
	// ConditionReady is True when the object is what its spec asks for.
	ConditionReady = meta.ReadyCondition
	// ConditionReconciling is True while work is under way. It is absent while an
	// approval is awaited and after the work has ended.
	ConditionReconciling = meta.ReconcilingCondition
	// ConditionStalled is True when nothing will happen before a person acts.
	ConditionStalled = meta.StalledCondition
	// ConditionPlan is True when the last plan has changes, False when it has none.
	ConditionPlan = "Plan"
	// ConditionApply tells how the last apply ended; Unknown while it runs.
	ConditionApply = "Apply"
	// ConditionOutput is True when outputs are known or written to their Secret.
	ConditionOutput = "Output"
	// ConditionHealthCheck tells how the last health checks ended.
	ConditionHealthCheck = "HealthCheck"
	// ConditionStateLocked is True while somebody else holds the state lock.
	ConditionStateLocked = "StateLocked"
)

// Reasons of conditions and events, by the names that the Terraform Controller gave them.
const (
	// ReasonProgressing marks work under way, on Ready (Unknown), Reconciling and Apply.
	ReasonProgressing = meta.ProgressingReason
	// ReasonAccessDenied marks a reference that this object may not follow.
	ReasonAccessDenied = "AccessDenied"
	// ReasonArtifactFailed marks a source that is absent, without artifact, or whose content cannot be used.
	ReasonArtifactFailed = "ArtifactFailed"
	// ReasonRetryLimitReached marks the end of the retries that spec.remediation allows.
	ReasonRetryLimitReached = "RetryLimitReached"
	// ReasonDeletionBlockedByDependants marks a deletion that waits for objects that depend on this one.
	// The doubled word in the value is part of the contract.
	ReasonDeletionBlockedByDependants = "DeletionBlockedByDependantsReason"
	// ReasonDependencyNotReady marks a wait for an object named by dependsOn.
	ReasonDependencyNotReady = "DependencyNotReady"
	// ReasonDriftDetected marks a difference between the state and the world.
	ReasonDriftDetected = "DriftDetected"
	// ReasonDriftDetectionFailed marks a drift check that could not be made.
	ReasonDriftDetectionFailed = "DriftDetectionFailed"
	// ReasonNoDrift marks a drift check that found nothing.
	ReasonNoDrift = "NoDrift"
	// ReasonHealthChecksFailed marks a health check that did not pass.
	ReasonHealthChecksFailed = "HealthChecksFailed"
	// ReasonHealthChecksSucceed marks health checks that all passed.
	ReasonHealthChecksSucceed = "HealthChecksSucceed"
	// ReasonOutputsAvailable marks outputs that were read from the state.
	ReasonOutputsAvailable = "TerraformOutputsAvailable"
	// ReasonOutputsWritten marks outputs that were written to their Secret.
	ReasonOutputsWritten = "TerraformOutputsWritten"
	// ReasonOutputsWritingFailed marks an output Secret that could not be written. The
	// Terraform Controller also uses it for its Normal event about a successful write.
	ReasonOutputsWritingFailed = "OutputsWritingFailed"
	// ReasonPlannedNoChanges marks a plan without changes.
	ReasonPlannedNoChanges = "TerraformPlannedNoChanges"
	// ReasonPlannedWithChanges marks a plan with changes.
	ReasonPlannedWithChanges = "TerraformPlannedWithChanges"
	// ReasonPostPlanningWebhookFailed marks a plan that a webhook refused or could not judge.
	ReasonPostPlanningWebhookFailed = "PostPlanningWebhookFailed"
	// ReasonAppliedSucceed marks a plan that was applied.
	ReasonAppliedSucceed = "TerraformAppliedSucceed"
	// ReasonAppliedFail marks, on the Apply condition, a plan whose apply failed.
	ReasonAppliedFail = "TerraformAppliedFail"
	// ReasonApplyFailed marks, on Ready and in events, an apply that failed.
	ReasonApplyFailed = "TFExecApplyFailed"
	// ReasonDestroyFailed is the event reason of a destroy that failed.
	ReasonDestroyFailed = "TFExecDestroyFailed"
	// ReasonDestroySucceed is the event reason of a destroy that was carried out.
	ReasonDestroySucceed = "TerraformDestroySucceed"
	// ReasonForceUnlock marks, on StateLocked, a lock that is being removed by force.
	ReasonForceUnlock = "ForceUnlock"
	// ReasonInitFailed marks an init that failed.
	ReasonInitFailed = "TFExecInitFailed"
	// ReasonLockHeld marks a state lock held by somebody else.
	ReasonLockHeld = "LockHeld"
	// ReasonNewFailed marks a tool or a CLI configuration that could not be set up.
	ReasonNewFailed = "TFExecNewFailed"
	// ReasonOutputFailed marks outputs that could not be read.
	ReasonOutputFailed = "TFExecOutputFailed"
	// ReasonPlanFailed marks a plan that failed.
	ReasonPlanFailed = "TFExecPlanFailed"
	// ReasonPlanSucceed is the event reason of a plan that waits for approval.
	ReasonPlanSucceed = "TerraformPlanSucceed"
	// ReasonTemplateGenerationFailed marks a main.tf.tpl that could not be rendered.
	ReasonTemplateGenerationFailed = "TemplateGenerationFailed"
	// ReasonVarsGenerationFailed marks input variables that could not be put together.
	ReasonVarsGenerationFailed = "VarsGenerationFailed"
	// ReasonWorkspaceSelectFailed marks a workspace that could not be made or selected.
	ReasonWorkspaceSelectFailed = "SelectWorkspaceFailed"
	// ReasonReconciliationFailed is the event reason of an error that has no reason of its own.
	ReasonReconciliationFailed = "ReconciliationFailed"
	// ReasonReplanRequested marks an object whose plan a person has dropped.
	ReasonReplanRequested = "ReplanRequested"
	// ReasonRunnerQuotaExhausted is an event reason of runs in pods; a run in a process never meets it.
	ReasonRunnerQuotaExhausted = "RunnerQuotaExhausted"
)

// Reasons that Terrace adds.
const (
	// ReasonTimedOut marks a run that was ended at its deadline.
	ReasonTimedOut = "TimedOut"
	// ReasonCancelled marks a run that a person ended.
	ReasonCancelled = "Cancelled"
	// ReasonInterrupted marks a run that ended with the process that carried it.
	ReasonInterrupted = "Interrupted"
	// ReasonRecovered is the event reason of resources that a killed apply had made and that
	// were imported into the state.
	ReasonRecovered = "Recovered"
	// ReasonOrphaned is the event reason of a resource that a killed apply had made and that
	// could not be imported.
	ReasonOrphaned = "Orphaned"
	// ReasonDependencyCycle marks an object that depends on itself over others.
	ReasonDependencyCycle = "DependencyCycle"
	// ReasonImported is the event reason of an object that was taken into the state.
	ReasonImported = "Imported"
	// ReasonImportFailed is the event reason of an import that failed or was refused.
	ReasonImportFailed = "ImportFailed"
)

// Messages of the Ready and Reconciling conditions that tools wait for by their text.
const (
	// MessageReconciling is the first message of Ready Unknown/Progressing.
	MessageReconciling = "Reconciliation in progress"
	// MessageDeleting takes the place of MessageReconciling for an object that is being deleted.
	MessageDeleting = "Deletion in progress"
	// MessageInitializing tells that the working directory is prepared and init runs.
	MessageInitializing = "Initializing"
	// MessagePlanning tells that the plan runs.
	MessagePlanning = "Terraform Planning"
	// MessageApplying tells that the apply runs.
	MessageApplying = "Applying"
	// MessageImporting tells that an import runs.
	MessageImporting = "Importing"
	// MessageApplyStarted is the message of Apply Unknown/Progressing.
	MessageApplyStarted = "Apply started"
	// MessageBreakingTheGlass tells that the object waits while a person works on it by hand.
	MessageBreakingTheGlass = "Breaking the glass ..."
	// MessagePrerequisites is the message of Reconciling True/Progressing.
	MessagePrerequisites = "Fulfilling prerequisites"
	// MessageRetryLimitReached is the message of Stalled True/RetryLimitReached.
	MessageRetryLimitReached = "Resource reached maximum number of retries."
)

// MaxConditionMessageLength is the longest condition message, in runes, before
// "..." is put in the place of the rest.
const MaxConditionMessageLength = 20000
