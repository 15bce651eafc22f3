// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/blob"
	"github.com/terrace-dev/terrace/internal/config"
	"github.com/terrace-dev/terrace/internal/controller/terraform"
	"github.com/terrace-dev/terrace/internal/install"
	stateserver "github.com/terrace-dev/terrace/internal/state/server"
	"github.com/terrace-dev/terrace/internal/state/store"
)

// states is the state service: the store, its HTTPS address, and what answers there.
type states struct {
	store    *store.Store
	blobs    *blob.Store
	grants   *stateserver.Grants
	listener *stateserver.Listener
	// local is the listener of runs: by its own authority, which they can be told, where the
	// certificate of the other is for the name that clients elsewhere use.
	local   *stateserver.Listener
	handler http.Handler
	url     string // by which others reach it
}

// openStates opens the state service. It serves once serve is called.
func openStates(ctx context.Context, s *Server, api *rest.Config) (_ *states, err error) {
	cfg := s.config
	st := &states{grants: stateserver.NewGrants()}
	defer func() {
		if err != nil {
			st.close()
		}
	}()
	location := cfg.StateStorage
	if location == "" {
		location = filepath.Join(cfg.DataDir, "states")
	}
	if st.blobs, err = s.openSealed(ctx, "States", location, "states.key"); err != nil {
		return nil, fmt.Errorf("open the state service: %w", err)
	}
	if key := st.blobs.KeyFile(); key.Created && key.WrappedBy == "" {
		s.log.Info("a new key encrypts the states: keep a copy of it apart from them, because without it nobody can read them", "key", s.dir("keys", "states.key"))
	} else if key.Created {
		s.log.Info("a new key encrypts the states, and a KMS key wraps it: keep a copy of the one and never lose the other, because without both nobody can read them",
			"key", s.dir("keys", "states.key"), "kms", key.WrappedBy)
	}
	st.store = store.New(store.Options{Client: s.manager.GetClient(), Reader: s.manager.GetAPIReader(), Blobs: st.blobs, Namespaces: cfg.WatchNamespaces})
	tokens, err := stateserver.OpenTokens(filepath.Join(cfg.DataDir, "keys", "state-tokens.key"), nil)
	if err != nil {
		return nil, fmt.Errorf("open the state service: %w", err)
	}
	listen := stateserver.ListenOptions{Address: cfg.StateAddress, Names: []string{install.StateServiceName + "." + install.Namespace + ".svc"}}
	if u, err := url.Parse(cfg.StateURL); err == nil && u.Hostname() != "" {
		listen.Names = append(listen.Names, u.Hostname())
	}
	var clients *x509.CertPool
	if cfg.Mode == config.Up {
		// The embedded control plane has one authority, whose certificates are its accounts.
		loaded := rest.CopyConfig(api)
		if err := rest.LoadTLSFiles(loaded); err != nil {
			return nil, fmt.Errorf("open the state service: read the control plane's authority: %w", err)
		}
		listen.ClientCA = loaded.CAData
		clients = x509.NewCertPool()
		clients.AppendCertsFromPEM(loaded.CAData)
	}
	if cfg.StateCertFile != "" {
		if listen.CertPEM, err = os.ReadFile(cfg.StateCertFile); err != nil {
			return nil, fmt.Errorf("read --state-cert-file: %w", err)
		}
		if listen.KeyPEM, err = os.ReadFile(cfg.StateKeyFile); err != nil {
			return nil, fmt.Errorf("read --state-key-file: %w", err)
		}
	}
	if st.listener, err = stateserver.Listen(listen); err != nil {
		return nil, err
	}
	st.local = st.listener
	if cfg.StateCertFile != "" {
		if st.local, err = stateserver.Listen(stateserver.ListenOptions{}); err != nil {
			return nil, err
		}
	}
	st.url = cfg.StateURL
	if st.url == "" {
		st.url = st.listener.URL()
	}
	st.handler, err = stateserver.New(stateserver.Options{
		Store: st.store, Grants: st.grants, Tokens: tokens, URL: cfg.StateURL, Audit: recordState(s.ledger),
		Kubernetes: stateserver.NewKubernetes(s.manager.GetClient(), clients, nil, nil),
	})
	return st, err
}

// openSealed opens a store of encrypted content by the key of that name, wrapped as the
// settings say. That another KMS key wraps it from now on is recorded before it is so.
func (s *Server) openSealed(ctx context.Context, unit, location, key string) (*blob.Store, error) {
	file := s.dir("keys", key)
	var intent *audit.Intent
	var detail string
	blobs, err := blob.Open(ctx, blob.Options{URL: location, KeyFile: file, KMSKeys: s.config.KMSKeys, BeforeWrap: func(before, after string) (err error) {
		if after == "" {
			detail = fmt.Sprintf("keys/%s is in the clear; it was wrapped by %s", key, before)
			s.log.Info("the key is in the clear from now on: who has the data directory has it", "key", file, "before", before)
		} else {
			detail = fmt.Sprintf("keys/%s is wrapped by %s", key, after)
			s.log.Info("a KMS key wraps the key from now on: without it nobody can read what is encrypted; copies of the key from before do open it until the key is rotated", "key", file, "kms", after)
		}
		intent, err = s.ledger.Begin(ctx, audit.Entry{
			Actor: audit.Actor{Kind: audit.Terrace, Name: "who starts the server"}, Action: audit.KeyRotation, Unit: unit, Detail: detail,
		})
		return err
	}})
	if intent != nil {
		o := audit.Outcome{Result: audit.Succeeded}
		if err != nil {
			o = audit.Outcome{Result: audit.Failed, Detail: err.Error()}
		}
		_ = intent.End(ctx, o)
	}
	return blobs, err
}

// recordState writes the changes of states to the ledger: before they are made, and how they ended.
func recordState(l *audit.Ledger) func(context.Context, stateserver.Event) (func(int64, error), error) {
	return func(ctx context.Context, e stateserver.Event) (func(int64, error), error) {
		entry := audit.Entry{
			Actor: audit.Actor{Kind: audit.Kubernetes, Name: e.By}, Action: stateAction(e.Verb), Unit: "State/" + e.State.String(), Run: e.Run, Detail: e.Detail,
		}
		if e.Run != "" {
			entry.Actor.Kind = audit.Terrace
		}
		intent, err := l.Begin(ctx, entry)
		if err != nil {
			return nil, err
		}
		return func(version int64, err error) {
			o := audit.Outcome{Result: audit.Succeeded}
			switch {
			case err != nil:
				o.Result, o.Detail = audit.Failed, err.Error()
			case version > 0:
				o.Detail = fmt.Sprintf("version %d", version)
			}
			_ = intent.End(ctx, o) // the intent is there in any case
		}, nil
	}
}

// stateAction is the ledger's word for what is done to a state.
func stateAction(verb string) audit.Action {
	switch verb {
	case "write":
		return audit.StateWrite
	case "force-unlock":
		return audit.Unlock
	case "rollback":
		return audit.Rollback
	case "token":
		return audit.Token
	}
	return audit.Action("state-" + verb)
}

// serve answers requests until ctx ends.
func (st *states) serve(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return st.listener.Serve(ctx, st.handler) })
	if st.local != st.listener {
		g.Go(func() error { return st.local.Serve(ctx, st.handler) })
	}
	return g.Wait()
}

// runs is the service as runs use it: by its own address, whatever others call it.
func (st *states) runs(cfg config.Config) *terraform.States {
	return &terraform.States{
		Store: st.store, Grants: st.grants, URL: st.local.URL(), CA: st.local.CA(), Default: cfg.StateBackend == v1alpha1.StateInService,
	}
}

// collectInterval is how often content is looked for that no State names, and how old it
// has to be to go.
const collectInterval = 24 * time.Hour

// Start removes, once a day, what a crash has left of states: content that no State names.
func (st *states) Start(ctx context.Context) error {
	ticker := time.NewTicker(collectInterval)
	defer ticker.Stop()
	for {
		if n, err := st.store.Collect(ctx, collectInterval); err != nil && ctx.Err() == nil {
			ctrl.Log.WithName("states").Error(err, "content that no state names is not removed")
		} else if n > 0 {
			ctrl.Log.WithName("states").Info("removed content that no state names", "blobs", n)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// rotateKey gives the states a new key, encrypts all versions with it, and drops the keys
// before.
func (s *Server) rotateKey(rw http.ResponseWriter, r *http.Request) {
	intent, err := s.ledger.Begin(r.Context(), audit.Entry{
		Actor: audit.Actor{Kind: audit.Terrace, Name: "who holds the server's token"}, Action: audit.KeyRotation, Unit: "States",
	})
	if err != nil {
		http.Error(rw, err.Error(), http.StatusInternalServerError)
		return
	}
	recipient, done, err := s.states.rotate(r.Context())
	o := audit.Outcome{Result: audit.Succeeded, Detail: "to " + recipient}
	if err != nil {
		o = audit.Outcome{Result: audit.Failed, Detail: err.Error()}
	}
	_ = intent.End(r.Context(), o)
	if err != nil {
		http.Error(rw, err.Error(), http.StatusInternalServerError)
		return
	}
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(map[string]any{"recipient": recipient, "states": done.States, "versions": done.Versions})
}

func (st *states) rotate(ctx context.Context) (recipient string, done store.Rewrapped, err error) {
	if recipient, err = st.blobs.Rotate(ctx); err != nil {
		return "", done, fmt.Errorf("make a new key: %w", err)
	}
	if done, err = st.store.Rewrap(ctx); err != nil {
		return "", done, fmt.Errorf("encrypt the states with the new key: %w; the old ones are kept, ask again", err)
	}
	if _, err := st.blobs.Retire(ctx); err != nil {
		return "", done, fmt.Errorf("drop the old keys: %w; ask again", err)
	}
	return recipient, done, nil
}

func (st *states) close() {
	for _, l := range []*stateserver.Listener{st.listener, st.local} {
		if l != nil {
			_ = l.Close()
		}
	}
	if st.blobs != nil {
		_ = st.blobs.Close()
	}
}
