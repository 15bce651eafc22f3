// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package blob keeps content by its digest, sealed when asked.
//
// A blob is named by the digest of the bytes that are stored, so the same
// content is stored once and a name never changes its meaning. A store is a
// local directory or any object storage that gocloud.dev/blob opens; whoever
// wants one of the latter imports its driver. The package knows nothing of what
// it stores and collects nothing: who puts a blob deletes it.
//
// Sealed blobs are encrypted to an age X25519 identity that lives in a key file
// beside the store. Losing that file loses them; nothing else needs it. A KMS key may
// wrap the file, so that it opens nothing without that.
package blob

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"

	"filippo.io/age"
	digest "github.com/opencontainers/go-digest"
	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/terrace-dev/terrace/internal/durable"
)

var (
	// ErrNotFound is returned when no blob has the digest.
	ErrNotFound = errors.New("blob not found")
	// ErrDigest is returned by a reader at the end of content that is not what
	// its digest says: the storage was changed behind the store's back.
	ErrDigest = errors.New("content does not match its digest")
	// ErrNoKey is returned by Seal and Unseal of a store that has no key file.
	ErrNoKey = errors.New("the store has no key file")
)

const (
	// algorithm begins every key; spooled files live beside it, so a listing sees
	// only whole blobs.
	algorithm = "sha256/"
	// spool is the directory of half-written blobs in a local store.
	spool = "tmp"
	// staleSpool is the age at which a half-written blob is taken to be left
	// over from a process that died.
	staleSpool = time.Hour
	// ownerKey is the object that says which key file a bucket belongs to.
	ownerKey = "terrace-owner"
	// claimTimeout bounds asking for it, with the driver's own retries.
	claimTimeout = time.Minute
)

// Options say where a store is.
type Options struct {
	// URL is a directory (a plain path or file:///abs; created 0700) or any URL
	// that gocloud.dev/blob has a driver for in this binary.
	URL string
	// KeyFile holds the age identities of sealed blobs: the first seals, all
	// unseal. It is made, 0600, when it is not there, and read again when it
	// changes (Rotate). Empty means that the store cannot seal.
	KeyFile string
	// KMSKeys are keys that gocloud.dev/secrets opens by a driver in this binary, as
	// URLs. The first wraps the key file, all open it: one that is wrapped by another
	// key, or by none, is wrapped anew when the store is opened. Unwrapped as the first
	// leaves the file in the clear. Without KMSKeys a wrapped file is refused.
	KMSKeys []string
	// BeforeWrap, if it is not nil, is told before a key file that is there is wrapped
	// anew: the names of the KMS keys, empty for none, as KeyFile.WrappedBy. An error of
	// it ends Open, and leaves the file as it is.
	BeforeWrap func(before, after string) error
}

// Info describes a stored blob: its digest, its stored size in bytes (of a
// sealed blob: encrypted), and when it was last written.
type Info struct {
	Digest   digest.Digest
	Size     int64
	Modified time.Time
}

// Store is a set of blobs. Its methods may be called concurrently, also by
// several processes on one directory.
type Store struct {
	bucket *blob.Bucket
	// dir is the root of a local store; empty for object storage. A local blob
	// is synced and renamed into place here, because the driver does not sync.
	dir  string
	temp string
	// part is the beginning of this store's keys, empty or ending in a slash.
	part string
	keys *keyring // nil when the store cannot seal
}

// Open opens or creates the store at o.URL, and its key file. Half-written blobs
// of processes that died are removed. A store in object storage belongs to the key file
// that it was first opened with, and is refused to any other: whoever shares a bucket
// gives each store a part of it, by the query ?prefix=NAME/. The error may be an
// *OpenError.
func Open(ctx context.Context, o Options) (*Store, error) {
	s := &Store{}
	if err := s.open(ctx, o.URL); err != nil {
		return nil, fmt.Errorf("open blob store %s: %w", Redacted(o.URL), err)
	}
	if o.KeyFile == "" {
		return s, nil
	}
	var err error
	if s.keys, err = openKeyring(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("read key of sealed blobs %s: %w", o.KeyFile, err), s.Close())
	}
	if s.dir == "" {
		if err := s.claim(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("open blob store %s: %w", Redacted(o.URL), err), s.Close())
		}
	}
	return s, nil
}

// OpenError is a store that is not opened as it is, and needs a person.
type OpenError struct {
	// Why says what is wrong, Advice what to do about it.
	Why, Advice string
}

// Error implements error.
func (e *OpenError) Error() string { return e.Why }

// Hint is the next step for the user.
func (e *OpenError) Hint() string { return e.Advice }

// claim marks the bucket as that of the key file. Two processes that share one without
// knowing would each take the other's blobs for left over; and a process that has lost
// its key file would go on with a new one beside what it cannot read.
func (s *Store) claim(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, claimTimeout, fmt.Errorf("no answer within %s", claimTimeout))
	defer cancel()
	key, err := s.Key("owner of a bucket")
	if err != nil {
		return err
	}
	mine := hex.EncodeToString(key)
	there, err := s.owner(ctx)
	if gcerrors.Code(err) == gcerrors.NotFound {
		if err = s.bucket.WriteAll(ctx, ownerKey, []byte(mine), &blob.WriterOptions{ContentType: "text/plain", IfNotExist: true}); err == nil {
			return nil
		}
		if gcerrors.Code(err) == gcerrors.FailedPrecondition { // another process was first
			there, err = s.owner(ctx)
		}
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return errors.New(oneLine(err))
	case there != mine:
		return &OpenError{
			Why:    "what is there was encrypted with another key file",
			Advice: "put back the copy of " + s.keys.file + " that belongs to it; or name a bucket of its own, or a part of one with ?prefix=NAME/",
		}
	}
	return nil
}

func (s *Store) owner(ctx context.Context) (string, error) {
	r, err := s.bucket.NewRangeReader(ctx, ownerKey, 0, 1<<10, nil)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(r)
	return string(text), errors.Join(err, r.Close())
}

func (s *Store) open(ctx context.Context, location string) (err error) {
	if s.bucket, s.dir, err = OpenBucket(ctx, location); err != nil || s.dir == "" {
		return err
	}
	s.temp = filepath.Join(s.dir, spool)
	if err := os.MkdirAll(s.temp, 0o700); err != nil {
		return err
	}
	return sweep(s.temp, "")
}

// sweep removes the half-written files of a directory that begin so.
func sweep(dir, prefix string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if time.Since(info.ModTime()) < staleSpool {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Part returns a store inside of s that has its own blobs: neither sees, lists
// or deletes the other's. It shares the keys, and is closed with s. The name is
// one path element other than sha256 and tmp.
func (s *Store) Part(name string) *Store {
	p := *s
	p.part = s.part + name + "/"
	return &p
}

// Close releases the store's connections. Readers that are open keep working
// for a local store only.
func (s *Store) Close() error {
	if s.keys != nil {
		s.keys.wrapping.close()
	}
	return s.bucket.Close()
}

// Put stores what r holds and returns its digest and its size in bytes. After
// an error nothing is stored. A local blob is on disk when Put returns. Putting
// the same content again is cheap, and renews its time of modification.
func (s *Store) Put(ctx context.Context, r io.Reader) (digest.Digest, int64, error) {
	return s.Write(ctx, func(w io.Writer) error {
		_, err := io.Copy(w, contextReader{ctx, r})
		return err
	})
}

// Write stores what fill writes, as Put does.
func (s *Store) Write(ctx context.Context, fill func(io.Writer) error) (digest.Digest, int64, error) {
	f, err := os.CreateTemp(s.temp, "put-*")
	if err != nil {
		return "", 0, fmt.Errorf("store blob: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	hash := digest.SHA256.Digester()
	count := &counter{w: io.MultiWriter(f, hash.Hash())}
	if err := fill(count); err != nil {
		return "", 0, fmt.Errorf("store blob: %w", err)
	}
	d := hash.Digest()
	if err := s.commit(ctx, f, d); err != nil {
		return "", 0, fmt.Errorf("store blob %s: %w", d, err)
	}
	return d, count.n, nil
}

// commit gives the spooled file its name.
func (s *Store) commit(ctx context.Context, f *os.File, d digest.Digest) error {
	if s.dir == "" {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		return s.bucket.Upload(ctx, s.key(d), f, &blob.WriterOptions{ContentType: "application/octet-stream"})
	}
	path := filepath.Join(s.dir, filepath.FromSlash(s.key(d)))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}

// Open returns the content of a blob. Reading to the end also checks it: the
// last Read gives ErrDigest instead of io.EOF when it is not what d says. The
// error is ErrNotFound when there is no such blob.
func (s *Store) Open(ctx context.Context, d digest.Digest) (io.ReadCloser, error) {
	r, err := s.OpenSeeker(ctx, d)
	if err != nil {
		return nil, err
	}
	return &verifier{ReadCloser: r, digest: d, sum: d.Verifier()}, nil
}

// OpenSeeker returns the content of a blob for reading parts of it, unchecked.
// The error is ErrNotFound when there is no such blob.
func (s *Store) OpenSeeker(ctx context.Context, d digest.Digest) (io.ReadSeekCloser, error) {
	if err := valid(d); err != nil {
		return nil, fmt.Errorf("open blob: %w", err)
	}
	r, err := s.bucket.NewReader(ctx, s.key(d), nil)
	if err != nil {
		return nil, fmt.Errorf("open blob %s: %w", d, notFound(err))
	}
	return r, nil
}

// Stat describes a blob; the error is ErrNotFound when there is none.
func (s *Store) Stat(ctx context.Context, d digest.Digest) (Info, error) {
	if err := valid(d); err != nil {
		return Info{}, fmt.Errorf("look for blob: %w", err)
	}
	a, err := s.bucket.Attributes(ctx, s.key(d))
	if err != nil {
		return Info{}, fmt.Errorf("look for blob %s: %w", d, notFound(err))
	}
	return Info{Digest: d, Size: a.Size, Modified: a.ModTime}, nil
}

// Has reports whether there is such a blob.
func (s *Store) Has(ctx context.Context, d digest.Digest) (bool, error) {
	_, err := s.Stat(ctx, d)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Delete removes a blob; deleting one that is not there is no error.
func (s *Store) Delete(ctx context.Context, d digest.Digest) error {
	if err := valid(d); err != nil {
		return fmt.Errorf("delete blob: %w", err)
	}
	if err := s.bucket.Delete(ctx, s.key(d)); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return fmt.Errorf("delete blob %s: %w", d, err)
	}
	return nil
}

// List goes through all blobs in the order of their digests, and ends at the
// first error.
func (s *Store) List(ctx context.Context) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		objects := s.bucket.List(&blob.ListOptions{Prefix: s.part + algorithm})
		for {
			o, err := objects.Next(ctx)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(Info{}, fmt.Errorf("list blobs: %w", err))
				return
			}
			d := digest.NewDigestFromEncoded(digest.SHA256, o.Key[strings.LastIndex(o.Key, "/")+1:])
			if d.Validate() != nil {
				continue
			}
			if !yield(Info{Digest: d, Size: o.Size, Modified: o.ModTime}, nil) {
				return
			}
		}
	}
}

// Seal stores what r holds encrypted, and returns the digest and size of what
// is stored. Sealing the same content twice gives two digests. The error is
// ErrNoKey when the store was opened without a key file.
func (s *Store) Seal(ctx context.Context, r io.Reader) (digest.Digest, int64, error) {
	if s.keys == nil {
		return "", 0, fmt.Errorf("seal blob: %w", ErrNoKey)
	}
	return s.Write(ctx, func(w io.Writer) error {
		plain, err := age.Encrypt(w, s.keys.recipient())
		if err != nil {
			return fmt.Errorf("seal: %w", err)
		}
		if _, err := io.Copy(plain, contextReader{ctx, r}); err != nil {
			return fmt.Errorf("seal: %w", err)
		}
		return plain.Close()
	})
}

// Unseal returns the plain content of a sealed blob, authenticated piece by
// piece as it is read; the last read also tells whether it is the blob of that
// digest (ErrDigest). Errors: ErrNotFound, ErrNoKey; any other means that the
// blob was sealed with another key or changed.
func (s *Store) Unseal(ctx context.Context, d digest.Digest) (io.ReadCloser, error) {
	if s.keys == nil {
		return nil, fmt.Errorf("unseal blob %s: %w", d, ErrNoKey)
	}
	sealed, err := s.Open(ctx, d)
	if err != nil {
		return nil, err
	}
	plain, err := age.Decrypt(sealed, s.keys.all()...)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("unseal blob %s: %w", d, err), sealed.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{plain, sealed}, nil
}

func (s *Store) key(d digest.Digest) string {
	hex := d.Encoded()
	return s.part + algorithm + hex[:2] + "/" + hex
}

func valid(d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("digest %q: %w", d, err)
	}
	if d.Algorithm() != digest.SHA256 {
		return fmt.Errorf("digest %q: only sha256 is stored: %w", d, ErrNotFound)
	}
	return nil
}

func notFound(err error) error {
	if gcerrors.Code(err) == gcerrors.NotFound {
		return ErrNotFound
	}
	return err
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// contextReader ends a copy when its context does.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

type verifier struct {
	io.ReadCloser
	digest digest.Digest
	sum    digest.Verifier
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.ReadCloser.Read(p)
	_, _ = v.sum.Write(p[:n]) // a hash never fails
	if errors.Is(err, io.EOF) && !v.sum.Verified() {
		return n, fmt.Errorf("read blob %s: %w", v.digest, ErrDigest)
	}
	return n, err
}
