// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/terrace-dev/terrace/internal/kube"
)

func TestJournal(t *testing.T) {
	j := journal{t.TempDir()}
	name := unitName("a")
	if p, err := j.read(name); err != nil || !reflect.DeepEqual(p, page{}) {
		t.Errorf("a unit without a page: %v %v", p, err)
	}
	want := page{
		UID: "u", Applied: "in", Begun: []kustomizev1.ResourceRef{entryOf(key("ConfigMap", "x"))},
		Verified: map[string]kube.Pair{key("ConfigMap", "x").ID().String(): {Desired: "d", Content: "c"}},
	}
	for _, sync := range []bool{true, false} {
		if err := j.write(name, want, sync); err != nil {
			t.Fatal(err)
		}
		if got, err := j.read(name); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("read back, synced %v: %v %v", sync, got, err)
		}
	}
	left, err := os.ReadDir(filepath.Dir(j.file(name)))
	if err != nil || len(left) != 1 {
		t.Errorf("files %v %v, want one", left, err)
	}
	info, err := os.Stat(j.file(name))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v %v: others can read it", info.Mode(), err)
	}
	if err := os.Truncate(j.file(name), 20); err != nil {
		t.Fatal(err)
	}
	if got, err := j.read(name); err != nil || !reflect.DeepEqual(got, page{}) {
		t.Errorf("a torn page: %v %v, want an empty one", got, err)
	}
	for range 2 {
		if err := j.remove(name); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	if err := os.MkdirAll(j.file(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := j.read(name); err == nil {
		t.Error("a page that cannot be read is taken for none")
	}
	if err := j.write(name, want, true); err == nil {
		t.Error("a page that cannot be written was written")
	}
}

func TestRestore(t *testing.T) {
	x := kube.Key{Kind: key("rbac.authorization.k8s.io/ClusterRole", "").Kind, Name: "system:x"}
	for name, tc := range map[string]struct {
		reason   string
		uid      types.UID
		restores bool
	}{
		"same":  {"the process was started anew", "u", true},
		"other": {"another object of the same name has its own history", "v", false},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Controller{journal: journal{t.TempDir()}, memory: newMemory()}
			first := &cycle{ks: &kustomizev1.Kustomization{}, name: unitName("a"), mem: &unit{uid: "u", applied: "in", verified: kube.Verified{x.ID(): {Desired: "d", Content: "c"}}}}
			if err := c.begin(first, []kube.Key{x}); err != nil {
				t.Fatal(err)
			}
			mem := c.memory.lock(unitName("a"), tc.uid)
			if err := c.restore(&cycle{name: unitName("a"), mem: mem}); err != nil {
				t.Fatal(err)
			}
			if got := mem.applied == "in" && names(mem.begun) == "system:x@v1" && mem.verified[x.ID()].Content == "c"; got != tc.restores {
				t.Errorf("%s: restored %v, %v, %v", tc.reason, mem.applied, mem.begun, mem.verified)
			}
			if !mem.restored || !tc.restores && (mem.applied != "" || len(mem.begun)+len(mem.verified) != 0) {
				t.Errorf("%s: has %v, %v, %v", tc.reason, mem.applied, mem.begun, mem.verified)
			}
		})
	}
}

// TestBegin writes what is begun before it is, once, and drops what the inventory has.
func TestBegin(t *testing.T) {
	x, y := key("ConfigMap", "x"), key("ConfigMap", "y")
	c := &Controller{journal: journal{t.TempDir()}}
	cy := &cycle{ks: &kustomizev1.Kustomization{}, name: unitName("a"), mem: &unit{uid: "u"}}
	written := func(step, want string) {
		t.Helper()
		p, err := c.journal.read(cy.name)
		if got := names(keysOf(&kustomizev1.ResourceInventory{Entries: p.Begun})); err != nil || got != want {
			t.Errorf("%s: the journal has %q %v, want %q", step, got, err, want)
		}
	}
	cy.ks.Status.Inventory = inventoryOf([]kube.Key{x})
	if err := c.begin(cy, []kube.Key{x}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(c.journal.file(cy.name)); err == nil {
		t.Error("what the inventory has was written")
	}
	if err := c.begin(cy, []kube.Key{x, y}); err != nil {
		t.Fatal(err)
	}
	written("a new object", "y@v1")
	if err := c.settleJournal(cy); err != nil {
		t.Fatal(err)
	}
	written("the status does not have it yet", "y@v1")
	cy.ks.Status.Inventory = inventoryOf([]kube.Key{x, y})
	if err := c.settleJournal(cy); err != nil {
		t.Fatal(err)
	}
	written("the status has it", "")
	cy.mem.begun = []kube.Key{x, y}
	c.letGo(cy, []kube.Key{y})
	if names(cy.mem.begun) != "x@v1" || !cy.mem.dirty {
		t.Errorf("begun %s, dirty %v", names(cy.mem.begun), cy.mem.dirty)
	}
	cy.mem.dirty = false
	if c.letGo(cy, []kube.Key{y}); cy.mem.dirty {
		t.Error("the journal is written for nothing")
	}
}

func TestMemory(t *testing.T) {
	m, name := newMemory(), unitName("a")
	first := m.lock(name, "u")
	first.applied = "in"
	first.mu.Unlock()
	if again := m.lock(name, "u"); again != first {
		t.Error("it was forgotten")
	} else {
		again.mu.Unlock()
	}
	m.gone(name, "u")
	if len(m.units) != 0 {
		t.Errorf("units %v", m.units)
	}
	m.lock(name, "v").mu.Unlock()
	if m.gone(name, "u"); len(m.units) != 1 {
		t.Error("its successor was forgotten")
	}
	if m.gone(name, "v"); len(m.units) != 0 {
		t.Error("one that went without its finalizer is remembered")
	}
}
