// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha2 holds the Terraform kind of the group
// infra.contrib.fluxcd.io in its storage version, wire-compatible with the
// Terraform Controller (tofu-controller 0.16).
//
// A Terraform is one root module from a source, with its variables, its
// backend and its approval policy. The spec belongs to users; the status is
// written by the controller only and by nothing but the status subresource.
// Status fields below the heading "Additions" are Terrace's own; the Terraform
// Controller neither reads nor writes them.
//
// +kubebuilder:object:generate=true
// +groupName=infra.contrib.fluxcd.io
package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the API group and version of this package.
	GroupVersion = schema.GroupVersion{Group: "infra.contrib.fluxcd.io", Version: "v1alpha2"}

	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme registers the kinds of this package with a scheme.
	AddToScheme = schemeBuilder.AddToScheme
)

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &Terraform{}, &TerraformList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
