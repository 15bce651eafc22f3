// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PolicyKind is the kind of a Policy.
const PolicyKind = "Policy"

// What happens when a policy is violated.
const (
	// EnforceDeny stops the unit: nothing is applied while the violation is there.
	EnforceDeny = "deny"
	// EnforceApprove asks for an approval of the plan, also where the unit would apply by itself.
	EnforceApprove = "approve"
	// EnforceWarn only tells.
	EnforceWarn = "warn"
)

// Reasons of the Ready condition of a Policy.
const (
	// ReasonCompiled says that the policy is in use.
	ReasonCompiled = "Compiled"
	// ReasonInvalid says that the rules have a mistake, and where.
	ReasonInvalid = "Invalid"
	// ReasonSourceNotReady says that the rules are not there, because their source is not.
	ReasonSourceNotReady = "SourceNotReady"
)

// PolicySpec is a set of rules over plans. One of rego, source and cel is set.
//
// +kubebuilder:validation:XValidation:rule="[has(self.rego), has(self.source), has(self.cel)].filter(x, x).size() == 1",message="set exactly one of rego, source and cel"
type PolicySpec struct {
	// Kinds of the units that the policy looks at; all kinds if it is empty.
	// +optional
	// +kubebuilder:validation:items:Enum=Terraform;Kustomization
	Kinds []string `json:"kinds,omitempty"`
	// Selector chooses units of the policy's namespace by their labels; all if it is empty.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// Enforcement of what the rules deny; what they warn of is only told.
	// +optional
	// +kubebuilder:default=deny
	// +kubebuilder:validation:Enum=deny;approve;warn
	Enforcement string `json:"enforcement,omitempty"`
	// Packages are the Rego packages whose rules are evaluated; main if it is empty. Others
	// are there to be imported.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Pattern=`^[a-zA-Z_][a-zA-Z0-9_]*(\.[a-zA-Z_][a-zA-Z0-9_]*)*$`
	// +kubebuilder:validation:items:MaxLength=253
	Packages []string `json:"packages,omitempty"`
	// Rego is one module by conftest's conventions: rules deny, violation and warn, and
	// exceptions.
	// +optional
	// +kubebuilder:validation:MaxLength=262144
	Rego string `json:"rego,omitempty"`
	// Source has Rego modules in files that end in .rego; files that end in _test.rego are
	// left out, and .json and .yaml files are data.
	// +optional
	Source *PolicySource `json:"source,omitempty"`
	// CEL are conditions that must hold.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	CEL []CELRule `json:"cel,omitempty"`
}

// PolicySource is a path of a source.
type PolicySource struct {
	// Kind of the source.
	// +kubebuilder:validation:Enum=GitRepository;OCIRepository;Bucket;ExternalArtifact
	Kind string `json:"kind"`
	// Name of the source, in the policy's namespace.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// Path in the source; its root if it is empty.
	// +optional
	Path string `json:"path,omitempty"`
}

// CELRule is a condition that must hold.
type CELRule struct {
	// Expression over plan and unit that must be true. If it names object (the object or the
	// resource's values as they will be) or change (its address, type and actions), it is
	// evaluated for each one that the plan creates or changes.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Expression string `json:"expression"`
	// Message is told when it is not; the expression, if it is empty.
	// +optional
	Message string `json:"message,omitempty"`
}

// PolicyStatus says whether the policy can be used.
type PolicyStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Revision of the source that is in use.
	// +optional
	Revision string `json:"revision,omitempty"`
	// Conditions: Ready is False when the policy is broken. A broken policy denies.
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Policy is a set of rules that plans must keep.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=terrace
// +kubebuilder:printcolumn:name="Enforcement",type=string,JSONPath=`.spec.enforcement`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Policy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PolicySpec `json:"spec"`
	// +optional
	Status PolicyStatus `json:"status,omitempty"`
}

// PolicyList is a list of Policies.
//
// +kubebuilder:object:root=true
type PolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Policy `json:"items"`
}
