// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/state"
	"github.com/terrace-dev/terrace/internal/state/gate"
	"github.com/terrace-dev/terrace/internal/state/server"
	"github.com/terrace-dev/terrace/internal/state/store"
	"github.com/terrace-dev/terrace/internal/status"
	"github.com/terrace-dev/terrace/internal/tofu/workdir"
)

// door is a run's way to its state, where Terrace keeps that: the gate to a Secret, or the
// state service. It is open until it is revoked.
type door interface {
	// backend is what the module is told of it.
	backend() workdir.Backend
	// env are variables of the run's processes.
	env() map[string]string
	// open makes what the processes need in the unit's directory, close takes it away.
	open() error
	close()
	// Revoke ends it: nothing is read or written any more when it returns.
	Revoke()
	// LastState is the state that the run wrote last; false when it wrote none.
	LastState() ([]byte, bool)
	// LockID is the lock that the run took last; empty when it took none or, as far as the
	// door knows, gave it back.
	LockID() string
	// release removes the lock of that id. It does nothing when it is not held; the error
	// matches state.ErrLocked when another is.
	release(ctx context.Context, id string) error
}

// gateDoor is the way to a state in a Secret.
type gateDoor struct {
	*gate.Access
	gate    *gate.Gate
	scope   gate.Scope
	config  workdir.KubernetesBackend
	address string // the path of the kubeconfig
}

func (d *gateDoor) backend() workdir.Backend { return workdir.Backend{Kubernetes: &d.config} }
func (d *gateDoor) env() map[string]string   { return nil }
func (d *gateDoor) open() error              { return os.WriteFile(d.address, d.Kubeconfig, 0o600) }
func (d *gateDoor) close()                   { _ = os.Remove(d.address) }

func (d *gateDoor) release(ctx context.Context, id string) error {
	return d.gate.ReleaseLock(ctx, d.scope, id)
}

// States is the state service, as runs use it.
type States struct {
	Store  *store.Store
	Grants *server.Grants
	// URL is where runs reach the service, and CA the certificate of its authority, in PEM.
	URL string
	CA  []byte
	// Default makes it the home of states that are nowhere yet; otherwise they go to Secrets.
	Default bool
}

// serviceDoor is the way to a state in the state service: Terraform's HTTP backend, told
// by the environment, so that neither the module's directory nor the plan file knows the
// token.
type serviceDoor struct {
	states *States
	key    store.Key
	token  string
	revoke func()

	mu   sync.Mutex
	lock string
	last []byte
}

func (d *serviceDoor) backend() workdir.Backend { return workdir.Backend{HTTP: true} }

func (d *serviceDoor) env() map[string]string {
	address := d.states.URL + "/state/" + d.key.Namespace + "/" + d.key.Name
	return map[string]string{
		"TF_HTTP_ADDRESS": address, "TF_HTTP_LOCK_ADDRESS": address, "TF_HTTP_UNLOCK_ADDRESS": address,
		"TF_HTTP_USERNAME": "run", "TF_HTTP_PASSWORD": d.token,
		"TF_HTTP_CLIENT_CA_CERTIFICATE_PEM": string(d.states.CA),
	}
}

func (d *serviceDoor) open() error { return nil }
func (d *serviceDoor) close()      {}
func (d *serviceDoor) Revoke()     { d.revoke() }

func (d *serviceDoor) LockID() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lock
}

func (d *serviceDoor) LastState() ([]byte, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last, d.last != nil
}

func (d *serviceDoor) wrote(payload []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = payload
}

func (d *serviceDoor) release(ctx context.Context, id string) error {
	return releaseInService(ctx, d.states, d.key, id)
}

func releaseInService(ctx context.Context, s *States, key store.Key, id string) error {
	err := s.Store.Unlock(ctx, key, id)
	if errors.Is(err, store.ErrNotLocked) || errors.Is(err, store.ErrNoState) {
		return nil
	}
	return err
}

// openDoor makes the run's way to the state of its unit.
func (s *session) openDoor(ctx context.Context, write bool) (door, error) {
	cfg := s.job.tf.Spec.BackendConfig
	served, err := s.c.servesState(ctx, s.job)
	if err != nil {
		return nil, err
	}
	if served {
		return s.serviceDoor(write)
	}
	config := workdir.KubernetesBackend{SecretSuffix: s.job.tf.Name, Namespace: s.job.tf.Namespace, ConfigPath: s.kubeconfig()}
	if cfg != nil {
		config.SecretSuffix, config.Labels = cfg.SecretSuffix, cfg.Labels
	}
	return s.gateDoor(config, write)
}

func (s *session) gateDoor(config workdir.KubernetesBackend, write bool) (door, error) {
	scope := gate.Scope{
		Namespace: s.job.tf.Namespace, Suffix: config.SecretSuffix, Workspace: s.job.tf.WorkspaceName(), Write: write, Run: s.run.ID(),
		// The journal knows the lock before the tool knows that it has it.
		OnLock: func(id string) error {
			return s.run.Record(map[string]string{factLock: id, factSuffix: config.SecretSuffix})
		},
		OnState: s.learnState,
	}
	access, err := s.c.opts.Gate.Grant(scope)
	if err != nil {
		return nil, status.Failf(infra.ReasonInitFailed, "give the run its state: %w", err)
	}
	return &gateDoor{Access: access, gate: s.c.opts.Gate, scope: scope, config: config, address: s.kubeconfig()}, nil
}

func (s *session) serviceDoor(write bool) (door, error) {
	d := &serviceDoor{states: s.c.opts.States, key: store.Key{Namespace: s.job.tf.Namespace, Name: s.job.tf.Name}}
	var err error
	d.token, d.revoke, err = d.states.Grants.New(server.Grant{
		State: d.key, Write: write, Run: s.run.ID(), Unit: s.job.unit.String(),
		OnRead: func(_ v1alpha1.StateVersion, payload []byte) { s.learnState(payload) },
		OnWrite: func(_ v1alpha1.StateVersion, payload []byte) {
			s.learnState(payload)
			d.wrote(payload)
		},
		OnLock: func(id string) error {
			if err := s.run.Record(map[string]string{factLock: id, factState: d.key.Name}); err != nil {
				return err
			}
			d.mu.Lock()
			d.lock = id
			d.mu.Unlock()
			return nil
		},
	})
	if err != nil {
		return nil, status.Failf(infra.ReasonInitFailed, "give the run its state: %w", err)
	}
	return d, nil
}

// movedAnnotation on a tfstate Secret says that the state lives elsewhere now, and where.
const movedAnnotation = "terrace.dev/moved-to"

// servesState tells whether the unit's state is in the state service. Where the spec says
// nothing, it is where it was found: a Secret that the Terraform Controller, or an earlier
// Terrace, left is used until somebody moves the state.
func (c *Controller) servesState(ctx context.Context, j *job) (bool, error) {
	tf := j.tf
	if c.opts.States == nil || tf.Spec.BackendConfig != nil || tf.WorkspaceName() != state.DefaultWorkspace {
		// The HTTP backend has one workspace.
		return false, nil
	}
	if j.home != "" {
		return j.home == v1alpha1.StateInService, nil
	}
	scope := state.Scope{Namespace: tf.Namespace, Suffix: tf.Name, Workspace: state.DefaultWorkspace}
	meta, err := c.refs.Metadata(ctx, reference{Kind: kindSecret, Namespace: tf.Namespace, Name: scope.SecretName()})
	switch {
	case err != nil:
		return false, fmt.Errorf("look for the state of before: %w", err)
	case meta != nil:
		return meta.Annotations[movedAnnotation] != "", nil
	case c.opts.States.Default:
		return true, nil
	}
	_, err = c.opts.States.Store.Get(ctx, store.Key{Namespace: tf.Namespace, Name: tf.Name})
	if errors.Is(err, store.ErrNoState) {
		return false, nil
	}
	return err == nil, err
}
