// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package workdir

import (
	"container/list"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"
)

// Sum is the SHA-256 of a file's content.
type Sum [sha256.Size]byte

// Hasher remembers the sums of the files of artifacts, so that a thousand units
// of one artifact hash each file once. It may be used by many goroutines. A nil
// Hasher works and remembers nothing.
type Hasher struct {
	mu    sync.Mutex
	limit int
	count int
	roots map[string]*list.Element
	order *list.List // of *hashedRoot, the last used first
}

type hashedRoot struct {
	dir  string
	sums map[string]hashedFile
}

// hashedFile is good while the file looks the same.
type hashedFile struct {
	size int64
	time time.Time
	sum  Sum
}

// NewHasher makes a Hasher that remembers up to limit files, about 200 bytes
// each; the artifacts that were not used for longest are forgotten first.
func NewHasher(limit int) *Hasher {
	return &Hasher{limit: limit, roots: map[string]*list.Element{}, order: list.New()}
}

// file is the sum of a file below root.
func (h *Hasher) file(root *os.Root, name string, info fs.FileInfo) (Sum, error) {
	if sum, ok := h.lookup(root.Name(), name, info); ok {
		return sum, nil
	}
	f, err := root.Open(name)
	if err != nil {
		return Sum{}, err
	}
	defer f.Close()
	w := sha256.New()
	if _, err := io.Copy(w, f); err != nil {
		return Sum{}, err
	}
	sum := Sum(w.Sum(nil))
	h.remember(root.Name(), name, info, sum)
	return sum, nil
}

func (h *Hasher) lookup(root, name string, info fs.FileInfo) (Sum, bool) {
	if h == nil {
		return Sum{}, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.roots[root]
	if e == nil {
		return Sum{}, false
	}
	h.order.MoveToFront(e)
	f, ok := e.Value.(*hashedRoot).sums[name]
	ok = ok && f.size == info.Size() && f.time.Equal(info.ModTime())
	return f.sum, ok
}

func (h *Hasher) remember(root, name string, info fs.FileInfo, sum Sum) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.roots[root]
	if e == nil {
		e = h.order.PushFront(&hashedRoot{dir: root, sums: map[string]hashedFile{}})
		h.roots[root] = e
	}
	sums := e.Value.(*hashedRoot).sums
	if _, ok := sums[name]; !ok {
		h.count++
	}
	sums[name] = hashedFile{size: info.Size(), time: info.ModTime(), sum: sum}
	for h.count > h.limit && h.order.Len() > 0 {
		last := h.order.Remove(h.order.Back()).(*hashedRoot)
		delete(h.roots, last.dir)
		h.count -= len(last.sums)
	}
}

// entry is a file or link of a reach, as it is in the artifact.
type entry struct {
	Link string `json:"link,omitempty"` // the target; a file when empty
	Exec bool   `json:"exec,omitempty"`
	Sum  string `json:"sum,omitempty"` // hex
}

// entries reads what the reach names.
func (r *Reach) entries(root *os.Root, h *Hasher, fn func(name string, e entry) error) error {
	for _, name := range r.Files {
		info, err := root.Lstat(name)
		if err != nil {
			return err
		}
		var e entry
		if info.Mode()&fs.ModeSymlink != 0 {
			if e.Link, err = root.Readlink(name); err != nil {
				return err
			}
		} else {
			sum, err := h.file(root, name, info)
			if err != nil {
				return err
			}
			e.Exec = info.Mode()&0o100 != 0
			e.Sum = hex.EncodeToString(sum[:])
		}
		if err := fn(name, e); err != nil {
			return err
		}
	}
	return nil
}

// Digest is "sha256:…" over the names, modes and contents of all that the reach
// names below root, the artifact that it was found in or one with the same
// files. It changes exactly when what the unit reads does. h may be nil.
func (r *Reach) Digest(root string, h *Hasher) (string, error) {
	from, err := os.OpenRoot(root)
	if err != nil {
		return "", fmt.Errorf("digest artifact: %w", err)
	}
	defer from.Close()
	w := sha256.New()
	fmt.Fprintf(w, "terrace reach 1\x00%s\x00", r.Path)
	err = r.entries(from, h, func(name string, e entry) error {
		fmt.Fprintf(w, "%d:%s %d:%s %t %s\n", len(name), name, len(e.Link), e.Link, e.Exec, e.Sum)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("digest artifact: %w", err)
	}
	return "sha256:" + hex.EncodeToString(w.Sum(nil)), nil
}
