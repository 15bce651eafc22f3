// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds the kinds of the group terrace.dev, which are Terrace's own:
// State, Run and Policy. Beside them are the annotations by which units of every
// kind are told what no field of theirs says.
//
// +kubebuilder:object:generate=true
// +groupName=terrace.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the API group and version of this package.
	GroupVersion = schema.GroupVersion{Group: "terrace.dev", Version: "v1alpha1"}

	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme registers the kinds of this package with a scheme.
	AddToScheme = schemeBuilder.AddToScheme
)

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &State{}, &StateList{}, &Run{}, &RunList{}, &Policy{}, &PolicyList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// UnitReference names a unit in the namespace of the object that refers to it.
type UnitReference struct {
	// Kind of the unit: Terraform or Kustomization.
	// +kubebuilder:validation:Enum=Terraform;Kustomization
	Kind string `json:"kind"`
	// Name of the unit.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
}

// Counts are how many resources or objects a plan creates, changes and destroys. A
// replacement counts as one of Add and one of Destroy.
type Counts struct {
	// +optional
	Add int `json:"add,omitempty"`
	// +optional
	Change int `json:"change,omitempty"`
	// +optional
	Destroy int `json:"destroy,omitempty"`
}
