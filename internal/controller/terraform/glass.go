// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/run"
	"github.com/terrace-dev/terrace/internal/status"
)

// glass is a unit that stands still for work by hand: its directory is prepared and
// its door to the state is open until the request is taken back.
type glass struct {
	attempt
	session *session
}

// glassID is the run that prepares it.
const glassID = "break-the-glass"

// breakGlass keeps a unit still while a person works on it, and lets nobody else
// change its resources meanwhile.
func (c *Controller) breakGlass(ctx context.Context, cy *cycle) (status.Result, error) {
	tf := cy.tf
	u := unitOf(tf)
	asked := tf.Spec.BreakTheGlass || tf.Annotations[infra.BreakTheGlassAnnotation] != ""
	if !asked {
		c.closeGlass(u)
		return status.Next, nil
	}
	if !c.opts.AllowBreakTheGlass {
		return status.Wait(infra.ReasonAccessDenied,
			"Breaking the glass is not allowed: start Terrace with --allow-break-the-glass, or take the request back", 0), nil
	}
	if _, _, open := c.Glass(u); open {
		progress(tf, infra.MessageBreakingTheGlass)
		unmark(tf, infra.ConditionReconciling)
		return status.Wait("", "", 0), nil
	}
	for _, phase := range []status.Phase[*cycle]{c.fetch, c.resolve} {
		if res, err := phase(ctx, cy); err != nil || !res.IsNext() {
			return res, err
		}
	}
	in, err := c.load(ctx, cy)
	if err != nil {
		return c.inputsFailed(cy, err)
	}
	j := c.newJob(cy, in)
	c.start(cy, j, run.Apply, glassID, func(ctx context.Context, r *run.Run) (any, error) {
		if err := c.append(ctx, audit.Entry{
			Actor: audit.Itself, Action: audit.BreakGlass, Unit: u.String(), Revision: j.revision, Run: r.ID(), Detail: "the directory is prepared for work by hand",
		}); err != nil {
			return &glass{attempt: j.attempt}, err
		}
		s, err := c.openSession(ctx, r, j, true)
		if err != nil {
			return &glass{attempt: j.attempt}, err
		}
		return &glass{attempt: j.attempt, session: s}, nil
	})
	progress(tf, infra.MessageInitializing)
	return status.Wait("", "", 0), nil
}

// recordGlass keeps a prepared session open.
func (c *Controller) recordGlass(cy *cycle, g *glass, err error) (status.Result, error) {
	if err != nil {
		c.failed(cy, status.ReasonOf(err, infra.ReasonNewFailed), err)
		return status.Wait("", "", cy.tf.GetRetryInterval()), nil
	}
	c.memory.with(unitOf(cy.tf), func(m *unitMemory) { m.glass = g.session })
	return status.Next, nil
}

// closeGlass ends the work by hand: the door to the state closes and what held
// secrets is removed.
func (c *Controller) closeGlass(u run.Unit) {
	var s *session
	c.memory.with(u, func(m *unitMemory) { s, m.glass = m.glass, nil })
	if s != nil {
		s.close()
	}
}

// Glass returns the directory and environment of a unit that stands still for work
// by hand; ok is false when it does not.
func (c *Controller) Glass(u run.Unit) (dir string, env []string, ok bool) {
	var s *session
	c.memory.with(u, func(m *unitMemory) { s = m.glass })
	if s == nil {
		return "", nil, false
	}
	return s.Dir, s.Environ(), true
}
