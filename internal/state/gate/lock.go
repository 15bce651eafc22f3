// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/terrace-dev/terrace/internal/state"
)

// Lock returns who holds the lock of the state; nil when nobody does.
func (g *Gate) Lock(ctx context.Context, s Scope) (*state.Lock, error) {
	_, l, err := g.lease(ctx, s.state())
	if err != nil {
		return nil, fmt.Errorf("read the lock of state %s/%s: %w", s.Namespace, s.state().SecretName(), err)
	}
	return l, nil
}

// ReleaseLock gives back the lock with that id, on the state or on that of the
// default workspace, which init may have locked. It compares and swaps: a lock that
// changes hands meanwhile stays. It returns nil when the lock is no longer held at
// all, and *state.LockedError (state.ErrLocked) when only another one is: that is
// somebody else's.
func (g *Gate) ReleaseLock(ctx context.Context, s Scope, lockID string) error {
	name := s.Namespace + "/" + s.state().SecretName()
	if lockID == "" {
		return fmt.Errorf("release the lock of state %s: no lock is named", name)
	}
	var foreign error
	for _, sc := range s.state().Workspaces() {
		err := g.release(ctx, sc, lockID)
		switch {
		case errors.Is(err, state.ErrLocked):
			if sc.Workspace == s.Workspace {
				foreign = err
			}
		case errors.Is(err, errReleased):
			return nil
		case err != nil:
			return fmt.Errorf("release the lock of state %s: %w", name, err)
		}
	}
	if foreign != nil {
		return fmt.Errorf("release the lock of state %s: %w", name, foreign)
	}
	return nil
}

var errReleased = errors.New("released")

// release returns errReleased when it did, nil when nobody holds the lock.
func (g *Gate) release(ctx context.Context, sc state.Scope, lockID string) error {
	const tries = 5
	for range tries {
		o, l, err := g.lease(ctx, sc)
		if err != nil || l == nil {
			return err
		}
		if l.ID != lockID {
			return &state.LockedError{Lock: *l}
		}
		if spec, ok := o.Object["spec"].(map[string]any); ok {
			delete(spec, "holderIdentity")
		}
		if annotations := o.GetAnnotations(); annotations != nil {
			delete(annotations, state.LockAnnotation)
			o.SetAnnotations(annotations)
		}
		body, err := o.encode()
		if err != nil {
			return err
		}
		res, err := g.send(ctx, http.MethodPut, request{resource: leases, namespace: sc.Namespace}, sc.LeaseName(), body)
		switch {
		case err != nil:
			return err
		case res.ok():
			return errReleased
		case res.code != http.StatusConflict && res.code != http.StatusNotFound:
			return res.err()
		}
	}
	return errors.New("it keeps changing")
}

// lease reads the Lease of a state; both are nil when there is none, the lock when it
// is not held.
func (g *Gate) lease(ctx context.Context, sc state.Scope) (*object, *state.Lock, error) {
	res, err := g.send(ctx, http.MethodGet, request{resource: leases, namespace: sc.Namespace}, sc.LeaseName(), nil)
	switch {
	case err != nil:
		return nil, nil, err
	case res.code == http.StatusNotFound:
		return nil, nil, nil
	case !res.ok():
		return nil, nil, res.err()
	}
	o, err := decodeJSON(res.body)
	if err != nil {
		return nil, nil, err
	}
	l, err := o.lock()
	return o, l, err
}

// err is what the API server said is wrong.
func (a *answer) err() error {
	if o, err := decodeJSON(a.body); err == nil {
		if message, err := o.text("message"); err == nil && message != "" {
			return fmt.Errorf("the API server says %q", message)
		}
	}
	return fmt.Errorf("the API server says %d %s", a.code, http.StatusText(a.code))
}
