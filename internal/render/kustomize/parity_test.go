// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomize

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	generator "github.com/fluxcd/pkg/kustomize"
	"github.com/fluxcd/pkg/ssa/utils"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/kustomize/kyaml/openapi"
)

// fluxBuild builds with the libraries of kustomize-controller, in its order, in
// a copy of the tree.
func fluxBuild(tb testing.TB, dir string, u *kustomizev1.Kustomization) ([]*unstructured.Unstructured, error) {
	tb.Helper()
	root := tb.TempDir()
	if err := os.CopyFS(root, os.DirFS(dir)); err != nil {
		tb.Fatal(err)
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(u)
	if err != nil {
		tb.Fatal(err)
	}
	k := unstructured.Unstructured{Object: object}
	path := filepath.Join(root, filepath.Clean("/"+u.Spec.Path))
	if _, err := generator.NewGenerator(root, k).WriteFile(path); err != nil {
		return nil, err
	}
	schema.Lock()
	defer schema.Unlock()
	m, err := generator.SecureBuild(root, path, false)
	openapi.Schema()
	if err != nil {
		return nil, err
	}
	for _, res := range m.Resources() {
		if u.Spec.PostBuild == nil {
			break
		}
		out, err := generator.SubstituteVariables(tb.Context(), nil, k, res, generator.SubstituteWithStrict(true), generator.SubstituteWithDryRun(true),
			generator.SubstituteWithAlways(u.GetSubstituteStrategy() == kustomizev1.SubstituteStrategyAlways))
		if err != nil {
			return nil, err
		}
		if out != nil {
			if _, err := m.Replace(res); err != nil {
				return nil, err
			}
		}
	}
	data, err := m.AsYaml()
	if err != nil {
		return nil, err
	}
	objects, err := utils.ReadObjects(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	if meta := u.Spec.CommonMetadata; meta != nil {
		utils.SetCommonMetadata(objects, meta.Labels, meta.Annotations)
	}
	return objects, nil
}

// inputOf returns the input for a unit whose variables are all in its spec.
func inputOf(dir string, u *kustomizev1.Kustomization) Input {
	in := Input{Dir: dir, Unit: u, Strict: true}
	if u.Spec.PostBuild != nil {
		in.Variables = u.Spec.PostBuild.Substitute
	}
	return in
}

func bare(objects []*unstructured.Unstructured) []map[string]any {
	out := make([]map[string]any, len(objects))
	for i, o := range objects {
		out[i] = o.Object
	}
	return out
}

func TestBuild(t *testing.T) {
	for name, tc := range buildCases {
		t.Run(name, func(t *testing.T) {
			dir := tc.files.write(t)
			u := unit(tc.path, tc.spec)
			out, err := Build(t.Context(), inputOf(dir, u))
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			var got []string
			for _, o := range out.Objects {
				got = append(got, fmt.Sprintf("%s/%s/%s", o.GetKind(), o.GetNamespace(), o.GetName()))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: objects (-want +got):\n%s", tc.reason, diff)
			}
			flux, err := fluxBuild(t, dir, u)
			if err != nil {
				t.Fatalf("Flux does not build it: %v", err)
			}
			if diff := cmp.Diff(bare(flux), bare(out.Objects)); diff != "" {
				t.Errorf("%s: differs from Flux (-flux +terrace):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestFleets(t *testing.T) {
	root := filepath.FromSlash("../../../../shared/fleets")
	if _, err := os.Stat(root); err != nil {
		t.Skip("no fleets beside the repository")
	}
	tests := map[string]struct {
		reason string
		want   int
	}{
		"podinfo/deploy/overlays/dev":        {"an overlay over two bases", 25},
		"podinfo/deploy/overlays/staging":    {"an overlay over two bases", 25},
		"podinfo/deploy/overlays/production": {"an overlay over two bases", 25},
		"podinfo/deploy/webapp":              {"no kustomization file: the scan", 0},
		"podinfo/deploy/secure":              {"no kustomization file: the scan", 0},
		"microservices-demo/kustomize":       {"a kustomization file with components switched off", 35},
	}
	components, _ := filepath.Glob(filepath.Join(root, "microservices-demo/kustomize/components/*/kustomization.yaml"))
	if len(components) < 5 {
		t.Errorf("found %d components", len(components))
	}
	for path, tc := range tests {
		t.Run(path, func(t *testing.T) { compareFleet(t, root, unit(path, nil), tc.want) })
	}
	for _, c := range components {
		name := filepath.Base(filepath.Dir(c))
		t.Run("component "+name, func(t *testing.T) {
			compareFleet(t, root, unit("microservices-demo/kustomize", func(s *kustomizev1.KustomizationSpec) {
				s.Components = []string{"components/" + name}
			}), 0)
		})
	}
}

// compareFleet builds a unit here and with Flux; want is the number of objects,
// 0 for whatever Flux makes, but not none.
func compareFleet(t *testing.T, root string, u *kustomizev1.Kustomization, want int) {
	out, err := Build(t.Context(), Input{Dir: root, Unit: u})
	flux, fluxErr := fluxBuild(t, root, u)
	if (err == nil) != (fluxErr == nil) {
		t.Fatalf("here: %v\nFlux: %v", err, fluxErr)
	}
	if err != nil {
		t.Logf("neither builds it: %v\nFlux: %v", err, fluxErr)
		return
	}
	if want != 0 && len(out.Objects) != want || len(out.Objects) == 0 {
		t.Errorf("%d objects, want %d", len(out.Objects), want)
	}
	if diff := cmp.Diff(bare(flux), bare(out.Objects)); diff != "" {
		t.Errorf("differs from Flux (-flux +terrace):\n%s", diff)
	}
}
