// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package blob

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	digest "github.com/opencontainers/go-digest"
	_ "gocloud.dev/blob/memblob"
)

func open(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func content(t *testing.T, r io.ReadCloser, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestStoreKeepsContentByDigest(t *testing.T) {
	for name, url := range map[string]string{
		"directory": t.TempDir(),
		"file URL":  "file://" + filepath.Join(t.TempDir(), "new", "blobs"),
		"memory":    "mem://",
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			s := open(t, Options{URL: url})
			want := digest.FromString("hello")
			for range 2 { // the second time the content is there already
				d, n, err := s.Put(ctx, strings.NewReader("hello"))
				if err != nil || d != want || n != 5 {
					t.Fatalf("Put = %s, %d, %v; want %s, 5", d, n, err, want)
				}
			}
			r, err := s.Open(ctx, want)
			if got := content(t, r, err); got != "hello" {
				t.Errorf("content = %q", got)
			}
			var listed []digest.Digest
			for info, err := range s.List(ctx) {
				if err != nil {
					t.Fatal(err)
				}
				listed = append(listed, info.Digest)
			}
			if diff := cmp.Diff([]digest.Digest{want}, listed); diff != "" {
				t.Error(diff)
			}
			for range 2 {
				if err := s.Delete(ctx, want); err != nil {
					t.Fatal(err)
				}
			}
			if has, err := s.Has(ctx, want); has || err != nil {
				t.Errorf("Has after Delete = %v, %v", has, err)
			}
			if _, err := s.Open(ctx, want); !errors.Is(err, ErrNotFound) {
				t.Errorf("Open after Delete: %v", err)
			}
		})
	}
}

func TestLocalStoreIsPrivateAndSurvivesReopening(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "blobs")
	d, _, err := open(t, Options{URL: dir}).Put(t.Context(), strings.NewReader("kept"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := open(t, Options{URL: dir}).Open(t.Context(), d)
	if got := content(t, r, err); got != "kept" {
		t.Errorf("content = %q", got)
	}
	err = filepath.Walk(dir, func(p string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", p, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestHalfWrittenBlobsDoNotExist(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{URL: dir})
	broken := io.MultiReader(strings.NewReader("half"), errReader{})
	if _, _, err := s.Put(t.Context(), broken); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Put of a broken reader: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.Put(ctx, strings.NewReader("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("Put with an ended context: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, spool)); len(left) > 0 {
		t.Errorf("spool holds %v", left)
	}
	// What a killed process left behind goes when the store is opened later.
	left := filepath.Join(dir, spool, "put-1")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-2 * staleSpool)
	if err := os.Chtimes(left, old, old); err != nil {
		t.Fatal(err)
	}
	open(t, Options{URL: dir})
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stale spool file: %v", err)
	}
}

func TestOpenTellsChangedContent(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{URL: dir})
	d, _, err := s.Put(t.Context(), strings.NewReader("right"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(s.key(d))), []byte("wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := s.Open(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.ReadAll(r); !errors.Is(err, ErrDigest) {
		t.Errorf("read of changed content: %v", err)
	}
}

func TestPartsKeepApart(t *testing.T) {
	for _, url := range []string{t.TempDir(), "mem://"} {
		whole := open(t, Options{URL: url})
		a, b := whole.Part("a"), whole.Part("b")
		ctx := t.Context()
		d, _, err := a.Put(ctx, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range []*Store{whole, b} {
			if has, err := other.Has(ctx, d); has || err != nil {
				t.Errorf("seen in another part: %v", err)
			}
			for range other.List(ctx) {
				t.Error("listed in another part")
			}
			if err := other.Delete(ctx, d); err != nil {
				t.Fatal(err)
			}
		}
		r, err := a.Open(ctx, d)
		if got := content(t, r, err); got != "x" {
			t.Errorf("content = %q", got)
		}
		n := 0
		for info := range a.List(ctx) {
			if n++; info.Digest != d {
				t.Errorf("listed %s", info.Digest)
			}
		}
		if n != 1 {
			t.Errorf("%d blobs are listed", n)
		}
	}
}

func TestBadDigests(t *testing.T) {
	s := open(t, Options{URL: t.TempDir()})
	for _, d := range []digest.Digest{"", "sha256:xyz", "../../etc/passwd", digest.SHA512.FromString("x")} {
		if _, err := s.Open(t.Context(), d); err == nil {
			t.Errorf("Open(%q) succeeded", d)
		}
		if err := s.Delete(t.Context(), d); err == nil {
			t.Errorf("Delete(%q) succeeded", d)
		}
	}
}

func TestSealing(t *testing.T) {
	dir, keyFile := t.TempDir(), filepath.Join(t.TempDir(), "keys", "blob.agekey")
	s := open(t, Options{URL: dir, KeyFile: keyFile})
	secret := strings.Repeat("database password ", 10_000)
	d, n, err := s.Seal(t.Context(), strings.NewReader(secret))
	if err != nil {
		t.Fatal(err)
	}
	if n <= int64(len(secret)) {
		t.Errorf("sealed size = %d, smaller than its content", n)
	}
	if info, err := os.Stat(keyFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v", info, err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(s.key(d))))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(raw, []byte("password")) {
		t.Error("the stored blob shows its content")
	}

	again := open(t, Options{URL: dir, KeyFile: keyFile})
	r, err := again.Unseal(t.Context(), d)
	if got := content(t, r, err); got != secret {
		t.Errorf("unsealed %d bytes that differ", len(got))
	}
	one, err := s.Key("names")
	if err != nil {
		t.Fatal(err)
	}
	two, err := again.Key("names")
	if err != nil || !bytes.Equal(one, two) || len(one) != 32 {
		t.Errorf("derived keys differ after reopening: %v", err)
	}
	if other, _ := s.Key("other"); bytes.Equal(one, other) {
		t.Error("two purposes share a key")
	}

	stranger := open(t, Options{URL: dir, KeyFile: filepath.Join(t.TempDir(), "k")})
	if _, err := stranger.Unseal(t.Context(), d); err == nil {
		t.Error("another key unsealed the blob")
	}
	keyless := open(t, Options{URL: dir})
	if _, err := keyless.Unseal(t.Context(), d); !errors.Is(err, ErrNoKey) {
		t.Errorf("Unseal without a key: %v", err)
	}
	if _, _, err := keyless.Seal(t.Context(), strings.NewReader("")); !errors.Is(err, ErrNoKey) {
		t.Errorf("Seal without a key: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	exposed := filepath.Join(t.TempDir(), "k")
	if err := os.WriteFile(exposed, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	garbage := filepath.Join(t.TempDir(), "k")
	if err := os.WriteFile(garbage, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]Options{
		"no location":                 {},
		"relative file URL":           {URL: "file://./x"},
		"a file, not a directory":     {URL: file},
		"unknown scheme":              {URL: "nothing://x"},
		"key file readable by others": {URL: t.TempDir(), KeyFile: exposed},
		"key file without a key":      {URL: t.TempDir(), KeyFile: garbage},
	} {
		if _, err := Open(t.Context(), o); err == nil {
			t.Errorf("%s: Open succeeded", name)
		}
	}
	_, err := Open(t.Context(), Options{URL: "nothing://user:hunter2@x?key=hunter3"})
	if err == nil || strings.Contains(err.Error(), "hunter") {
		t.Errorf("error shows a secret: %v", err)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
