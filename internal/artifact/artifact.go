// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package artifact keeps and hands out the content of sources: the only way
// that content moves from a source to a unit.
//
// An artifact is a gzipped tarball named by its digest and kept in the blob
// store. What belongs to whom is kept in one small record file for each owner
// (a source) and each pin (a unit), so a restart finds everything. Consumers in
// this process read trees: an artifact unpacked once, shared and read-only.
// Other consumers get the tarball over HTTP, under the paths that Flux gives it:
// <kind>/<namespace>/<name>/<file>.
//
// The package does not fetch sources and writes no API objects.
package artifact

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	digest "github.com/opencontainers/go-digest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/terrace-dev/terrace/internal/blob"
)

var (
	// ErrNotFound means that the artifact is not stored here, or that the server
	// its URL names does not have it (any more).
	ErrNotFound = errors.New("artifact not found")
	// ErrTooLarge means that an artifact or its unpacked tree exceeds a limit.
	ErrTooLarge = errors.New("artifact too large")
	// ErrDigest means that content is not what its digest says.
	ErrDigest = errors.New("artifact does not match its digest")
	// ErrUnsafe means that an archive holds what must not be unpacked: a path or
	// link that leaves the tree, a device, a hard link.
	ErrUnsafe = errors.New("artifact is unsafe to unpack")
)

// Owner names the API object that an artifact belongs to, or that pins one.
type Owner struct{ Kind, Namespace, Name string }

// String gives Kind/namespace/name.
func (o Owner) String() string { return o.Kind + "/" + o.Namespace + "/" + o.Name }

// path is the owner's directory in URLs and, with a suffix, its record file.
func (o Owner) path() string { return path.Join(strings.ToLower(o.Kind), o.Namespace, o.Name) }

func (o Owner) validate() error {
	for _, part := range []string{o.Kind, o.Namespace, o.Name} {
		if !localName(part) {
			return fmt.Errorf("owner %q: bad name", o)
		}
	}
	return nil
}

// localName reports whether s names an entry of a directory, and no other.
func localName(s string) bool {
	return s != "" && filepath.IsLocal(s) && s != "." && !strings.ContainsAny(s, `/\`)
}

// Options of a store. Only Dir is needed.
type Options struct {
	// Dir holds the records and the unpacked trees; created 0700. Only one
	// process may use it at a time.
	Dir string
	// Blobs holds the tarballs, in a part named artifacts that belongs to this
	// store alone; nil keeps them in Dir.
	Blobs *blob.Store
	// AdvertisedURL is where Handler is served: a URL, or host:port for http.
	AdvertisedURL string
	// RetentionTTL is the age after which superseded artifacts are collected;
	// zero means one minute.
	RetentionTTL time.Duration
	// RetentionRecords is how many artifacts of an owner are kept at most, the
	// current one included; zero means 2.
	RetentionRecords int
	// MaxSize bounds a tarball, fetched or made, in bytes; zero means 512 MiB.
	MaxSize int64
	// MaxTreeSize bounds the unpacked files together, in bytes; zero means 4 GiB.
	MaxTreeSize int64
	// MaxEntries bounds the entries of a tarball; zero means 500,000.
	MaxEntries int
	// IdleTrees is how many trees that nobody uses stay unpacked; zero means 16.
	IdleTrees int
	// Clock tells the age of artifacts; nil means the real one.
	Clock clock.PassiveClock
	// HTTPClient fetches foreign artifacts; nil means one with the usual proxy
	// environment and a timeout for the response's header of 30 seconds.
	HTTPClient *http.Client
}

func (o *Options) setDefaults() {
	setDefault(&o.RetentionTTL, time.Minute)
	setDefault(&o.RetentionRecords, 2)
	setDefault(&o.MaxSize, 512<<20)
	setDefault(&o.MaxTreeSize, 4<<30)
	setDefault(&o.MaxEntries, 500_000)
	setDefault(&o.IdleTrees, 16)
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.HTTPClient == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.ResponseHeaderTimeout = 30 * time.Second
		o.HTTPClient = &http.Client{Transport: t}
	}
	if o.AdvertisedURL != "" && !strings.Contains(o.AdvertisedURL, "://") {
		o.AdvertisedURL = "http://" + o.AdvertisedURL
	}
	o.AdvertisedURL = strings.TrimRight(o.AdvertisedURL, "/")
}

func setDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// Store keeps artifacts. Its methods may be called concurrently.
type Store struct {
	o     Options
	blobs *blob.Store
	trees *trees

	// mu guards the records and, with them, the deletion of blobs: a blob goes
	// when no record and no pin names it.
	mu       sync.Mutex
	records  map[string][]record // by Owner.path, oldest first
	pins     map[string]record   // by Owner.path
	verified map[digest.Digest]blob.Info
}

// record says that an owner has, or had, an artifact.
type record struct {
	File     string        `json:"file"`
	Digest   digest.Digest `json:"digest"`
	Size     int64         `json:"size"`
	Revision string        `json:"revision"`
	At       time.Time     `json:"at"`
}

// NewStore opens the store in o.Dir or makes one. Unpacked trees of an earlier
// process are discarded, because nothing says that they reached the disk whole.
func NewStore(o Options) (*Store, error) {
	o.setDefaults()
	s := &Store{
		o:        o,
		verified: map[digest.Digest]blob.Info{},
	}
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("open artifact store %s: %w", o.Dir, err)
	}
	return s, nil
}

func (s *Store) open() error {
	if s.o.Dir == "" {
		return errors.New("the directory is empty")
	}
	dir, err := filepath.Abs(s.o.Dir)
	if err != nil {
		return err
	}
	s.o.Dir = dir
	blobs := s.o.Blobs
	if blobs == nil {
		if blobs, err = blob.Open(context.Background(), blob.Options{URL: filepath.Join(dir, "blobs")}); err != nil {
			return err
		}
	}
	s.blobs = blobs.Part("artifacts")
	if s.trees, err = newTrees(filepath.Join(dir, "trees"), s.o.IdleTrees); err != nil {
		return err
	}
	if s.records, err = load[[]record](s.recordDir()); err != nil {
		return err
	}
	if s.pins, err = load[record](s.pinDir()); err != nil {
		return err
	}
	return s.sweep()
}

// sweep drops what only the trees of the former process needed, and what a
// crash left without a record.
func (s *Store) sweep() error {
	ctx := context.Background()
	for key := range s.records {
		if strings.HasPrefix(key, foreign) {
			if err := s.drop(ctx, key, func(record) bool { return true }); err != nil {
				return err
			}
		}
	}
	for info, err := range s.blobs.List(ctx) {
		if err != nil {
			return err
		}
		if err := s.deleteUnnamed(ctx, info.Digest); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) recordDir() string { return filepath.Join(s.o.Dir, "records") }
func (s *Store) pinDir() string    { return filepath.Join(s.o.Dir, "pins") }

// load reads every record file below dir. One that cannot be understood is
// taken as lost: its source is fetched again.
func load[T any](dir string) (map[string]T, error) {
	all := map[string]T{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() || filepath.Ext(p) != ".json" {
			return err
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, strings.TrimSuffix(p, ".json"))
		if err != nil {
			return err
		}
		var v T
		if json.Unmarshal(data, &v) == nil {
			all[filepath.ToSlash(rel)] = v
		}
		return nil
	})
	return all, err
}

// save replaces a record file, whole or not at all. It is not synced: losing
// one costs a fetch.
func save(dir, key string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	name := filepath.Join(dir, filepath.FromSlash(key)+".json")
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(name+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

func forget(dir, key string) error {
	err := os.Remove(filepath.Join(dir, filepath.FromSlash(key)+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Archive stores the directory dir as the artifact fileName of owner, without
// what filter refuses, and returns it as its status has to show it. The same
// tree gives the same digest, whenever and wherever it is archived: regular
// files and directories only, in order, without times or users, and with modes
// 0600, 0700 (executable) and 0750 (directories), byte for byte as Flux does.
// Errors: ErrTooLarge.
func (s *Store) Archive(ctx context.Context, owner Owner, revision, fileName, dir string, filter Filter) (*meta.Artifact, error) {
	if err := owner.validate(); err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	if !localName(fileName) {
		return nil, fmt.Errorf("archive %s: bad file name %q", owner, fileName)
	}
	for {
		d, size, err := s.blobs.Write(ctx, func(w io.Writer) error {
			return archive(ctx, w, dir, filter, s.o.MaxSize)
		})
		if err != nil {
			return nil, fmt.Errorf("archive %s: %w", owner, err)
		}
		a, err := s.record(owner, record{File: fileName, Digest: d, Size: size, Revision: revision})
		if err != nil {
			return nil, fmt.Errorf("record artifact of %s: %w", owner, err)
		}
		// Between the two, the same content may have been collected elsewhere.
		// From here on the record keeps it.
		if has, err := s.blobs.Has(ctx, d); err != nil || has {
			return a, err
		}
	}
}

// record notes r as the owner's newest artifact.
func (s *Store) record(owner Owner, r record) (*meta.Artifact, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.records[owner.path()]
	if n := len(list); n > 0 && list[n-1].File == r.File && list[n-1].Digest == r.Digest && list[n-1].Revision == r.Revision {
		return s.artifact(owner, list[n-1]), nil
	}
	r.At = s.o.Clock.Now().UTC().Truncate(time.Second)
	list = slices.DeleteFunc(slices.Clone(list), func(old record) bool {
		return old.File == r.File && old.Digest == r.Digest
	})
	if err := s.setRecords(owner.path(), append(list, r)); err != nil {
		return nil, err
	}
	return s.artifact(owner, r), nil
}

// setRecords replaces an owner's records, on disk first. The caller holds mu.
func (s *Store) setRecords(key string, list []record) error {
	if len(list) == 0 {
		if err := forget(s.recordDir(), key); err != nil {
			return err
		}
		delete(s.records, key)
		return nil
	}
	if err := save(s.recordDir(), key, list); err != nil {
		return err
	}
	s.records[key] = list
	return nil
}

func (s *Store) artifact(owner Owner, r record) *meta.Artifact {
	a := &meta.Artifact{
		Path:           owner.path() + "/" + r.File,
		Digest:         r.Digest.String(),
		Revision:       r.Revision,
		LastUpdateTime: metav1.NewTime(r.At),
		Size:           &r.Size,
	}
	s.SetURL(a)
	return a
}

// SetURL makes the artifact's URL the one under which Handler serves it now,
// and reports whether that changed it. The artifact must be one of this store.
func (s *Store) SetURL(a *meta.Artifact) bool {
	old := a.URL
	a.URL = s.o.AdvertisedURL + "/" + strings.TrimLeft(a.Path, "/")
	return a.URL != old
}

// Has reports whether a is an artifact of one of this store's owners, and its
// tarball is there. Whether the tarball is intact is for Verify to say.
func (s *Store) Has(a *meta.Artifact) bool {
	if a == nil || !s.recorded(a) {
		return false
	}
	has, err := s.blobs.Has(context.Background(), digest.Digest(a.Digest))
	return err == nil && has
}

func (s *Store) recorded(a *meta.Artifact) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir, file := path.Split(a.Path)
	return slices.ContainsFunc(s.records[path.Clean(dir)], func(r record) bool {
		return r.File == file && r.Digest.String() == a.Digest
	})
}

// Verify checks that a is an artifact of this store and intact. The tarball is
// read the first time and whenever its file has changed since. Errors:
// ErrNotFound, ErrDigest.
func (s *Store) Verify(ctx context.Context, a *meta.Artifact) error {
	if a == nil || !s.recorded(a) {
		return ErrNotFound
	}
	d := digest.Digest(a.Digest)
	info, err := s.blobs.Stat(ctx, d)
	if err != nil {
		return notFound(err)
	}
	s.mu.Lock()
	known := s.verified[d] == info
	s.mu.Unlock()
	if known {
		return nil
	}
	if err := s.read(ctx, d, func(r io.Reader) error { return nil }); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verified[d] = info
	return nil
}

// read calls use with a stored tarball, then reads what use left of it and
// checks the digest of the whole.
func (s *Store) read(ctx context.Context, d digest.Digest, use func(io.Reader) error) error {
	r, err := s.blobs.Open(ctx, d)
	if err != nil {
		return notFound(err)
	}
	defer r.Close()
	if err := use(r); err != nil {
		return notFound(err)
	}
	_, err = io.Copy(io.Discard, r)
	return notFound(err)
}

// notFound turns the blob store's sentinels into this package's.
func notFound(err error) error {
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return fmt.Errorf("%w: %v", ErrNotFound, err)
	case errors.Is(err, blob.ErrDigest):
		return fmt.Errorf("%w: %v", ErrDigest, err)
	default:
		return err
	}
}

// Discard drops a broken or unwanted artifact of this store at once.
func (s *Store) Discard(ctx context.Context, a *meta.Artifact) error {
	dir, file := path.Split(a.Path)
	key := path.Clean(dir)
	return s.drop(ctx, key, func(r record) bool { return r.File == file && r.Digest.String() == a.Digest })
}

// Collect drops what an owner had before keep: everything older than the
// retention time, and the oldest beyond the number of retained records. It
// returns how many artifacts went. Their tarballs go too, unless another owner
// has the same content or a unit pins it; trees in use stay until released.
func (s *Store) Collect(ctx context.Context, owner Owner, keep *meta.Artifact) (int, error) {
	kept := func(r record) bool {
		return keep != nil && owner.path()+"/"+r.File == keep.Path && r.Digest.String() == keep.Digest
	}
	s.mu.Lock()
	list := s.records[owner.path()]
	s.mu.Unlock()
	expired := s.o.Clock.Now().Add(-s.o.RetentionTTL)
	left, gone := len(list), map[record]bool{}
	for _, r := range list { // oldest first
		if !kept(r) && (r.At.Before(expired) || left > s.o.RetentionRecords) {
			gone[r] = true
			left--
		}
	}
	if len(gone) == 0 {
		return 0, nil
	}
	if err := s.drop(ctx, owner.path(), func(r record) bool { return gone[r] }); err != nil {
		return 0, fmt.Errorf("collect artifacts of %s: %w", owner, err)
	}
	return len(gone), nil
}

// Remove drops all artifacts of an owner, for its deletion, and reports whether
// there were any. Pinned ones stay readable through Tree.
func (s *Store) Remove(ctx context.Context, owner Owner) (bool, error) {
	s.mu.Lock()
	had := len(s.records[owner.path()]) > 0
	s.mu.Unlock()
	if err := s.drop(ctx, owner.path(), func(record) bool { return true }); err != nil {
		return false, fmt.Errorf("remove artifacts of %s: %w", owner, err)
	}
	return had, nil
}

// drop removes the records of key that match, and the blobs that nothing names
// any more.
func (s *Store) drop(ctx context.Context, key string, match func(record) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var left, gone []record
	for _, r := range s.records[key] {
		if match(r) {
			gone = append(gone, r)
		} else {
			left = append(left, r)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	if err := s.setRecords(key, left); err != nil {
		return err
	}
	var errs []error
	for _, r := range gone {
		errs = append(errs, s.deleteUnnamed(ctx, r.Digest))
	}
	return errors.Join(errs...)
}

// deleteUnnamed deletes a blob that no record and no pin names. The caller
// holds mu.
func (s *Store) deleteUnnamed(ctx context.Context, d digest.Digest) error {
	for _, list := range s.records {
		if slices.ContainsFunc(list, func(r record) bool { return r.Digest == d }) {
			return nil
		}
	}
	for _, r := range s.pins {
		if r.Digest == d {
			return nil
		}
	}
	delete(s.verified, d)
	return s.blobs.Delete(ctx, d)
}

// Pin keeps an artifact readable for user, a unit, until the unit pins another
// or calls Unpin: also when its source moves on, is deleted, or is elsewhere and
// cannot be reached. A foreign artifact is fetched if it is not here yet. The
// pin survives restarts. Errors: those of Tree.
func (s *Store) Pin(ctx context.Context, user Owner, a *meta.Artifact) error {
	if err := user.validate(); err != nil {
		return fmt.Errorf("pin artifact: %w", err)
	}
	r := record{File: path.Base(a.Path), Digest: digest.Digest(a.Digest), Revision: a.Revision, At: a.LastUpdateTime.UTC()}
	if a.Size != nil {
		r.Size = *a.Size
	}
	s.mu.Lock()
	same := s.pins[user.path()].Digest == r.Digest
	s.mu.Unlock()
	if same {
		return nil
	}
	for {
		if err := s.ensure(ctx, a); err != nil {
			return fmt.Errorf("pin artifact for %s: %w", user, err)
		}
		if err := s.setPin(ctx, user.path(), r); err != nil {
			return fmt.Errorf("pin artifact for %s: %w", user, err)
		}
		if has, err := s.blobs.Has(ctx, r.Digest); err != nil || has {
			if !s.trees.has(r.Digest) {
				s.dropForeign(r.Digest) // from here on the pin keeps it
			}
			return err
		}
	}
}

func (s *Store) setPin(ctx context.Context, key string, r record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := save(s.pinDir(), key, r); err != nil {
		return err
	}
	old, had := s.pins[key]
	s.pins[key] = r
	if !had || old.Digest == r.Digest {
		return nil
	}
	return s.deleteUnnamed(ctx, old.Digest)
}

// Unpin drops the pin of user, if it has one.
func (s *Store) Unpin(ctx context.Context, user Owner) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, had := s.pins[user.path()]
	if !had {
		return nil
	}
	if err := forget(s.pinDir(), user.path()); err != nil {
		return fmt.Errorf("unpin artifact of %s: %w", user, err)
	}
	delete(s.pins, user.path())
	return s.deleteUnnamed(ctx, old.Digest)
}

// Handler serves the newest artifact of each path to GET and HEAD, and nothing
// else: no listings, no other files.
func (s *Store) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		rec, ok := s.lookup(r.URL.Path)
		if !ok {
			http.NotFound(w, r)
			return
		}
		content, err := s.blobs.OpenSeeker(r.Context(), rec.Digest)
		if errors.Is(err, blob.ErrNotFound) {
			http.NotFound(w, r)
			return
		}
		if err != nil {
			http.Error(w, "artifact cannot be read", http.StatusInternalServerError)
			return
		}
		defer content.Close()
		w.Header().Set("Content-Type", "application/gzip")
		w.Header().Set("ETag", `"`+rec.Digest.String()+`"`)
		http.ServeContent(w, r, rec.File, rec.At, content)
	})
}

func (s *Store) lookup(urlPath string) (record, bool) {
	dir, file := path.Split(strings.TrimPrefix(urlPath, "/"))
	s.mu.Lock()
	defer s.mu.Unlock()
	if strings.HasPrefix(dir, foreign) {
		return record{}, false
	}
	list := s.records[strings.TrimSuffix(dir, "/")]
	for _, r := range slices.Backward(list) {
		if r.File == file {
			return r, true
		}
	}
	return record{}, false
}
