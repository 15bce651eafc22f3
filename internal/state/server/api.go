// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/state/store"
)

// What "terrace state" asks for beside the backend's protocol.

// versions lists the versions that are kept, newest first.
func (s *Server) versions(w http.ResponseWriter, r *http.Request, c call) error {
	if err := c.id.Allow(r.Context(), Get, c.key); err != nil {
		return err
	}
	o, err := s.store.Get(r.Context(), c.key)
	if err != nil {
		return err
	}
	list, err := o.Status.All()
	if err != nil {
		return fmt.Errorf("list the versions of state %s: %w", c.key, err)
	}
	if list == nil {
		list = []v1alpha1.StateVersion{}
	}
	writeJSON(w, http.StatusOK, map[string]any{"versions": list})
	return nil
}

// version answers with the content of one version.
func (s *Server) version(w http.ResponseWriter, r *http.Request, c call) error {
	n, err := versionOf(r.PathValue("version"))
	if err != nil {
		return err
	}
	return s.get(w, r, c, n)
}

func versionOf(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, badRequest("%q is no version: they count from 1", text)
	}
	return n, nil
}

// rollback makes ?version= the newest again, under the lock ?ID= if one is held.
func (s *Server) rollback(w http.ResponseWriter, r *http.Request, c call) error {
	if err := c.id.Allow(r.Context(), Rollback, c.key); err != nil {
		return err
	}
	n, err := versionOf(r.URL.Query().Get("version"))
	if err != nil {
		return err
	}
	force, err := boolOf(r, "force")
	if err != nil {
		return err
	}
	ctx, cancel := arrived(r)
	defer cancel()
	var v v1alpha1.StateVersion
	e := Event{Verb: string(Rollback), Version: n, Detail: fmt.Sprintf("to version %d", n)}
	err = s.record(ctx, c, e, func() (int64, error) {
		v, err = s.store.Rollback(ctx, c.key, n, store.WriteOptions{
			LockID: r.URL.Query().Get("ID"), Force: force, By: c.id.Name, Run: c.id.Run,
		})
		return v.Version, err
	})
	if err != nil {
		return err
	}
	describe(w.Header(), v)
	writeJSON(w, http.StatusOK, v)
	return nil
}

// move gives the state the name ?to=.
func (s *Server) move(w http.ResponseWriter, r *http.Request, c call) error {
	to, err := keyOf(c.key.Namespace, r.URL.Query().Get("to"))
	if err != nil {
		return err
	}
	for _, needed := range []struct {
		verb Verb
		key  store.Key
	}{{Get, c.key}, {Delete, c.key}, {Update, to}} {
		if err := c.id.Allow(r.Context(), needed.verb, needed.key); err != nil {
			return err
		}
	}
	ctx, cancel := arrived(r)
	defer cancel()
	return s.record(ctx, c, Event{Verb: "move", Detail: "to " + to.Name}, func() (int64, error) {
		if err := s.store.Move(ctx, c.key, to.Name); err != nil {
			return 0, err
		}
		w.WriteHeader(http.StatusOK)
		return 0, nil
	})
}

// TokenRequest asks for a token.
type TokenRequest struct {
	// For is how long it is to be good, such as "1h30m"; empty is one hour.
	For string `json:"for,omitempty"`
	// Read asks for one that can only read.
	Read bool `json:"read,omitempty"`
}

// TokenAnswer is a token.
type TokenAnswer struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
}

// token makes a signed token. It can do no more than who asks for it.
func (s *Server) token(w http.ResponseWriter, r *http.Request, c call) error {
	if s.tokens == nil {
		return &httpError{http.StatusNotImplemented, "this server makes no tokens"}
	}
	if !c.id.Mint {
		return &DeniedError{"a token cannot ask for another one; use your own account"}
	}
	body, err := s.read(w, r, maxQuestion)
	if err != nil {
		return err
	}
	var asked TokenRequest
	if len(body) > 0 {
		if err := json.Unmarshal(body, &asked); err != nil {
			return badRequest("the body is not understood: it must be a JSON object with \"for\" and \"read\"")
		}
	}
	var life time.Duration
	if asked.For != "" {
		if life, err = time.ParseDuration(asked.For); err != nil || life <= 0 {
			return badRequest("%q is no duration, such as 1h or 90m", asked.For)
		}
	}
	verbs := applyVerbs
	if asked.Read {
		verbs = []Verb{Get}
	}
	for _, verb := range verbs {
		if err := c.id.Allow(r.Context(), verb, c.key); err != nil {
			return err
		}
	}
	token, expires, err := s.tokens.Mint(c.key, !asked.Read, c.id.Name, life)
	if err != nil {
		return badRequest("%v", err)
	}
	detail := "reads and writes, until " + expires.UTC().Format(time.RFC3339)
	if asked.Read {
		detail = "reads, until " + expires.UTC().Format(time.RFC3339)
	}
	return s.record(r.Context(), c, Event{Verb: "token", Detail: detail}, func() (int64, error) {
		writeJSON(w, http.StatusCreated, TokenAnswer{Token: token, Expires: expires})
		return 0, nil
	})
}
