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

// claims tells which unit wants which objects in which cluster, so that an object that
// moves from one unit to another in a commit is handed over and not deleted. Before a
// unit prunes, every other unit of the same source has to have looked at the revision.
type claims struct {
	mu    sync.Mutex
	units map[types.NamespacedName]*claim
}

type claim struct {
	source     string
	revision   string // that the unit has looked at last
	generation int64  // of the unit's spec when it did
	target     string // the cluster, as cycle.target has it
	objects    map[kube.ID]bool
	children   []types.NamespacedName // Kustomizations among the objects, if they are units here
	pending    bool                   // has children, which it has not applied yet
	waiting    bool                   // to prune, until others have looked
}

func newClaims() *claims { return &claims{units: map[types.NamespacedName]*claim{}} }

func (c *claims) of(name types.NamespacedName) *claim {
	if c.units[name] == nil {
		c.units[name] = &claim{}
	}
	return c.units[name]
}

// claim notes what a unit wants now.
func (c *claims) claim(name types.NamespacedName, target string, objects []*unstructured.Unstructured) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.of(name)
	u.target, u.objects, u.children = target, map[kube.ID]bool{}, nil
	for _, o := range objects {
		id := kube.IDOf(o)
		u.objects[id] = true
		if target == "" && id.GroupKind.Kind == kustomizev1.KustomizationKind && id.GroupKind.Group == kustomizev1.GroupVersion.Group {
			u.children = append(u.children, types.NamespacedName{Namespace: id.Namespace, Name: id.Name})
		}
	}
	u.pending = len(u.children) > 0
}

// settled notes that what a unit wants is applied: its children have their new specs.
func (c *claims) settled(name types.NamespacedName, wake func(types.NamespacedName)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if u := c.units[name]; u != nil && u.pending {
		u.pending = false
		c.wakeLocked(u.source, wake)
	}
}

// looked notes that a unit with a generation of its spec knows what a revision says to
// it, and wakes those that waited for that.
func (c *claims) looked(name types.NamespacedName, source, revision string, generation int64, wake func(types.NamespacedName)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.of(name)
	if u.source == source && u.revision == revision && u.generation == generation {
		return
	}
	u.source, u.revision, u.generation = source, revision, generation
	c.wakeLocked(source, wake)
}

func (c *claims) wakeLocked(source string, wake func(types.NamespacedName)) {
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
// among those that exist, given with the generations of their specs, and those that
// others are about to create or to change.
func (c *claims) missing(name types.NamespacedName, source, revision string, siblings map[types.NamespacedName]int64) (types.NamespacedName, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wait := func(who types.NamespacedName) (types.NamespacedName, bool) {
		c.of(name).waiting = true
		return who, true
	}
	for s, generation := range siblings {
		if s == name {
			continue
		}
		if u := c.units[s]; u == nil || u.revision != revision || u.source != source || u.generation != generation || u.pending {
			return wait(s)
		}
	}
	for s := range siblings {
		if s == name {
			continue
		}
		for _, child := range c.units[s].children {
			if _, exists := siblings[child]; child != name && !exists && c.units[child] == nil {
				return wait(child)
			}
		}
	}
	return types.NamespacedName{}, false
}

// claims tells whether a unit wants an object of a cluster.
func (c *claims) claims(name types.NamespacedName, target string, id kube.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.units[name]
	return u != nil && u.target == target && u.objects[id]
}

// claimant returns another unit that wants an object of a cluster.
func (c *claims) claimant(name types.NamespacedName, target string, id kube.ID) (types.NamespacedName, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for other, u := range c.units {
		if other != name && u.target == target && u.objects[id] {
			return other, true
		}
	}
	return types.NamespacedName{}, false
}

// sourceOf names a unit's source.
func sourceOf(ks *kustomizev1.Kustomization) string {
	return describe(ks.Spec.SourceRef, sourceNamespace(ks))
}
