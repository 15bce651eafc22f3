// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"cmp"
	"slices"

	"github.com/fluxcd/cli-utils/pkg/object"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/terrace-dev/terrace/internal/kube"
)

// entryOf writes an object as Flux's inventories have it.
func entryOf(k kube.Key) kustomizev1.ResourceRef {
	return kustomizev1.ResourceRef{ID: k.ID().String(), Version: k.Kind.Version}
}

func parseEntry(e kustomizev1.ResourceRef) (kube.Key, error) {
	id, err := object.ParseObjMetadata(e.ID)
	if err != nil {
		return kube.Key{}, err
	}
	kind := schema.GroupVersionKind{Group: id.GroupKind.Group, Version: e.Version, Kind: id.GroupKind.Kind}
	return kube.Key{Kind: kind, Namespace: id.Namespace, Name: id.Name}, nil
}

// inventoryOf lists objects, each once, in the order in which they are applied. Nil
// for none, which is how an empty inventory is told from one that was never written.
func inventoryOf(keys []kube.Key) *kustomizev1.ResourceInventory {
	inventory := &kustomizev1.ResourceInventory{Entries: []kustomizev1.ResourceRef{}}
	seen := map[kube.ID]bool{}
	sorted := kube.Keys(keys)
	slices.Reverse(sorted)
	for _, k := range sorted {
		if !seen[k.ID()] {
			seen[k.ID()] = true
			inventory.Entries = append(inventory.Entries, entryOf(k))
		}
	}
	return inventory
}

// union joins lists of objects; the version of the first that has an object counts.
func union(lists ...[]kube.Key) []kube.Key {
	var out []kube.Key
	seen := map[kube.ID]bool{}
	for _, list := range lists {
		for _, k := range list {
			if !seen[k.ID()] {
				seen[k.ID()] = true
				out = append(out, k)
			}
		}
	}
	return out
}

// without returns the objects of a that are not in b, whatever their version.
func without(a, b []kube.Key) []kube.Key {
	in := map[kube.ID]bool{}
	for _, k := range b {
		in[k.ID()] = true
	}
	return slices.DeleteFunc(slices.Clone(a), func(k kube.Key) bool { return in[k.ID()] })
}

func compareKeys(a, b kube.Key) int {
	return cmp.Or(cmp.Compare(a.Kind.Kind, b.Kind.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind.Group, b.Kind.Group))
}
