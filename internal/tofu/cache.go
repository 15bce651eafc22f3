// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// The shared plugin cache is addressed by host, name, version and platform, and
// the tool fills it in place. Three things are added here:
//
//   - a lock: inits of a tool that locks packages by itself share it, any other
//     init has it alone;
//   - a mark for each init that may be installing. The lock of the mark is
//     inherited by the process, so it lasts exactly as long as that;
//   - a stamp beside each package that an init finished with.
//
// A mark that nobody locks is left by an init that was killed or failed: then
// packages without a stamp may be torn and are removed, which costs a download.

const (
	cacheLock   = ".terrace.lock"
	cacheMark   = ".terrace-init-"
	cacheStamp  = ".terrace-complete"
	lockRetries = 25 * time.Millisecond
)

// cacheUse is one init's hold on the cache; nil: there is no cache.
type cacheUse struct {
	session *Session
	lock    *os.File
	mark    *os.File
}

func (s *Session) enterCache(ctx context.Context) (*cacheUse, error) {
	if s.PluginCache == "" {
		return nil, nil
	}
	if err := os.MkdirAll(s.PluginCache, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(s.PluginCache, cacheLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	use := &cacheUse{session: s, lock: lock}
	if err := use.enter(ctx); err != nil {
		use.close()
		return nil, err
	}
	return use, nil
}

func (u *cacheUse) enter(ctx context.Context) error {
	how := syscall.LOCK_EX
	if u.session.Tool.LocksCache() {
		how = syscall.LOCK_SH
	}
	dead, err := deadMarks(u.session.PluginCache)
	if err != nil {
		return err
	}
	if len(dead) > 0 {
		if err := flock(ctx, u.lock, syscall.LOCK_EX); err != nil {
			return err
		}
		if err := removeTorn(u.session.PluginCache); err != nil {
			return err
		}
		for _, mark := range dead {
			if err := os.Remove(mark); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	if err := flock(ctx, u.lock, how); err != nil {
		return err
	}
	u.mark, err = os.CreateTemp(u.session.PluginCache, cacheMark+"*")
	if err != nil {
		return err
	}
	return flock(ctx, u.mark, syscall.LOCK_EX)
}

// files are inherited by the process, and with them the locks.
func (u *cacheUse) files() []*os.File {
	if u == nil {
		return nil
	}
	return []*os.File{u.lock, u.mark}
}

// leave ends the use: after a success it stamps what the init took from the
// cache, after a failure the mark stays.
func (u *cacheUse) leave(initErr error) error {
	if u == nil {
		return initErr
	}
	defer u.close()
	if initErr != nil {
		return initErr
	}
	if err := u.session.stampPackages(); err != nil {
		return fmt.Errorf("stamp the packages of init in the plugin cache: %w", err)
	}
	if err := os.Remove(u.mark.Name()); err != nil {
		return fmt.Errorf("leave the plugin cache after init: %w", err)
	}
	return nil
}

func (u *cacheUse) close() {
	if u.mark != nil {
		_ = u.mark.Close()
	}
	_ = u.lock.Close()
}

// stampPackages marks the packages that the data directory links to as whole.
func (s *Session) stampPackages() error {
	dir := s.DataDir
	if dir == "" {
		dir = filepath.Join(s.Dir, ".terraform")
	}
	cache, err := filepath.EvalSymlinks(s.PluginCache)
	if err != nil {
		return err
	}
	for _, link := range packages(filepath.Join(dir, "providers")) {
		rel, err := filepath.Rel(filepath.Join(dir, "providers"), link)
		if err != nil {
			return err
		}
		pkg := filepath.Join(cache, rel)
		if _, err := os.Stat(pkg); err != nil {
			continue // it came from elsewhere
		}
		f, err := os.OpenFile(pkg+cacheStamp, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_ = f.Close()
	}
	return nil
}

// packages lists host/namespace/type/version/platform below dir.
func packages(dir string) []string {
	found, _ := fs.Glob(os.DirFS(dir), "*/*/*/*/*_*")
	kept := found[:0]
	for _, p := range found {
		if !strings.HasSuffix(p, cacheStamp) && !strings.HasSuffix(p, ".lock") {
			kept = append(kept, filepath.Join(dir, p))
		}
	}
	return kept
}

// removeTorn removes the packages that no init finished with.
func removeTorn(cache string) error {
	for _, pkg := range packages(cache) {
		if _, err := os.Stat(pkg + cacheStamp); err == nil {
			continue
		}
		if err := os.RemoveAll(pkg); err != nil {
			return err
		}
	}
	return nil
}

// deadMarks lists the marks whose init is gone.
func deadMarks(cache string) ([]string, error) {
	marks, err := fs.Glob(os.DirFS(cache), cacheMark+"*")
	if err != nil {
		return nil, err
	}
	var dead []string
	for _, name := range marks {
		mark := filepath.Join(cache, name)
		f, err := os.Open(mark)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil {
			dead = append(dead, mark)
		}
		_ = f.Close()
	}
	return dead, nil
}

// flock waits for the lock or the end of ctx. (The call that blocks cannot be
// ended by a context.)
func flock(ctx context.Context, f *os.File, how int) error {
	ticker := time.NewTicker(lockRetries)
	defer ticker.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if err == nil {
			return nil
		}
		if err != syscall.EWOULDBLOCK && err != syscall.EINTR {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lock %s: %w", f.Name(), context.Cause(ctx))
		case <-ticker.C:
		}
	}
}
