// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"errors"
	"fmt"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/run"
	"github.com/terrace-dev/terrace/internal/state"
	"github.com/terrace-dev/terrace/internal/state/gate"
	"github.com/terrace-dev/terrace/internal/state/store"
	"github.com/terrace-dev/terrace/internal/status"
)

// Facts of a run's journal by which its lock is found after a crash.
const (
	factLock      = "lock"
	factSuffix    = "stateSuffix" // of a state in a Secret
	factState     = "state"       // the name of one in the state service
	factWorkspace = "workspace"
)

// lockToBreak is the identifier of a lock that the spec asks to remove, "" for none.
func lockToBreak(tf *infra.Terraform) string {
	s := tf.Spec.TFState
	if s == nil || tf.Status.Lock.Pending == "" {
		return ""
	}
	switch s.ForceUnlock {
	case infra.ForceUnlockAuto:
		return tf.Status.Lock.Pending
	case infra.ForceUnlockYes:
		if s.LockIdentifier == tf.Status.Lock.Pending {
			return s.LockIdentifier
		}
	}
	return ""
}

// unlockBeforeInit removes the lock of a state that Terrace keeps. It has to be done
// before init, which meets the lock itself while there is no state yet.
func (s *session) unlockBeforeInit(ctx context.Context) error {
	id := lockToBreak(s.job.tf)
	if id == "" || s.door == nil {
		return nil
	}
	if err := s.unlocking(ctx, id, func() error { return s.door.release(ctx, id) }); err != nil {
		return status.Failf(infra.ReasonLockHeld, "remove state lock %s: %w", id, err)
	}
	s.unlocked = id
	return nil
}

// forceUnlock removes the lock of a state that is elsewhere, and returns the
// identifier of the lock that was removed, by it or before init.
func (s *session) forceUnlock(ctx context.Context) (string, error) {
	id := lockToBreak(s.job.tf)
	if id == "" || s.unlocked != "" {
		return s.unlocked, nil
	}
	s.run.Step("unlock", pushTimeout)
	if err := s.unlocking(ctx, id, func() error { return s.ForceUnlock(ctx, id) }); err != nil {
		return "", status.Failf(infra.ReasonLockHeld, "remove state lock %s: %w", id, err)
	}
	return id, nil
}

// unlocking removes the lock of somebody else that the spec asks to remove, and records it.
func (s *session) unlocking(ctx context.Context, id string, do func() error) error {
	e := audit.Entry{
		Actor: audit.Actor{Kind: audit.Terrace, Name: "spec.tfstate.forceUnlock"}, Action: audit.Unlock,
		Unit: s.job.unit.String(), Revision: s.job.revision, Detail: "lock " + id,
	}
	who, how, ok, err := s.c.finder().ByCommit(ctx, s.job.tf, unitKind, "spec", "tfstate", "forceUnlock")
	if err != nil {
		return fmt.Errorf("find who asks for it: %w", err)
	}
	if ok {
		e.Actor, e.Detail = who, e.Detail+": "+how
	}
	return s.c.recorded(ctx, s.run, e, do)
}

// releaseLeftLock removes the lock of a tool that was killed before it could give it
// back: after the grace period, for want of memory, by a provisioner. The access is
// revoked, so nothing that may still live can write the state any more.
func (s *session) releaseLeftLock() {
	id := s.door.LockID()
	if id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), pushTimeout)
	defer cancel()
	if err := s.door.release(ctx, id); err != nil && !errors.Is(err, state.ErrLocked) {
		fmt.Fprintf(s.run.Output(run.Own), "terrace: remove the state lock %s that the run left: %v\n", id, err)
	}
}

// releaseOwnLock removes the state lock of an interrupted run. None of its processes
// lives, so the lock protects nothing; a lock with another identifier is somebody
// else's and stays.
func (c *Controller) releaseOwnLock(ctx context.Context, intr run.Interruption) error {
	id := intr.Facts[factLock]
	if id == "" {
		return nil
	}
	var err error
	if name := intr.Facts[factState]; name != "" {
		err = releaseInService(ctx, c.opts.States, store.Key{Namespace: intr.Unit.Namespace, Name: name}, id)
	} else {
		scope := gate.Scope{Namespace: intr.Unit.Namespace, Suffix: intr.Facts[factSuffix], Workspace: intr.Facts[factWorkspace]}
		err = c.opts.Gate.ReleaseLock(ctx, scope, id)
	}
	if err != nil && !errors.Is(err, state.ErrLocked) {
		return fmt.Errorf("remove the state lock %s of an interrupted run: %w", id, err)
	}
	return nil
}
