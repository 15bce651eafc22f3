// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package store keeps Terraform states: what is known of each in a State object of
// the Kubernetes API, and its versions as sealed blobs.
//
// Every change is one compare-and-swap of the State's status, so that any number of
// processes agree through the API server. A version's content is on disk before the
// status names it, and is deleted only after no status does: a crash in between
// leaves a blob that nobody names, which Collect removes, and nothing else.
//
// The package decides whether a write is right (lock, serial, lineage). Who may ask
// for it is the affair of package server.
package store

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	digest "github.com/opencontainers/go-digest"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/blob"
	"github.com/terrace-dev/terrace/internal/state"
)

var (
	// ErrNoState says that there is no such State, or that nothing was written to it.
	ErrNoState = errors.New("no state")
	// ErrNoVersion says that the State has no such version, or not any more.
	ErrNoVersion = errors.New("no such version")
	// ErrFormat says that what was given is no state, or no lock.
	ErrFormat = errors.New("not understood")
	// ErrTooLarge says that a payload has more than state.MaxPayload bytes.
	ErrTooLarge = errors.New("too large")
	// ErrSerial says that the State has that serial with other content, or a higher one.
	ErrSerial = errors.New("the serial is not new")
	// ErrLineage says that the payload is another state than the one that is kept.
	ErrLineage = errors.New("the lineage is another")
	// ErrLockLost says that a write names a lock that is not held any more.
	ErrLockLost = errors.New("the lock is not held any more")
	// ErrNotLocked says that a lock cannot be released, as none is held.
	ErrNotLocked = errors.New("the state is not locked")
	// ErrNotEmpty says that a State is not deleted because it has resources.
	ErrNotEmpty = errors.New("the state has resources")
	// ErrEncrypted says that OpenTofu encrypted the content, so that no serial can be
	// written into it.
	ErrEncrypted = errors.New("the state is encrypted by OpenTofu")
)

const (
	// keepVersions is how many versions are kept when the spec does not say it.
	keepVersions = 100
	// maxVersions bounds them in any case: an object of the API has 1.5 MiB at most.
	maxVersions = 500
	// tries bounds how often a change is tried that others come before. Each time
	// somebody else got on, so that it ends early in practice.
	tries = 200
	// remembered is how many States are kept as they were written last, of some 20 KiB each
	// at most.
	remembered = 512
	// maxInfo bounds a LockInfo, in bytes of JSON.
	maxInfo = 16 << 10
)

// Key names a State: its namespace and name.
type Key = client.ObjectKey

// Options say what a Store keeps its states in.
type Options struct {
	// Client writes State objects. Its account needs create, delete, and update of
	// states and states/status.
	Client client.Client
	// Reader reads them uncached; nil is Client. Its account needs get and list.
	Reader client.Reader
	// Blobs keeps the content, and nothing else, or Collect would delete that: give a
	// part (blob.Store.Part) of its own. It needs a key file.
	Blobs *blob.Store
	// Namespaces are those whose States have their content in Blobs; empty means all. The
	// others are another process's, and are left alone by Rewrap. Collect looks at all the
	// same: what any State names is kept.
	Namespaces []string
	// Clock stamps versions and locks; nil is the real one.
	Clock clock.PassiveClock
}

// Store keeps states. It is safe for concurrent use, also by several processes on the
// same API and the same blobs.
type Store struct {
	client client.Client
	reader client.Reader
	blobs  *blob.Store
	clock  clock.PassiveClock
	key    func() ([]byte, error)

	namespaces []string
	// last has States as this Store wrote them last, by Key. One that nobody else changed
	// since is written again without reading it: the compare-and-swap finds out.
	last *lru.Cache
}

// New returns a Store.
func New(o Options) *Store {
	if o.Reader == nil {
		o.Reader = o.Client
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return &Store{
		client: o.Client, reader: o.Reader, blobs: o.Blobs, clock: o.Clock, namespaces: o.Namespaces, last: lru.New(remembered),
		key: sync.OnceValues(func() ([]byte, error) { return o.Blobs.Key("state digests") }),
	}
}

// Holder is who takes a lock, in words that the service knows by itself.
type Holder struct {
	Run  string // empty for people and pipelines
	User string // who is authenticated; shown when the LockInfo does not say Who
}

// WriteOptions say who writes, and by what right.
type WriteOptions struct {
	// LockID is the lock that the writer holds; empty when it holds none.
	LockID string
	// Force takes a state of another lineage, and a serial that is not new.
	Force bool
	// By, Run and Operation are kept with the version. By and Operation are taken from the
	// lock that is held when they are empty. A lock that a run holds is for its Run only.
	By, Run, Operation string
}

// Get reads what is known of a state, with one request. The error is ErrNoState when
// there is no such object.
func (s *Store) Get(ctx context.Context, key Key) (*v1alpha1.State, error) {
	o := &v1alpha1.State{}
	err := s.reader.Get(ctx, key, o)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("read state %s: %w", key, ErrNoState)
	}
	if err != nil {
		return nil, fmt.Errorf("read state %s: %w", key, err)
	}
	return o, nil
}

// List returns the States of a namespace, by name.
func (s *Store) List(ctx context.Context, namespace string) ([]v1alpha1.State, error) {
	var found []v1alpha1.State
	err := s.each(ctx, func(o *v1alpha1.State) { found = append(found, *o) }, client.InNamespace(namespace))
	if err != nil {
		return nil, fmt.Errorf("list states of namespace %s: %w", namespace, err)
	}
	slices.SortFunc(found, func(a, b v1alpha1.State) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}

// Read returns the content of a version; 0 is the newest. Errors: ErrNoState when
// nothing was written yet, ErrNoVersion.
func (s *Store) Read(ctx context.Context, key Key, version int64) ([]byte, v1alpha1.StateVersion, error) {
	var lost error
	var was string
	for range tries {
		o, err := s.Get(ctx, key)
		if err != nil {
			return nil, v1alpha1.StateVersion{}, err
		}
		v, err := find(o, version)
		if err != nil {
			return nil, v1alpha1.StateVersion{}, fmt.Errorf("read state %s: %w", key, err)
		}
		if lost != nil && was == v.Blob {
			break
		}
		payload, err := s.open(ctx, v)
		if err == nil {
			return payload, v, nil
		}
		if !errors.Is(err, blob.ErrNotFound) {
			return nil, v, fmt.Errorf("read version %d of state %s: %w", v.Version, key, err)
		}
		// It was sealed anew, or removed, since the object was read.
		lost, was = err, v.Blob
	}
	return nil, v1alpha1.StateVersion{}, fmt.Errorf("read state %s: %w", key, lost)
}

// find returns a version of a State; 0 is the newest.
func find(o *v1alpha1.State, version int64) (v1alpha1.StateVersion, error) {
	if len(o.Status.Versions) == 0 {
		return v1alpha1.StateVersion{}, ErrNoState
	}
	if version == 0 {
		return o.Status.Versions[0], nil
	}
	versions, err := o.Status.All()
	if err != nil {
		return v1alpha1.StateVersion{}, err
	}
	for _, v := range versions {
		if v.Version == version {
			return v, nil
		}
	}
	return v1alpha1.StateVersion{}, fmt.Errorf("%w: %d; kept are %d to %d", ErrNoVersion, version, versions[len(versions)-1].Version, versions[0].Version)
}

// open returns the content of a version.
func (s *Store) open(ctx context.Context, v v1alpha1.StateVersion) ([]byte, error) {
	r, err := s.blobs.Unseal(ctx, digest.Digest(v.Blob))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	payload, err := io.ReadAll(io.LimitReader(r, state.MaxPayload+1))
	if err != nil {
		return nil, err
	}
	if int64(len(payload)) != v.Size {
		return nil, fmt.Errorf("blob %s has %d bytes, not %d: %w", v.Blob, len(payload), v.Size, blob.ErrDigest)
	}
	return payload, nil
}

// errUnchanged ends a change that has nothing to do.
var errUnchanged = errors.New("unchanged")

// change lets f change the status of a State and writes that, from the beginning again,
// with the State read anew, when somebody else has changed it. So f may be asked with a
// State that is out of date; when it refuses that, it is asked once more with what is. With create it makes the State when there
// is none, and f has changed it. When f returns errUnchanged nothing is written. It
// returns the object as it is then; with an error it returns one only when f refused,
// so that certainly nothing was written.
func (s *Store) change(ctx context.Context, key Key, create bool, f func(*v1alpha1.State) error) (*v1alpha1.State, error) {
	for range tries {
		o, known := s.recall(key)
		var err error
		if !known {
			o, err = s.Get(ctx, key)
		}
		missing := create && errors.Is(err, ErrNoState)
		switch {
		case missing:
			o = &v1alpha1.State{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		case err != nil:
			return nil, err
		}
		switch err := f(o); {
		case err != nil && known:
			s.last.Remove(key)
			continue
		case errors.Is(err, errUnchanged):
			s.last.Add(key, o.DeepCopy())
			return o, nil
		case err != nil:
			return o, err
		}
		if missing {
			// What creates an object ignores its status, which has an address of its own.
			status := o.Status
			o.Status = v1alpha1.StateStatus{}
			err := s.client.Create(ctx, o)
			if apierrors.IsAlreadyExists(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("create it: %w", err)
			}
			o.Status = status
		}
		err = s.client.Status().Update(ctx, o)
		if err != nil {
			s.last.Remove(key)
		}
		switch {
		case err == nil:
			s.last.Add(key, o.DeepCopy())
			return o, nil
		case apierrors.IsConflict(err), apierrors.IsNotFound(err) && create:
			continue
		case apierrors.IsNotFound(err):
			return nil, ErrNoState
		}
		return nil, fmt.Errorf("write its status: %w", err)
	}
	return nil, fmt.Errorf("it was changed by others %d times in a row", tries)
}

// recall returns a copy of the State as it was written here last.
func (s *Store) recall(key Key) (*v1alpha1.State, bool) {
	o, ok := s.last.Get(key)
	if !ok {
		return nil, false
	}
	return o.(*v1alpha1.State).DeepCopy(), true
}

// Lock takes the lock of a state, and makes the State when there is none. It returns
// nil when the lock with that ID is held already, by the same run or by none, and
// *state.LockedError (state.ErrLocked) when another one is. ErrFormat says that the
// lock has no ID, or too many words. It costs one write, and a read when
// others may have changed the State.
func (s *Store) Lock(ctx context.Context, key Key, l state.Lock, h Holder) error {
	info, err := json.Marshal(l)
	if err != nil || l.ID == "" || len(info) > maxInfo {
		return fmt.Errorf("lock state %s: lock: %w: it needs an ID, and at most %d bytes", key, ErrFormat, maxInfo)
	}
	who := l.Who
	if who == "" {
		who = h.User
	}
	_, err = s.change(ctx, key, true, func(o *v1alpha1.State) error {
		if held := o.Status.Lock; held != nil {
			if held.ID == l.ID && held.Run == h.Run {
				return errUnchanged
			}
			return &state.LockedError{Lock: lockOf(held)}
		}
		o.Status.Lock = &v1alpha1.StateLock{
			ID: l.ID, Holder: who, Run: h.Run, Operation: l.Operation, Info: string(info), Since: metav1.NewTime(s.clock.Now()),
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("lock state %s: %w", key, err)
	}
	return nil
}

// lockOf is what a holder said of itself, or as much as is known without that.
func lockOf(held *v1alpha1.StateLock) state.Lock {
	l := state.ParseLock(held.ID, held.Info)
	if l.Who == "" {
		l.Who = held.Holder
	}
	if l.Operation == "" {
		l.Operation = held.Operation
	}
	if l.Created.IsZero() {
		l.Created = held.Since.UTC()
	}
	return *l
}

// Held returns what the holder of a State's lock said of itself; nil when it is not
// locked.
func Held(o *v1alpha1.State) *state.Lock {
	if o.Status.Lock == nil {
		return nil
	}
	l := lockOf(o.Status.Lock)
	return &l
}

// Unlock releases the lock with that ID; releasing the last one again does nothing.
// Errors: *state.LockedError (state.ErrLocked) when another is held, ErrNotLocked when
// none is and the ID is not that of the last, ErrNoState.
func (s *Store) Unlock(ctx context.Context, key Key, id string) error {
	_, err := s.change(ctx, key, false, func(o *v1alpha1.State) error {
		switch held := o.Status.Lock; {
		case held == nil && id != "" && id == o.Status.LastLock:
			return errUnchanged
		case held == nil:
			return ErrNotLocked
		case held.ID != id:
			return &state.LockedError{Lock: lockOf(held)}
		}
		o.Status.Lock, o.Status.LastLock = nil, id
		return nil
	})
	if err != nil {
		return fmt.Errorf("unlock state %s: %w", key, err)
	}
	return nil
}

// ForceUnlock releases whatever lock is held, and returns it; nil when none was.
// Its holder, if it still is at work, can write no more: its ID is not held. The
// error is ErrNoState when there is no such State.
func (s *Store) ForceUnlock(ctx context.Context, key Key) (*state.Lock, error) {
	var was *state.Lock
	_, err := s.change(ctx, key, false, func(o *v1alpha1.State) error {
		if was = Held(o); was == nil {
			return errUnchanged
		}
		o.Status.Lock, o.Status.LastLock = nil, was.ID
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("unlock state %s by force: %w", key, err)
	}
	return was, nil
}

// payload is a content and what is to be known of it.
type payload struct {
	content []byte
	state.Summary
	serial int64
	digest string
}

// parse checks a content for what is the same whatever is kept.
func (s *Store) parse(content []byte) (payload, error) {
	if len(content) > state.MaxPayload {
		return payload{}, fmt.Errorf("%w: %d bytes, of %d that are taken", ErrTooLarge, len(content), state.MaxPayload)
	}
	sum, err := state.Summarize(content)
	if err != nil {
		return payload{}, fmt.Errorf("%w: %v", ErrFormat, err)
	}
	if sum.Serial > math.MaxInt64 {
		return payload{}, fmt.Errorf("%w: serial %d", ErrFormat, sum.Serial)
	}
	key, err := s.key()
	if err != nil {
		return payload{}, err
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(content)
	return payload{content: content, Summary: sum, serial: int64(sum.Serial), digest: "hmac-sha256:" + hex.EncodeToString(mac.Sum(nil))}, nil
}

// Write adds a version, unless it is the newest already: then it returns that. The
// content is on disk before the State names it. Errors: *state.LockedError
// (state.ErrLocked) when a lock is held that is not opts.LockID, or is a run's that is
// not opts.Run; ErrLockLost when opts.LockID is not held and nobody else's is;
// ErrLineage and ErrSerial, unless opts.Force; ErrFormat; ErrTooLarge. It costs what Lock does.
func (s *Store) Write(ctx context.Context, key Key, content []byte, opts WriteOptions) (v1alpha1.StateVersion, error) {
	p, err := s.parse(content)
	if err != nil {
		return v1alpha1.StateVersion{}, fmt.Errorf("write state %s: %w", key, err)
	}
	v, err := s.write(ctx, key, opts, func(*v1alpha1.State) (payload, error) { return p, nil })
	if err != nil {
		return v, fmt.Errorf("write state %s: %w", key, err)
	}
	return v, nil
}

// write adds the version that compose says, asked again each time that the State is
// read.
func (s *Store) write(ctx context.Context, key Key, opts WriteOptions, compose func(*v1alpha1.State) (payload, error)) (v1alpha1.StateVersion, error) {
	var written v1alpha1.StateVersion
	var sealed, sealedDigest string // the blob, and of which content it is
	var gone []v1alpha1.StateVersion
	o, err := s.change(ctx, key, true, func(o *v1alpha1.State) error {
		p, err := compose(o)
		if err != nil {
			return err
		}
		if same, err := admit(o, p, opts); err != nil || same != nil {
			if same != nil {
				written = *same
				return errUnchanged
			}
			return err
		}
		if sealedDigest != p.digest {
			s.discard(ctx, sealed)
			d, _, err := s.blobs.Seal(ctx, bytes.NewReader(p.content))
			if err != nil {
				return err
			}
			sealed, sealedDigest = d.String(), p.digest
		}
		written = s.version(o, p, opts, sealed)
		gone, err = s.put(o, written, p)
		return err
	})
	if err != nil {
		if o != nil {
			// The status was refused by a rule, so nothing names the blob. After an error of
			// the API the write may have arrived all the same: then it stays.
			s.discard(ctx, sealed)
		}
		return v1alpha1.StateVersion{}, err
	}
	if sealed != "" && written.Blob != sealed {
		s.discard(ctx, sealed)
	}
	for _, v := range gone {
		s.discard(ctx, v.Blob)
	}
	return written, nil
}

// discard deletes a blob that no status names. If that fails, Collect comes by later.
func (s *Store) discard(ctx context.Context, d string) {
	if d != "" {
		_ = s.blobs.Delete(context.WithoutCancel(ctx), digest.Digest(d))
	}
}

// admit decides whether a content may become the newest version. It returns the
// newest when it is that already.
func admit(o *v1alpha1.State, p payload, opts WriteOptions) (*v1alpha1.StateVersion, error) {
	held := o.Status.Lock
	// Losers are told the ID; that of a run's lock is of use to that run alone.
	if held != nil && (held.ID != opts.LockID || held.Run != "" && held.Run != opts.Run) {
		return nil, &state.LockedError{Lock: lockOf(held)}
	}
	var newest *v1alpha1.StateVersion
	if len(o.Status.Versions) > 0 {
		newest = &o.Status.Versions[0]
	}
	if newest != nil && p.serial == newest.Serial && p.digest == newest.Digest {
		return newest, nil
	}
	if held == nil && opts.LockID != "" {
		return nil, fmt.Errorf("%w: %q", ErrLockLost, opts.LockID)
	}
	if newest == nil || opts.Force {
		return nil, nil
	}
	if p.Lineage != newest.Lineage && newest.Lineage != "" {
		return nil, fmt.Errorf("%w: it is %q, and %q is kept", ErrLineage, p.Lineage, newest.Lineage)
	}
	switch {
	case p.serial < newest.Serial:
		return nil, fmt.Errorf("%w: it is %d, and %d is kept", ErrSerial, p.serial, newest.Serial)
	case p.serial == newest.Serial:
		return nil, fmt.Errorf("%w: serial %d is kept with other content", ErrSerial, p.serial)
	}
	return nil, nil
}

// operations are what Terraform calls its operations, in our words.
var operations = map[string]string{
	"OperationTypeApply": "apply", "OperationTypePlan": "plan", "OperationTypeRefresh": "refresh",
	"state-push": "push", "state-rm": "rm", "state-mv": "mv",
	"migration source state": "migrate", "migration destination state": "migrate",
}

// version is the version that a content becomes.
func (s *Store) version(o *v1alpha1.State, p payload, opts WriteOptions, sealed string) v1alpha1.StateVersion {
	v := v1alpha1.StateVersion{
		Version: 1, Serial: p.serial, Lineage: p.Lineage, Blob: sealed, Digest: p.digest, Size: int64(len(p.content)),
		Resources: p.Resources, Created: metav1.NewTime(s.clock.Now()), By: opts.By, Run: opts.Run, Operation: opts.Operation,
	}
	if len(o.Status.Versions) > 0 {
		v.Version = o.Status.Versions[0].Version + 1
	}
	if l := o.Status.Lock; l != nil {
		if v.By == "" {
			v.By = l.Holder
		}
		if v.Operation == "" {
			v.Operation = l.Operation
			if name, ok := operations[l.Operation]; ok {
				v.Operation = name
			}
		}
	}
	return v
}

// put makes v the newest version in a status, and returns those that are not kept any
// more.
func (s *Store) put(o *v1alpha1.State, v v1alpha1.StateVersion, p payload) ([]v1alpha1.StateVersion, error) {
	before, err := o.Status.All()
	if err != nil {
		return nil, err
	}
	o.Status.Serial, o.Status.Lineage = v.Serial, v.Lineage
	o.Status.Size, o.Status.Resources, o.Status.Encrypted = v.Size, v.Resources, p.Encrypted
	kept, gone := retain(append([]v1alpha1.StateVersion{v}, before...), o.Spec, s.clock.Now())
	return gone, o.Status.Keep(kept)
}

// retain parts versions, newest first, into those that the spec keeps and the others.
func retain(versions []v1alpha1.StateVersion, spec v1alpha1.StateSpec, now time.Time) (kept, gone []v1alpha1.StateVersion) {
	keep := spec.KeepVersions
	if keep <= 0 {
		keep = keepVersions
	}
	keep = min(keep, maxVersions)
	for i, v := range versions {
		switch {
		case i == 0:
			kept = append(kept, v)
		case i >= keep, spec.KeepFor != nil && now.Sub(versions[i-1].Created.Time) > spec.KeepFor.Duration:
			gone = append(gone, v)
		default:
			kept = append(kept, v)
		}
	}
	return kept, gone
}

// Rollback writes the content of an old version again, with a serial that is higher
// than any that was kept; the old version stays. Its errors are those of Read and
// Write. A state that OpenTofu encrypts carries its serial inside, where it cannot be
// changed: that is ErrEncrypted, unless opts.Force, which writes it as it was.
func (s *Store) Rollback(ctx context.Context, key Key, version int64, opts WriteOptions) (v1alpha1.StateVersion, error) {
	if opts.Operation == "" {
		opts.Operation = "rollback"
	}
	old, was, err := s.Read(ctx, key, version)
	if err != nil {
		return v1alpha1.StateVersion{}, fmt.Errorf("roll back: %w", err)
	}
	p, err := s.parse(old)
	if err != nil {
		return v1alpha1.StateVersion{}, fmt.Errorf("roll back state %s to version %d: %w", key, was.Version, err)
	}
	if p.Encrypted && !opts.Force {
		return v1alpha1.StateVersion{}, fmt.Errorf("roll back state %s to version %d: %w, and has its serial inside", key, was.Version, ErrEncrypted)
	}
	// Going back to a version of another lineage is what was asked for.
	opts.Force = true
	v, err := s.write(ctx, key, opts, func(o *v1alpha1.State) (payload, error) {
		if p.Encrypted {
			return p, nil
		}
		versions, err := o.Status.All()
		if err != nil {
			return payload{}, err
		}
		if len(versions) == 0 {
			return payload{}, ErrNoState
		}
		serial := p.serial
		for _, v := range versions {
			serial = max(serial, v.Serial)
		}
		if serial == math.MaxInt64 {
			return payload{}, fmt.Errorf("%w: serial %d has no next", ErrFormat, serial)
		}
		content, err := state.WithSerial(old, serial+1)
		if err != nil {
			return payload{}, fmt.Errorf("%w: %v", ErrFormat, err)
		}
		return s.parse(content)
	})
	if err != nil {
		return v, fmt.Errorf("roll back state %s to version %d: %w", key, was.Version, err)
	}
	return v, nil
}

// Delete removes a State with all of its versions. It is refused while the State is
// locked (*state.LockedError), and, without force, when its newest version has
// resources or may have (ErrNotEmpty). A State that is not there is ErrNoState.
func (s *Store) Delete(ctx context.Context, key Key, force bool) error {
	for range tries {
		o, err := s.Get(ctx, key)
		if err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		if l := Held(o); l != nil {
			return fmt.Errorf("delete state %s: %w", key, &state.LockedError{Lock: *l})
		}
		if !force && (o.Status.Resources > 0 || o.Status.Encrypted) {
			return fmt.Errorf("delete state %s: %w: %s", key, ErrNotEmpty, inside(o))
		}
		err = s.remove(ctx, o)
		if apierrors.IsConflict(err) {
			continue
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete state %s: %w", key, err)
		}
		s.discardAll(ctx, o)
		return nil
	}
	return fmt.Errorf("delete state %s: it was changed by others %d times in a row", key, tries)
}

func inside(o *v1alpha1.State) string {
	if o.Status.Encrypted {
		return "OpenTofu encrypts it, so that nobody can tell"
	}
	return fmt.Sprintf("%d", o.Status.Resources)
}

// remove deletes a State if it still is as it was read. One with resources is annotated
// first: the API server refuses its deletion otherwise.
func (s *Store) remove(ctx context.Context, o *v1alpha1.State) error {
	if o.Status.Resources > 0 || o.Status.Encrypted {
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, v1alpha1.DeleteAnnotation, v1alpha1.DeleteForce)
		if err := s.client.Update(ctx, o); err != nil {
			return err
		}
	}
	uid, version := o.GetUID(), o.GetResourceVersion()
	return s.client.Delete(ctx, o, client.Preconditions{UID: &uid, ResourceVersion: &version})
}

func (s *Store) discardAll(ctx context.Context, o *v1alpha1.State) {
	versions, _ := o.Status.All() // what cannot be read of it is left to Collect
	for _, v := range versions {
		s.discard(ctx, v.Blob)
	}
}

// Move gives a State another name in its namespace, with its versions. It is refused
// while it is locked, and with ErrLineage when the other name is taken by another
// state. A crash on the way leaves both, each with content of its own; moving again
// finishes it.
func (s *Store) Move(ctx context.Context, from Key, to string) error {
	target := Key{Namespace: from.Namespace, Name: to}
	if err := s.move(ctx, from, target); err != nil {
		return fmt.Errorf("move state %s to %s: %w", from, to, err)
	}
	return nil
}

func (s *Store) move(ctx context.Context, from, target Key) error {
	if from == target {
		return nil
	}
	src, err := s.Get(ctx, from)
	if err != nil {
		return err
	}
	if l := Held(src); l != nil {
		return &state.LockedError{Lock: *l}
	}
	dst := &v1alpha1.State{ObjectMeta: metav1.ObjectMeta{
		Namespace: target.Namespace, Name: target.Name, Labels: src.Labels, Annotations: src.Annotations,
	}, Spec: src.Spec}
	err = s.client.Create(ctx, dst)
	if apierrors.IsAlreadyExists(err) {
		dst, err = s.Get(ctx, target)
	}
	if err != nil {
		return fmt.Errorf("create it: %w", err)
	}
	done, err := moved(src, dst)
	if err != nil {
		return err
	}
	if !done {
		if len(dst.Status.Versions) > 0 || dst.Status.Lock != nil {
			return fmt.Errorf("%w: there is another state by the name %s", ErrLineage, target.Name)
		}
		if err := s.copy(ctx, src, dst); err != nil {
			return err
		}
	}
	err = s.remove(ctx, src)
	if apierrors.IsConflict(err) {
		// Somebody wrote or locked it meanwhile: the copy is not the state any more.
		if err := s.remove(ctx, dst); err == nil {
			s.discardAll(ctx, dst)
		}
		return errors.New("it was changed meanwhile; try again")
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	s.discardAll(ctx, src)
	return nil
}

// moved reports whether dst has the content of src.
func moved(src, dst *v1alpha1.State) (bool, error) {
	of, err := src.Status.All()
	if err != nil {
		return false, err
	}
	has, err := dst.Status.All()
	if err != nil {
		return false, err
	}
	return slices.EqualFunc(of, has, func(a, b v1alpha1.StateVersion) bool {
		return a.Version == b.Version && a.Digest == b.Digest
	}), nil
}

// copy gives dst the versions of src, in blobs of its own: who deletes one of both
// deletes nothing of the other.
func (s *Store) copy(ctx context.Context, src, dst *v1alpha1.State) error {
	versions, err := src.Status.All()
	if err != nil {
		return err
	}
	var copied []string
	discard := func() {
		for _, d := range copied {
			s.discard(ctx, d)
		}
	}
	versions = slices.Clone(versions)
	for i, v := range versions {
		d, _, err := s.blobs.Reseal(ctx, digest.Digest(v.Blob))
		if err != nil {
			discard()
			return fmt.Errorf("copy version %d: %w", v.Version, err)
		}
		copied = append(copied, d.String())
		versions[i].Blob = d.String()
	}
	dst.Status = *src.Status.DeepCopy()
	if err := dst.Status.Keep(versions); err != nil {
		discard()
		return err
	}
	if err := s.client.Status().Update(ctx, dst); err != nil {
		if apierrors.IsConflict(err) {
			discard()
		}
		return fmt.Errorf("write its status: %w", err)
	}
	return nil
}

// Rewrapped is what Rewrap did.
type Rewrapped struct{ States, Versions int }

// Rewrap seals every version of every State to the newest identity of the blobs' key
// file that is not yet. It may be called at any time and any number of times; writers
// and readers go on meanwhile. Without an error all versions that there were are
// sealed to it, and the older identities may go (blob.Store.Retire).
func (s *Store) Rewrap(ctx context.Context) (Rewrapped, error) {
	var done Rewrapped
	var errs []error
	var keys []Key
	err := s.each(ctx, func(o *v1alpha1.State) {
		if len(s.namespaces) == 0 || slices.Contains(s.namespaces, o.Namespace) {
			keys = append(keys, client.ObjectKeyFromObject(o))
		}
	})
	if err != nil {
		return done, fmt.Errorf("seal states anew: list them: %w", err)
	}
	for _, key := range keys {
		n, err := s.rewrap(ctx, key)
		if err != nil && !errors.Is(err, ErrNoState) {
			errs = append(errs, fmt.Errorf("seal state %s anew: %w", key, err))
		}
		if n > 0 {
			done.States++
			done.Versions += n
		}
	}
	return done, errors.Join(errs...)
}

func (s *Store) rewrap(ctx context.Context, key Key) (int, error) {
	anew := map[string]string{} // old blob → new blob
	var named map[string]bool   // of the old blobs, those that the State named
	o, err := s.change(ctx, key, false, func(o *v1alpha1.State) error {
		named = map[string]bool{}
		versions, err := o.Status.All()
		if err != nil {
			return err
		}
		versions = slices.Clone(versions)
		for i, v := range versions {
			if _, ok := anew[v.Blob]; !ok {
				current, err := s.blobs.Current(ctx, digest.Digest(v.Blob))
				if err == nil && current {
					continue
				}
				var d digest.Digest
				if err == nil {
					d, _, err = s.blobs.Reseal(ctx, digest.Digest(v.Blob))
				}
				if errors.Is(err, blob.ErrNotFound) {
					// Somebody else was first; the State says so when it is read again.
					continue
				}
				if err != nil {
					return fmt.Errorf("version %d: %w", v.Version, err)
				}
				anew[v.Blob] = d.String()
			}
			named[v.Blob] = true
			versions[i].Blob = anew[v.Blob]
		}
		if len(named) == 0 {
			return errUnchanged
		}
		return o.Status.Keep(versions)
	})
	if err != nil && o == nil {
		return 0, err // the API may have taken the write: neither blob is deleted
	}
	for old, fresh := range anew {
		switch {
		case err == nil && named[old]:
			s.discard(ctx, old)
		default:
			s.discard(ctx, fresh)
		}
	}
	if err != nil {
		return 0, err
	}
	return len(named), nil
}

// Collect deletes the blobs that no State names and that were written longer than
// age ago, and returns how many. The age must be longer than any write takes.
func (s *Store) Collect(ctx context.Context, age time.Duration) (int, error) {
	// Blobs first: what is written after this is younger than any State that is read.
	var old []digest.Digest
	for info, err := range s.blobs.List(ctx) {
		if err != nil {
			return 0, fmt.Errorf("collect blobs of states: %w", err)
		}
		if s.clock.Since(info.Modified) > age {
			old = append(old, info.Digest)
		}
	}
	if len(old) == 0 {
		return 0, nil
	}
	named := map[string]bool{}
	var unread []error
	err := s.each(ctx, func(o *v1alpha1.State) {
		versions, err := o.Status.All()
		if err != nil {
			unread = append(unread, fmt.Errorf("state %s: %w", client.ObjectKeyFromObject(o), err))
		}
		for _, v := range versions {
			named[v.Blob] = true
		}
	})
	if len(unread) > 0 {
		return 0, fmt.Errorf("collect blobs of states: nobody knows which a state needs whose versions cannot be read: %w", errors.Join(unread...))
	}
	if err != nil {
		return 0, fmt.Errorf("collect blobs of states: list states: %w", err)
	}
	n := 0
	for _, d := range old {
		if named[d.String()] {
			continue
		}
		if err := s.blobs.Delete(ctx, d); err != nil {
			return n, fmt.Errorf("collect blobs of states: %w", err)
		}
		n++
	}
	return n, nil
}

// each goes through all States, some at a time: an object with many versions is large.
func (s *Store) each(ctx context.Context, f func(*v1alpha1.State), opts ...client.ListOption) error {
	page := &client.ListOptions{Limit: 100}
	page.ApplyOptions(opts)
	for {
		var list v1alpha1.StateList
		if err := s.reader.List(ctx, &list, page); err != nil {
			return err
		}
		for i := range list.Items {
			f(&list.Items[i])
		}
		if page.Continue = list.Continue; page.Continue == "" {
			return nil
		}
	}
}

// ETag is a version's name for HTTP caches.
func ETag(v v1alpha1.StateVersion) string {
	return fmt.Sprintf("%q", fmt.Sprintf("%d-%s", v.Version, strings.TrimPrefix(v.Digest, "hmac-sha256:")[:16]))
}
