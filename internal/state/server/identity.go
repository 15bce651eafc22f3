// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/state/store"
)

// Verb is what somebody wants to do with a State. Kubernetes' RBAC grants them on the
// resource states of the group terrace.dev, by name if resourceNames say so.
type Verb string

// The verbs. Unlock gives back a lock by its ID, as each holder does; ForceUnlock
// breaks one without being its holder, and is a verb of its own so that whoever may
// apply need not be able to push others aside.
const (
	Get         Verb = "get"    // read the content of any version
	Update      Verb = "update" // write a version that follows the newest
	Lock        Verb = "lock"
	Unlock      Verb = "unlock"
	ForceUnlock Verb = "force-unlock"
	// Rollback makes an old version the newest, and writes what does not follow the
	// newest: another lineage, a serial that is not new (?force).
	Rollback Verb = "rollback"
	Delete   Verb = "delete" // with all versions; also what a move does to the old name
)

// Identity is who sent a request, and what it may do.
type Identity struct {
	// Name is the user, or the unit of a run. It is kept with what is written.
	Name string
	// Run is the run that the request belongs to; empty for people and pipelines.
	Run string
	// Allow returns nil when the identity may do that. *DeniedError says that it may
	// not; any other error, that it is not known.
	Allow func(ctx context.Context, verb Verb, key store.Key) error
	// Mint says that the identity may ask for tokens for what it may do itself: it is
	// an account, no token of ours.
	Mint bool

	// grant is what is told of locks, reads and writes; nil for who is not a run.
	grant *grant
}

// release ends the request for who counts them.
func (id Identity) release() {
	if id.grant != nil {
		id.grant.serving.Done()
	}
}

func (id Identity) onLock(lock string) error {
	if id.grant == nil || id.grant.OnLock == nil {
		return nil
	}
	return id.grant.OnLock(lock)
}

func (id Identity) onWrite(v v1alpha1.StateVersion, payload []byte) {
	if id.grant != nil && id.grant.OnWrite != nil {
		id.grant.OnWrite(v, payload)
	}
}

func (id Identity) onRead(v v1alpha1.StateVersion, payload []byte) {
	if id.grant != nil && id.grant.OnRead != nil {
		id.grant.OnRead(v, payload)
	}
}

// Authorizer finds out who sent a request. Errors: *TokenError, when the credentials
// are not good; ErrUnknown, when they are of a kind that this authorizer does not
// know; anything else means that nobody can tell now.
type Authorizer interface {
	Authorize(ctx context.Context, r *http.Request) (Identity, error)
}

// ErrUnknown says that credentials are none that an authorizer knows.
var ErrUnknown = errors.New("the credentials are of an unknown kind")

// TokenError says why credentials are refused. It is answered with 401.
type TokenError struct{ Why string }

func (e *TokenError) Error() string { return e.Why }

// DeniedError says what an identity may not do. It is answered with 403.
type DeniedError struct{ Why string }

func (e *DeniedError) Error() string { return e.Why }

// Authorizers asks one after the other, until one knows the credentials.
type Authorizers []Authorizer

// Authorize implements Authorizer.
func (as Authorizers) Authorize(ctx context.Context, r *http.Request) (Identity, error) {
	for _, a := range as {
		id, err := a.Authorize(ctx, r)
		if errors.Is(err, ErrUnknown) {
			continue
		}
		return id, err
	}
	if Token(r) == "" {
		return Identity{}, &TokenError{"no token is given: it is the password of Basic authentication, or a Bearer token"}
	}
	return Identity{}, &TokenError{"the token is unknown, or its run has ended"}
}

// maxToken bounds a token, in bytes: Kubernetes' own have some kilobytes.
const maxToken = 8 << 10

// Token is the token of a request: a Bearer token, or the password of Basic
// authentication, whose user does not matter. Where a proxy keeps Authorization for
// itself, as the Kubernetes API server does, X-Terrace-Token carries it.
func Token(r *http.Request) string {
	token := r.Header.Get("X-Terrace-Token")
	if token == "" {
		if _, password, ok := r.BasicAuth(); ok {
			token = password
		} else if scheme, rest, _ := strings.Cut(r.Header.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") {
			token = strings.TrimSpace(rest)
		}
	}
	if len(token) > maxToken {
		return ""
	}
	return token
}
