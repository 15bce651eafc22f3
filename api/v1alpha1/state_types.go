// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// StateKind is the kind of a State.
const StateKind = "State"

// StateBackendAnnotation on a Terraform moves its state, at the next plan, to where its
// value says: StateInService or StateInSecret.
const StateBackendAnnotation = "terrace.dev/state-backend"

// Where Terrace keeps states.
const (
	// StateInService is the state service.
	StateInService = "terrace"
	// StateInSecret is a Secret, as the Terraform Controller has it.
	StateInSecret = "kubernetes"
)

// DeleteAnnotation with the value DeleteForce lets a State be deleted that has resources.
const (
	DeleteAnnotation = "terrace.dev/delete"
	DeleteForce      = "force"
)

// StateSpec says how long versions of a state are kept. The newest version is always kept.
type StateSpec struct {
	// KeepVersions is how many versions are kept, the newest included.
	// +optional
	// +kubebuilder:default=100
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=500
	KeepVersions int `json:"keepVersions,omitempty"`
	// KeepFor is how long a version is kept after a newer one replaced it; without it age
	// removes nothing.
	// +optional
	KeepFor *metav1.Duration `json:"keepFor,omitempty"`
}

// StateStatus is what is known of a state without its content. It is written by the state
// service only, by compare-and-swap.
type StateStatus struct {
	// Serial of the newest version, as Terraform counts it.
	// +optional
	Serial int64 `json:"serial,omitempty"`
	// Lineage of the state: which state it is, whatever it is called.
	// +optional
	Lineage string `json:"lineage,omitempty"`
	// Size of the newest version in bytes, before encryption.
	// +optional
	Size int64 `json:"size,omitempty"`
	// Resources in the newest version; not known of a state that OpenTofu encrypts itself.
	// +optional
	Resources int `json:"resources,omitempty"`
	// Encrypted tells that OpenTofu encrypts the state itself, so that its content is not known.
	// +optional
	Encrypted bool `json:"encrypted,omitempty"`
	// Lock is who holds the state's lock.
	// +optional
	Lock *StateLock `json:"lock,omitempty"`
	// LastLock is the id of the lock that was released last. Releasing it again does nothing.
	// +optional
	LastLock string `json:"lastLock,omitempty"`
	// Kept is how many versions are kept.
	// +optional
	Kept int `json:"kept,omitempty"`
	// Versions are the newest of those that are kept, the newest first, ten at most.
	// +optional
	Versions []StateVersion `json:"versions,omitempty"`
	// Packed are the older ones, as a list in JSON that is compressed with gzip. Each lock
	// writes the whole status, and the cost of that is in its fields; All unpacks them.
	// +optional
	Packed []byte `json:"packed,omitempty"`
}

// StateLock is the holder of a lock.
type StateLock struct {
	// ID of the lock, given by who took it.
	ID string `json:"id"`
	// Holder is who holds it: user@host as Terraform says it, or the user of the request.
	// +optional
	Holder string `json:"holder,omitempty"`
	// Run that holds it, empty for people and pipelines.
	// +optional
	Run string `json:"run,omitempty"`
	// Operation for which it is held.
	// +optional
	Operation string `json:"operation,omitempty"`
	// Info is the LockInfo that the holder sent, as JSON: what a loser is shown.
	// +optional
	Info string `json:"info,omitempty"`
	// Since when it is held.
	Since metav1.Time `json:"since"`
}

// StateVersion is one version of a state.
type StateVersion struct {
	// Version counts the writes of this State from 1 on. It is never used twice.
	Version int64 `json:"version"`
	// Serial of the content, as Terraform counts it.
	Serial int64 `json:"serial"`
	// Lineage of the content.
	// +optional
	Lineage string `json:"lineage,omitempty"`
	// Blob is the digest of the encrypted content.
	Blob string `json:"blob"`
	// Digest of the content, keyed, so that it does not tell what is in it.
	Digest string `json:"digest"`
	// Size in bytes, before encryption.
	Size int64 `json:"size"`
	// Resources in it.
	// +optional
	Resources int `json:"resources,omitempty"`
	// Created is when it was written.
	Created metav1.Time `json:"created"`
	// By is who wrote it: a run's unit or a user.
	// +optional
	By string `json:"by,omitempty"`
	// Run that wrote it.
	// +optional
	Run string `json:"run,omitempty"`
	// Operation that wrote it: apply, destroy, push, rollback, migrate, rm, mv.
	// +optional
	Operation string `json:"operation,omitempty"`
}

// State is one Terraform state: what is known of it, who holds its lock, and which
// versions there are. The content is kept apart, encrypted.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=terrace
// +kubebuilder:printcolumn:name="Serial",type=integer,JSONPath=`.status.serial`
// +kubebuilder:printcolumn:name="Resources",type=integer,JSONPath=`.status.resources`
// +kubebuilder:printcolumn:name="Size",type=integer,JSONPath=`.status.size`
// +kubebuilder:printcolumn:name="Versions",type=integer,JSONPath=`.status.kept`
// +kubebuilder:printcolumn:name="Locked by",type=string,JSONPath=`.status.lock.holder`
// +kubebuilder:printcolumn:name="Changed",type=date,JSONPath=`.status.versions[0].created`
type State struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	// +kubebuilder:default={}
	Spec StateSpec `json:"spec,omitempty"`
	// +optional
	Status StateStatus `json:"status,omitempty"`
}

// StateList is a list of States.
//
// +kubebuilder:object:root=true
type StateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []State `json:"items"`
}
