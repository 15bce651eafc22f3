// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/state"
	"github.com/terrace-dev/terrace/internal/state/store"
)

// The protocol of Terraform's "http" backend, as OpenTofu 1.12 and Terraform 1.11
// speak it. Both try LOCK, GET, POST and UNLOCK again after 5xx and broken
// connections, so that each may come twice.

// backend answers at the address of a state.
func (s *Server) backend(w http.ResponseWriter, r *http.Request, c call) error {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return s.get(w, r, c, 0)
	case http.MethodPost, http.MethodPut:
		return s.post(w, r, c)
	case "LOCK":
		return s.lock(w, r, c)
	case "UNLOCK":
		return s.unlock(w, r, c)
	case http.MethodDelete:
		return s.delete(w, r, c)
	}
	w.Header().Set("Allow", "GET, HEAD, POST, PUT, LOCK, UNLOCK, DELETE")
	return &httpError{http.StatusMethodNotAllowed, fmt.Sprintf("the method %s is not for a state", r.Method)}
}

// lockAddress answers at an address that only has a state's lock, for clients whose
// methods cannot be LOCK and UNLOCK.
func (s *Server) lockAddress(w http.ResponseWriter, r *http.Request, c call) error {
	switch r.Method {
	case http.MethodPost, http.MethodPut, "LOCK":
		return s.lock(w, r, c)
	case http.MethodDelete, "UNLOCK":
		return s.unlock(w, r, c)
	}
	w.Header().Set("Allow", "POST, PUT, LOCK, DELETE, UNLOCK")
	return &httpError{http.StatusMethodNotAllowed, fmt.Sprintf("the method %s is not for a lock", r.Method)}
}

// get answers with the content of a version; 0 is the newest.
func (s *Server) get(w http.ResponseWriter, r *http.Request, c call, version int64) error {
	if err := c.id.Allow(r.Context(), Get, c.key); err != nil {
		return err
	}
	payload, v, err := s.store.Read(r.Context(), c.key, version)
	if err != nil {
		return err
	}
	if version == 0 {
		c.id.onRead(v, payload)
	}
	sum := md5.Sum(payload)
	h := w.Header()
	describe(h, v)
	h.Set("Content-Type", "application/json")
	h.Set("Content-MD5", base64.StdEncoding.EncodeToString(sum[:]))
	h.Set("Content-Length", strconv.Itoa(len(payload)))
	if r.Method == http.MethodHead {
		return nil
	}
	_, _ = w.Write(payload)
	return nil
}

// describe names a version in the header of an answer.
func describe(h http.Header, v v1alpha1.StateVersion) {
	h.Set("ETag", store.ETag(v))
	h.Set("X-Terrace-Version", strconv.FormatInt(v.Version, 10))
}

// post writes a version.
func (s *Server) post(w http.ResponseWriter, r *http.Request, c call) error {
	if err := c.id.Allow(r.Context(), Update, c.key); err != nil {
		return err
	}
	force, err := boolOf(r, "force")
	if err != nil {
		return err
	}
	if force {
		if err := c.id.Allow(r.Context(), Rollback, c.key); err != nil {
			return err
		}
	}
	payload, err := s.read(w, r, s.max)
	if err != nil {
		return err
	}
	if err := checkMD5(r.Header.Get("Content-MD5"), payload); err != nil {
		return err
	}
	ctx, cancel := arrived(r)
	defer cancel()
	v, err := s.write(ctx, c, payload, store.WriteOptions{LockID: r.URL.Query().Get("ID"), Force: force})
	if err != nil {
		return err
	}
	describe(w.Header(), v)
	w.WriteHeader(http.StatusOK)
	return nil
}

// checkMD5 compares a payload with what the client said of it; saying nothing is good.
func checkMD5(header string, payload []byte) error {
	if header == "" {
		return nil
	}
	want, err := base64.StdEncoding.DecodeString(header)
	if err != nil || len(want) != md5.Size {
		return badRequest("the Content-MD5 %q is none", header)
	}
	if sum := md5.Sum(payload); !bytes.Equal(sum[:], want) {
		return badRequest("the body is not that of its Content-MD5: it was damaged on the way")
	}
	return nil
}

// write writes a version for whoever asks.
func (s *Server) write(ctx context.Context, c call, payload []byte, opts store.WriteOptions) (v1alpha1.StateVersion, error) {
	opts.By, opts.Run = c.id.Name, c.id.Run
	sum, err := state.Summarize(payload)
	if err != nil {
		return v1alpha1.StateVersion{}, fmt.Errorf("write state %s: %w: %v", c.key, store.ErrFormat, err)
	}
	e := Event{Verb: "write", Detail: fmt.Sprintf("serial %d, %d resources", sum.Serial, sum.Resources)}
	if opts.Force {
		e.Detail += ", by force"
	}
	var v v1alpha1.StateVersion
	err = s.record(ctx, c, e, func() (int64, error) {
		v, err = s.store.Write(ctx, c.key, payload, opts)
		return v.Version, err
	})
	if err == nil {
		c.id.onWrite(v, payload)
	}
	return v, err
}

// readLock returns the LockInfo of a request; nil when it sent none at all.
func (s *Server) readLock(w http.ResponseWriter, r *http.Request) (*state.Lock, error) {
	body, err := s.read(w, r, maxLock)
	if err != nil {
		return nil, err
	}
	return parseLock(body)
}

func parseLock(body []byte) (*state.Lock, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, nil
	}
	var l state.Lock
	if err := json.Unmarshal(body, &l); err != nil {
		return nil, badRequest("the body is no LockInfo: it must be a JSON object with an ID")
	}
	if l.ID == "" {
		return nil, badRequest("the LockInfo has no ID")
	}
	return &l, nil
}

// lock takes the lock.
func (s *Server) lock(w http.ResponseWriter, r *http.Request, c call) error {
	if err := c.id.Allow(r.Context(), Lock, c.key); err != nil {
		return err
	}
	l, err := s.readLock(w, r)
	if err != nil {
		return err
	}
	if l == nil {
		return badRequest("the body is empty: it must be a LockInfo, a JSON object with an ID")
	}
	ctx, cancel := arrived(r)
	defer cancel()
	if err := s.take(ctx, c, *l); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// take takes a lock for whoever asks. Its run notes it before.
func (s *Server) take(ctx context.Context, c call, l state.Lock) error {
	if err := c.id.onLock(l.ID); err != nil {
		return fmt.Errorf("lock state %s: note the lock: %w", c.key, err)
	}
	return s.store.Lock(ctx, c.key, l, store.Holder{Run: c.id.Run, User: c.id.Name})
}

// unlock gives the lock back. Terraform's force-unlock sends nothing, OpenTofu's the ID
// and nothing else: both break a lock that its holder has not given back, which is a
// verb of its own. So does whoever says again what it was told of a run's lock.
func (s *Server) unlock(w http.ResponseWriter, r *http.Request, c call) error {
	l, err := s.readLock(w, r)
	if err != nil {
		return err
	}
	ctx, cancel := arrived(r)
	defer cancel()
	if l == nil {
		if err := s.forceUnlock(ctx, c, ""); err != nil {
			return err
		}
		w.WriteHeader(http.StatusOK)
		return nil
	}
	if err := c.id.Allow(ctx, Unlock, c.key); err != nil {
		return err
	}
	if bare(*l) || c.id.Run == "" {
		foreign, err := s.foreign(ctx, c, *l)
		if err != nil {
			return err
		}
		if foreign {
			if err := s.forceUnlock(ctx, c, l.ID); err != nil {
				return err
			}
			w.WriteHeader(http.StatusOK)
			return nil
		}
	}
	if err := s.store.Unlock(ctx, c.key, l.ID); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// bare reports whether a LockInfo has an ID and nothing else.
func bare(l state.Lock) bool {
	return l.Who == "" && l.Operation == "" && l.Version == "" && (l.Created.IsZero() || l.Created.Equal(time.Time{}))
}

// foreign reports whether the lock with that ID is held by a run and not the one that
// asks, or by one who said more of itself than the ID while who asks does not.
func (s *Server) foreign(ctx context.Context, c call, l state.Lock) (bool, error) {
	o, err := s.store.Get(ctx, c.key)
	if err != nil {
		return false, err
	}
	held := o.Status.Lock
	if held == nil || held.ID != l.ID {
		return false, nil // the store knows what to say
	}
	said := state.ParseLock(held.ID, held.Info)
	return held.Run != "" && held.Run != c.id.Run || bare(l) && !bare(*said), nil
}

// forceUnlock breaks the lock with that ID, or whatever lock is held when the ID is
// empty, if the identity may.
func (s *Server) forceUnlock(ctx context.Context, c call, id string) error {
	if err := c.id.Allow(ctx, ForceUnlock, c.key); err != nil {
		return err
	}
	detail := "no lock was held"
	if o, err := s.store.Get(ctx, c.key); err != nil {
		return err
	} else if l := store.Held(o); l != nil {
		detail = (&state.LockedError{Lock: *l}).Error()
	}
	return s.record(ctx, c, Event{Verb: string(ForceUnlock), Detail: detail}, func() (int64, error) {
		if id != "" {
			return 0, s.store.Unlock(ctx, c.key, id)
		}
		_, err := s.store.ForceUnlock(ctx, c.key)
		return 0, err
	})
}

// delete removes the state with its versions.
func (s *Server) delete(w http.ResponseWriter, r *http.Request, c call) error {
	if err := c.id.Allow(r.Context(), Delete, c.key); err != nil {
		return err
	}
	force, err := boolOf(r, "force")
	if err != nil {
		return err
	}
	ctx, cancel := arrived(r)
	defer cancel()
	e := Event{Verb: string(Delete)}
	if force {
		e.Detail = "by force"
	}
	err = s.record(ctx, c, e, func() (int64, error) { return 0, s.store.Delete(ctx, c.key, force) })
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}
