// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/fluxcd/pkg/apis/meta"
	digest "github.com/opencontainers/go-digest"
)

// foreign starts the record keys of artifacts that were fetched from elsewhere.
// They belong to no owner and go with their tree.
const foreign = ".foreign/"

// Tree returns a directory that holds an artifact unpacked, and a function that
// says that the caller is done with it, which may be called more than once. The
// directory is shared by all callers and read-only (directories 0500, files 0400
// or, executable, 0500); symbolic links that stay inside are kept. It may go
// away after release.
//
// An artifact is unpacked once, however many ask for it at a time. One that is
// not in this store is fetched from its URL first.
//
// Errors: ErrNotFound, ErrDigest, ErrTooLarge, ErrUnsafe; others are worth
// another try. An artifact that was refused is tried anew by the next call.
func (s *Store) Tree(ctx context.Context, a *meta.Artifact) (string, func(), error) {
	if a == nil {
		return "", nil, fmt.Errorf("unpack artifact: %w", ErrNotFound)
	}
	d := digest.Digest(a.Digest)
	if err := d.Validate(); err != nil {
		return "", nil, fmt.Errorf("unpack artifact %s: digest %q: %w: %w", a.Revision, a.Digest, ErrDigest, err)
	}
	dir, release, err := s.trees.get(ctx, d, func(dst string) error {
		if err := s.ensure(ctx, a); err != nil {
			return err
		}
		return s.read(ctx, d, func(r io.Reader) error { return unpack(ctx, r, dst, s.limits()) })
	})
	if err != nil {
		s.dropForeign(d)
		return "", nil, fmt.Errorf("unpack artifact %s: %w", a.Revision, err)
	}
	return dir, func() {
		for _, gone := range release() {
			s.dropForeign(gone)
		}
	}, nil
}

// dropForeign forgets the tarball of a foreign artifact that has no tree; it is
// fetched again when it is needed. Should that not work now, the next start
// sweeps it.
func (s *Store) dropForeign(d digest.Digest) {
	_ = s.drop(context.Background(), foreign+d.Encoded(), func(record) bool { return true })
}

func (s *Store) limits() limits {
	return limits{size: s.o.MaxTreeSize, entries: s.o.MaxEntries}
}

// ensure fetches an artifact that is not in the blob store.
func (s *Store) ensure(ctx context.Context, a *meta.Artifact) error {
	d := digest.Digest(a.Digest)
	has, err := s.blobs.Has(ctx, d)
	if err != nil && !errors.Is(err, ErrNotFound) && d.Algorithm() == digest.SHA256 {
		return err
	}
	if has {
		return nil
	}
	if d.Algorithm() != digest.SHA256 {
		return fmt.Errorf("digest %s: only sha256 is understood: %w", d, ErrDigest)
	}
	if err := s.fetch(ctx, a, d); err != nil {
		return fmt.Errorf("fetch %s: %w", a.URL, err)
	}
	return nil
}

// fetch downloads a foreign artifact into the blob store, bounded and checked
// before it is stored.
func (s *Store) fetch(ctx context.Context, a *meta.Artifact, d digest.Digest) error {
	if a.Size != nil && *a.Size > s.o.MaxSize {
		return fmt.Errorf("%w: %d bytes, at most %d are accepted", ErrTooLarge, *a.Size, s.o.MaxSize)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL, nil)
	if err != nil {
		return err
	}
	if req.URL.Scheme != "http" && req.URL.Scheme != "https" {
		return fmt.Errorf("scheme %q: %w", req.URL.Scheme, ErrNotFound)
	}
	resp, err := s.o.HTTPClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusGone:
		return fmt.Errorf("%w: the server answers %s", ErrNotFound, resp.Status)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("the server answers %s", resp.Status)
	}
	_, size, err := s.blobs.Write(ctx, func(w io.Writer) error {
		sum := d.Verifier()
		n, err := io.Copy(io.MultiWriter(w, sum), io.LimitReader(resp.Body, s.o.MaxSize+1))
		switch {
		case err != nil:
			return err
		case n > s.o.MaxSize:
			return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, s.o.MaxSize)
		case !sum.Verified():
			return fmt.Errorf("%w %s", ErrDigest, d)
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.setRecords(foreign+d.Encoded(), []record{{Digest: d, Size: size, Revision: a.Revision, At: s.o.Clock.Now().UTC()}})
}

// trees are unpacked artifacts on disk, by digest.
type trees struct {
	dir  string
	idle int

	mu    sync.Mutex
	byID  map[digest.Digest]*tree
	clock uint64 // counts releases, to find the tree that is idle for longest
	gone  uint64 // names of trees that are being deleted
}

type tree struct {
	dir  string
	refs int
	used uint64
	// ready is closed when the tree is unpacked or err says why not.
	ready chan struct{}
	err   error
}

const (
	unfinished = ".new-"
	discarded  = ".gone-"
)

func newTrees(dir string, idle int) (*trees, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
			return nil, err
		}
	}
	return &trees{dir: dir, idle: idle, byID: map[digest.Digest]*tree{}}, nil
}

// get returns the tree of d, made by unpack unless it is there, and the function
// that releases it, which returns the trees that were discarded with that.
func (t *trees) get(ctx context.Context, d digest.Digest, unpack func(dst string) error) (string, func() []digest.Digest, error) {
	for {
		t.mu.Lock()
		e, ok := t.byID[d]
		if !ok {
			e = &tree{ready: make(chan struct{}), refs: 1}
			t.byID[d] = e
			t.mu.Unlock()
			if err := t.make(d, e, unpack); err != nil {
				return "", nil, err
			}
			return e.dir, t.releaser(e), nil
		}
		select {
		case <-e.ready: // and without an error, else it were not here any more
			e.refs++
			t.mu.Unlock()
			return e.dir, t.releaser(e), nil
		default:
			t.mu.Unlock()
		}
		select {
		case <-e.ready:
		case <-ctx.Done():
			return "", nil, ctx.Err()
		}
		// The one who unpacked may have given up; then it is this caller's turn.
		if e.err != nil && !errors.Is(e.err, context.Canceled) && !errors.Is(e.err, context.DeadlineExceeded) {
			return "", nil, e.err
		}
	}
}

// make unpacks beside the tree's place and renames, so that a tree is whole.
func (t *trees) make(d digest.Digest, e *tree, unpack func(dst string) error) (err error) {
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if err != nil {
			e.err = err
			delete(t.byID, d)
		}
		close(e.ready)
	}()
	tmp, err := os.MkdirTemp(t.dir, unfinished)
	if err != nil {
		return err
	}
	dir := filepath.Join(t.dir, d.Algorithm().String()+"-"+d.Encoded())
	err = unpack(tmp)
	if err == nil {
		err = seal(tmp)
	}
	if err == nil {
		err = os.Rename(tmp, dir)
	}
	if err != nil {
		return errors.Join(err, removeTree(tmp))
	}
	e.dir = dir
	return nil
}

// has reports whether d is unpacked or being unpacked.
func (t *trees) has(d digest.Digest) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.byID[d]
	return ok
}

func (t *trees) releaser(e *tree) func() []digest.Digest {
	var once sync.Once
	return func() (gone []digest.Digest) {
		once.Do(func() { gone = t.release(e) })
		return gone
	}
}

func (t *trees) release(e *tree) (gone []digest.Digest) {
	var dirs []string
	t.mu.Lock()
	e.refs--
	t.clock++
	e.used = t.clock
	for {
		d, oldest, idle := t.oldestIdle()
		if idle <= t.idle {
			break
		}
		t.gone++
		place := filepath.Join(t.dir, discarded+strconv.FormatUint(t.gone, 10))
		if err := os.Rename(oldest.dir, place); err != nil {
			break // it stays, and is tried again with the next release
		}
		delete(t.byID, d)
		dirs, gone = append(dirs, place), append(gone, d)
	}
	t.mu.Unlock()
	for _, dir := range dirs {
		_ = removeTree(dir) // what is left goes at the next start
	}
	return gone
}

func (t *trees) oldestIdle() (d digest.Digest, oldest *tree, idle int) {
	for id, e := range t.byID {
		if e.refs > 0 {
			continue
		}
		idle++
		if oldest == nil || e.used < oldest.used {
			d, oldest = id, e
		}
	}
	return d, oldest, idle
}

// seal takes the right to write from everything in dir.
func seal(dir string) error {
	return filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			return os.Chmod(p, 0o500)
		}
		return nil
	})
}

// removeTree deletes a sealed tree.
func removeTree(dir string) error {
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			return os.Chmod(p, 0o700)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(dir)
}
