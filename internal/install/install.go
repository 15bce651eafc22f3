// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package install holds what Terrace needs on an existing cluster: the kinds,
// the permissions, and the Deployment that runs `terrace controller`. It makes
// the objects as values; who applies or prints them is elsewhere. It reads only
// files that are embedded in the binary, and asks an API server only what it serves.
package install

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"text/template"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/terrace-dev/terrace/api/crds"
)

// Names of what is installed, by which clients find it.
const (
	// Namespace is where the Deployment runs.
	Namespace = "terrace-system"
	// ServiceName is the Service of its HTTP server; its port is called "http".
	ServiceName = "terrace"
	// StateServiceName is the Service of the state service; its port is called "https".
	StateServiceName = "terrace-state"
	// TokenSecretName is the Secret in Namespace whose key "token" a client has
	// to show to that server. The server makes it. Who may read it may read the
	// plans and run logs of every namespace.
	TokenSecretName = "terrace-server-token"
)

// Options are what differs between installations.
type Options struct {
	// Image is the container image of the Deployment; it must not be empty.
	Image string
	// Version is the value of the label app.kubernetes.io/version; empty leaves it out.
	Version string
	// StorageSize is the size of the volume of the data directory, as a
	// Kubernetes quantity; empty means 10Gi.
	StorageSize string
}

//go:embed manifests/*.yaml
var manifests embed.FS

// Objects returns everything to install, in an order in which it can be
// applied: kinds first, then rules of admission, the namespace, permissions, and what runs.
func Objects(o Options) ([]*unstructured.Unstructured, error) {
	if o.Image == "" {
		return nil, errors.New("make installation: no image is named")
	}
	if o.StorageSize == "" {
		o.StorageSize = "10Gi"
	}
	out, err := Kinds()
	if err != nil {
		return nil, err
	}
	for _, file := range []string{"admission.yaml", "rbac.yaml", "deployment.yaml"} {
		objects, err := read(file, o)
		if err != nil {
			return nil, fmt.Errorf("make installation: %s: %w", file, err)
		}
		out = append(out, objects...)
	}
	return out, nil
}

// Admission returns the rules of admission alone: what the API server refuses of the kinds.
func Admission() ([]*unstructured.Unstructured, error) {
	out, err := read("admission.yaml", Options{})
	if err != nil {
		return nil, fmt.Errorf("make installation: admission.yaml: %w", err)
	}
	return out, nil
}

// Kinds returns the CustomResourceDefinitions alone.
func Kinds() ([]*unstructured.Unstructured, error) {
	all, err := crds.All()
	if err != nil {
		return nil, fmt.Errorf("make installation: kinds: %w", err)
	}
	var out []*unstructured.Unstructured
	for _, crd := range all {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd)
		if err != nil {
			return nil, fmt.Errorf("make installation: kind %s: %w", crd.Name, err)
		}
		u := &unstructured.Unstructured{Object: fields}
		u.SetAPIVersion("apiextensions.k8s.io/v1")
		u.SetKind("CustomResourceDefinition")
		unstructured.RemoveNestedField(u.Object, "status")
		unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
		out = append(out, u)
	}
	return out, nil
}

// read renders an embedded file and splits it into its documents.
func read(file string, o Options) ([]*unstructured.Unstructured, error) {
	t, err := template.New(file).Option("missingkey=error").ParseFS(manifests, "manifests/"+file)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := t.Execute(&text, struct {
		Options
		Namespace, ServiceName, StateServiceName string
	}{o, Namespace, ServiceName, StateServiceName}); err != nil {
		return nil, err
	}
	var out []*unstructured.Unstructured
	documents := yaml.NewYAMLOrJSONDecoder(&text, 4096)
	for {
		u := &unstructured.Unstructured{}
		err := documents.Decode(&u.Object)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if len(u.Object) > 0 {
			out = append(out, u)
		}
	}
}
