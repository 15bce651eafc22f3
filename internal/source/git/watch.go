// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is how long a repository must be quiet before a change is told: git
// writes several files for one commit.
const settle = 100 * time.Millisecond

// Watcher tells when references of local repositories change. Keys are the
// caller's names for who wants to know; several may watch one repository.
type Watcher[K comparable] struct {
	notify func(K)
	fs     *fsnotify.Watcher

	mu     sync.Mutex
	places map[K]place
	keys   map[string]map[K]bool // by watched directory
	timers map[K]*time.Timer
}

// place is where a repository keeps its references.
type place struct {
	repository string
	dirs       []string // to watch
	references []string // directories that hold nothing but references
}

// NewWatcher returns a watcher that calls notify for each key whose repository
// has changed, from goroutines of its own. It works after Run was called.
func NewWatcher[K comparable](notify func(K)) (*Watcher[K], error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch local repositories: %w", err)
	}
	return &Watcher[K]{
		notify: notify, fs: w,
		places: map[K]place{}, keys: map[string]map[K]bool{}, timers: map[K]*time.Timer{},
	}, nil
}

// Run passes changes on until ctx ends, and then closes the watcher.
func (w *Watcher[K]) Run(ctx context.Context) error {
	defer w.close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-w.fs.Events:
			if !ok {
				return nil
			}
			w.event(e)
		case _, ok := <-w.fs.Errors:
			// An overflow: something changed, nobody knows what.
			if !ok {
				return nil
			}
			w.all()
		}
	}
}

func (w *Watcher[K]) close() {
	_ = w.fs.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.timers {
		t.Stop()
	}
}

// Watch makes changes of the repository at url be told to key, in place of what
// the key watched before. A url that is not local just ends that. Calling it
// again with the same url is cheap and finds directories that are new.
func (w *Watcher[K]) Watch(key K, url string) error {
	p, local := Local(url)
	if !local {
		w.Forget(key)
		return nil
	}
	found, err := referencePlace(p)
	if err != nil {
		w.Forget(key)
		return fmt.Errorf("watch repository '%s': %w", Redact(url), err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.places[key].repository != found.repository {
		w.forget(key)
	}
	w.places[key] = found
	for _, d := range found.dirs {
		if err := w.add(key, d); err != nil {
			return fmt.Errorf("watch repository '%s': %w", Redact(url), err)
		}
	}
	return nil
}

// Forget ends the watch of key.
func (w *Watcher[K]) Forget(key K) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget(key)
}

func (w *Watcher[K]) forget(key K) {
	delete(w.places, key)
	if t, ok := w.timers[key]; ok {
		t.Stop()
		delete(w.timers, key)
	}
	for dir, keys := range w.keys {
		delete(keys, key)
		if len(keys) == 0 {
			delete(w.keys, dir)
			_ = w.fs.Remove(dir) // it may be gone itself
		}
	}
}

// add watches one directory for key. The caller holds mu. A directory that was
// deleted and made again has lost its watch, hence no look whether it is known.
func (w *Watcher[K]) add(key K, dir string) error {
	if err := w.fs.Add(dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // deleted meanwhile; its parent tells
		}
		return err
	}
	if w.keys[dir] == nil {
		w.keys[dir] = map[K]bool{}
	}
	w.keys[dir][key] = true
	return nil
}

func (w *Watcher[K]) event(e fsnotify.Event) {
	if strings.HasSuffix(e.Name, ".lock") || e.Op == fsnotify.Chmod {
		return // git writes beside and renames
	}
	dir := filepath.Dir(e.Name)
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range w.keys[dir] {
		if !w.places[key].relevant(dir, e.Name) {
			continue
		}
		if e.Has(fsnotify.Create) {
			w.addBelow(key, e.Name)
		}
		w.soon(key)
	}
}

// relevant tells references from the other files of a git directory, such as
// the index, which changes with every `git status`.
func (p place) relevant(dir, name string) bool {
	for _, in := range p.references {
		if dir == in || strings.HasPrefix(dir, in+string(filepath.Separator)) {
			return true
		}
	}
	switch filepath.Base(name) {
	case "HEAD", "packed-refs", "refs", "reftable":
		return true
	default:
		return false
	}
}

// addBelow watches a directory that is new in refs, such as that of a branch
// with a slash in its name, with all below it.
func (w *Watcher[K]) addBelow(key K, name string) {
	_ = filepath.WalkDir(name, func(p string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			_ = w.add(key, p) // the next Watch tries again
		}
		return nil
	})
}

func (w *Watcher[K]) all() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range w.places {
		w.soon(key)
	}
}

// soon tells key when the repository has settled. The caller holds mu.
func (w *Watcher[K]) soon(key K) {
	if t, ok := w.timers[key]; ok {
		t.Reset(settle)
		return
	}
	w.timers[key] = time.AfterFunc(settle, func() {
		w.mu.Lock()
		delete(w.timers, key)
		_, wanted := w.places[key]
		w.mu.Unlock()
		if wanted {
			w.notify(key)
		}
	})
}

// referencePlace finds the directories of a repository that change when a
// reference does.
func referencePlace(repository string) (place, error) {
	gitDir, err := gitDirectory(repository)
	if err != nil {
		return place{}, err
	}
	p := place{repository: repository, dirs: []string{gitDir}}
	common := gitDir
	if b, err := os.ReadFile(filepath.Join(gitDir, "commondir")); err == nil {
		common = strings.TrimSpace(string(b))
		if !filepath.IsAbs(common) {
			common = filepath.Join(gitDir, common)
		}
		p.dirs = append(p.dirs, common)
	}
	p.references = []string{filepath.Join(common, "refs"), filepath.Join(common, "reftable")}
	for _, dir := range p.references {
		err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case e.IsDir():
				p.dirs = append(p.dirs, name)
			}
			return nil
		})
		if err != nil {
			return place{}, err
		}
	}
	return p, nil
}

// gitDirectory returns the directory that holds HEAD: repository/.git, what the
// file repository/.git names, or a bare repository itself.
func gitDirectory(repository string) (string, error) {
	dot := filepath.Join(repository, ".git")
	info, err := os.Stat(dot)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(repository, "HEAD")); err != nil {
			return "", err
		}
		return repository, nil
	}
	if err != nil {
		return "", err
	}
	if info.IsDir() {
		return dot, nil
	}
	b, err := os.ReadFile(dot)
	if err != nil {
		return "", err
	}
	dir := strings.TrimSpace(strings.TrimPrefix(string(b), "gitdir:"))
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(repository, dir)
	}
	return dir, nil
}
