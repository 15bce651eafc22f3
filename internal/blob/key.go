// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package blob

import (
	"bytes"
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"filippo.io/age"
	digest "github.com/opencontainers/go-digest"
	"gocloud.dev/gcerrors"

	"github.com/terrace-dev/terrace/internal/durable"
)

// ErrKeyInUse is returned by Retire when blobs are left that only an older identity
// opens.
var ErrKeyInUse = errors.New("the key is in use")

// namingLine begins the comment of a key file that keeps what Key derives from: it
// must not change when the first identity does.
const namingLine = "# naming key: "

// KeyFile is what a key file is after Open.
type KeyFile struct {
	// Created says that there was none before.
	Created bool
	// WrappedBy is the name of the KMS key that wraps it, without anything secret; empty
	// when it is in the clear.
	WrappedBy string
}

// keyring is what a key file holds. It is shared by all parts of a store, and read
// again when the file changed: another process may have rotated it.
type keyring struct {
	file     string
	wrapping *wrapping
	found    KeyFile

	mu         sync.Mutex
	size       int64
	changed    time.Time
	retry      time.Time // before it, a wrapped file that was not opened is not tried again
	first      *age.X25519Identity
	identities []age.Identity
	naming     []byte // of HKDF: the pseudorandom key
}

// retryPause is how long a wrapped file is left alone that another process changed and
// this one cannot open: while its KMS is away, each try would hold up whoever seals.
const retryPause = time.Minute

// openKeyring reads a key file, makes it when there is none, and wraps it as it is to be.
func openKeyring(ctx context.Context, o Options) (*keyring, error) {
	w, err := openWrapping(ctx, o.KMSKeys)
	if err != nil {
		return nil, err
	}
	k := &keyring{file: o.KeyFile, wrapping: w}
	if err := k.open(ctx, o.BeforeWrap); err != nil {
		w.close()
		return nil, err
	}
	return k, nil
}

func (k *keyring) open(ctx context.Context, before func(old, new string) error) error {
	if _, err := os.Stat(k.file); errors.Is(err, fs.ErrNotExist) {
		if err := k.create(ctx); err != nil {
			return err
		}
		k.found.Created = true
	}
	// Half-written key files may be in the clear.
	if err := sweep(filepath.Dir(k.file), "."+filepath.Base(k.file)+"."); err != nil {
		return err
	}
	content, by, current, err := k.load(ctx)
	if err != nil {
		return err
	}
	k.found.WrappedBy = k.wrapping.name()
	if current {
		return nil
	}
	sealed, err := k.wrapping.seal(ctx, content)
	if err != nil {
		return err
	}
	if before != nil {
		if err := before(by, k.found.WrappedBy); err != nil {
			return err
		}
	}
	return k.replace(sealed, content)
}

// KeyFile returns what Open made of the key file; the zero KeyFile when the store has none.
func (s *Store) KeyFile() KeyFile {
	if s.keys == nil {
		return KeyFile{}
	}
	return s.keys.found
}

// load reads the file, and says what is in it, by which KMS key it is wrapped, and whether
// that is as it is to be. The caller holds mu, or is alone.
func (k *keyring) load(ctx context.Context) (content []byte, by string, current bool, err error) {
	info, err := durable.Private(k.file)
	if err != nil {
		return nil, "", false, err
	}
	data, err := os.ReadFile(k.file)
	if err != nil {
		return nil, "", false, err
	}
	content, by, current, err = k.wrapping.open(ctx, data)
	if err != nil {
		return nil, "", false, err
	}
	return content, by, current, k.take(content, info)
}

// take makes the content of the file, as it is on disk, what the keyring knows.
func (k *keyring) take(content []byte, info fs.FileInfo) error {
	identities, err := age.ParseIdentities(bytes.NewReader(content))
	if err != nil {
		return err
	}
	first, ok := identities[0].(*age.X25519Identity)
	if !ok {
		return errors.New("its first identity is not an X25519 one (AGE-SECRET-KEY-1…)")
	}
	naming, err := namingKey(content, first)
	if err != nil {
		return err
	}
	k.size, k.changed = info.Size(), info.ModTime()
	k.first, k.identities, k.naming = first, identities, naming
	return nil
}

// namingKey is what the file's comment keeps; without one, what the first identity
// gives.
func namingKey(data []byte, first *age.X25519Identity) ([]byte, error) {
	for line := range strings.Lines(string(data)) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), namingLine); ok {
			key, err := base64.StdEncoding.DecodeString(text)
			if err != nil || len(key) != sha256.Size {
				return nil, errors.New("its naming key is damaged")
			}
			return key, nil
		}
	}
	return hkdf.Extract(sha256.New, []byte(first.String()), nil)
}

// refresh reads the file again if it changed. What was read before stays when the
// file cannot be read: blobs must not become unreadable with it.
func (k *keyring) refresh() {
	info, err := os.Stat(k.file)
	if err != nil || info.Size() == k.size && info.ModTime().Equal(k.changed) || time.Now().Before(k.retry) {
		return
	}
	// Not with the context of who happens to ask: the next one would have to ask again.
	_, _, _, err = k.load(context.Background())
	if err != nil && len(k.wrapping.keys) > 0 {
		k.retry = time.Now().Add(retryPause)
	}
}

// recipient is the one that blobs are sealed to from now on.
func (k *keyring) recipient() age.Recipient {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refresh()
	return k.first.Recipient()
}

// all are the identities that open blobs.
func (k *keyring) all() []age.Identity {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refresh()
	return k.identities
}

// newest is the identity that blobs are sealed to.
func (k *keyring) newest() age.Identity {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refresh()
	return k.first
}

// write replaces the key file, whole or not at all, and reads it.
func (k *keyring) write(ctx context.Context, identities []age.Identity) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s%s\n", namingLine, base64.StdEncoding.EncodeToString(k.naming))
	for _, id := range identities {
		if x, ok := id.(*age.X25519Identity); ok {
			fmt.Fprintf(&b, "# public key: %s\n", x.Recipient())
		}
		fmt.Fprintln(&b, id)
	}
	sealed, err := k.wrapping.seal(ctx, b.Bytes())
	if err != nil {
		return err
	}
	return k.replace(sealed, b.Bytes())
}

// replace writes what is to be on disk, and takes what is in it.
func (k *keyring) replace(sealed, content []byte) error {
	if err := durable.Replace(k.file, sealed); err != nil {
		return err
	}
	info, err := os.Stat(k.file)
	if err != nil {
		return err
	}
	return k.take(content, info)
}

// create writes a file with a new identity, unless another process was first.
func (k *keyring) create(ctx context.Context) error {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return err
	}
	sealed, err := k.wrapping.seal(ctx, fmt.Appendf(nil, "# public key: %s\n%s\n", id.Recipient(), id))
	if err != nil {
		return err
	}
	return durable.Create(k.file, sealed)
}

// Rotate makes a new identity the first of the key file, so that it seals from now
// on, and returns its public key. The older ones stay, and open what they sealed,
// until Retire. What Key derives does not change. Other processes see the new
// identity when they seal or unseal next; only one may rotate, retire, or be opened with
// other KMS keys, at a time.
func (s *Store) Rotate(ctx context.Context) (string, error) {
	if s.keys == nil {
		return "", fmt.Errorf("rotate key: %w", ErrNoKey)
	}
	k := s.keys
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refresh()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return "", fmt.Errorf("rotate key %s: %w", k.file, err)
	}
	if err := k.write(ctx, append([]age.Identity{id}, k.identities...)); err != nil {
		return "", fmt.Errorf("rotate key %s: %w", k.file, err)
	}
	return id.Recipient().String(), nil
}

// Retire drops every identity but the first from the key file, and returns how many.
// It is ErrKeyInUse, and drops none, while any blob of the store or of another part
// of it is sealed to an older one: Reseal those, or delete them.
func (s *Store) Retire(ctx context.Context) (int, error) {
	if s.keys == nil {
		return 0, fmt.Errorf("retire keys: %w", ErrNoKey)
	}
	old, err := s.sealedToOlder(ctx)
	if err != nil {
		return 0, fmt.Errorf("retire keys: %w", err)
	}
	if old > 0 {
		return 0, fmt.Errorf("retire keys: %w: %d blobs are sealed to an older one", ErrKeyInUse, old)
	}
	k := s.keys
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refresh()
	dropped := len(k.identities) - 1
	if dropped == 0 {
		return 0, nil
	}
	if err := k.write(ctx, k.identities[:1]); err != nil {
		return 0, fmt.Errorf("retire keys: write %s: %w", k.file, err)
	}
	return dropped, nil
}

// sealedToOlder counts the blobs, of all parts, that the first identity does not open.
func (s *Store) sealedToOlder(ctx context.Context) (int, error) {
	n := 0
	objects := s.bucket.List(nil)
	for {
		o, err := objects.Next(ctx)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return 0, fmt.Errorf("list blobs: %w", err)
		}
		if !strings.HasPrefix(o.Key, algorithm) && !strings.Contains(o.Key, "/"+algorithm) {
			continue
		}
		r, err := s.bucket.NewReader(ctx, o.Key, nil)
		if gcerrors.Code(err) == gcerrors.NotFound {
			continue // deleted meanwhile
		}
		if err != nil {
			return 0, fmt.Errorf("open blob %s: %w", o.Key, err)
		}
		sealed, err := s.opens(r)
		if err := errors.Join(err, r.Close()); err != nil {
			return 0, fmt.Errorf("read blob %s: %w", o.Key, err)
		}
		if sealed == older {
			n++
		}
	}
}

// sealing is to whom a blob is sealed.
type sealing int

const (
	unsealed sealing = iota // not at all
	newest                  // to the first identity
	older                   // to another one, known or not
)

// ageIntro begins each file that age encrypted.
const ageIntro = "age-encryption.org/"

func (s *Store) opens(r io.Reader) (sealing, error) {
	intro := make([]byte, len(ageIntro))
	if n, err := io.ReadFull(r, intro); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return unsealed, nil
	} else if err != nil {
		return 0, err
	} else if string(intro[:n]) != ageIntro {
		return unsealed, nil
	}
	_, err := age.Decrypt(io.MultiReader(bytes.NewReader(intro), r), s.keys.newest())
	var other *age.NoIdentityMatchError
	switch {
	case err == nil:
		return newest, nil
	case errors.As(err, &other):
		return older, nil
	}
	return 0, err
}

// Current reports whether a sealed blob is sealed to the first identity of the key
// file, so that it stays readable after Retire. Errors: ErrNotFound, ErrNoKey.
func (s *Store) Current(ctx context.Context, d digest.Digest) (bool, error) {
	if s.keys == nil {
		return false, fmt.Errorf("look at the seal of blob %s: %w", d, ErrNoKey)
	}
	r, err := s.OpenSeeker(ctx, d)
	if err != nil {
		return false, err
	}
	defer r.Close()
	sealed, err := s.opens(r)
	if err != nil {
		return false, fmt.Errorf("look at the seal of blob %s: %w", d, err)
	}
	return sealed == newest, nil
}

// Reseal seals the content of a sealed blob to the first identity of the key file. It
// returns the digest and size of the new blob; the old one stays, until who names it
// names the new one and deletes it. Errors are those of Unseal.
func (s *Store) Reseal(ctx context.Context, d digest.Digest) (digest.Digest, int64, error) {
	r, err := s.Unseal(ctx, d)
	if err != nil {
		return "", 0, err
	}
	defer r.Close()
	return s.Seal(ctx, r)
}

// Key derives a secret of 32 bytes that is stable as long as the key file is, also
// when it is rotated, for naming secret content without letting others guess it
// (HMAC). Different purposes give unrelated secrets. It is ErrNoKey when the store
// has no key file.
func (s *Store) Key(purpose string) ([]byte, error) {
	if s.keys == nil {
		return nil, fmt.Errorf("derive key for %s: %w", purpose, ErrNoKey)
	}
	s.keys.mu.Lock()
	defer s.keys.mu.Unlock()
	return hkdf.Expand(sha256.New, s.keys.naming, "terrace "+purpose, 32)
}
