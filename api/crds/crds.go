// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package crds holds the CustomResourceDefinitions that Terrace installs: the
// Terraform kind, Flux's Kustomization and sources, and Terrace's own kinds. They are generated from the Go
// types by hack/generate.sh and embedded; this package reads nothing else.
package crds

import (
	"embed"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

//go:embed *.yaml
var files embed.FS

// All returns the definitions in the order of their names. The caller may
// change what it gets. An error means that the program was built from broken
// files.
func All() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("list embedded CRDs: %w", err)
	}
	var all []*apiextensionsv1.CustomResourceDefinition
	for _, e := range entries {
		data, err := files.ReadFile(e.Name())
		if err != nil {
			return nil, fmt.Errorf("read embedded CRD %s: %w", e.Name(), err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(data, crd); err != nil {
			return nil, fmt.Errorf("parse embedded CRD %s: %w", e.Name(), err)
		}
		all = append(all, crd)
	}
	return all, nil
}
