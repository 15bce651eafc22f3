// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package blob

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	digest "github.com/opencontainers/go-digest"
)

// TestRotation goes through the life of a key: new blobs are sealed to the new
// identity, old ones stay readable, and the old identity goes only when nothing needs
// it.
func TestRotation(t *testing.T) {
	ctx := t.Context()
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "blob.key")
	s := open(t, Options{URL: dir, KeyFile: file})
	part := s.Part("states")
	other := open(t, Options{URL: dir, KeyFile: file}) // another process
	d, _, err := part.Seal(ctx, strings.NewReader("old"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Put(ctx, strings.NewReader("in the clear")); err != nil {
		t.Fatal(err)
	}
	before, err := s.Key("names")
	if err != nil {
		t.Fatal(err)
	}
	recipient, err := s.Rotate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(data, []byte("# public key: "+recipient)) {
		t.Errorf("the key file does not tell of %s: %v", recipient, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v", info, err)
	}
	if current, err := part.Current(ctx, d); current || err != nil {
		t.Errorf("a blob of before is current: %v, %v", current, err)
	}
	if _, err := s.Retire(ctx); !errors.Is(err, ErrKeyInUse) {
		t.Errorf("Retire while a blob needs the old identity: %v", err)
	}
	r, err := part.Unseal(ctx, d)
	if got := content(t, r, err); got != "old" {
		t.Errorf("unsealed %q", got)
	}
	// The other process seals to the new identity at once, and reads what that sealed.
	fresh, _, err := other.Seal(ctx, strings.NewReader("new"))
	if err != nil {
		t.Fatal(err)
	}
	if current, err := s.Current(ctx, fresh); !current || err != nil {
		t.Errorf("another process seals to the old identity: %v", err)
	}
	again, _, err := part.Reseal(ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	if err := part.Delete(ctx, d); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Retire(ctx); n != 1 || err != nil {
		t.Errorf("Retire = %d, %v; want 1", n, err)
	}
	if n, err := s.Retire(ctx); n != 0 || err != nil {
		t.Errorf("Retire again = %d, %v; want 0", n, err)
	}
	for _, p := range []*Store{part, other.Part("states"), open(t, Options{URL: dir, KeyFile: file}).Part("states")} {
		r, err := p.Unseal(ctx, again)
		if got := content(t, r, err); got != "old" {
			t.Errorf("unsealed %q after the old identity went", got)
		}
		if after, err := p.Key("names"); err != nil || !bytes.Equal(before, after) {
			t.Errorf("rotation changed a derived key: %v", err)
		}
	}
	if data, _ := os.ReadFile(file); bytes.Count(data, []byte("AGE-SECRET-KEY-1")) != 1 {
		t.Error("the old identity is still in the file")
	}
}

// TestSealingWhileRotating: each blob stays readable, whatever it was sealed to.
func TestSealingWhileRotating(t *testing.T) {
	ctx := t.Context()
	s := open(t, Options{URL: t.TempDir(), KeyFile: filepath.Join(t.TempDir(), "k")})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				d, _, err := s.Seal(ctx, strings.NewReader("x"))
				if err != nil {
					t.Error(err)
					return
				}
				r, err := s.Unseal(ctx, d)
				if err != nil {
					t.Error(err)
					return
				}
				r.Close()
			}
		})
	}
	for range 5 {
		if _, err := s.Rotate(t.Context()); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
}

func TestKeyFileThatIsLostWhileOpen(t *testing.T) {
	ctx := t.Context()
	file := filepath.Join(t.TempDir(), "k")
	s := open(t, Options{URL: t.TempDir(), KeyFile: file})
	d, _, err := s.Seal(ctx, strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	for reason, change := range map[string]func() error{
		"damaged": func() error { return os.WriteFile(file, []byte("# naming key: x\n"), 0o600) },
		"gone":    func() error { return os.Remove(file) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		r, err := s.Unseal(ctx, d)
		if got := content(t, r, err); got != "x" {
			t.Errorf("key file %s: unsealed %q", reason, got)
		}
	}
}

// TestUnsealTellsExchangedBlobs: what is well sealed may still be another blob.
func TestUnsealTellsExchangedBlobs(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	s := open(t, Options{URL: dir, KeyFile: filepath.Join(t.TempDir(), "k")})
	paths := map[string]string{}
	var first string
	for _, text := range []string{"one", "two"} {
		d, _, err := s.Seal(ctx, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		paths[text] = filepath.Join(dir, filepath.FromSlash(s.key(d)))
		if text == "one" {
			first = d.String()
		}
	}
	if err := os.Rename(paths["two"], paths["one"]); err != nil {
		t.Fatal(err)
	}
	r, err := s.Unseal(ctx, digest.Digest(first))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); !errors.Is(err, ErrDigest) {
		t.Errorf("read of an exchanged blob: %q, %v", got, err)
	}
}

func TestNoRotationWithoutAKey(t *testing.T) {
	s := open(t, Options{URL: t.TempDir()})
	d, _, err := s.Put(t.Context(), strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Rotate(t.Context()); !errors.Is(err, ErrNoKey) {
		t.Errorf("Rotate: %v", err)
	}
	if _, err := s.Retire(t.Context()); !errors.Is(err, ErrNoKey) {
		t.Errorf("Retire: %v", err)
	}
	if _, err := s.Current(t.Context(), d); !errors.Is(err, ErrNoKey) {
		t.Errorf("Current: %v", err)
	}
	if _, _, err := s.Reseal(t.Context(), d); !errors.Is(err, ErrNoKey) {
		t.Errorf("Reseal: %v", err)
	}
}
