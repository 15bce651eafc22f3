// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/terrace-dev/terrace/internal/render/kustomize"
	"github.com/terrace-dev/terrace/internal/render/sops"
)

// renderFlags say which content a Kustomization is rendered from.
type renderFlags struct {
	path, revision, file string
}

func (f *renderFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.path, "path", "", "local directory in place of the source: that of the unit's path, or the tree that has it")
	fs.StringVar(&f.revision, "revision", "", "branch, tag or commit of the source's repository in place of what was fetched")
	fs.StringVar(&f.file, "kustomization-file", "", "file with the Kustomization, in place of the one of the cluster or for one that is not there yet")
}

// check refuses flags that exclude each other.
func (f *renderFlags) check(cmd *cobra.Command) error {
	if f.path != "" && f.revision != "" {
		return usagef(cmd, "--path and --revision exclude each other")
	}
	return nil
}

// rendering is a Kustomization on its way to its objects.
type rendering struct {
	unit *kustomizev1.Kustomization
	// cluster is nil when nothing of it is needed.
	cluster *cluster
	// live is the unit as the cluster has it; its Unstructured is nil when it has none.
	live object
	// secrets are values that came out of Secrets and must not be shown.
	secrets []string
}

// rendered reads the Kustomization that word names: from the file of the flags, or
// from the cluster. With offline the cluster is left alone where it can be.
func (a *app) rendered(cmd *cobra.Command, word string, f renderFlags, offline bool) (*rendering, error) {
	if err := f.check(cmd); err != nil {
		return nil, err
	}
	r, err := parseRef(word, []kind{kustomization})
	if err != nil {
		return nil, usagef(cmd, "%v", err)
	}
	out := &rendering{}
	if f.file != "" {
		if out.unit, err = kustomizationOf(f.file, r.Name); err != nil {
			return nil, err
		}
		if offline && f.path != "" {
			if out.unit.Namespace == "" {
				out.unit.Namespace = cmp.Or(a.flags.namespace, "default")
			}
			return out, nil
		}
	}
	if out.cluster, err = a.connect(); err != nil {
		return nil, err
	}
	if out.unit != nil {
		if out.unit.Namespace == "" {
			out.unit.Namespace = out.cluster.namespace
		}
		out.cluster.namespace = out.unit.Namespace
	}
	u, err := out.cluster.of(kustomization, out.cluster.namespace).Get(cmd.Context(), r.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		out.live = object{Unstructured: u, Kind: kustomization}
	case !apierrors.IsNotFound(err):
		return nil, out.cluster.explain("get kustomization/"+out.cluster.namespace+"/"+r.Name, err)
	}
	if out.unit != nil {
		return out, nil
	}
	if out.live.Unstructured == nil {
		return nil, hintf(fmt.Errorf("get kustomization/%s/%s: not found", out.cluster.namespace, r.Name),
			"--kustomization-file names the manifest of one that is not there yet")
	}
	out.unit, err = out.live.kustomization()
	return out, err
}

// kustomizationOf reads a Kustomization from a file of manifests.
func kustomizationOf(file, name string) (*kustomizev1.Kustomization, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read Kustomization: %w", err)
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		u := &unstructured.Unstructured{}
		err := documents.Decode(&u.Object)
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read Kustomization: %s holds no %s called %s", file, kustomization.apiName(), name)
		}
		if err != nil {
			return nil, fmt.Errorf("read Kustomization: %s: %w", file, err)
		}
		if u.GetName() != name || u.GetKind() != kustomization.Name || u.GroupVersionKind().Group != kustomization.Resource.Group {
			continue
		}
		ks := &kustomizev1.Kustomization{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, ks, true); err != nil {
			return nil, fmt.Errorf("read Kustomization: %s: %w", file, err)
		}
		return ks, nil
	}
}

// String names the unit for a person.
func (r *rendering) String() string {
	return "kustomization/" + r.unit.Namespace + "/" + r.unit.Name
}

// build renders the unit from a tree.
func (r *rendering) build(ctx context.Context, t *tree, d kustomize.Decryptor, variables map[string]string, strict bool) (*kustomize.Output, error) {
	unit := r.unit.DeepCopy()
	unit.Spec.Path = t.path
	out, err := kustomize.Build(ctx, kustomize.Input{
		Dir: t.dir, Unit: unit, Revision: t.revision, Variables: variables, Strict: strict, Decrypt: d,
	})
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", r, err)
	}
	return out, nil
}

// variables are those of spec.postBuild: read from the cluster, unless that is nil.
func (r *rendering) variables(ctx context.Context) (map[string]string, error) {
	post := r.unit.Spec.PostBuild
	if post == nil {
		return nil, nil
	}
	out := map[string]string{}
	for _, from := range post.SubstituteFrom {
		if r.cluster == nil {
			break
		}
		data, err := r.cluster.data(ctx, from.Kind, r.unit.Namespace, from.Name)
		if apierrors.IsNotFound(err) && from.Optional {
			continue
		}
		if err != nil {
			return nil, hintf(fmt.Errorf("build %s: spec.postBuild.substituteFrom: %w", r, r.cluster.explain("get "+from.Kind+"/"+from.Name, err)),
				"--dry-run leaves such variables out")
		}
		for name, value := range data {
			out[name] = string(value)
			if from.Kind == "Secret" {
				r.secrets = append(r.secrets, string(value))
			}
		}
	}
	for name, value := range post.Substitute {
		out[name] = value
	}
	return out, nil
}

// data reads the values of a ConfigMap or Secret.
func (c *cluster) data(ctx context.Context, kindName, namespace, name string) (map[string][]byte, error) {
	resource := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	if kindName == "Secret" {
		resource.Resource = "secrets"
	}
	u, err := c.client.Resource(resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	plain, _, _ := unstructured.NestedStringMap(u.Object, "data")
	for key, value := range plain {
		out[key] = []byte(value)
		if kindName != "Secret" {
			continue
		}
		if out[key], err = base64.StdEncoding.DecodeString(value); err != nil {
			return nil, fmt.Errorf("read Secret %s/%s: %s: %w", namespace, name, key, err)
		}
	}
	encoded, _, _ := unstructured.NestedStringMap(u.Object, "binaryData")
	for key, value := range encoded {
		if out[key], err = base64.StdEncoding.DecodeString(value); err != nil {
			return nil, fmt.Errorf("read ConfigMap %s/%s: %s: %w", namespace, name, key, err)
		}
	}
	return out, nil
}

// decryptor decrypts with the keys of the unit, or masks when the user may not read
// them: why then says so. It is nil when the unit decrypts nothing.
func (r *rendering) decryptor(ctx context.Context) (d kustomize.Decryptor, why string, err error) {
	spec := r.unit.Spec.Decryption
	switch {
	case spec == nil:
		return nil, "", nil
	case spec.SecretRef == nil:
		return masking{}, "its keys are Terrace's own", nil
	}
	name := r.unit.Namespace + "/" + spec.SecretRef.Name
	data, err := r.cluster.data(ctx, "Secret", r.unit.Namespace, spec.SecretRef.Name)
	switch {
	case apierrors.IsForbidden(err):
		return masking{}, "you may not read the keys in secret/" + name, nil
	case apierrors.IsNotFound(err):
		return masking{}, "secret/" + name + " with its keys does not exist", nil
	case err != nil:
		return nil, "", fmt.Errorf("build %s: spec.decryption: %w", r, r.cluster.explain("get secret/"+name, err))
	}
	keys, err := sops.NewKeys(name, data)
	if err != nil {
		return nil, "", fmt.Errorf("build %s: spec.decryption: %w", r, err)
	}
	return &recording{Recorder: &sops.Recorder{Decryptor: sops.New(keys, sops.WithoutMAC())}, decrypted: map[string]bool{}}, "", nil
}

// recording remembers also which objects were decrypted, so that nothing of them is shown.
type recording struct {
	*sops.Recorder
	decrypted map[string]bool
}

// Object implements kustomize.Decryptor. A build calls it for one object after the other.
func (r *recording) Object(ctx context.Context, o *unstructured.Unstructured) (bool, error) {
	did, err := r.Recorder.Object(ctx, o)
	if did {
		r.decrypted[subject(o)] = true
	}
	return did, err
}
