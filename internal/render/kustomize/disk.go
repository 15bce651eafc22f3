// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomize

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"sigs.k8s.io/kustomize/api/konfig"
)

const (
	// maxFileSize bounds one file that a build reads, in bytes.
	maxFileSize = 32 << 20
	// maxReadSize bounds all files that a build reads, in bytes.
	maxReadSize = 256 << 20
	// maxLinks bounds the symbolic links that one name may lead through.
	maxLinks = 40
)

// ErrOutside is part of the error for a name, or a symbolic link, that leads
// out of the artifact.
var ErrOutside = errors.New("leads out of the artifact")

// disk reads one unpacked artifact. Names are slash-separated, relative to the
// artifact's root, which is ".". Nothing outside of the root can be reached,
// also not by a symbolic link that is put there meanwhile. It is not safe for
// concurrent use.
type disk struct {
	root  *os.Root
	known map[string]entry
}

// entry is what a name leads to.
type entry struct {
	name string // with every symbolic link resolved
	mode fs.FileMode
	size int64
	err  error
}

func openDisk(dir string) (*disk, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the artifact: %w", err)
	}
	return &disk{root: root, known: map[string]entry{".": {name: ".", mode: fs.ModeDir}}}, nil
}

func (d *disk) close() { _ = d.root.Close() }

// resolve follows name through symbolic links.
func (d *disk) resolve(name string) (entry, error) {
	e := d.lookup(name, maxLinks)
	return e, e.err
}

func (d *disk) lookup(name string, links int) entry {
	if e, ok := d.known[name]; ok {
		return e
	}
	e := d.find(name, links)
	// An exhausted budget of links depends on where the chain was entered.
	if !errors.Is(e.err, syscall.ELOOP) {
		d.known[name] = e
	}
	return e
}

func (d *disk) find(name string, links int) entry {
	fail := func(err error) entry { return entry{err: &fs.PathError{Op: "open", Path: name, Err: err}} }
	parent := d.lookup(path.Dir(name), links)
	if parent.err != nil {
		return fail(cause(parent.err))
	}
	if !parent.mode.IsDir() {
		return fail(syscall.ENOTDIR)
	}
	real := path.Join(parent.name, path.Base(name))
	info, err := d.root.Lstat(real)
	if err != nil {
		return fail(cause(err))
	}
	if info.Mode()&fs.ModeSymlink == 0 {
		return entry{name: real, mode: info.Mode(), size: info.Size()}
	}
	if links == 0 {
		return fail(syscall.ELOOP)
	}
	target, err := d.root.Readlink(real)
	if err != nil {
		return fail(cause(err))
	}
	if path.IsAbs(target) {
		return fail(ErrOutside)
	}
	// One component at a time: what ".." means depends on where the links
	// before it lead.
	at := parent
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
			continue
		case "..":
			if at.name == "." {
				return fail(ErrOutside)
			}
			at = d.lookup(path.Dir(at.name), links-1)
		default:
			at = d.lookup(path.Join(at.name, part), links-1)
		}
		if at.err != nil {
			return fail(cause(at.err))
		}
	}
	return at
}

// cause takes the names off an error of the file system: they are those of the
// links on the way.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// read returns the content of a regular file.
func (d *disk) read(name string) ([]byte, error) {
	e, err := d.resolve(name)
	if err != nil {
		return nil, err
	}
	fail := func(err error) ([]byte, error) { return nil, &fs.PathError{Op: "read", Path: name, Err: err} }
	switch {
	case e.mode.IsDir():
		return fail(syscall.EISDIR)
	case !e.mode.IsRegular():
		return fail(errors.New("not a regular file"))
	case e.size > maxFileSize:
		return fail(fmt.Errorf("has %d bytes, more than the limit of %d", e.size, maxFileSize))
	}
	f, err := d.root.Open(e.name)
	if err != nil {
		return fail(cause(err))
	}
	defer f.Close()
	content := make([]byte, 0, e.size+1)
	for {
		n, err := f.Read(content[len(content):cap(content)])
		content = content[:len(content)+n]
		if errors.Is(err, io.EOF) {
			return content, nil
		}
		if err != nil {
			return fail(cause(err))
		}
		if len(content) > maxFileSize {
			return fail(fmt.Errorf("has more bytes than the limit of %d", maxFileSize))
		}
		if len(content) == cap(content) {
			content = slices.Grow(content, 512)
		}
	}
}

// listed is a member of a directory.
type listed struct {
	name string // base name
	dir  bool   // a directory, and not a link to one
}

// list returns the members of a directory in the order of their names.
func (d *disk) list(name string) ([]listed, error) {
	e, err := d.resolve(name)
	if err != nil {
		return nil, err
	}
	if !e.mode.IsDir() {
		return nil, &fs.PathError{Op: "read", Path: name, Err: syscall.ENOTDIR}
	}
	f, err := d.root.Open(e.name)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: name, Err: cause(err)}
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: name, Err: cause(err)}
	}
	members := make([]listed, len(entries))
	for i, m := range entries {
		members[i] = listed{name: m.Name(), dir: m.IsDir()}
	}
	slices.SortFunc(members, func(a, b listed) int { return strings.Compare(a.name, b.name) })
	return members, nil
}

// manifests returns the members of a directory that a scan for manifests takes
// into account: directories, YAML files and kustomization files.
func (d *disk) manifests(name string) ([]listed, error) {
	members, err := d.list(name)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(members, func(m listed) bool {
		return !m.dir && !isManifest(m.name) && !isKustomization(m.name)
	}), nil
}

func isManifest(name string) bool {
	ext := path.Ext(name)
	return ext == ".yaml" || ext == ".yml"
}

// isKustomization tells whether name, without directories, is one that
// kustomize looks for.
func isKustomization(name string) bool {
	return slices.Contains(konfig.RecognizedKustomizationFileNames(), name)
}
