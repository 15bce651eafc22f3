// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha2

import (
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Terraform is one root module from a source: planned, approved, applied and
// watched for drift.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=tf
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status",description=""
// +kubebuilder:printcolumn:name="Status",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].message",description=""
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description=""
type Terraform struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what the user asks for.
	// +optional
	Spec TerraformSpec `json:"spec,omitempty"`

	// Status is what the controller last saw and did. Until the first reconcile,
	// observedGeneration is -1, so that a tool that waits for the object does not
	// take a new object for a finished one.
	// +kubebuilder:default:={"observedGeneration":-1}
	// +optional
	Status TerraformStatus `json:"status,omitempty"`
}

// TerraformList is a list of Terraforms.
//
// +kubebuilder:object:root=true
type TerraformList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the Terraforms of the list.
	Items []Terraform `json:"items"`
}

// TerraformSpec is what a user asks for: which module, with which inputs, where
// its state is, and who lets its plans through.
type TerraformSpec struct {
	// ApprovePlan decides which plans are applied. Empty: none, each plan waits for its
	// approval. "auto": every plan. "disable": nothing is planned or applied, drift is still
	// looked for. A plan id (from status.plan.pending): that plan, and no plan with other
	// content. A value that begins with "replan" drops the pending plan and makes a new one.
	// +optional
	ApprovePlan string `json:"approvePlan,omitempty"`

	// Destroy makes plans that destroy every resource. They are applied as approvePlan says.
	// +optional
	Destroy bool `json:"destroy,omitempty"`

	// BackendConfig sets where the state is kept. Absent: in a Secret of this namespace named
	// tfstate-<workspace>-<name of this object>, unless the module declares a backend itself.
	// Present: its fields are taken as they are, so that an empty secretSuffix stays empty.
	// +optional
	BackendConfig *BackendConfigSpec `json:"backendConfig,omitempty"`

	// BackendConfigsFrom are Secrets and ConfigMaps whose entries are given to init as
	// -backend-config=key=value.
	// +optional
	BackendConfigsFrom []BackendConfigsReference `json:"backendConfigsFrom,omitempty"`

	// Cloud keeps state and runs in HCP Terraform or a service that speaks its API. It takes
	// the place of a backend.
	// +optional
	Cloud *CloudSpec `json:"cloud,omitempty"`

	// Workspace is the Terraform workspace. One that does not exist yet is created.
	// +kubebuilder:default:=default
	// +optional
	Workspace string `json:"workspace,omitempty"`

	// Vars are input variables.
	// +optional
	Vars []Variable `json:"vars,omitempty"`

	// VarsFrom are Secrets and ConfigMaps whose entries become input variables, always as
	// strings. A later entry wins over an earlier one, and all of them over vars.
	// +optional
	VarsFrom []VarsReference `json:"varsFrom,omitempty"`

	// Values is any object; it becomes the input variable "values", which the module has to
	// declare, and .Values in a main.tf.tpl. Text inside ${{ }} is a Go template over the
	// Secrets of readInputsFromSecrets.
	// +optional
	Values *apiextensionsv1.JSON `json:"values,omitempty"`

	// TFVarsFiles are variable files given to plan in this order, relative to the root of the
	// source, not to path.
	// +optional
	TFVarsFiles []string `json:"tfVarsFiles,omitempty"`

	// FileMappings are files, from Secrets, that are put into the run's home or into the
	// module's directory before init.
	// +optional
	FileMappings []FileMapping `json:"fileMappings,omitempty"`

	// Interval is the time between drift checks, and the longest time for which a change that
	// no watch has seen can stay unnoticed. For example "10m" or "1h30m".
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[-+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+)$`
	// +kubebuilder:default:="10m"
	// +optional
	Interval metav1.Duration `json:"interval,omitzero"`

	// RetryInterval is the time from a failure to the next attempt. The default is 15s.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[-+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+)$`
	// +optional
	RetryInterval *metav1.Duration `json:"retryInterval,omitempty"`

	// RetryStrategy says how that time grows: StaticInterval does not let it grow,
	// ExponentialBackoff doubles it with each failure in a row, up to maxRetryInterval.
	// +kubebuilder:validation:Enum=StaticInterval;ExponentialBackoff
	// +kubebuilder:default:=StaticInterval
	// +optional
	RetryStrategy RetryStrategy `json:"retryStrategy,omitempty"`

	// MaxRetryInterval bounds the time between attempts with ExponentialBackoff. The default is 24h.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[-+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+)$`
	// +optional
	MaxRetryInterval *metav1.Duration `json:"maxRetryInterval,omitempty"`

	// Path is the module's directory, relative to the root of the source. The default is the root.
	// +optional
	Path string `json:"path,omitempty"`

	// SourceRef names the source that holds the module.
	// +required
	SourceRef CrossNamespaceSourceReference `json:"sourceRef"`

	// Suspend stops reconciling. A run under way is not ended. A suspended object that is
	// deleted goes, without its resources being destroyed.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// Force plans and applies at every reconcile, whatever approvePlan says, unless that is "disable".
	// +kubebuilder:default:=false
	// +optional
	Force bool `json:"force,omitempty"`

	// ReadInputsFromSecrets are Secrets that templates in values can read.
	// +optional
	ReadInputsFromSecrets []ReadInputsFromSecretSpec `json:"readInputsFromSecrets,omitempty"`

	// WriteOutputsToSecret names the Secret that receives the module's outputs.
	// +optional
	WriteOutputsToSecret *WriteOutputsToSecretSpec `json:"writeOutputsToSecret,omitempty"`

	// DisableDriftDetection stops looking for drift.
	// +kubebuilder:default:=false
	// +optional
	DisableDriftDetection bool `json:"disableDriftDetection,omitempty"`

	// CliConfigSecretRef names a Secret with exactly one key that ends in .tfrc: the CLI
	// configuration of the run.
	// +optional
	CliConfigSecretRef *corev1.SecretReference `json:"cliConfigSecretRef,omitempty"`

	// HealthChecks are made after each apply and repeated until they pass; the object is not
	// Ready before.
	// +optional
	HealthChecks []HealthCheck `json:"healthChecks,omitempty"`

	// DestroyResourcesOnDeletion destroys every resource when this object is deleted, without
	// asking for an approval.
	// +kubebuilder:default:=false
	// +optional
	DestroyResourcesOnDeletion bool `json:"destroyResourcesOnDeletion,omitempty"`

	// ServiceAccountName is the account of a run that takes place in a pod.
	// +kubebuilder:default:=tf-runner
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// AlwaysCleanupRunnerPod removes the pod of a run after each reconcile. A run in a process
	// leaves nothing to remove.
	// +kubebuilder:default:=true
	// +optional
	AlwaysCleanupRunnerPod *bool `json:"alwaysCleanupRunnerPod,omitempty"`

	// RunnerTerminationGracePeriodSeconds is the time that a run has from the request to end
	// until it is killed.
	// +kubebuilder:default:=30
	// +optional
	RunnerTerminationGracePeriodSeconds *int64 `json:"runnerTerminationGracePeriodSeconds,omitempty"`

	// UpgradeOnInit lets init take newer modules and providers than those selected before.
	// +kubebuilder:default:=true
	// +optional
	UpgradeOnInit *bool `json:"upgradeOnInit,omitempty"`

	// RefreshBeforeApply is accepted. A plan always reads the world first, and what is applied
	// is that plan.
	// +kubebuilder:default:=false
	// +optional
	RefreshBeforeApply bool `json:"refreshBeforeApply,omitempty"`

	// RunnerPodTemplate describes the pod of a run. A run in a process takes env and envFrom
	// from it; the fields it cannot use are listed in status.unusedFields.
	// +optional
	RunnerPodTemplate RunnerPodTemplate `json:"runnerPodTemplate,omitzero"`

	// EnableInventory lists the managed resources in status.inventory.
	// +optional
	EnableInventory bool `json:"enableInventory,omitempty"`

	// TFState says how to treat the state lock.
	// +optional
	TFState *TFStateSpec `json:"tfstate,omitempty"`

	// Targets restrict plan, apply and destroy to these resource addresses and what they depend on.
	// +optional
	Targets []string `json:"targets,omitempty"`

	// Parallelism bounds the operations that one run makes at a time. 0 is the tool's default.
	// +kubebuilder:default:=0
	// +optional
	Parallelism int32 `json:"parallelism,omitempty"`

	// StoreReadablePlan keeps each plan in a form to read: none, json (in a Secret), or
	// human (as text, in a ConfigMap).
	// +kubebuilder:validation:Enum=none;json;human
	// +kubebuilder:default:=none
	// +optional
	StoreReadablePlan string `json:"storeReadablePlan,omitempty"`

	// Plan sets options of the plan command.
	// +optional
	Plan *PlanSpec `json:"plan,omitempty"`

	// Webhooks judge a plan before it can be approved.
	// +optional
	Webhooks []Webhook `json:"webhooks,omitempty"`

	// DependsOn names Terraforms that have to be ready, at this source's revision when they
	// share it, before this one is planned.
	// +optional
	DependsOn []meta.NamespacedObjectReference `json:"dependsOn,omitempty"`

	// Enterprise is kept and has no effect.
	// +optional
	Enterprise *apiextensionsv1.JSON `json:"enterprise,omitempty"`

	// PlanOnly never applies: the plan is the result.
	// +optional
	PlanOnly bool `json:"planOnly,omitempty"`

	// BreakTheGlass stops reconciling while a person works on the module by hand.
	// +optional
	BreakTheGlass bool `json:"breakTheGlass,omitempty"`

	// BranchPlanner sets how pull requests against the source are planned.
	// +optional
	BranchPlanner *BranchPlanner `json:"branchPlanner,omitempty"`

	// Remediation bounds the attempts after a failure.
	// +optional
	Remediation *Remediation `json:"remediation,omitempty"`
}

// TerraformStatus is what the controller last saw and did.
type TerraformStatus struct {
	meta.ReconcileRequestStatus `json:",inline"`

	// ObservedGeneration is the generation of the spec that the conditions speak of; -1 before the first reconcile.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions are Ready, Reconciling, Stalled, Plan, Apply, Output, HealthCheck and StateLocked.
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// LastAppliedRevision is the revision of the source that was last applied.
	// +optional
	LastAppliedRevision string `json:"lastAppliedRevision,omitempty"`

	// LastAttemptedRevision is the revision that was last tried, whatever came of it.
	// +optional
	LastAttemptedRevision string `json:"lastAttemptedRevision,omitempty"`

	// LastPlannedRevision is the revision of the last plan that was made or found to be still right.
	// +optional
	LastPlannedRevision string `json:"lastPlannedRevision,omitempty"`

	// LastPlannedGeneration is the generation of the spec that was last planned.
	// +optional
	LastPlannedGeneration int64 `json:"lastPlannedGeneration,omitempty"`

	// LastPlanAt is the time of the last plan.
	// +optional
	LastPlanAt *metav1.Time `json:"lastPlanAt,omitempty"`

	// LastSuccessfulReconcileAt is the time of the last reconcile that ended without a failure.
	// +optional
	LastSuccessfulReconcileAt *metav1.Time `json:"lastSuccessfulReconcileAt,omitempty"`

	// LastDriftDetectedAt is the time when drift was last found.
	// +optional
	LastDriftDetectedAt *metav1.Time `json:"lastDriftDetectedAt,omitempty"`

	// LastAppliedByDriftDetectionAt is the time when drift was last repaired.
	// +optional
	LastAppliedByDriftDetectionAt *metav1.Time `json:"lastAppliedByDriftDetectionAt,omitempty"`

	// AvailableOutputs are the names of the module's outputs, sorted.
	// +optional
	AvailableOutputs []string `json:"availableOutputs,omitempty"`

	// Plan names the plan that waits and the plan that was last applied.
	// +optional
	Plan PlanStatus `json:"plan,omitzero"`

	// Inventory lists the managed resources, if enableInventory is set.
	// +optional
	Inventory *ResourceInventory `json:"inventory,omitempty"`

	// Lock names the state lock that is in the way.
	// +optional
	Lock LockStatus `json:"lock,omitzero"`

	// ReconciliationFailures counts failures in a row since the last success or change.
	// +optional
	ReconciliationFailures int64 `json:"reconciliationFailures,omitempty"`

	// Additions of Terrace follow.

	// InputDigest is the digest of all that the last finished plan read: files, variables,
	// referenced data, tool and spec. While it stays the same there is nothing to plan.
	// +optional
	InputDigest string `json:"inputDigest,omitempty"`

	// NextDriftCheckAt is the time when the next drift check is due. It survives restarts.
	// +optional
	NextDriftCheckAt *metav1.Time `json:"nextDriftCheckAt,omitempty"`

	// RunningID is the id of an apply or destroy that has begun and whose end is not yet
	// recorded. It is written before the run can have an effect.
	// +optional
	RunningID string `json:"runningID,omitempty"`

	// LastDriftDigest is the content digest of the drift that the last event told of, so that
	// one drift is told once.
	// +optional
	LastDriftDigest string `json:"lastDriftDigest,omitempty"`

	// Artifact is the last artifact that was planned with success. It serves the deletion of
	// an object whose source is gone.
	// +optional
	Artifact *meta.Artifact `json:"artifact,omitempty"`

	// Outputs is what was last written to the output Secret, to repair and to remove it.
	// +optional
	Outputs *OutputsStatus `json:"outputs,omitempty"`

	// InputsBlob is the digest of the encrypted record of what the last finished plan was
	// given. It serves the deletion of an object whose inputs are gone.
	// +optional
	InputsBlob string `json:"inputsBlob,omitempty"`

	// LastPlan describes the last plan that has changes.
	// +optional
	LastPlan *PlanRecord `json:"lastPlan,omitempty"`

	// LastImport is the import that was last asked for, and how it ended.
	// +optional
	LastImport *ImportStatus `json:"lastImport,omitempty"`

	// UnusedFields are the paths of fields in runnerPodTemplate that have no effect on a run
	// in a process.
	// +optional
	UnusedFields []string `json:"unusedFields,omitempty"`
}

// PlanStatus names plans by their id.
type PlanStatus struct {
	// LastApplied is the id of the plan that was last applied.
	// +optional
	LastApplied string `json:"lastApplied,omitempty"`

	// Pending is the id of the plan that waits for approval or is about to be applied.
	// +optional
	Pending string `json:"pending,omitempty"`

	// IsDestroyPlan tells that the plan destroys.
	// +optional
	IsDestroyPlan bool `json:"isDestroyPlan,omitempty"`

	// IsDriftDetectionPlan tells that the plan repairs drift.
	// +optional
	IsDriftDetectionPlan bool `json:"isDriftDetectionPlan,omitempty"`
}

// PolicyVerdict is what policies say of a plan, each in one sentence.
type PolicyVerdict struct {
	// Digest of the policies that were evaluated.
	Digest string `json:"digest"`

	// Denied says which policies forbid the plan, and why.
	// +optional
	Denied string `json:"denied,omitempty"`

	// NeedsApproval says which policies want a person to approve the plan, and why.
	// +optional
	NeedsApproval string `json:"needsApproval,omitempty"`

	// Warnings forbid nothing.
	// +optional
	Warnings string `json:"warnings,omitempty"`
}

// PlanRecord describes a stored plan without its content.
type PlanRecord struct {
	// ID is the id that people approve.
	ID string `json:"id"`

	// Digest is the digest of the plan's normalised content.
	Digest string `json:"digest"`

	// Revision is the revision of the source that was planned.
	// +optional
	Revision string `json:"revision,omitempty"`

	// NewRevision tells that the revision brought the plan about: it had not been planned
	// before, or its plans had not been applied.
	// +optional
	NewRevision bool `json:"newRevision,omitempty"`

	// RevisionID is the id that the Terraform Controller would give this plan. It is set when
	// it approves the plan as well as the id does.
	// +optional
	RevisionID string `json:"revisionID,omitempty"`

	// InputDigest is the digest of what the plan read.
	// +optional
	InputDigest string `json:"inputDigest,omitempty"`

	// Blob is the digest of the encrypted bundle that holds the plan.
	// +optional
	Blob string `json:"blob,omitempty"`

	// Destroy tells that the plan destroys every resource.
	// +optional
	Destroy bool `json:"destroy,omitempty"`

	// Drift tells that the plan repairs drift.
	// +optional
	Drift bool `json:"drift,omitempty"`

	// Create is the number of resources that the plan creates.
	// +optional
	Create int `json:"create"`

	// Update is the number of resources that the plan changes in place.
	// +optional
	Update int `json:"update"`

	// Delete is the number of resources that the plan destroys.
	// +optional
	Delete int `json:"delete"`

	// Replace is the number of resources that the plan destroys and creates again.
	// +optional
	Replace int `json:"replace"`

	// Import is the number of resources that the plan takes into the state.
	// +optional
	Import int `json:"import,omitempty"`

	// Forget is the number of resources that leave the state and stay in the world.
	// +optional
	Forget int `json:"forget,omitempty"`

	// Policy is what policies say of the plan; it is absent when there are none.
	// +optional
	Policy *PolicyVerdict `json:"policy,omitempty"`

	// At is the time when the plan was made.
	// +optional
	At metav1.Time `json:"at,omitzero"`
}

// ImportStatus is how an import ended.
type ImportStatus struct {
	// Request names the value of the annotation that asked for it.
	Request string `json:"request"`

	// Address is the resource instance that took the object over, or was to.
	// +optional
	Address string `json:"address,omitempty"`

	// Outcome is how it ended, in the words of Runs: succeeded, failed, cancelled, timed-out;
	// refused where nothing was tried.
	Outcome string `json:"outcome"`

	// Message says why it did not succeed.
	// +optional
	Message string `json:"message,omitempty"`

	// Run names the Run, where there is one.
	// +optional
	Run string `json:"run,omitempty"`
}

// OutputsStatus describes an output Secret that was written.
type OutputsStatus struct {
	// SecretName is the name of the Secret.
	SecretName string `json:"secretName"`

	// Digest is the digest of the data that was written, keyed so that it does not give the data away.
	// +optional
	Digest string `json:"digest,omitempty"`

	// Keys are the keys that were written, sorted.
	// +optional
	Keys []string `json:"keys,omitempty"`
}

// LockStatus names state locks by their identifier.
type LockStatus struct {
	// LastApplied is the identifier of the lock that was last removed.
	// +optional
	LastApplied string `json:"lastApplied,omitempty"`

	// Pending is the identifier of the lock that is held by somebody else.
	// +optional
	Pending string `json:"pending,omitempty"`
}

// ResourceInventory lists the resources that were applied.
type ResourceInventory struct {
	// Entries are the resources.
	Entries []ResourceRef `json:"entries"`
}

// ResourceRef names one managed resource.
type ResourceRef struct {
	// Name is the resource's name in the configuration.
	Name string `json:"n"`

	// Type is the resource's type, such as aws_vpc.
	Type string `json:"t"`

	// Identifier is the ARN of the resource if it has one, else its id.
	Identifier string `json:"id"`
}

// GetConditions returns the conditions.
func (tf *Terraform) GetConditions() []metav1.Condition { return tf.Status.Conditions }

// SetConditions replaces the conditions.
func (tf *Terraform) SetConditions(c []metav1.Condition) { tf.Status.Conditions = c }

// GetDependsOn returns the Terraforms that this one depends on. A reference
// without a namespace means the namespace of this object.
func (tf *Terraform) GetDependsOn() []meta.NamespacedObjectReference { return tf.Spec.DependsOn }

// WorkspaceName returns the workspace, "default" if none is named.
func (tf *Terraform) WorkspaceName() string {
	if tf.Spec.Workspace == "" {
		return DefaultWorkspaceName
	}
	return tf.Spec.Workspace
}

// GetInterval returns the time between drift checks, 10 minutes if none is set.
func (tf *Terraform) GetInterval() time.Duration {
	if tf.Spec.Interval.Duration <= 0 {
		return 10 * time.Minute
	}
	return tf.Spec.Interval.Duration
}

// GetRetryInterval returns the time from a failure to the next attempt, 15
// seconds if none is set. It does not grow; see RetryDelay.
func (tf *Terraform) GetRetryInterval() time.Duration {
	if tf.Spec.RetryInterval == nil || tf.Spec.RetryInterval.Duration <= 0 {
		return 15 * time.Second
	}
	return tf.Spec.RetryInterval.Duration
}

// GetMaxRetryInterval returns the bound of a growing retry interval, 24 hours if none is set.
func (tf *Terraform) GetMaxRetryInterval() time.Duration {
	if tf.Spec.MaxRetryInterval == nil || tf.Spec.MaxRetryInterval.Duration <= 0 {
		return 24 * time.Hour
	}
	return tf.Spec.MaxRetryInterval.Duration
}

// RetryDelay returns the time to the next attempt after the given number of
// failures in a row: the retry interval, doubled for each failure when the
// strategy is ExponentialBackoff, bounded by GetMaxRetryInterval.
func (tf *Terraform) RetryDelay(failures int64) time.Duration {
	d := tf.GetRetryInterval()
	if tf.Spec.RetryStrategy != RetryStrategyExponentialBackoff {
		return d
	}
	limit := tf.GetMaxRetryInterval()
	for ; failures > 0 && d < limit; failures-- {
		d *= 2
	}
	return min(d, limit)
}
