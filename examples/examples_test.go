// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/examples"
	"github.com/terrace-dev/terrace/internal/graph"
	"github.com/terrace-dev/terrace/internal/render/kustomize"
	"github.com/terrace-dev/terrace/internal/render/sops"
)

// outputs are what the Terraform units of the stack write, by Secret.
var outputs = map[string]map[string]string{
	"network-outputs":  {"network_id": "n-1", "cidr": "10.20.0.0/16", "subnets": `["10.20.0.0/20"]`},
	"cluster-outputs":  {"cluster_id": "c-1", "endpoint": "https://10.20.0.10:6443"},
	"nodes-outputs":    {"node_count": "3"},
	"database-outputs": {"host": "db.internal", "connection": "postgres://app:secret@db.internal/app"},
}

// stack lays the example out and returns its directory and a decryptor with its key.
func stack(t *testing.T) (string, *sops.Decryptor) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "stack")
	if err := os.CopyFS(dir, examples.FullStack()); err != nil {
		t.Fatal(err)
	}
	key, err := fs.ReadFile(examples.FullStack(), examples.ThrowAwayKey)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := sops.NewKeys("flux-system/sops-age", map[string][]byte{examples.ThrowAwayKey: key})
	if err != nil {
		t.Fatal(err)
	}
	return dir, sops.New(keys)
}

// build builds a Kustomization as its controller does, without a cluster.
func build(t *testing.T, dir string, decrypt *sops.Decryptor, ks *kustomizev1.Kustomization) []*unstructured.Unstructured {
	t.Helper()
	in := kustomize.Input{Dir: dir, Unit: ks, Strict: true}
	if ks.Spec.Decryption != nil {
		in.Decrypt = decrypt
	}
	if p := ks.Spec.PostBuild; p != nil {
		in.Variables = map[string]string{}
		for _, from := range p.SubstituteFrom {
			given, ok := outputs[from.Name]
			if !ok {
				t.Fatalf("%s takes variables from %s, which no unit writes", ks.Name, from.Name)
			}
			maps.Copy(in.Variables, given)
		}
		maps.Copy(in.Variables, p.Substitute)
	}
	out, err := kustomize.Build(t.Context(), in)
	if err != nil {
		t.Fatalf("build %s: %v", ks.Name, err)
	}
	return out.Objects
}

func as[T any](t *testing.T, o *unstructured.Unstructured) *T {
	t.Helper()
	var into T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &into); err != nil {
		t.Fatal(err)
	}
	return &into
}

// units builds the root, and returns what it applies by kind.
func units(t *testing.T, dir string, decrypt *sops.Decryptor) (apps map[string]*kustomizev1.Kustomization, modules map[string]*infra.Terraform) {
	t.Helper()
	root := &kustomizev1.Kustomization{Spec: kustomizev1.KustomizationSpec{Path: "./clusters/production", Decryption: &kustomizev1.Decryption{Provider: "sops"}}}
	root.Name = "the root"
	apps, modules = map[string]*kustomizev1.Kustomization{}, map[string]*infra.Terraform{}
	for _, o := range build(t, dir, decrypt, root) {
		switch o.GetKind() {
		case kustomizev1.KustomizationKind:
			apps[o.GetName()] = as[kustomizev1.Kustomization](t, o)
		case infra.TerraformKind:
			modules[o.GetName()] = as[infra.Terraform](t, o)
		}
	}
	return apps, modules
}

// TestFullStackBuilds builds the root and every Kustomization that it applies, with
// Secrets decrypted and variables in their places.
func TestFullStackBuilds(t *testing.T) {
	dir, decrypt := stack(t)
	apps, _ := units(t, dir, decrypt)
	wanted := map[string][]string{
		"flux-system":     {"Kustomization/flux-system", "Terraform/network", "Secret/database-credentials"},
		"platform":        {"Namespace/shop-production", "CustomResourceDefinition/backups.platform.example.com", "ConfigMap/cluster-info"},
		"controllers":     {"ClusterRole/backup-operator", "ClusterRoleBinding/backup-operator", "Deployment/backup-operator"},
		"policies":        {"ResourceQuota/compute", "LimitRange/containers", "NetworkPolicy/inside"},
		"shop-staging":    {"Deployment/web", "Service/web", "Secret/payment"},
		"shop-production": {"Deployment/web", "PodDisruptionBudget/web", "Backup/database", "Secret/database", "Secret/payment"},
	}
	if got, want := slices.Sorted(maps.Keys(apps)), slices.Sorted(maps.Keys(wanted)); !slices.Equal(got, want) {
		t.Fatalf("the root applies the Kustomizations %v, want %v", got, want)
	}
	for name, want := range wanted {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, o := range build(t, dir, decrypt, apps[name]) {
				got = append(got, o.GetKind()+"/"+o.GetName())
				text, err := json.Marshal(o)
				if err != nil {
					t.Fatal(err)
				}
				// Terraform's own templates are not variables of the build.
				if o.GetKind() != infra.TerraformKind && bytes.Contains(text, []byte("${")) || bytes.Contains(text, []byte("ENC[")) {
					t.Errorf("%s/%s is not built to the end: %s", o.GetKind(), o.GetName(), text)
				}
			}
			for _, w := range want {
				if !slices.Contains(got, w) {
					t.Errorf("there is no %s; there are %v", w, got)
				}
			}
		})
	}
}

// TestEveryOverlayBuilds builds each directory with a kustomization file on its own,
// so that none lies in the tree unused and broken.
func TestEveryOverlayBuilds(t *testing.T) {
	dir, decrypt := stack(t)
	all := map[string]string{}
	for _, given := range outputs {
		maps.Copy(all, given)
	}
	built := 0
	err := fs.WalkDir(examples.FullStack(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "kustomization.yaml" {
			return err
		}
		built++
		t.Run(path.Dir(name), func(t *testing.T) {
			ks := &kustomizev1.Kustomization{Spec: kustomizev1.KustomizationSpec{
				Path: path.Dir(name), Decryption: &kustomizev1.Decryption{Provider: "sops"}, PostBuild: &kustomizev1.PostBuild{Substitute: all},
			}}
			if len(build(t, dir, decrypt, ks)) == 0 {
				t.Error("it has no objects")
			}
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if built < 5 {
		t.Errorf("only %d directories were built", built)
	}
}

// TestFullStackIsConnected wants every unit in a layer, every path in the tree, and
// every dependency to be a unit of the stack, without a circle.
func TestFullStackIsConnected(t *testing.T) {
	dir, decrypt := stack(t)
	apps, modules := units(t, dir, decrypt)
	g := graph.New()
	known := map[graph.Node]bool{}
	node := func(kind, name string) graph.Node {
		return graph.Node{Kind: kind, Namespace: "flux-system", Name: name}
	}
	check := func(kind, name, file string, labels, annotations map[string]string, needs []graph.Node) {
		n := node(kind, name)
		known[n] = true
		if layer := labels[infra.LayerLabel]; name != "flux-system" && !slices.Contains([]string{"network", "cluster", "platform", "application"}, layer) {
			t.Errorf("%s is in layer %q", name, layer)
		}
		if info, err := os.Stat(filepath.Join(dir, file)); err != nil || !info.IsDir() {
			t.Errorf("%s: the path %s is not there", name, file)
		}
		more, err := graph.ParseDependsOn(annotations[infra.DependsOnAnnotation], "flux-system")
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		g.DependsOn(n, append(needs, more...)...)
	}
	for name, ks := range apps {
		var needs []graph.Node
		for _, d := range ks.Spec.DependsOn {
			needs = append(needs, node(kustomizev1.KustomizationKind, d.Name))
		}
		check(kustomizev1.KustomizationKind, name, ks.Spec.Path, ks.Labels, ks.Annotations, needs)
	}
	for name, tf := range modules {
		var needs []graph.Node
		for _, d := range tf.Spec.DependsOn {
			needs = append(needs, node(infra.TerraformKind, d.Name))
		}
		check(infra.TerraformKind, name, tf.Spec.Path, tf.Labels, tf.Annotations, needs)
	}
	for _, n := range g.Nodes() {
		if !known[n] {
			t.Errorf("a unit depends on %s, which the stack does not have", n)
		}
	}
	if cycles := g.Cycles(); len(cycles) > 0 {
		t.Errorf("circles: %v", cycles)
	}
}

// TestSecretsAreEncrypted lets no Secret with plain data into the tree, but those whose
// value is a variable.
func TestSecretsAreEncrypted(t *testing.T) {
	found := 0
	err := fs.WalkDir(examples.FullStack(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".yaml" {
			return err
		}
		text, err := fs.ReadFile(examples.FullStack(), name)
		if err != nil {
			return err
		}
		for _, doc := range bytes.Split(text, []byte("\n---\n")) {
			var o struct {
				Kind             string
				Data, StringData map[string]string
			}
			if yaml.Unmarshal(doc, &o) != nil || o.Kind != "Secret" {
				continue
			}
			found++
			for _, values := range []map[string]string{o.Data, o.StringData} {
				for key, v := range values {
					if !strings.HasPrefix(v, "ENC[") && !strings.HasPrefix(v, "${") {
						t.Errorf("%s has %s in plain text", name, key)
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found != 4 {
		t.Errorf("%d Secrets were found, want 4", found)
	}
}
