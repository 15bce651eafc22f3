// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/state/store"
)

// runToken begins the tokens of runs, so that they can be told from others, also by
// who looks for secrets where none should be.
const runToken = "terrace_run_"

// Grant says which state a run may reach, and what it may do there.
type Grant struct {
	// State is the one state that the token is for.
	State store.Key
	// Write lets the run write; without it, it may read, lock and unlock, as a plan does.
	Write bool
	// Run and Unit name the run, in versions and in refusals.
	Run, Unit string
	// OnLock is told the ID of a lock before the run tries to take it. If it returns an
	// error, the lock is not taken. Nil is not told.
	OnLock func(id string) error
	// OnWrite is told of each version that the run wrote, with its content; OnRead of
	// each that it read. Nil is not told. They must not keep the content's bytes longer
	// than they want them in memory, nor change them.
	OnWrite, OnRead func(v v1alpha1.StateVersion, payload []byte)
}

// grant is a Grant that a token stands for.
type grant struct {
	Grant
	ref string // its name in signed URLs

	mu      sync.Mutex
	revoked bool
	// serving counts requests in flight; revoked keeps new ones out.
	serving sync.WaitGroup
}

// enter counts a request in, unless the grant is revoked.
func (g *grant) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.revoked {
		return false
	}
	g.serving.Add(1)
	return true
}

// Grants are the tokens of the runs that this process has at work. They live in memory
// only, and die with their run or with the process.
type Grants struct {
	mu     sync.Mutex
	byHash map[[sha256.Size]byte]*grant
}

// NewGrants returns no grants yet.
func NewGrants() *Grants { return &Grants{byHash: map[[sha256.Size]byte]*grant{}} }

// New makes a token. The function revokes it: the token is refused from then on, and
// requests that are being served are waited for, so that a state that has arrived is
// written.
func (gs *Grants) New(g Grant) (token string, revoke func(), err error) {
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return "", nil, fmt.Errorf("make a token: %w", err)
	}
	token = runToken + base64.RawURLEncoding.EncodeToString(secret)
	// The map is keyed by hashes: how long a look-up takes tells nothing of a token.
	hash := sha256.Sum256([]byte(token))
	made := &grant{Grant: g, ref: hex.EncodeToString(hash[:])}
	gs.mu.Lock()
	gs.byHash[hash] = made
	gs.mu.Unlock()
	return token, func() {
		gs.mu.Lock()
		delete(gs.byHash, hash)
		gs.mu.Unlock()
		made.mu.Lock()
		made.revoked = true
		made.mu.Unlock()
		made.serving.Wait()
	}, nil
}

// Authorize implements Authorizer.
func (gs *Grants) Authorize(_ context.Context, r *http.Request) (Identity, error) {
	token := Token(r)
	if !strings.HasPrefix(token, runToken) {
		return Identity{}, ErrUnknown
	}
	return gs.identity(sha256.Sum256([]byte(token)))
}

// byRef is the identity of a grant that a signed URL names.
func (gs *Grants) byRef(ref string) (Identity, error) {
	var hash [sha256.Size]byte
	if b, err := hex.DecodeString(ref); err != nil || copy(hash[:], b) != len(hash) {
		return Identity{}, &TokenError{"the run has ended"}
	}
	return gs.identity(hash)
}

func (gs *Grants) identity(hash [sha256.Size]byte) (Identity, error) {
	gs.mu.Lock()
	g := gs.byHash[hash]
	gs.mu.Unlock()
	if g == nil || !g.enter() {
		return Identity{}, &TokenError{"the token is unknown, or its run has ended"}
	}
	return Identity{Name: g.Unit, Run: g.Run, Allow: g.allow, grant: g}, nil
}

var (
	planVerbs  = []Verb{Get, Lock, Unlock}
	applyVerbs = []Verb{Get, Lock, Unlock, Update}
)

func (g *grant) allow(_ context.Context, verb Verb, key store.Key) error {
	switch {
	case key != g.State:
		return &DeniedError{fmt.Sprintf("run %s may reach the state %s, and not %s", g.Run, g.State, key)}
	case g.Write && slices.Contains(applyVerbs, verb), slices.Contains(planVerbs, verb):
		return nil
	case g.Write:
		return &DeniedError{fmt.Sprintf("run %s may read, lock and write the state %s, and not %s it", g.Run, key, verb)}
	}
	return &DeniedError{fmt.Sprintf("run %s may read and lock the state %s, and not %s it", g.Run, key, verb)}
}
