// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package server lets Terraform and people reach the states of a store: by the
// protocol of Terraform's HTTP backend at /state/NAMESPACE/NAME, by that of the
// "remote" and "cloud" backends in local-execution mode at /api/v2/, and by a few
// requests more that "terrace state" makes.
//
// Requests are known by tokens: those of runs, which are for one state and die with
// the run; signed ones, which people ask for; and accounts of Kubernetes. What a
// request wants is one of a few verbs, and each is asked for before anything is read.
// What is right to write is decided by package store.
package server

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"

	"github.com/terrace-dev/terrace/internal/state"
	"github.com/terrace-dev/terrace/internal/state/store"
)

const (
	// maxLock bounds the body of a lock request, in bytes.
	maxLock = 16 << 10
	// maxQuestion bounds every other body that is no state.
	maxQuestion = 64 << 10
	// large is the size, in bytes, from which on few bodies are taken at a time.
	large = 1 << 20
	// changeTimeout bounds a change once its request has arrived whole.
	changeTimeout = time.Minute
)

// Event is a change of a state that a ledger wants to know of. Locks that are taken
// and given back are none.
type Event struct {
	Verb   string // write, force-unlock, rollback, delete, move or token
	State  store.Key
	By     string // the user, or the unit of a run
	Run    string
	Detail string // in words, without anything of the content
	// Version that a rollback goes back to; 0 otherwise.
	Version int64
}

// Options configure a Server.
type Options struct {
	// Store keeps the states.
	Store *store.Store
	// Grants are the tokens of runs; nil is none.
	Grants *Grants
	// Tokens are the signed tokens; nil is none.
	Tokens *Tokens
	// Kubernetes knows accounts; nil knows none.
	Kubernetes Authorizer
	// Audit is told of each change before it is made; an error stops it. What it
	// returns, unless it is nil, is called when the change was made or failed, with the
	// version that it made, if any. Nil is not told.
	Audit func(ctx context.Context, e Event) (done func(version int64, err error), err error)
	// URL is how clients reach the server, for the addresses that answers carry; empty
	// takes the address that the client used.
	URL string
	// MaxPayload bounds a state, in bytes; 0 is state.MaxPayload.
	MaxPayload int64
	// MaxRequests bounds how many requests are served at a time; 0 is 64. Of those, 4
	// may have a body larger than 1 MiB. Others wait for their turn.
	MaxRequests int
	// Clock tells when what was signed ends; nil is the real one.
	Clock clock.PassiveClock
}

// Server answers requests for states. It is an http.Handler, safe for concurrent use.
type Server struct {
	store      *store.Store
	grants     *Grants
	tokens     *Tokens
	urls       *Tokens // signs addresses for uploads
	authorizer Authorizer
	audit      func(context.Context, Event) (func(int64, error), error)
	url        string
	max        int64
	clock      clock.PassiveClock
	requests   chan struct{}
	bodies     chan struct{}
	mux        *http.ServeMux
}

// New returns a Server. The error says which option is missing.
func New(o Options) (*Server, error) {
	if o.Store == nil {
		return nil, errors.New("serve states: no store is given")
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.MaxPayload == 0 {
		o.MaxPayload = state.MaxPayload
	}
	if o.MaxRequests <= 0 {
		o.MaxRequests = 64
	}
	s := &Server{
		store: o.Store, grants: o.Grants, tokens: o.Tokens, urls: o.Tokens, audit: o.Audit,
		url: strings.TrimSuffix(o.URL, "/"), max: o.MaxPayload, clock: o.Clock,
		requests: make(chan struct{}, o.MaxRequests), bodies: make(chan struct{}, 4), mux: http.NewServeMux(),
	}
	var all Authorizers
	if o.Grants != nil {
		all = append(all, o.Grants)
	}
	if o.Tokens != nil {
		all = append(all, o.Tokens)
	}
	if o.Kubernetes != nil {
		all = append(all, o.Kubernetes)
	}
	s.authorizer = all
	if s.urls == nil {
		key := make([]byte, 32)
		if _, err := rand.Read(key); err != nil {
			return nil, fmt.Errorf("serve states: make a key: %w", err)
		}
		var err error
		if s.urls, err = NewTokens(key, o.Clock); err != nil {
			return nil, fmt.Errorf("serve states: %w", err)
		}
	}
	s.routes()
	return s, nil
}

// routes is the list of what is served.
func (s *Server) routes() {
	const one = "/state/{namespace}/{name}"
	s.mux.HandleFunc(one, s.named(s.backend))
	s.mux.HandleFunc(one+"/lock", s.named(s.lockAddress))
	s.mux.HandleFunc("GET "+one+"/versions", s.named(s.versions))
	s.mux.HandleFunc("GET "+one+"/versions/{version}", s.named(s.version))
	s.mux.HandleFunc("POST "+one+"/rollback", s.named(s.rollback))
	s.mux.HandleFunc("POST "+one+"/move", s.named(s.move))
	s.mux.HandleFunc("POST "+one+"/tokens", s.named(s.token))
	s.cloudRoutes()
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case s.requests <- struct{}{}:
		defer func() { <-s.requests }()
	case <-r.Context().Done():
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	// The mux does not clean the paths of CONNECT, and hands on some with names missing.
	if r.Method == http.MethodConnect {
		http.Error(w, "the method CONNECT is not for a state", http.StatusMethodNotAllowed)
		return
	}
	// Names need no encoding: what has it means to look different here and there.
	if r.URL.EscapedPath() != r.URL.Path {
		http.Error(w, "the path is encoded", http.StatusBadRequest)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// call is a request for one state.
type call struct {
	id  Identity
	key store.Key
}

// named finds out who asks, and for which state.
func (s *Server) named(next func(http.ResponseWriter, *http.Request, call) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		// Who is not known learns nothing, not even which names are good.
		id, err := s.authorizer.Authorize(r.Context(), r)
		if err != nil {
			writeError(w, err)
			return
		}
		defer id.release()
		key, err := keyOf(r.PathValue("namespace"), r.PathValue("name"))
		if err == nil {
			err = next(w, r, call{id: id, key: key})
		}
		if err != nil {
			writeError(w, err)
		}
	}
}

func keyOf(namespace, name string) (store.Key, error) {
	if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
		return store.Key{}, &httpError{http.StatusBadRequest, fmt.Sprintf("namespace %q: %s", namespace, problems[0])}
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return store.Key{}, &httpError{http.StatusBadRequest, fmt.Sprintf("name %q: %s", name, problems[0])}
	}
	return store.Key{Namespace: namespace, Name: name}, nil
}

// httpError is an answer that is no success.
type httpError struct {
	code int
	text string
}

func (e *httpError) Error() string { return e.text }

func badRequest(format string, args ...any) error {
	return &httpError{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// codes are what errors mean to a client.
var codes = []struct {
	err  error
	code int
}{
	{state.ErrLocked, http.StatusLocked},
	{store.ErrNoState, http.StatusNotFound},
	{store.ErrNoVersion, http.StatusNotFound},
	{store.ErrFormat, http.StatusBadRequest},
	{store.ErrTooLarge, http.StatusRequestEntityTooLarge},
	{store.ErrSerial, http.StatusConflict},
	{store.ErrLineage, http.StatusConflict},
	{store.ErrLockLost, http.StatusConflict},
	{store.ErrNotLocked, http.StatusConflict},
	{store.ErrNotEmpty, http.StatusConflict},
	{store.ErrEncrypted, http.StatusConflict},
}

// codeOf is the status that an error is answered with. What is not known is 503: the
// API server or the disk has a problem, and clients try again.
func codeOf(err error) int {
	var answer *httpError
	var token *TokenError
	var denied *DeniedError
	var size *http.MaxBytesError
	switch {
	case errors.As(err, &answer):
		return answer.code
	case errors.As(err, &token):
		return http.StatusUnauthorized
	case errors.As(err, &denied):
		return http.StatusForbidden
	case errors.As(err, &size):
		return http.StatusRequestEntityTooLarge
	case apierrors.IsInvalid(err):
		return http.StatusUnprocessableEntity
	}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return http.StatusServiceUnavailable
}

// writeError answers with what went wrong. A lock that is held is told as Terraform
// wants it: as the LockInfo of its holder.
func writeError(w http.ResponseWriter, err error) {
	code := codeOf(err)
	var locked *state.LockedError
	if errors.As(err, &locked) {
		writeJSON(w, code, locked.Lock)
		return
	}
	if code == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Basic realm="terrace state"`)
	}
	http.Error(w, err.Error(), code)
}

func writeJSON(w http.ResponseWriter, code int, what any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(what) // the client is gone: nobody to tell
}

// read returns a body of at most limit bytes.
func (s *Server) read(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength > limit {
		return nil, &httpError{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has %d bytes, of %d that are taken", r.ContentLength, limit)}
	}
	if limit > large && (r.ContentLength < 0 || r.ContentLength > large) {
		select {
		case s.bodies <- struct{}{}:
			defer func() { <-s.bodies }()
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		var size *http.MaxBytesError
		if errors.As(err, &size) {
			return nil, &httpError{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than the %d bytes that are taken", limit)}
		}
		return nil, badRequest("the body ended early")
	}
	return body, nil
}

// drop reads a body of at most the size of a state to its end, and keeps nothing.
func (s *Server) drop(w http.ResponseWriter, r *http.Request) (int64, error) {
	n, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, 2*s.max))
	var size *http.MaxBytesError
	if err != nil && !errors.As(err, &size) {
		err = badRequest("the body ended early")
	}
	return n, err
}

// arrived is the context of a change whose request has arrived whole: a client that is
// killed must not tear it.
func arrived(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(r.Context()), changeTimeout)
}

// record tells the ledger, makes the change, and tells how it ended.
func (s *Server) record(ctx context.Context, c call, e Event, change func() (int64, error)) error {
	e.State, e.By, e.Run = c.key, c.id.Name, c.id.Run
	if s.audit == nil {
		_, err := change()
		return err
	}
	done, err := s.audit(ctx, e)
	if err != nil {
		return fmt.Errorf("%s state %s: record it: %w", e.Verb, c.key, err)
	}
	version, err := change()
	if done != nil {
		done(version, err)
	}
	return err
}

// boolOf reads a flag of a query: its presence alone says yes.
func boolOf(r *http.Request, name string) (bool, error) {
	values, ok := r.URL.Query()[name]
	if !ok {
		return false, nil
	}
	if slices.Contains(values, "") {
		return true, nil
	}
	b, err := strconv.ParseBool(values[0])
	if err != nil {
		return false, badRequest("?%s=%s: use true or false", name, values[0])
	}
	return b, nil
}
