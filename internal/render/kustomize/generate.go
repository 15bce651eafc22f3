// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomize

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxkustomize "github.com/fluxcd/pkg/apis/kustomize"
	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/provider"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/yaml"
)

// generated is the kustomization file of a unit.
type generated struct {
	dir     string   // of the unit, links resolved
	file    string   // name of the kustomization file
	scanned []string // manifests found by a scan, nil if the tree has a kustomization file
}

// generate puts the unit's kustomization file into the overlay: the one of the
// tree or, if there is none, one that lists the manifests below dir; amended by
// the unit's spec.
func (t *tree) generate(dir string, unit *kustomizev1.Kustomization) (generated, error) {
	g := generated{dir: dir}
	var k types.Kustomization
	for _, base := range konfig.RecognizedKustomizationFileNames() {
		name := path.Join(dir, base)
		e, err := t.kind(name)
		if err != nil || e.mode.IsDir() {
			continue
		}
		content, err := t.source(name)
		if err != nil {
			return g, err
		}
		if err := yaml.Unmarshal(content, &k); err != nil {
			return g, fmt.Errorf("parse %s: %w", name, err)
		}
		g.file = name
		break
	}
	if g.file == "" {
		g.file = path.Join(dir, konfig.DefaultKustomizationFileName())
		found, err := t.scan(dir)
		if err != nil {
			return g, fmt.Errorf("scan %s for manifests: %w", dir, err)
		}
		g.scanned = found
		for _, name := range found {
			k.Resources = append(k.Resources, "./"+strings.TrimPrefix(name, prefixOf(dir)))
		}
		if len(found) == 0 {
			// Kustomize refuses a file that says nothing.
			k.Namespace = "_placeholder"
		}
	} else if len(k.Resources) == 0 {
		k.BuildMetadata = []string{types.OriginAnnotations}
	}
	if k.APIVersion == "" {
		k.APIVersion = types.KustomizationVersion
	}
	if k.Kind == "" {
		k.Kind = types.KustomizationKind
	}
	if err := t.amend(&k, dir, unit); err != nil {
		return g, err
	}
	content, err := yaml.Marshal(k)
	if err != nil {
		return g, fmt.Errorf("write %s: %w", g.file, err)
	}
	t.overlay[g.file] = content
	return g, nil
}

// prefixOf returns what the names below dir begin with.
func prefixOf(dir string) string {
	if dir == "." {
		return ""
	}
	return dir + "/"
}

// amend adds the unit's spec to its kustomization file.
func (t *tree) amend(k *types.Kustomization, dir string, unit *kustomizev1.Kustomization) error {
	spec := unit.Spec
	if spec.TargetNamespace != "" {
		k.Namespace = spec.TargetNamespace
	}
	if spec.NamePrefix != "" {
		k.NamePrefix = spec.NamePrefix
	}
	if spec.NameSuffix != "" {
		k.NameSuffix = spec.NameSuffix
	}
	for _, p := range spec.Patches {
		k.Patches = append(k.Patches, types.Patch{Patch: p.Patch, Target: selector(p.Target)})
	}
	for _, c := range spec.Components {
		if path.IsAbs(c) || isRemote(c) {
			return fmt.Errorf("component path '%s' must be local and relative", c)
		}
		if spec.IgnoreMissingComponents {
			if _, err := t.kind(path.Join(dir, c)); err != nil {
				continue
			}
		}
		k.Components = append(k.Components, c)
	}
	k.Images = mergeImages(k.Images, spec.Images)
	if len(spec.BuildMetadata) > 0 {
		k.BuildMetadata = nil
		for _, m := range spec.BuildMetadata {
			k.BuildMetadata = append(k.BuildMetadata, string(m))
		}
	}
	return nil
}

func selector(s *fluxkustomize.Selector) *types.Selector {
	if s == nil {
		return nil
	}
	out := &types.Selector{LabelSelector: s.LabelSelector, AnnotationSelector: s.AnnotationSelector}
	out.Group, out.Version, out.Kind = s.Group, s.Version, s.Kind
	out.Name, out.Namespace = s.Name, s.Namespace
	return out
}

// mergeImages lets the unit's images replace single fields of the file's. Tag
// and digest both name the version, so that one replaces both.
func mergeImages(images []types.Image, more []fluxkustomize.Image) []types.Image {
	for _, m := range more {
		i := slices.IndexFunc(images, func(x types.Image) bool { return x.Name == m.Name })
		if i < 0 {
			images = append(images, types.Image{Name: m.Name, NewName: m.NewName, NewTag: m.NewTag, Digest: m.Digest})
			continue
		}
		if m.NewName != "" {
			images[i].NewName = m.NewName
		}
		if m.NewTag != "" || m.Digest != "" {
			images[i].NewTag, images[i].Digest = m.NewTag, m.Digest
		}
	}
	return images
}

// scan returns the manifests below dir, in the order of a walk: YAML files, and
// directories that have a kustomization file, which are not looked into.
func (t *tree) scan(dir string) ([]string, error) {
	members, err := t.manifests(dir)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, m := range members {
		name := path.Join(dir, m.name)
		switch {
		case m.dir:
			if t.hasKustomization(name) {
				found = append(found, name)
				continue
			}
			below, err := t.scan(name)
			if err != nil {
				return nil, err
			}
			found = append(found, below...)
		case isManifest(m.name):
			found = append(found, name)
		}
		if len(found) > maxObjects {
			return nil, fmt.Errorf("more than %d manifests; name the path of one application", maxObjects)
		}
	}
	return found, nil
}

func (t *tree) hasKustomization(dir string) bool {
	for _, base := range konfig.RecognizedKustomizationFileNames() {
		if e, err := t.kind(path.Join(dir, base)); err == nil && !e.mode.IsDir() {
			return true
		}
	}
	return false
}

// explain finds the manifest of a scan that made a build fail: kustomize's own
// error speaks of directories. It returns err if it finds none.
func (t *tree) explain(g generated, err error) error {
	for _, name := range g.scanned {
		content, readErr := t.ReadFile(at(name))
		if readErr != nil {
			continue // a directory, or a file that the error names
		}
		if parseErr := checkManifest(content); parseErr != nil {
			return fmt.Errorf("failed to decode Kubernetes YAML from %s: %w. The path %s has no kustomization.yaml, so every YAML file below it must be a manifest; add a kustomization.yaml that lists the manifests, or move the file",
				name, parseErr, g.dir)
		}
	}
	return err
}

// checkManifest parses a manifest as kustomize does.
func checkManifest(content []byte) (err error) {
	// The parser is known to panic on some documents.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("recovered from a panic of the parser: %v", r)
		}
	}()
	_, err = provider.NewDefaultDepProvider().GetResourceFactory().SliceFromBytes(content)
	return err
}

// ErrPathNotFound is part of the error for a spec.path that the artifact does
// not have.
var ErrPathNotFound = errors.New("kustomization path not found")

// directory returns the unit's directory in the tree, links resolved. As in
// Flux, a path cannot climb above the artifact: "../x" is "x".
func (t *tree) directory(specPath string) (string, error) {
	name := strings.TrimPrefix(path.Clean("/"+specPath), "/")
	if name == "" {
		name = "."
	}
	e, err := t.kind(name)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrPathNotFound, err)
	}
	if !e.mode.IsDir() {
		return "", fmt.Errorf("%w: %s is not a directory", ErrPathNotFound, name)
	}
	return e.name, nil
}
