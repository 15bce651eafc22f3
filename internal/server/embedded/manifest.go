// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/terrace-dev/terrace/internal/controlplane"
)

// defaultNamespace is where an object goes that names none.
const defaultNamespace = "default"

// manifest is one object of a file.
type manifest struct {
	object *unstructured.Unstructured
	// from says where it is written, for errors: the file and the document in it.
	from string
}

// readManifests reads files, and the .yaml, .yml and .json files of directories
// in the order of their names. Anything that is not an object is an error, and
// all errors are reported at once.
func readManifests(paths []string) ([]manifest, error) {
	var all []manifest
	var errs []error
	for _, path := range paths {
		files, err := manifestFiles(path)
		if err != nil {
			errs = append(errs, err)
		}
		for _, file := range files {
			found, err := readFile(file)
			all = append(all, found...)
			if err != nil {
				errs = append(errs, err)
			}
		}
	}
	return all, errors.Join(errs...)
}

func manifestFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	var files []string
	for _, entry := range entries {
		if ending := filepath.Ext(entry.Name()); !entry.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, ending) {
			files = append(files, filepath.Join(path, entry.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("read manifests: %s has no .yaml, .yml or .json file", path)
	}
	return files, nil
}

func readFile(path string) ([]manifest, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	var all []manifest
	var errs []error
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for n := 1; ; n++ {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, errors.Join(errs...)
		}
		from := fmt.Sprintf("%s, document %d", path, n)
		if err != nil {
			return all, errors.Join(append(errs, fmt.Errorf("read %s: %w", from, err))...)
		}
		objects, err := parse(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("read %s: %w", from, err))
		}
		for _, object := range objects {
			all = append(all, manifest{object: object, from: from})
		}
	}
}

// parse reads one document: nothing, an object, or a List of objects.
func parse(text []byte) ([]*unstructured.Unstructured, error) {
	var content map[string]any
	if err := yaml.Unmarshal(text, &content); err != nil {
		return nil, err
	}
	if len(content) == 0 {
		return nil, nil
	}
	object := &unstructured.Unstructured{Object: content}
	if object.GetKind() == "" || object.GetAPIVersion() == "" {
		return nil, errors.New("apiVersion and kind are not both there")
	}
	if !object.IsList() {
		return []*unstructured.Unstructured{object}, checkName(object)
	}
	var items []*unstructured.Unstructured
	err := object.EachListItem(func(item runtime.Object) error {
		u := item.(*unstructured.Unstructured)
		items = append(items, u)
		return checkName(u)
	})
	return items, err
}

func checkName(object *unstructured.Unstructured) error {
	if object.GetName() == "" {
		return fmt.Errorf("%s has no metadata.name", object.GetKind())
	}
	return nil
}

// applier applies objects by server-side apply as field manager terrace.
type applier struct {
	config  *rest.Config
	objects dynamic.Interface
	core    kubernetes.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
	known   map[string]bool // namespaces that are there
}

func newApplier(config *rest.Config) (*applier, error) {
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &applier{
		config: config, objects: objects, core: core, known: map[string]bool{},
		mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(core.Discovery())),
	}, nil
}

// apply applies namespaces and definitions before what needs them, whatever the
// order of the files, and makes namespaces that are only mentioned. One object
// that fails does not keep the others from being applied.
func (a *applier) apply(ctx context.Context, manifests []manifest) error {
	var errs []error
	for stage := range 3 {
		for _, m := range manifests {
			if stageOf(m.object) != stage {
				continue
			}
			if err := a.applyOne(ctx, m.object); err != nil {
				errs = append(errs, fmt.Errorf("apply %s: %s: %w", m.from, describe(m.object), err))
			}
		}
	}
	return errors.Join(errs...)
}

func stageOf(object *unstructured.Unstructured) int {
	switch object.GroupVersionKind().GroupKind() {
	case schema.GroupKind{Kind: "Namespace"}:
		return 0
	case schema.GroupKind{Group: apiextensionsv1.GroupName, Kind: "CustomResourceDefinition"}:
		return 1
	}
	return 2
}

func describe(object *unstructured.Unstructured) string {
	name := object.GetName()
	if object.GetNamespace() != "" {
		name = object.GetNamespace() + "/" + name
	}
	return object.GetKind() + " " + name
}

func (a *applier) applyOne(ctx context.Context, object *unstructured.Unstructured) error {
	if stageOf(object) == 1 {
		return a.define(ctx, object)
	}
	mapping, err := a.mapper.RESTMapping(object.GroupVersionKind().GroupKind(), object.GroupVersionKind().Version)
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("the API has no kind %s of %s", object.GetKind(), object.GetAPIVersion())
	}
	if err != nil {
		return err
	}
	var client dynamic.ResourceInterface = a.objects.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		if object.GetNamespace() == "" {
			object.SetNamespace(defaultNamespace)
		}
		if err := a.ensureNamespace(ctx, object.GetNamespace()); err != nil {
			return err
		}
		client = a.objects.Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	// What a manifest from another cluster may carry, and what the API would refuse.
	object.SetManagedFields(nil)
	object.SetResourceVersion("")
	object.SetUID("")
	_, err = client.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: controlplane.FieldManager, Force: true})
	return err
}

// define installs a definition and waits until objects of it can be applied.
func (a *applier) define(ctx context.Context, object *unstructured.Unstructured) error {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if object.GroupVersionKind().Version != apiextensionsv1.SchemeGroupVersion.Version {
		return fmt.Errorf("the API has no kind %s of %s", object.GetKind(), object.GetAPIVersion())
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, crd, true); err != nil {
		return err
	}
	if err := controlplane.InstallCRDs(ctx, a.config, []*apiextensionsv1.CustomResourceDefinition{crd}); err != nil {
		return err
	}
	a.mapper.Reset()
	return nil
}

func (a *applier) ensureNamespace(ctx context.Context, name string) error {
	if a.known[name] {
		return nil
	}
	_, err := a.core.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = a.objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Apply(ctx, name,
			&unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}}},
			metav1.ApplyOptions{FieldManager: controlplane.FieldManager, Force: true})
	}
	if err != nil {
		return fmt.Errorf("make namespace %s: %w", name, err)
	}
	a.known[name] = true
	return nil
}

// trimmed returns the first line of a message; the API puts several into some.
func trimmed(message string) string {
	first, _, _ := strings.Cut(message, "\n")
	return first
}
