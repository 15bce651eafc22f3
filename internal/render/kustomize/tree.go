// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomize

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// mount is where kustomize sees the artifact. It is not the artifact's own
// directory, so that messages do not depend on where it was unpacked, and not
// "/", so that a name with too many ".." leaves it and is refused.
const mount = "/artifact"

// tree is the file system that kustomize sees: an artifact, and over it the
// files that a build generates or decrypts, which exist in memory only. Writes
// are refused. It is not safe for concurrent use.
type tree struct {
	disk    *disk
	rec     *recorder
	overlay map[string][]byte
	// transform turns the content of a file on disk into what kustomize gets;
	// nil leaves it.
	transform func(name string, content []byte) ([]byte, error)
	contents  map[string]content
	size      int64
	// remote allows the directories into which kustomize clones remote bases.
	remote *clones
}

type content struct {
	data []byte
	err  error
}

var _ filesys.FileSystem = (*tree)(nil)

func newTree(d *disk) *tree {
	return &tree{disk: d, rec: newRecorder(), overlay: map[string][]byte{}, contents: map[string]content{}}
}

// name turns a path of kustomize into one of the artifact.
func (t *tree) name(p string) (string, error) {
	p = path.Clean(filepath.ToSlash(p))
	if p == mount {
		return ".", nil
	}
	if rest, ok := strings.CutPrefix(p, mount+"/"); ok {
		return rest, nil
	}
	return "", &fs.PathError{Op: "open", Path: p, Err: ErrOutside}
}

// at is the inverse of name.
func at(name string) string { return path.Join(mount, name) }

// source returns the content of a file of the artifact as it is on disk.
func (t *tree) source(name string) ([]byte, error) {
	if c, ok := t.contents[name]; ok {
		return c.data, c.err
	}
	t.rec.asked[question{askContent, name}] = true
	data, err := t.disk.read(name)
	if err == nil {
		t.rec.files[name] = true
		if t.size += int64(len(data)); t.size > maxReadSize {
			data, err = nil, fmt.Errorf("read %s: the build reads more than %d bytes; split the unit", name, maxReadSize)
		}
	}
	if err == nil {
		err = refuseBomb(name, data)
	}
	if err != nil {
		data = nil
	}
	t.contents[name] = content{data, err}
	return data, err
}

// kind returns what a name leads to.
func (t *tree) kind(name string) (entry, error) {
	t.rec.asked[question{askKind, name}] = true
	return t.disk.resolve(name)
}

// ReadFile returns the content of a file, decrypted where it has to be.
func (t *tree) ReadFile(p string) ([]byte, error) {
	if t.remote.has(p) {
		return t.remote.readFile(p)
	}
	name, err := t.name(p)
	if err != nil {
		return nil, err
	}
	if data, ok := t.overlay[name]; ok {
		return data, nil
	}
	data, err := t.source(name)
	if err != nil || t.transform == nil {
		return data, err
	}
	out, err := t.transform(name, data)
	if err != nil {
		return nil, err
	}
	t.overlay[name] = out
	return out, nil
}

// Exists tells whether a file or directory of that name is there.
func (t *tree) Exists(p string) bool {
	if t.remote.has(p) {
		return t.remote.disk.Exists(p)
	}
	name, err := t.name(p)
	if err != nil {
		return false
	}
	if _, ok := t.overlay[name]; ok {
		return true
	}
	_, err = t.kind(name)
	return err == nil
}

// IsDir tells whether a directory of that name is there.
func (t *tree) IsDir(p string) bool {
	if t.remote.has(p) {
		return t.remote.disk.IsDir(p)
	}
	name, err := t.name(p)
	if err != nil {
		return false
	}
	e, err := t.kind(name)
	return err == nil && e.mode.IsDir()
}

// CleanedAbs resolves symbolic links and splits a path into its directory and,
// if it is a file, its name.
func (t *tree) CleanedAbs(p string) (filesys.ConfirmedDir, string, error) {
	if t.remote.has(p) {
		return t.remote.cleanedAbs(p)
	}
	name, err := t.name(p)
	if err != nil {
		return "", "", err
	}
	if _, ok := t.overlay[name]; ok {
		return filesys.ConfirmedDir(at(path.Dir(name))), path.Base(name), nil
	}
	e, err := t.kind(name)
	if err != nil {
		return "", "", err
	}
	if e.mode.IsDir() {
		return filesys.ConfirmedDir(at(e.name)), "", nil
	}
	return filesys.ConfirmedDir(at(path.Dir(e.name))), path.Base(e.name), nil
}

// ReadDir returns the names of a directory's members on disk.
func (t *tree) ReadDir(p string) ([]string, error) {
	name, err := t.name(p)
	if err != nil {
		return nil, err
	}
	t.rec.asked[question{askMembers, name}] = true
	members, err := t.disk.list(name)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = m.name
	}
	return names, nil
}

// manifests returns the members of a directory that a scan considers.
func (t *tree) manifests(name string) ([]listed, error) {
	t.rec.asked[question{askManifests, name}] = true
	return t.disk.manifests(name)
}

// RemoveAll removes a directory that kustomize made for a remote base.
func (t *tree) RemoveAll(p string) error {
	if t.remote.has(p) {
		return t.remote.disk.RemoveAll(p)
	}
	return readOnly("remove", p)
}

// The methods below complete the interface. A build never calls them; that the
// tree is shared makes refusing them right.

// Create is refused.
func (t *tree) Create(p string) (filesys.File, error) { return nil, readOnly("create", p) }

// Mkdir is refused.
func (t *tree) Mkdir(p string) error { return readOnly("mkdir", p) }

// MkdirAll is refused.
func (t *tree) MkdirAll(p string) error { return readOnly("mkdir", p) }

// WriteFile is refused.
func (t *tree) WriteFile(p string, _ []byte) error { return readOnly("write", p) }

// Open is refused: an open file could not be recorded.
func (t *tree) Open(p string) (filesys.File, error) {
	return nil, &fs.PathError{Op: "open", Path: p, Err: errors.ErrUnsupported}
}

// Glob is refused.
func (t *tree) Glob(string) ([]string, error) { return nil, errors.ErrUnsupported }

// Walk is refused.
func (t *tree) Walk(p string, _ filepath.WalkFunc) error {
	return &fs.PathError{Op: "walk", Path: p, Err: errors.ErrUnsupported}
}

func readOnly(op, p string) error {
	return &fs.PathError{Op: op, Path: p, Err: errors.New("artifacts are read-only")}
}

// clones gives access to the directories into which kustomize clones remote
// bases; nil gives none.
type clones struct {
	disk   filesys.FileSystem
	prefix string
	// alone tells that the build may change the schema; custom is set when it is
	// not, and a remote kustomization file would.
	alone, custom bool
}

func newClones() (*clones, error) {
	// As kustomize names them, with the links of the temporary directory resolved.
	dir, err := filepath.EvalSymlinks(os.TempDir())
	if err != nil {
		return nil, fmt.Errorf("find the temporary directory for remote bases: %w", err)
	}
	return &clones{disk: filesys.MakeFsOnDisk(), prefix: filepath.Join(dir, "kustomize-")}, nil
}

func (c *clones) has(p string) bool {
	return c != nil && strings.HasPrefix(filepath.Clean(p), c.prefix)
}

func (c *clones) cleanedAbs(p string) (filesys.ConfirmedDir, string, error) {
	if _, err := os.Lstat(p); err != nil {
		return "", "", err
	}
	d, f, err := c.disk.CleanedAbs(p)
	if err == nil && !c.within(p, d.Join(f)) {
		return "", "", &fs.PathError{Op: "open", Path: p, Err: ErrOutside}
	}
	return d, f, err
}

func (c *clones) readFile(p string) ([]byte, error) {
	real, err := filepath.EvalSymlinks(p)
	if err != nil {
		return nil, err
	}
	if !c.within(p, real) {
		return nil, &fs.PathError{Op: "read", Path: p, Err: ErrOutside}
	}
	data, err := c.disk.ReadFile(real)
	if err != nil {
		return nil, err
	}
	if !c.alone && isKustomization(filepath.Base(p)) && mayChangeSchema(data) {
		c.custom = true
		return nil, errors.New("the remote base changes the OpenAPI schema")
	}
	return data, refuseBomb(p, data)
}

// within tells whether real is in the clone that p is in.
func (c *clones) within(p, real string) bool {
	clone, _, _ := strings.Cut(filepath.Clean(p)[len(c.prefix):], string(filepath.Separator))
	root := c.prefix + clone
	return real == root || strings.HasPrefix(real, root+string(filepath.Separator))
}
