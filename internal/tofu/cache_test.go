// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func put(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func there(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// An init that was killed may leave a torn package: the next one removes what
// no init has finished with, and keeps the rest.
func TestCacheAfterKill(t *testing.T) {
	base := t.TempDir()
	cache, data := filepath.Join(base, "cache[1]"), filepath.Join(base, "data")
	s := &Session{Tool: &Tool{Product: OpenTofu, Version: "1.12.6"}, PluginCache: cache, DataDir: data}
	const whole, torn = "h/n/whole/1.0.0/linux_amd64", "h/n/torn/1.0.0/linux_amd64"

	use, err := s.enterCache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(cache, whole, "binary"))
	put(t, filepath.Join(data, "providers", whole, "binary"))
	if err := use.leave(nil); err != nil {
		t.Fatal(err)
	}

	use, err = s.enterCache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(cache, torn, "binary"))
	killed := errors.New("killed")
	if err := use.leave(killed); !errors.Is(err, killed) {
		t.Fatalf("got %v", err)
	}

	use, err = s.enterCache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if there(filepath.Join(cache, torn)) {
		t.Error("the torn package is still there")
	}
	if !there(filepath.Join(cache, whole, "binary")) {
		t.Error("the whole package is gone")
	}
	if err := use.leave(nil); err != nil {
		t.Fatal(err)
	}
	if marks, _ := fs.Glob(os.DirFS(cache), cacheMark+"*"); len(marks) > 0 {
		t.Errorf("marks stay behind: %v", marks)
	}
}

// While an init is at work, its mark is no reason to clean.
func TestCacheInUse(t *testing.T) {
	cache := t.TempDir()
	s := &Session{Tool: &Tool{Product: OpenTofu, Version: "1.12.6"}, PluginCache: cache, DataDir: t.TempDir()}
	first, err := s.enterCache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	installing := filepath.Join(cache, "h/n/t/1.0.0/linux_amd64")
	put(t, filepath.Join(installing, "binary"))
	second, err := s.enterCache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !there(installing) {
		t.Error("a package that is being installed was removed")
	}
	for _, use := range []*cacheUse{first, second} {
		if err := use.leave(nil); err != nil {
			t.Error(err)
		}
	}
}

// A tool that does not lock the cache by itself has it alone.
func TestCacheAlone(t *testing.T) {
	s := &Session{Tool: &Tool{Product: Terraform, Version: "1.11.4"}, PluginCache: t.TempDir(), DataDir: t.TempDir()}
	first, err := s.enterCache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		second, err := s.enterCache(t.Context())
		if err == nil {
			err = second.leave(nil)
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("a second init went in: %v", err)
	default:
	}
	if err := first.leave(nil); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}
