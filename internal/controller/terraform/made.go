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

	corev1 "k8s.io/api/core/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/durable"
	"github.com/terrace-dev/terrace/internal/run"
	"github.com/terrace-dev/terrace/internal/status"
	"github.com/terrace-dev/terrace/internal/tofu"
	"github.com/terrace-dev/terrace/internal/tofu/address"
	"github.com/terrace-dev/terrace/internal/tofu/workdir"
)

// An apply writes its state every 20 seconds and at its end. One that is killed between
// leaves resources that no state knows, and the next plan would make them a second time.
// What it printed says which: that is kept before the run's directory is cleared, and the
// unit's next plan imports them. It is kept until the state knows them, or until it was told
// that they cannot be imported.

// madeFile has, encrypted, what killed applies of the unit have made.
const madeFile = "made.sealed"

// made is a resource that a killed apply has made.
type made struct {
	tofu.Made
	// Failed tells that an import of it has failed once: it is tried in two runs, because what
	// is in the way may be gone by then.
	Failed bool `json:",omitempty"`
	// Applied tells that a plan that imports it was applied, and the tool ended by itself: what
	// the state has at the address by now came after it.
	Applied bool `json:",omitempty"`
	// Why it is not imported, without secrets; it is kept until that was told.
	Why string `json:",omitempty"`

	imported bool // at once: the state knows it, and it is not kept
}

// byKilled describes such a resource in texts.
const byKilled = "which an apply has made that was killed"

func (c *Controller) madePath(u run.Unit) string { return filepath.Join(c.unitDir(u), madeFile) }

// keepMade keeps what killed applies have made. It is called before the directory is
// scrubbed, when none of their processes lives, and does no harm when it is called again.
func (c *Controller) keepMade(u run.Unit, dir *workdir.Dir) error {
	found, err := tofu.MadeIn(dir.Tmp())
	if err != nil || len(found) == 0 {
		return err
	}
	return c.changeMade(u, func(kept []made) []made {
		for _, m := range found {
			// Of what was made at an address the last counts.
			kept = slices.DeleteFunc(kept, func(k made) bool { return k.Address == m.Address })
			kept = append(kept, made{Made: m})
		}
		return kept
	})
}

// changeMade replaces what is kept by what f makes of it.
func (c *Controller) changeMade(u run.Unit, f func([]made) []made) error {
	c.madeLock.Lock()
	defer c.madeLock.Unlock()
	kept, err := c.readMade(u)
	if err != nil {
		return err
	}
	kept = f(kept)
	if len(kept) == 0 {
		err := os.Remove(c.madePath(u))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	content, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	sealed, err := c.seal(u, madeFile, content)
	if err != nil {
		return err
	}
	return durable.Replace(c.madePath(u), sealed)
}

// readMade returns what is kept. A file that the data directory's key does not open any more
// is put aside: it must not hold the unit up for ever, and says so as one that is orphaned.
func (c *Controller) readMade(u run.Unit) ([]made, error) {
	sealed, err := os.ReadFile(c.madePath(u))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var kept []made
	content, err := c.unseal(u, madeFile, sealed)
	if err == nil {
		err = json.Unmarshal(content, &kept)
	}
	if err == nil {
		return kept, nil
	}
	aside := c.madePath(u) + ".unreadable"
	if err := durable.Replace(aside, sealed); err != nil {
		return nil, err
	}
	return []made{{Made: tofu.Made{Address: "something"}, Why: "the record of it, kept as " + filepath.Base(aside) + ", cannot be decrypted"}}, nil
}

// hasMade tells that something is to be recovered, for which the state has to be written.
func (c *Controller) hasMade(u run.Unit) bool {
	_, err := os.Stat(c.madePath(u))
	return err == nil
}

// recoverMade has what killed applies have made imported: by the plan that comes, or at once
// if that is to destroy all. It returns what is to be told of it.
func (s *session) recoverMade(ctx context.Context, opts tofu.PlanOptions) ([]recovery, error) {
	if err := s.lookForMade(ctx); err != nil {
		return nil, err
	}
	var err error
	if opts.Destroy {
		err = s.importMade(ctx)
	} else {
		err = s.planImports(ctx, opts)
	}
	return s.recovered(), err
}

// lookForMade finds out what killed applies have made that the state does not know.
func (s *session) lookForMade(ctx context.Context) error {
	if !s.c.hasMade(s.job.unit) {
		return nil
	}
	kept, err := s.c.readMade(s.job.unit)
	if err != nil {
		return s.notRecovered(err)
	}
	st, err := s.state(ctx)
	if err == nil && st == nil {
		err = errors.New("the state is of a format that is not known")
	}
	if err != nil {
		return s.notRecovered(err)
	}
	s.run.Step("recover", initTimeout)
	for _, m := range kept {
		at, err := address.Parse(m.Address)
		id := st.at(at)
		switch {
		case m.Why != "":
		case err != nil:
			s.orphan(&m, err.Error())
		case id != nil && (*id == m.ID || m.ID == "" || m.Applied):
			continue
		case m.ID == "":
			s.orphan(&m, "the tool printed no id of it")
		case id != nil && m.Replaced != "" && *id == m.Replaced:
			if err := s.forgetReplaced(ctx, m); err != nil {
				return s.notRecovered(err)
			}
		case id != nil:
			s.orphan(&m, "the state has another object there")
		}
		s.made = append(s.made, m)
	}
	return s.storeMade()
}

func (s *session) notRecovered(err error) error {
	return status.Failf(infra.ReasonInitFailed, "look for what an apply has made that was killed: %w", err)
}

// storeMade keeps what is to be recovered, and what is to be told of.
func (s *session) storeMade() error {
	left := slices.DeleteFunc(slices.Clone(s.made), func(m made) bool { return m.imported })
	if err := s.c.changeMade(s.job.unit, func([]made) []made { return left }); err != nil {
		return s.notRecovered(err)
	}
	return nil
}

// missing are the resources that are to be imported.
func (s *session) missing() []*made {
	var list []*made
	for i := range s.made {
		if s.made[i].Why == "" {
			list = append(list, &s.made[i])
		}
	}
	return list
}

// orphan notes a resource that has to be looked after by a person.
func (s *session) orphan(m *made, why string) {
	m.Why = s.job.mask.String(why)
	fmt.Fprintf(s.run.Output(run.Own), "terrace: %s (id %q), %s, is not imported: %s\n", m.Address, m.ID, byKilled, m.Why)
}

// failed notes that the imports of some failed: they are tried once more, in another run,
// before they are orphaned. The error is of those that are to be tried again.
func (s *session) failed(ms []*made, errs []error) error {
	var again []error
	for i, m := range ms {
		if _, locked := errors.AsType[*tofu.LockError](errs[i]); locked {
			return errs[i]
		}
		if m.Failed {
			s.orphan(m, errs[i].Error())
			continue
		}
		m.Failed = true
		again = append(again, fmt.Errorf("import %s, %s: %w", m.Address, byKilled, errs[i]))
	}
	if err := s.storeMade(); err != nil {
		return err
	}
	if len(again) > 0 {
		return status.Failf(infra.ReasonInitFailed, "%w; it is tried once more", errors.Join(again...))
	}
	return nil
}

// forgetReplaced takes the resource out of the state that the killed apply has destroyed
// before it made the one that is missing.
func (s *session) forgetReplaced(ctx context.Context, m made) error {
	entry := audit.Entry{
		Actor: audit.Itself, Action: audit.StateWrite, Unit: s.job.unit.String(), Revision: s.job.revision,
		Detail: "state rm of what was replaced by " + s.job.mask.String(m.Address) + ", " + byKilled,
	}
	return s.c.recorded(ctx, s.run, entry, func() error {
		return s.StateRm(ctx, m.Address, tofu.StateRmOptions{LockTimeout: lockTimeout(s.job.tf)})
	})
}

// planImports makes the plan that comes import what is missing, so that people see it there.
// What cannot be imported is found by trying.
func (s *session) planImports(ctx context.Context, opts tofu.PlanOptions) error {
	missing := s.missing()
	if len(missing) == 0 {
		return nil
	}
	opts.Out, opts.JSONInto = filepath.Join(s.Tmp, "tried"), ""
	try := func(ms []*made, only bool) error {
		if err := s.writeImports(ms); err != nil {
			return err
		}
		o := opts
		if only {
			o.Targets = slices.Clone(o.Targets)
			for _, m := range ms {
				o.Targets = append(o.Targets, m.Address)
			}
		}
		s.run.Step("recover", initTimeout)
		_, err := s.Plan(ctx, o)
		return err
	}
	err := try(missing, false)
	if err != nil && context.Cause(ctx) == nil {
		if err := try(nil, false); err != nil {
			return err // it is not for the imports that it fails
		}
		bad, errs := culprits(missing, func(ms []*made) error { return try(ms, true) })
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if len(bad) > 0 {
			err = s.failed(bad, errs)
		}
	}
	if err != nil {
		return err
	}
	return s.writeImports(s.missing())
}

// culprits finds those for which try fails, by halves.
func culprits(ms []*made, try func([]*made) error) (bad []*made, errs []error) {
	err := try(ms)
	if err == nil {
		return nil, nil
	}
	if len(ms) == 1 {
		return ms, []error{err}
	}
	for _, half := range [][]*made{ms[:len(ms)/2], ms[len(ms)/2:]} {
		b, e := culprits(half, try)
		bad, errs = append(bad, b...), append(errs, e...)
	}
	return bad, errs
}

// importsFile has import blocks in the module's directory.
const importsFile = "terrace_recovered.tf"

func (s *session) writeImports(ms []*made) error {
	var hcl []byte
	for _, m := range ms {
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
	for left := s.missing(); len(left) > 0; {
		var next []*made
		var errs []error
		for _, m := range left {
			err := s.importObject(ctx, m.Address, m.ID, audit.Entry{Actor: audit.Itself, Detail: s.job.mask.String(m.Address) + ", " + byKilled})
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			if m.imported = err == nil; !m.imported {
				next, errs = append(next, m), append(errs, err)
			}
		}
		if len(next) == len(left) {
			return s.failed(next, errs)
		}
		if left = next; len(left) == 0 {
			return s.storeMade()
		}
	}
	return nil
}

// importObject takes an object into the state, and records who did so.
func (s *session) importObject(ctx context.Context, at, id string, e audit.Entry) error {
	e.Action, e.Unit, e.Revision = audit.Import, s.job.unit.String(), s.job.revision
	opts := tofu.ImportOptions{
		Address: at, ID: id, LockTimeout: lockTimeout(s.job.tf),
		VarFiles: planOptions(s.job.tf, s.prepared.Module, s.job.reach).VarFiles,
	}
	return s.c.recorded(ctx, s.run, e, func() error {
		err := s.again(ctx, "import", func() error { return s.Import(ctx, opts) })
		if err != nil {
			return s.rescue(ctx, err)
		}
		return nil
	})
}

// recovery is what becomes of a resource that a killed apply has made, without secrets.
type recovery struct {
	address, id string
	why         string // it is not imported; "" when it is
}

// recovered are what is to be told of when the run has ended.
func (s *session) recovered() []recovery {
	var out []recovery
	for _, m := range s.made {
		out = append(out, recovery{s.job.mask.String(m.Address), s.job.mask.String(m.ID), m.Why})
	}
	return out
}

// tellRecovered makes events of what becomes of what killed applies have made.
func tellRecovered(cy *cycle, recovered []recovery) {
	var taken []string
	for _, r := range recovered {
		if r.why == "" {
			taken = append(taken, r.address)
			continue
		}
		cy.orphans = true
		cy.event(corev1.EventTypeWarning, infra.ReasonOrphaned, fmt.Sprintf(
			"%s (id %q), %s, is not in the state and not imported: %s; if it is of no use, remove it by hand", r.address, r.id, byKilled, r.why))
	}
	if len(taken) > 0 {
		cy.event(corev1.EventTypeNormal, infra.ReasonRecovered, "the plan imports "+strings.Join(taken, ", ")+", "+byKilled)
	}
}

// importsApplied notes that a plan with the imports was applied: err is nil, or how the tool
// ended. One that was killed says by its output what it has made.
func (c *Controller) importsApplied(u run.Unit, err error) error {
	exit, _ := errors.AsType[*tofu.ExitError](err)
	if err != nil && (exit == nil || exit.Code != 1) {
		return nil
	}
	return c.changeMade(u, func(kept []made) []made {
		for i := range kept {
			kept[i].Applied = true
		}
		return kept
	})
}

// forgetOrphans forgets what was told of.
func (c *Controller) forgetOrphans(u run.Unit) error {
	return c.changeMade(u, func(kept []made) []made {
		return slices.DeleteFunc(kept, func(m made) bool { return m.Why != "" })
	})
}
