// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package gate lets a run reach its own Terraform state in the Kubernetes API, and
// nothing else there.
//
// Kubernetes' RBAC cannot say "these Secrets, and the creation of those only", and
// its tokens cannot be taken back. So a run does not get an account: it gets a
// kubeconfig for an HTTPS listener on loopback, with a token that dies with the
// run. The gate takes each request apart, refuses all that is not the
// "kubernetes" backend at work on that one state, and sends the rest on with the
// account of Terrace. On the way it notes the lock before it is taken, so that a
// crash leaves no lock of unknown holder, and the state that is written, so that
// nobody has to ask for it again.
//
// Grants, tokens and the certificate authority live in memory only.
package gate

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"

	"github.com/terrace-dev/terrace/internal/state"
	"github.com/terrace-dev/terrace/internal/state/https"
)

// Options configure a Gate.
type Options struct {
	// Config is how Terrace reaches the API server. Its account needs get, list,
	// create, update and delete of Secrets and Leases where units are.
	Config *rest.Config
	// Address is host:port to listen on; the host must be a loopback address.
	// Empty is 127.0.0.1:0.
	Address string
	// Clock tells when certificates expire; nil is the real one.
	Clock clock.PassiveClock
}

// Gate is the listener. It is safe for concurrent use.
type Gate struct {
	base      *url.URL // of the API server, with its path
	client    *http.Client
	listener  net.Listener
	authority *https.Authority
	forwarded atomic.Uint64

	mu     sync.Mutex
	access map[[sha256.Size]byte]*Access
}

// Scope says which state a run may reach, and what it may do there.
type Scope struct {
	Namespace string
	Suffix    string // backend attribute secret_suffix
	Workspace string
	// Write lets the run change and delete the state. Without it the run may lock
	// and read, and create the empty state that the backend makes at init.
	Write bool
	// Run names the run, in refusals.
	Run string
	// OnLock is told the id of a lock before the run tries to take it. If it
	// returns an error, the lock is not taken. Nil is not told.
	OnLock func(id string) error
	// OnState is told of each state that the run reads or writes, uncompressed, before the
	// run has the answer; not of one in several parts that is only read. Nil is not told. It
	// must not keep the bytes, nor change them.
	OnState func(payload []byte)
}

func (s Scope) state() state.Scope {
	return state.Scope{Namespace: s.Namespace, Suffix: s.Suffix, Workspace: s.Workspace}
}

// New listens. Nothing is served before Start, but what connects earlier waits for
// it. The error says why the listener or the way to the API server cannot be set up.
func New(opts Options) (*Gate, error) {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	if opts.Address == "" {
		opts.Address = "127.0.0.1:0"
	}
	client, err := rest.HTTPClientFor(opts.Config)
	if err != nil {
		return nil, fmt.Errorf("open the state gate: connect to the API server: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(opts.Config)
	if err != nil {
		return nil, fmt.Errorf("open the state gate: connect to the API server: %w", err)
	}
	l, err := net.Listen("tcp", opts.Address)
	if err != nil {
		return nil, fmt.Errorf("open the state gate: %w", err)
	}
	ip := l.Addr().(*net.TCPAddr).IP
	if !ip.IsLoopback() {
		l.Close()
		return nil, fmt.Errorf("open the state gate: %s is not a loopback address", opts.Address)
	}
	a, err := https.NewAuthority(opts.Clock, "terrace state gate", nil, []net.IP{ip})
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("open the state gate: make its certificate authority: %w", err)
	}
	return &Gate{
		base: base, client: client, listener: l, authority: a, access: map[[sha256.Size]byte]*Access{},
	}, nil
}

// Start serves until ctx ends; requests that are being served then get ten seconds.
// It may be called once. The error says why it stopped before.
func (g *Gate) Start(ctx context.Context) error {
	server := &http.Server{
		Handler:           g,
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: g.authority.Certificate},
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       time.Minute,
		WriteTimeout:      3 * time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	if err := https.Serve(ctx, server, g.listener); err != nil {
		return fmt.Errorf("serve the state gate: %w", err)
	}
	return nil
}

// URL is where the gate listens.
func (g *Gate) URL() string { return "https://" + g.listener.Addr().String() }

// Forwarded is how many requests the gate has sent to the API server so far, those of
// its own included.
func (g *Gate) Forwarded() uint64 { return g.forwarded.Load() }

// Access is what a run gets. Its methods may be called after Revoke.
type Access struct {
	// Kubeconfig is for the backend's config_path. It holds the token: write it
	// with mode 0600, where only the run reads it.
	Kubeconfig []byte
	Token      string

	gate      *Gate
	scope     Scope
	forwarded atomic.Uint64
	// serving counts requests in flight; revoked keeps new ones out.
	serving sync.WaitGroup

	mu      sync.Mutex
	revoked bool
	uids    map[string]string // resource/name → UID of what was seen to be in scope
	lock    string
	current []byte // compressed
	written map[int][]byte
}

// Grant gives a run access to one state until it is revoked. The error says which
// part of the scope cannot name a state.
func (g *Gate) Grant(s Scope) (*Access, error) {
	if err := s.state().Validate(); err != nil {
		return nil, err
	}
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return nil, fmt.Errorf("make a token: %w", err)
	}
	a := &Access{
		Token: base64.RawURLEncoding.EncodeToString(secret),
		gate:  g, scope: s, uids: map[string]string{}, written: map[int][]byte{},
	}
	var err error
	if a.Kubeconfig, err = g.kubeconfig(s.Namespace, a.Token); err != nil {
		return nil, fmt.Errorf("make a kubeconfig: %w", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.access[sha256.Sum256([]byte(a.Token))] = a
	return a, nil
}

func (g *Gate) kubeconfig(namespace, token string) ([]byte, error) {
	const name = "terrace"
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: g.URL(), CertificateAuthorityData: g.authority.PEM()}
	c.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: namespace}
	c.CurrentContext = name
	return clientcmd.Write(*c)
}

// Revoke ends the access: the token is refused from now on. Requests that are being
// served are waited for, so that a state that has arrived is written, and
// LastState is final when Revoke returns.
func (a *Access) Revoke() {
	a.gate.mu.Lock()
	delete(a.gate.access, sha256.Sum256([]byte(a.Token)))
	a.gate.mu.Unlock()
	a.mu.Lock()
	a.revoked = true
	a.mu.Unlock()
	a.serving.Wait()
}

// enter counts a request in, unless the access is revoked.
func (a *Access) enter() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.revoked {
		return false
	}
	a.serving.Add(1)
	return true
}

// Forwarded is how many requests were sent to the API server for this run.
func (a *Access) Forwarded() uint64 { return a.forwarded.Load() }

// LockID is the id of the lock that the run holds now; empty when it holds none.
func (a *Access) LockID() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lock
}

// LastState is the state that the run wrote last, uncompressed; false when it wrote
// none. OpenTofu's state encryption leaves it encrypted.
func (a *Access) LastState() ([]byte, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.written) == 0 {
		return nil, false
	}
	var whole []byte
	for i := range len(a.written) {
		whole = append(whole, a.written[i]...)
	}
	payload, err := state.Uncompress(whole)
	return payload, err == nil
}

// CurrentState is the state that the run wrote or read last, whichever came later:
// after an apply that changed nothing it is the state as it was. It is false when
// neither happened, and for a state in several parts that was only read.
func (a *Access) CurrentState() ([]byte, bool) {
	if payload, ok := a.LastState(); ok {
		return payload, true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.current == nil {
		return nil, false
	}
	payload, err := state.Uncompress(a.current)
	return payload, err == nil
}

// authenticate finds the access that a request's token stands for. Tokens are
// compared by their hashes: how long that takes tells nothing of the token.
func (g *Gate) authenticate(r *http.Request) (*Access, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return nil, errors.New("no bearer token")
	}
	sum := sha256.Sum256([]byte(token))
	g.mu.Lock()
	a, ok := g.access[sum]
	g.mu.Unlock()
	if !ok || subtle.ConstantTimeCompare([]byte(a.Token), []byte(token)) != 1 {
		return nil, errors.New("the token is unknown, or its run has ended")
	}
	return a, nil
}
