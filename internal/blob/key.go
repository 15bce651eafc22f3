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

// keyring is what a key file holds. It is shared by all parts of a store, and read
// again when the file changed: another process may have rotated it.
type keyring struct {
	file string

	mu         sync.Mutex
	size       int64
	changed    time.Time
	first      *age.X25519Identity
	identities []age.Identity
	naming     []byte // of HKDF: the pseudorandom key
}

// openKeyring reads a key file, and makes it when there is none.
func openKeyring(file string) (*keyring, error) {
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		if err := createKey(file); err != nil {
			return nil, err
		}
	}
	k := &keyring{file: file}
	return k, k.load()
}

// load reads the file. The caller holds mu, or is alone.
func (k *keyring) load() error {
	info, err := durable.Private(k.file)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(k.file)
	if err != nil {
		return err
	}
	identities, err := age.ParseIdentities(bytes.NewReader(data))
	if err != nil {
		return err
	}
	first, ok := identities[0].(*age.X25519Identity)
	if !ok {
		return errors.New("its first identity is not an X25519 one (AGE-SECRET-KEY-1…)")
	}
	naming, err := namingKey(data, first)
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
	if err == nil && (info.Size() != k.size || !info.ModTime().Equal(k.changed)) {
		_ = k.load()
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
func (k *keyring) write(identities []age.Identity) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s%s\n", namingLine, base64.StdEncoding.EncodeToString(k.naming))
	for _, id := range identities {
		if x, ok := id.(*age.X25519Identity); ok {
			fmt.Fprintf(&b, "# public key: %s\n", x.Recipient())
		}
		fmt.Fprintln(&b, id)
	}
	if err := durable.Replace(k.file, b.Bytes()); err != nil {
		return err
	}
	return k.load()
}

// createKey writes a new identity to file, unless another process was first.
func createKey(file string) error {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return err
	}
	return durable.Create(file, fmt.Appendf(nil, "# public key: %s\n%s\n", id.Recipient(), id))
}

// Rotate makes a new identity the first of the key file, so that it seals from now
// on, and returns its public key. The older ones stay, and open what they sealed,
// until Retire. What Key derives does not change. Other processes see the new
// identity when they seal or unseal next; only one may rotate or retire at a time.
func (s *Store) Rotate() (string, error) {
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
	if err := k.write(append([]age.Identity{id}, k.identities...)); err != nil {
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
	if err := k.write(k.identities[:1]); err != nil {
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
