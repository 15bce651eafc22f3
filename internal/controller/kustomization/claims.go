// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"sync"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/terrace-dev/terrace/internal/kube"
)

// claims tells which unit wants which objects, so that an object that moves from one
// unit to another in a commit is handed over and not deleted. Before a unit prunes,
// every other unit of the same source has to have looked at the revision.
type claims struct {
	mu    sync.Mutex
	units map[types.NamespacedName]*claim
}

type claim struct {
	source   string
	revision string // that the unit has looked at last
	objects  map[kube.ID]bool
	children []types.NamespacedName // Kustomizations among the objects
	waiting  bool                   // to prune, until others have looked
}

func newClaims() *claims { return &claims{units: map[types.NamespacedName]*claim{}} }

func (c *claims) of(name types.NamespacedName) *claim {
	if c.units[name] == nil {
		c.units[name] = &claim{}
	}
	return c.units[name]
}

// claim notes what a unit wants now.
func (c *claims) claim(name types.NamespacedName, objects []*unstructured.Unstructured) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.of(name)
	u.objects, u.children = map[kube.ID]bool{}, nil
	for _, o := range objects {
		id := kube.IDOf(o)
		u.objects[id] = true
		if id.GroupKind.Kind == kustomizev1.KustomizationKind && id.GroupKind.Group == kustomizev1.GroupVersion.Group {
			u.children = append(u.children, types.NamespacedName{Namespace: id.Namespace, Name: id.Name})
		}
	}
}

// looked notes that a unit knows what a revision says to it, and wakes those that
// waited for that.
func (c *claims) looked(name types.NamespacedName, source, revision string, wake func(types.NamespacedName)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.of(name)
	if u.source == source && u.revision == revision {
		return
	}
	u.source, u.revision = source, revision
	for other, o := range c.units {
		if o.waiting && o.source == source {
			o.waiting = false
			wake(other)
		}
	}
}

// withdraw drops what a unit that is gone, or suspended, wanted.
func (c *claims) withdraw(name types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.units, name)
}

// missing returns a unit that has to look at the revision before another may prune,
// among those that exist and those that others are about to create.
func (c *claims) missing(name types.NamespacedName, source, revision string, siblings []types.NamespacedName) (types.NamespacedName, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	exist := map[types.NamespacedName]bool{}
	for _, s := range siblings {
		exist[s] = true
		if s != name && (c.units[s] == nil || c.units[s].revision != revision || c.units[s].source != source) {
			c.of(name).waiting = true
			return s, true
		}
	}
	for _, s := range siblings {
		if s == name {
			continue
		}
		for _, child := range c.units[s].children {
			if child != name && !exist[child] && c.units[child] == nil {
				c.of(name).waiting = true
				return child, true
			}
		}
	}
	return types.NamespacedName{}, false
}

// claims tells whether a unit wants an object.
func (c *claims) claims(name types.NamespacedName, id kube.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.units[name]
	return u != nil && u.objects[id]
}

// claimant returns another unit that wants an object.
func (c *claims) claimant(name types.NamespacedName, id kube.ID) (types.NamespacedName, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for other, u := range c.units {
		if other != name && u.objects[id] {
			return other, true
		}
	}
	return types.NamespacedName{}, false
}

// sourceOf names a unit's source.
func sourceOf(ks *kustomizev1.Kustomization) string {
	return describe(ks.Spec.SourceRef, sourceNamespace(ks))
}
