// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RunKind is the kind of a Run.
const RunKind = "Run"

// UnitLabel is the label of a Run with the kind and name of its unit, such as
// Terraform.network, so that the runs of a unit can be listed. Names that are too long for
// a label are cut and end in a hash.
const UnitLabel = "terrace.dev/unit"

// RunSpec is what a run was to do. It does not change.
type RunSpec struct {
	// Unit that the run was for.
	Unit UnitReference `json:"unit"`
	// Operation: plan, apply, destroy, drift, import.
	// +kubebuilder:validation:Enum=plan;apply;destroy;drift;import
	Operation string `json:"operation"`
	// Revision of the source.
	// +optional
	Revision string `json:"revision,omitempty"`
	// Plan is the id of the plan that was made or applied.
	// +optional
	Plan string `json:"plan,omitempty"`
	// PlanDigest is the digest of that plan's content.
	// +optional
	PlanDigest string `json:"planDigest,omitempty"`
	// ApprovedBy is what approved the plan: a user, auto, force. Of an import it is who asked
	// for it.
	// +optional
	ApprovedBy string `json:"approvedBy,omitempty"`
	// Import is what was to be imported.
	// +optional
	Import *RunImport `json:"import,omitempty"`
}

// RunImport is an object that a run was to take into the state.
type RunImport struct {
	// Address of the resource instance in the module.
	Address string `json:"address"`
	// ID of the object, as its provider names it, without secrets.
	ID string `json:"id"`
}

// RunStatus is how a run ended.
type RunStatus struct {
	// Outcome: succeeded, failed, cancelled, timed-out, interrupted.
	Outcome string `json:"outcome"`
	// Message says what went wrong, without secrets.
	// +optional
	Message string `json:"message,omitempty"`
	// Counts of the plan.
	// +optional
	Counts *Counts `json:"counts,omitempty"`
	// Began and Ended bound the run.
	Began metav1.Time `json:"began"`
	Ended metav1.Time `json:"ended"`
	// Steps are the phases of the run and how long each took.
	// +optional
	Steps []RunStep `json:"steps,omitempty"`
}

// RunStep is a phase of a run.
type RunStep struct {
	// Name: prepare, init, plan, apply, outputs and so on.
	Name string `json:"name"`
	// Took is how long it took.
	Took metav1.Duration `json:"took"`
}

// Run is the record of one execution that changed something, failed, or was asked for.
// Its name is the id by which terrace logs finds the log.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=terrace
// +kubebuilder:printcolumn:name="Unit",type=string,JSONPath=`.spec.unit.name`
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.unit.kind`,priority=1
// +kubebuilder:printcolumn:name="Operation",type=string,JSONPath=`.spec.operation`
// +kubebuilder:printcolumn:name="Outcome",type=string,JSONPath=`.status.outcome`
// +kubebuilder:printcolumn:name="Add",type=integer,JSONPath=`.status.counts.add`
// +kubebuilder:printcolumn:name="Change",type=integer,JSONPath=`.status.counts.change`
// +kubebuilder:printcolumn:name="Destroy",type=integer,JSONPath=`.status.counts.destroy`
// +kubebuilder:printcolumn:name="Revision",type=string,JSONPath=`.spec.revision`,priority=1
// +kubebuilder:printcolumn:name="Ended",type=date,JSONPath=`.status.ended`
type Run struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec RunSpec `json:"spec"`
	// +optional
	Status RunStatus `json:"status,omitempty"`
}

// RunList is a list of Runs.
//
// +kubebuilder:object:root=true
type RunList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Run `json:"items"`
}
