// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package crds

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestTerraformIsDocumented looks for every field, condition, reason, annotation,
// label and finalizer of a Terraform in the page that describes it.
func TestTerraformIsDocumented(t *testing.T) {
	data, err := os.ReadFile("../../docs/spec/terraform.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	words := map[string]bool{}
	for _, v := range terraforms(t).Spec.Versions {
		for _, part := range []string{"spec", "status"} {
			for field := range v.Schema.OpenAPIV3Schema.Properties[part].Properties {
				words[field] = true
			}
		}
		pod := v.Schema.OpenAPIV3Schema.Properties["spec"].Properties["runnerPodTemplate"].Properties["spec"]
		for field := range pod.Properties {
			words[field] = true
		}
	}
	for name, value := range constants(t, "../infra/v1alpha2/conditions.go", "../infra/v1alpha2/names.go") {
		switch {
		case strings.HasPrefix(name, "Condition"), strings.HasPrefix(name, "Reason"):
			words[value] = true
		case strings.HasSuffix(name, "Annotation"), strings.HasSuffix(name, "Finalizer"):
			// Long names of one family are written once and then with … in front.
			words[value[strings.LastIndexByte(value, '/')+1:]] = true
		}
	}
	// A reason of runs in pods, which this page has no use for.
	delete(words, "RunnerQuotaExhausted")
	for _, w := range slices.Sorted(maps.Keys(words)) {
		if !strings.Contains(page, w) {
			t.Errorf("docs/spec/terraform.md does not speak of %s", w)
		}
	}
}

// TestKustomizationIsDocumented looks for every field, and every annotation and
// reason of Terrace's own, in the page that describes a Kustomization.
func TestKustomizationIsDocumented(t *testing.T) {
	data, err := os.ReadFile("../../docs/spec/kustomization.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	words := map[string]bool{}
	for _, v := range definition(t, "Kustomization").Spec.Versions {
		for _, part := range []string{"spec", "status"} {
			for field, schema := range v.Schema.OpenAPIV3Schema.Properties[part].Properties {
				words[field] = true
				for _, value := range schema.Enum {
					words[strings.Trim(string(value.Raw), `"`)] = true
				}
			}
		}
	}
	for name, value := range constants(t, "../v1alpha1/names.go") {
		if strings.HasPrefix(name, "Reason") || strings.HasSuffix(name, "Annotation") {
			words[value] = true
		}
	}
	for _, w := range slices.Sorted(maps.Keys(words)) {
		if !strings.Contains(page, "`"+w) && !strings.Contains(page, "."+w) {
			t.Errorf("docs/spec/kustomization.md does not speak of %s", w)
		}
	}
}

// TestRunIsDocumented looks for every field of a Run in the page that describes it.
func TestRunIsDocumented(t *testing.T) {
	data, err := os.ReadFile("../../docs/spec/run.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range definition(t, "Run").Spec.Versions {
		for _, part := range []string{"spec", "status"} {
			for field := range v.Schema.OpenAPIV3Schema.Properties[part].Properties {
				if !strings.Contains(string(data), "`"+field+"`") {
					t.Errorf("docs/spec/run.md does not speak of %s.%s", part, field)
				}
			}
		}
	}
}

// constants returns the string constants that files declare with a literal.
func constants(t *testing.T, files ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, v := range spec.Values {
				if lit, ok := v.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					s, err := strconv.Unquote(lit.Value)
					if err != nil {
						t.Fatal(err)
					}
					out[spec.Names[i].Name] = s
				}
			}
			return true
		})
	}
	return out
}
