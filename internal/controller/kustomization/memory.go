// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/cache"
	"k8s.io/apimachinery/pkg/types"

	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/kube"
	"github.com/terrace-dev/terrace/internal/render/kustomize"
)

// memory is what the controller knows of units between reconciles. Losing it costs a
// build and, with the journal lost as well, a dry-run of each object.
type memory struct {
	mu    sync.Mutex
	units map[types.NamespacedName]*unit
}

// unit is the memory of one Kustomization.
type unit struct {
	mu       sync.Mutex
	uid      types.UID
	restored bool

	// What the last build read, of which artifact it was a build, and what came out.
	artifact string // its digest
	treeKey  string // spec.path and what else decides which files are read
	reads    *kustomize.Reads
	tree     string // reads.Digest of that artifact
	inputs   string // digest of everything that the build depends on
	built    *built

	// verified says in which state each object was last confirmed.
	verified kube.Verified
	// applied are the inputs that were applied wholly, "" if the last try failed.
	applied string
	attempt *attempt
	// begun are objects that may have been applied without being in the inventory yet.
	begun []kube.Key
	dirty bool // verified or applied is not in the journal
	// due is when objects that clean themselves up are looked at again.
	due time.Time
	// healthBegun is when the wait for health began, zero while all are healthy, and
	// healthFailed how it ended if it failed.
	healthBegun  time.Time
	healthFailed string
	pruneWait    time.Time     // since when a prune waits for other units
	held         []kube.Change // objects whose kind is not served
	news         string        // what was changed and not told yet
	approved     *approvedPlan // that is being applied, nil if nobody has to approve
	planned      string        // id of the plan that waits and is in the ledger

	tokens *cache.TokenCache // of spec.decryption.serviceAccountName, nil if it names none
}

// built is what is remembered of a build.
type built struct {
	digest  string
	desired map[kube.Key]string
	ttlJobs map[kube.ID]bool
}

// attempt is the way of one set of inputs to the cluster.
type attempt struct {
	inputs  string
	began   time.Time
	build   *build
	changes map[kube.ID]kube.Change
	held    []kube.Change    // objects whose kind is not served
	drift   bool             // nothing but the cluster has changed
	failed  error            // why the last try failed
	ended   time.Time        // when it did
	intent  *audit.Intent    // in the ledger, nil before anything is written
	told    map[kube.ID]bool // changes that an earlier outcome in the ledger has counted
}

func newMemory() *memory {
	return &memory{units: map[types.NamespacedName]*unit{}}
}

// lock returns the memory of a unit, locked. Another object of the same name starts anew.
func (m *memory) lock(name types.NamespacedName, uid types.UID) *unit {
	m.mu.Lock()
	u := m.units[name]
	if u == nil || u.uid != uid {
		u = &unit{uid: uid, verified: kube.Verified{}}
		m.units[name] = u
	}
	m.mu.Unlock()
	u.mu.Lock()
	return u
}

// gone drops what is remembered of an object that the watch has seen go.
func (m *memory) gone(name types.NamespacedName, uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u := m.units[name]; u != nil && u.uid == uid {
		delete(m.units, name)
	}
}

// journal has a file for each unit. It exists so that an object which was applied is
// in the inventory also when the process dies before the status is written, and so
// that a restart need not ask the API server about each object.
type journal struct{ dir string }

// page is the content of a journal file.
type page struct {
	UID types.UID `json:"uid"`
	// Begun are the objects of an apply that has begun and whose inventory is not in the
	// status yet.
	Begun []kustomizev1.ResourceRef `json:"begun,omitempty"`
	// Applied are the inputs that were applied wholly.
	Applied string `json:"applied,omitempty"`
	// Verified is by the id of the inventory.
	Verified map[string]kube.Pair `json:"verified,omitempty"`
}

func (j journal) file(name types.NamespacedName) string {
	return filepath.Join(j.dir, name.Namespace, name.Name+".json")
}

// read returns the page of a unit, an empty one if there is none. One that cannot be
// understood is taken for lost: it costs requests, and nothing else.
func (j journal) read(name types.NamespacedName) (page, error) {
	content, err := os.ReadFile(j.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return page{}, nil
	}
	if err != nil {
		return page{}, fmt.Errorf("read journal of %s: %w", name, err)
	}
	var p page
	if json.Unmarshal(content, &p) != nil {
		return page{}, nil
	}
	return p, nil
}

// write replaces the page, whole or not at all. With sync it is on the disk when
// write returns.
func (j journal) write(name types.NamespacedName, p page, sync bool) error {
	content, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("write journal of %s: %w", name, err)
	}
	file := j.file(name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("write journal of %s: %w", name, err)
	}
	f, err := os.OpenFile(file+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write journal of %s: %w", name, err)
	}
	_, err = f.Write(content)
	if err == nil && sync {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		return fmt.Errorf("write journal of %s: %w", name, err)
	}
	if sync {
		return syncDir(filepath.Dir(file))
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func (j journal) remove(name types.NamespacedName) error {
	if err := os.Remove(j.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove journal of %s: %w", name, err)
	}
	return nil
}

// restore reads the journal of a unit that this process has not seen yet.
func (c *Controller) restore(cy *cycle) error {
	m := cy.mem
	if m.restored {
		return nil
	}
	p, err := c.journal.read(cy.name)
	if err != nil {
		return err
	}
	if p.UID == m.uid {
		m.applied = p.Applied
		m.begun = keysOf(&kustomizev1.ResourceInventory{Entries: p.Begun})
		for id, pair := range p.Verified {
			if k, err := parseEntry(kustomizev1.ResourceRef{ID: id}); err == nil {
				m.verified[k.ID()] = pair
			}
		}
	}
	m.restored = true
	return nil
}

// begin makes durable which objects an apply is going to touch, before it does. It
// costs nothing when the inventory has all of them.
func (c *Controller) begin(cy *cycle, keys []kube.Key) error {
	m := cy.mem
	fresh := without(union(m.begun, keys), keysOf(cy.ks.Status.Inventory))
	if len(without(fresh, m.begun)) == 0 {
		return nil
	}
	m.begun = fresh
	return c.journal.write(cy.name, c.page(m), true)
}

func (c *Controller) page(m *unit) page {
	p := page{UID: m.uid, Applied: m.applied, Verified: map[string]kube.Pair{}}
	for _, k := range m.begun {
		p.Begun = append(p.Begun, entryOf(k))
	}
	for id, pair := range m.verified {
		p.Verified[id.String()] = pair
	}
	return p
}

// settleJournal drops what the status has by now, and keeps what saves requests.
func (c *Controller) settleJournal(cy *cycle) error {
	m := cy.mem
	left := without(m.begun, keysOf(cy.ks.Status.Inventory))
	if len(left) == len(m.begun) && !m.dirty {
		return nil
	}
	m.begun, m.dirty = left, false
	// Objects that no inventory has must outlast also a loss of power.
	return c.journal.write(cy.name, c.page(m), len(left) > 0)
}
