// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package crds

import (
	"context"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/terrace-dev/terrace/api/infra/v1alpha1"
	"github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

func TestAll(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, crd := range all {
		names = append(names, crd.Name)
		internal := &apiextensions.CustomResourceDefinition{}
		apiextensionsv1.SetDefaults_CustomResourceDefinition(crd)
		if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, internal, nil); err != nil {
			t.Fatalf("convert %s: %v", crd.Name, err)
		}
		// What the API server fills in by itself before it validates.
		internal.Status.StoredVersions = []string{"v1"}
		for _, v := range crd.Spec.Versions {
			if v.Storage {
				internal.Status.StoredVersions = []string{v.Name}
			}
		}
		if errs := apiextensionsvalidation.ValidateCustomResourceDefinition(context.Background(), internal); len(errs) > 0 {
			t.Errorf("the API server would refuse %s: %v", crd.Name, errs.ToAggregate())
		}
	}
	want := []string{
		"terraforms.infra.contrib.fluxcd.io",
		"kustomizations.kustomize.toolkit.fluxcd.io",
		"buckets.source.toolkit.fluxcd.io",
		"externalartifacts.source.toolkit.fluxcd.io",
		"gitrepositories.source.toolkit.fluxcd.io",
		"ocirepositories.source.toolkit.fluxcd.io",
		"policies.terrace.dev",
		"runs.terrace.dev",
		"states.terrace.dev",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("CRDs (-want +got):\n%s", diff)
	}
}

func TestTerraformVersions(t *testing.T) {
	type version struct {
		Served, Storage, Deprecated bool
		Warning                     string
	}
	got := map[string]version{}
	for _, v := range terraforms(t).Spec.Versions {
		var warning string
		if v.DeprecationWarning != nil {
			warning = *v.DeprecationWarning
		}
		got[v.Name] = version{v.Served, v.Storage, v.Deprecated, warning}
		var columns []string
		for _, c := range v.AdditionalPrinterColumns {
			columns = append(columns, c.Name)
		}
		if diff := cmp.Diff([]string{"Ready", "Status", "Age"}, columns); diff != "" {
			t.Errorf("%s: columns (-want +got):\n%s", v.Name, diff)
		}
	}
	want := map[string]version{
		"v1alpha1": {Served: true, Deprecated: true, Warning: "v1alpha1 Terraform is deprecated, upgrade to v1alpha2"},
		"v1alpha2": {Served: true, Storage: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
}

// TestDefaults creates the smallest object in both versions: no interval (M1 of
// the compatibility cases, although the Terraform Controller requires one) and
// no approval.
func TestDefaults(t *testing.T) {
	spec := map[string]any{
		"alwaysCleanupRunnerPod":              true,
		"destroyResourcesOnDeletion":          false,
		"disableDriftDetection":               false,
		"force":                               false,
		"interval":                            "10m",
		"parallelism":                         int64(0),
		"path":                                "./infra/db",
		"refreshBeforeApply":                  false,
		"retryStrategy":                       "StaticInterval",
		"runnerTerminationGracePeriodSeconds": int64(30),
		"serviceAccountName":                  "tf-runner",
		"sourceRef":                           map[string]any{"kind": "GitRepository", "name": "infra-repo"},
		"storeReadablePlan":                   "none",
		"upgradeOnInit":                       true,
		"workspace":                           "default",
	}
	cases := map[string]struct {
		reason  string
		version string
		status  any
	}{
		"v1alpha1": {
			reason:  "The old version never had the default of observedGeneration.",
			version: "v1alpha1",
		},
		"v1alpha2": {
			reason:  "A new object must not look reconciled to a tool that waits for it.",
			version: "v1alpha2",
			status:  map[string]any{"observedGeneration": int64(-1)},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			obj := map[string]any{
				"apiVersion": "infra.contrib.fluxcd.io/" + tc.version,
				"kind":       "Terraform",
				"metadata":   map[string]any{"name": "example-db", "namespace": "flux-system"},
				"spec": map[string]any{
					"path":      "./infra/db",
					"sourceRef": map[string]any{"kind": "GitRepository", "name": "infra-repo"},
				},
			}
			if err := admit(t, tc.version, obj); err != nil {
				t.Fatalf("%s\nthe API server would refuse it: %v", tc.reason, err)
			}
			if diff := cmp.Diff(any(spec), obj["spec"]); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.status, obj["status"]); diff != "" {
				t.Errorf("%s\nstatus (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestEveryFieldIsKept creates an object that sets every field of spec and
// status. Nothing may be refused or pruned in either version: with two versions
// of one stored object and no conversion, what one version prunes is lost.
func TestEveryFieldIsKept(t *testing.T) {
	data, err := os.ReadFile("testdata/every-field.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"v1alpha1", "v1alpha2"} {
		t.Run(version, func(t *testing.T) {
			want := parse(t, data)
			for _, part := range []string{"spec", "status"} {
				for _, v := range terraforms(t).Spec.Versions {
					for field := range v.Schema.OpenAPIV3Schema.Properties[part].Properties {
						if _, ok := want[part].(map[string]any)[field]; !ok {
							t.Errorf("testdata/every-field.yaml does not set %s.%s", part, field)
						}
					}
				}
			}
			want["apiVersion"] = "infra.contrib.fluxcd.io/" + version
			got := runtime.DeepCopyJSON(want)
			if err := admit(t, version, got); err != nil {
				t.Fatalf("the API server would refuse it: %v", err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("stored object (-want +got):\n%s", diff)
			}
			// The same through the Go types: a field that they lack would be lost by the
			// first update of a typed client.
			var typed runtime.Object = &v1alpha2.Terraform{}
			if version == "v1alpha1" {
				typed = &v1alpha1.Terraform{}
			}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(got, typed, true); err != nil {
				t.Fatalf("decode into the Go type: %v", err)
			}
			back, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
			if err != nil {
				t.Fatalf("encode the Go type: %v", err)
			}
			if diff := cmp.Diff(want, back); diff != "" {
				t.Errorf("object after a round through the Go type (-want +got):\n%s", diff)
			}
		})
	}
}

// TestKustomization holds what Flux's tools rely on in the CRD, beside its schema.
func TestKustomization(t *testing.T) {
	crd := definition(t, "Kustomization")
	type facts struct {
		Annotation             string
		Categories, ShortNames []string
		Columns, Versions      []string
	}
	got := facts{
		Annotation: crd.Annotations["kustomize.toolkit.fluxcd.io/substitute"],
		Categories: crd.Spec.Names.Categories, ShortNames: crd.Spec.Names.ShortNames,
	}
	for _, v := range crd.Spec.Versions {
		got.Versions = append(got.Versions, v.Name)
		for _, c := range v.AdditionalPrinterColumns {
			got.Columns = append(got.Columns, c.Name)
		}
	}
	want := facts{
		Annotation: "disabled", Categories: []string{"all", "fluxcd", "fluxcd-appliers"}, ShortNames: []string{"ks"},
		Columns: []string{"Age", "Ready", "Status"}, Versions: []string{"v1"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}

	smallest := parse(t, []byte(`{apiVersion: kustomize.toolkit.fluxcd.io/v1, kind: Kustomization, metadata: {name: a, namespace: a},
spec: {interval: 10m, prune: true, sourceRef: {kind: GitRepository, name: a}}}`))
	if err := admitTo(t, crd, "v1", smallest); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(any(map[string]any{"observedGeneration": int64(-1)}), smallest["status"]); diff != "" {
		t.Errorf("a new object must not look reconciled to a tool that waits for it (-want +got):\n%s", diff)
	}

	refused := map[string]struct {
		reason string
		spec   string
	}{
		"NoSource":   {"There is nothing to apply.", `{interval: 10m, prune: true}`},
		"NoPrune":    {"Whether things are deleted is not left to a default.", `{interval: 10m, sourceRef: {kind: Bucket, name: a}}`},
		"SourceKind": {"No controller would ever answer.", `{interval: 10m, prune: true, sourceRef: {kind: HelmRepository, name: a}}`},
		"Interval":   {"A duration that Go cannot parse fails every list of the kind.", `{interval: 10 minutes, prune: true, sourceRef: {kind: Bucket, name: a}}`},
		"Deletion":   {"Flux's enumeration.", `{interval: 10m, prune: true, deletionPolicy: Keep, sourceRef: {kind: Bucket, name: a}}`},
	}
	for name, tc := range refused {
		t.Run(name, func(t *testing.T) {
			obj := map[string]any{
				"apiVersion": "kustomize.toolkit.fluxcd.io/v1",
				"kind":       "Kustomization",
				"metadata":   map[string]any{"name": "a", "namespace": "a"},
				"spec":       parse(t, []byte(tc.spec)),
			}
			if err := admitTo(t, crd, "v1", obj); err == nil {
				t.Errorf("%s\n%s is accepted", tc.reason, tc.spec)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	cases := map[string]struct {
		reason string
		spec   string
	}{
		"NoSource":      {"There is nothing to plan.", `{path: ./}`},
		"SourceKind":    {"No controller would ever answer.", `{sourceRef: {kind: HelmRepository, name: a}}`},
		"Interval":      {"A duration that Go cannot parse fails every list of the kind.", `{interval: 10 minutes, sourceRef: {kind: Bucket, name: a}}`},
		"RetryStrategy": {"The peer's enumeration.", `{retryStrategy: Linear, sourceRef: {kind: Bucket, name: a}}`},
		"ReadablePlan":  {"The peer's enumeration.", `{storeReadablePlan: yaml, sourceRef: {kind: Bucket, name: a}}`},
		"ForceUnlock":   {"The peer's enumeration.", `{tfstate: {forceUnlock: always}, sourceRef: {kind: Bucket, name: a}}`},
		"VarsFromKind":  {"The peer's enumeration.", `{varsFrom: [{kind: Pod, name: a}], sourceRef: {kind: Bucket, name: a}}`},
		"FileLocation":  {"The peer's enumeration.", `{fileMappings: [{location: root, path: a, secretRef: {name: a}}], sourceRef: {kind: Bucket, name: a}}`},
		"HealthType":    {"The peer's enumeration.", `{healthChecks: [{name: a, type: udp}], sourceRef: {kind: Bucket, name: a}}`},
		"WebhookTest":   {"A webhook without a test decides nothing.", `{webhooks: [{url: "http://a"}], sourceRef: {kind: Bucket, name: a}}`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for _, version := range []string{"v1alpha1", "v1alpha2"} {
				obj := map[string]any{
					"apiVersion": "infra.contrib.fluxcd.io/" + version,
					"kind":       "Terraform",
					"metadata":   map[string]any{"name": "a", "namespace": "a"},
					"spec":       parse(t, []byte(tc.spec)),
				}
				if err := admit(t, version, obj); err == nil {
					t.Errorf("%s\n%s accepts %s", tc.reason, version, tc.spec)
				}
			}
		})
	}
}

// TestDurations holds the pattern of durations against what Go reads.
func TestDurations(t *testing.T) {
	for _, d := range []string{"10m", "1h30m", "0", "0s", "1.5h", ".5s", "24h", "100ms", "5us", "5µs"} {
		obj := map[string]any{
			"apiVersion": "infra.contrib.fluxcd.io/v1alpha2",
			"kind":       "Terraform",
			"metadata":   map[string]any{"name": "a", "namespace": "a"},
			"spec": map[string]any{
				"interval":  d,
				"sourceRef": map[string]any{"kind": "Bucket", "name": "a"},
			},
		}
		if err := admit(t, "v1alpha2", obj); err != nil {
			t.Errorf("interval %q is refused: %v", d, err)
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj, &v1alpha2.Terraform{}); err != nil {
			t.Errorf("interval %q cannot be decoded: %v", d, err)
		}
	}
}

func terraforms(t *testing.T) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	return definition(t, v1alpha2.TerraformKind)
}

func definition(t *testing.T, kind string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range all {
		if crd.Spec.Names.Kind == kind {
			return crd
		}
	}
	t.Fatalf("no CRD of kind %s", kind)
	return nil
}

// admit does to a Terraform what the API server does on create.
func admit(t *testing.T, version string, obj map[string]any) error {
	t.Helper()
	return admitTo(t, terraforms(t), version, obj)
}

// admitTo does to obj what the API server does on create: prune, default, validate.
func admitTo(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition, version string, obj map[string]any) error {
	t.Helper()
	for _, v := range crd.Spec.Versions {
		if v.Name != version {
			continue
		}
		internal := &apiextensions.JSONSchemaProps{}
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v.Schema.OpenAPIV3Schema, internal, nil); err != nil {
			t.Fatal(err)
		}
		structural, err := schema.NewStructural(internal)
		if err != nil {
			t.Fatal(err)
		}
		validator, _, err := validation.NewSchemaValidator(internal)
		if err != nil {
			t.Fatal(err)
		}
		pruning.Prune(obj, structural, true)
		defaulting.PruneNonNullableNullsWithoutDefaults(obj, structural)
		defaulting.Default(obj, structural)
		return validation.ValidateCustomResource(nil, obj, validator).ToAggregate()
	}
	t.Fatalf("no version %s", version)
	return nil
}

func parse(t *testing.T, data []byte) map[string]any {
	t.Helper()
	json, err := yaml.YAMLToJSON(data)
	if err != nil {
		t.Fatal(err)
	}
	u := unstructured.Unstructured{}
	// The decoder of unstructured objects reads whole numbers as int64, as the API server does.
	if err := u.UnmarshalJSON(withKind(json)); err != nil {
		t.Fatal(err)
	}
	if u.GetKind() == "Fragment" {
		delete(u.Object, "kind")
		delete(u.Object, "apiVersion")
	}
	return u.Object
}

// withKind makes a fragment of an object readable for the unstructured decoder, which insists on a kind.
func withKind(json []byte) []byte {
	var probe struct {
		Kind string `json:"kind"`
	}
	if err := yaml.Unmarshal(json, &probe); err == nil && probe.Kind != "" {
		return json
	}
	return append([]byte(`{"apiVersion":"v1","kind":"Fragment",`), json[1:]...)
}
