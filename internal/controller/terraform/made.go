// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"
	corev1 "k8s.io/api/core/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/durable"
	"github.com/terrace-dev/terrace/internal/run"
	"github.com/terrace-dev/terrace/internal/status"
	"github.com/terrace-dev/terrace/internal/tofu"
	"github.com/terrace-dev/terrace/internal/tofu/workdir"
)

// An apply writes its state every 20 seconds and at its end. One that is killed between
// leaves resources that no state knows, and the next plan would make them a second time.
// What it printed says which: that is kept before the run's directory is cleared, and the
// unit's next plan imports them. It is kept until the state knows them.

// madeFile has, encrypted, what a killed apply of the unit has made.
const madeFile = "made.sealed"

func madePath(dir *workdir.Dir) string { return filepath.Join(dir.Path(), madeFile) }

// keepMade keeps what killed applies have made. It is called before the directory is
// scrubbed, when none of their processes lives.
func (c *Controller) keepMade(u run.Unit, dir *workdir.Dir) error {
	made, err := tofu.MadeIn(dir.Tmp())
	if err != nil || len(made) == 0 {
		return err
	}
	before, err := c.readMade(u, dir)
	if err != nil {
		return err
	}
	return c.writeMade(u, dir, append(before, made...))
}

func (c *Controller) readMade(u run.Unit, dir *workdir.Dir) ([]tofu.Made, error) {
	sealed, err := os.ReadFile(madePath(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	content, err := c.unseal(u, madeFile, sealed)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", madeFile, err)
	}
	var made []tofu.Made
	if err := json.Unmarshal(content, &made); err != nil {
		return nil, fmt.Errorf("%s: %w", madeFile, err)
	}
	return made, nil
}

// writeMade replaces what is kept; none removes it.
func (c *Controller) writeMade(u run.Unit, dir *workdir.Dir, made []tofu.Made) error {
	if len(made) == 0 {
		err := os.Remove(madePath(dir))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	content, err := json.Marshal(made)
	if err != nil {
		return err
	}
	sealed, err := c.seal(u, madeFile, content)
	if err != nil {
		return err
	}
	return durable.Replace(madePath(dir), sealed)
}

// recovery is what becomes of a resource that a killed apply has made, without secrets.
type recovery struct {
	address, id string
	why         string // it is not imported; "" when it is
}

// hasMade tells that something is to be recovered, for which the state has to be written.
func (s *session) hasMade() bool {
	_, err := os.Stat(madePath(s.dir))
	return err == nil
}

// lookForMade finds out what a killed apply has made that the state does not know.
func (s *session) lookForMade(ctx context.Context) error {
	if !s.hasMade() {
		return nil
	}
	made, err := s.c.readMade(s.job.unit, s.dir)
	if err != nil {
		return s.notRecovered(err)
	}
	s.run.Step("recover", initTimeout)
	st, err := s.ShowState(ctx)
	if err != nil {
		return s.notRecovered(err)
	}
	known := idsOf(st)
	for _, m := range made {
		id, there := known[m.Address]
		switch {
		case there && (id == m.ID || m.ID == ""):
		case m.ID == "":
			s.orphan(m, errors.New("the tool printed no id of it"))
		case there && !m.Replaced:
			s.orphan(m, errors.New("the state has the one before, which was to be destroyed after it"))
		case there:
			if err := s.forgetReplaced(ctx, m); err != nil {
				return s.notRecovered(err)
			}
			s.missing = append(s.missing, m)
		default:
			s.missing = append(s.missing, m)
		}
	}
	return s.keepMissing()
}

func (s *session) notRecovered(err error) error {
	return status.Failf(infra.ReasonInitFailed, "look for what the apply has made that was killed: %w", err)
}

// keepMissing keeps what is still to be recovered, and not what was told of.
func (s *session) keepMissing() error {
	if err := s.c.writeMade(s.job.unit, s.dir, s.missing); err != nil {
		return s.notRecovered(err)
	}
	return nil
}

// orphan notes a resource that has to be looked after by a person.
func (s *session) orphan(m tofu.Made, why error) {
	r := recovery{address: s.job.mask.String(m.Address), id: s.job.mask.String(m.ID), why: s.job.mask.String(why.Error())}
	fmt.Fprintf(s.run.Output(run.Own), "terrace: %s (id %q), which an apply has made that was killed, is not imported: %s\n", r.address, r.id, r.why)
	s.recovered = append(s.recovered, r)
}

// forgetReplaced takes the resource out of the state that the killed apply has destroyed
// before it made the one that is missing.
func (s *session) forgetReplaced(ctx context.Context, m tofu.Made) error {
	entry := audit.Entry{
		Actor: audit.Itself, Action: "state-rm", Unit: s.job.unit.String(), Revision: s.job.revision,
		Detail: s.job.mask.String(m.Address) + ", which an apply has replaced that was killed",
	}
	return s.c.recorded(ctx, s.run, entry, func() error {
		return s.StateRm(ctx, m.Address, tofu.StateRmOptions{LockTimeout: lockTimeout(s.job.tf)})
	})
}

// planImports makes the plan that comes import what is missing, so that people see it there.
// What cannot be imported is found by trying.
func (s *session) planImports(ctx context.Context, opts tofu.PlanOptions) error {
	if len(s.missing) == 0 {
		return nil
	}
	opts.Out, opts.JSONInto = filepath.Join(s.Tmp, "tried"), ""
	try := func(made []tofu.Made, targets ...string) error {
		if err := s.writeImports(made); err != nil {
			return err
		}
		o := opts
		o.Targets = append(slices.Clip(o.Targets), targets...)
		_, err := s.Plan(ctx, o)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	if err := try(s.missing); err != nil {
		if err := try(nil); err != nil {
			return err // it is not for the imports that it fails
		}
		var good []tofu.Made
		for _, m := range s.missing {
			if err := try([]tofu.Made{m}, m.Address); err != nil {
				s.orphan(m, err)
				continue
			}
			good = append(good, m)
		}
		s.missing = good
		if err := s.keepMissing(); err != nil {
			return err
		}
	}
	for _, m := range s.missing {
		s.recovered = append(s.recovered, recovery{address: s.job.mask.String(m.Address), id: s.job.mask.String(m.ID)})
	}
	return s.writeImports(s.missing)
}

// importsFile has import blocks in the module's directory.
const importsFile = "terrace_recovered.tf"

func (s *session) writeImports(made []tofu.Made) error {
	var hcl []byte
	for _, m := range made {
		block, err := m.ImportBlock()
		if err != nil {
			return err
		}
		hcl = append(hcl, block...)
	}
	return s.dir.Generate(s.job.reach, importsFile, hcl)
}

// importMade imports what is missing at once, before all is destroyed: such a plan does not
// look at import blocks. One import may need what another brings, so all are tried again
// as long as one succeeds.
func (s *session) importMade(ctx context.Context) error {
	for len(s.missing) > 0 {
		var left []tofu.Made
		var errs []error
		for _, m := range s.missing {
			err := s.importOne(ctx, m)
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			if err != nil {
				left, errs = append(left, m), append(errs, err)
				continue
			}
			s.recovered = append(s.recovered, recovery{address: s.job.mask.String(m.Address), id: s.job.mask.String(m.ID)})
		}
		if len(left) == len(s.missing) {
			for i, m := range left {
				s.orphan(m, errs[i])
			}
			left = nil
		}
		s.missing = left
	}
	return s.keepMissing()
}

func (s *session) importOne(ctx context.Context, m tofu.Made) error {
	entry := audit.Entry{
		Actor: audit.Itself, Action: audit.Import, Unit: s.job.unit.String(), Revision: s.job.revision,
		Detail: s.job.mask.String(m.Address) + ", which an apply has made that was killed",
	}
	return s.c.recorded(ctx, s.run, entry, func() error {
		return s.Import(ctx, tofu.ImportOptions{Address: m.Address, ID: m.ID, LockTimeout: lockTimeout(s.job.tf)})
	})
}

// idsOf are the ids of the resources of a state, by their addresses.
func idsOf(st *tfjson.State) map[string]string {
	ids := map[string]string{}
	if st == nil || st.Values == nil {
		return ids
	}
	var walk func(*tfjson.StateModule)
	walk = func(m *tfjson.StateModule) {
		if m == nil {
			return
		}
		for _, r := range m.Resources {
			id, _ := r.AttributeValues["id"].(string)
			if r.DeposedKey == "" {
				ids[r.Address] = id
			}
		}
		for _, child := range m.ChildModules {
			walk(child)
		}
	}
	walk(st.Values.RootModule)
	return ids
}

// tellRecovered makes events of what becomes of what a killed apply has made.
func tellRecovered(cy *cycle, recovered []recovery) {
	var taken []string
	for _, r := range recovered {
		if r.why == "" {
			taken = append(taken, r.address)
			continue
		}
		cy.event(corev1.EventTypeWarning, infra.ReasonOrphaned, fmt.Sprintf(
			"an apply that was killed has made %s (id %q), which the state does not know and which is not imported: %s; if it is of no use, remove it by hand",
			r.address, r.id, r.why))
	}
	if len(taken) > 0 {
		cy.event(corev1.EventTypeNormal, infra.ReasonRecovered, "an apply that was killed has made what the state does not know; it is imported: "+strings.Join(taken, ", "))
	}
}
