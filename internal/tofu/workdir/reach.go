// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package workdir

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"sort"
	"strings"
)

// The reasons of a PathError.
var (
	// ErrOutside is a path that leads out of the artifact, by "..", as an
	// absolute path or through a symbolic link.
	ErrOutside = errors.New("it leads out of the artifact")
	// ErrNotFound is a path that is not in the artifact.
	ErrNotFound = errors.New("it is not in the artifact")
	// ErrKind is a file where a directory is needed, or the other way round.
	ErrKind = errors.New("it is of the wrong kind")
)

// PathError is a path that cannot be used.
type PathError struct {
	// Path is the path as it was written.
	Path string
	// Where says what names it: "spec.path", "modules/a/main.tf:3: file()".
	Where string
	// Err is ErrOutside, ErrNotFound or ErrKind.
	Err error
}

// Error is `spec.path "../x": it leads out of the artifact`.
func (e *PathError) Error() string { return fmt.Sprintf("%s %q: %v", e.Where, e.Path, e.Err) }

// Unwrap is Err.
func (e *PathError) Unwrap() error { return e.Err }

// Options say how to read an artifact.
type Options struct {
	// VarFiles are spec.tfVarsFiles: relative to the root of the artifact.
	VarFiles []string
	// TofuFiles makes *.tofu files count, and win over the *.tf file of the
	// same name; see tofu.Tool.ReadsTofuFiles.
	TofuFiles bool
	// Overlay are files of the module directory, by name, that are generated:
	// they are read instead of the artifact's. A main.tf.tpl whose main.tf is
	// not here makes the reach Whole.
	Overlay map[string][]byte
}

// Reach is what a unit reads of an artifact, and what its configuration
// declares. It depends on nothing but the artifact and the Options, so it may
// be kept by artifact digest. It must not be changed.
type Reach struct {
	// Path is the module directory, relative to the root, slashes, "." for the
	// root itself; symbolic links are resolved.
	Path string
	// Files are the files and symbolic links, relative to the root, with
	// slashes, sorted. .git is never among them.
	Files []string
	// Whole says that Files is the whole artifact, because WholeReason.
	Whole       bool
	WholeReason string
	// Backend is the backend or cloud block of the module; nil: none.
	Backend *Declared
	// Remote are the modules that init fetches, of all local modules.
	Remote []ModuleCall
	// Local are the calls of local modules.
	Local []ModuleCall
	// Providers are the providers required, by declaration or by use.
	Providers []Provider
	// Core are the version constraints on the tool itself.
	Core []string
	// VarFiles are Options.VarFiles, relative to the root, cleaned.
	VarFiles []string
}

// Declared is a block that the configuration has.
type Declared struct {
	// Type is the backend's, or "cloud".
	Type string
	File string
	Line int
}

// String is `backend "s3" (main.tf:3)`.
func (d *Declared) String() string {
	if d.Type == cloudBlock {
		return fmt.Sprintf("cloud (%s:%d)", d.File, d.Line)
	}
	return fmt.Sprintf("backend %q (%s:%d)", d.Type, d.File, d.Line)
}

// ModuleCall is a module block.
type ModuleCall struct {
	// In is the directory of the calling module, Name the label of the block.
	In, Name string
	// Source and Version are as written; an expression is shown as "?".
	Source, Version string
}

// Provider is a provider that a module needs.
type Provider struct {
	// In is the directory of the module, Name the local name there.
	In, Name string
	// Source and Version are empty when the name is only used.
	Source, Version string
}

// Bounds of what is read. Beyond them a reach is Whole: never wrong, only wide.
const (
	maxParsedFile  = 1 << 20
	maxParsedTotal = 64 << 20
	maxVisits      = 2000
	maxModuleDepth = 64
	maxLinks       = 64
)

// ReachOf finds what the unit at dir (spec.path) reads below root: the whole
// tree at dir; the local modules that it calls, theirs too; files that functions
// like file() and templatefile() read, wherever in the artifact; the variable
// files. An interpolated part of a path is taken to name something below the
// literal directory before it; where there is no such directory the reach is
// Whole. The error is a *PathError, or one of reading the disk.
func ReachOf(root, dir string, o Options) (*Reach, error) {
	return reachOf(root, dir, o, true)
}

func reachOf(root, dir string, o Options, guarded bool) (reach *Reach, err error) {
	t, err := openTree(root)
	if err != nil {
		return nil, fmt.Errorf("open artifact: %w", err)
	}
	defer t.close()
	where, err := t.unitDir(dir)
	if err != nil {
		return nil, err
	}
	r := &tracer{
		tree: t, opts: o, unit: where,
		files: map[string]bool{}, trees: map[string]bool{},
		configs: map[string]*config{}, visited: map[string]bool{}, templates: map[string]bool{},
		out: &Reach{Path: where},
	}
	if err := r.addTree(where, dirWhere); err != nil {
		return nil, err
	}
	if err := r.varFiles(); err != nil {
		return nil, err
	}
	if err := r.visitGuarded(guarded); err != nil {
		return nil, err
	}
	if r.out.Whole {
		if err := r.addAll(); err != nil {
			return nil, err
		}
	}
	return r.finish(), nil
}

const dirWhere = "spec.path"

// tracer is one ReachOf under way.
type tracer struct {
	tree  *tree
	opts  Options
	unit  string
	files map[string]bool
	trees map[string]bool // directories whose whole tree is in files

	configs   map[string]*config
	visited   map[string]bool
	templates map[string]bool
	visits    int
	parsed    int
	work      int // bytes of configuration visited, as often as they were

	out *Reach
}

func (r *tracer) whole(reason string) {
	if !r.out.Whole {
		r.out.Whole, r.out.WholeReason = true, reason
	}
}

// visitGuarded visits the root module. A parser that panics on what a stranger
// wrote must not end the control plane: the reach is then Whole.
func (r *tracer) visitGuarded(guarded bool) (err error) {
	if guarded {
		defer func() {
			if p := recover(); p != nil {
				r.whole(fmt.Sprintf("the configuration cannot be parsed: %v", p))
			}
		}()
	}
	return r.visit(r.unit, nil, 0)
}

func (r *tracer) varFiles() error {
	for _, name := range r.opts.VarFiles {
		at, links, err := r.tree.resolve(".", name)
		if err == nil {
			var info fs.FileInfo
			if info, err = r.tree.root.Stat(at); err == nil && !info.Mode().IsRegular() {
				err = ErrKind
			}
		}
		if err != nil {
			return r.tree.pathError(name, "spec.tfVarsFiles", err)
		}
		r.addLinks(links)
		r.files[at] = true
		r.out.VarFiles = append(r.out.VarFiles, at)
	}
	return nil
}

func (r *tracer) addLinks(links []string) {
	for _, l := range links {
		r.files[l] = true
	}
}

// add takes what is at a resolved path: a file, or a directory with its tree.
func (r *tracer) add(at, where string) error {
	info, err := r.tree.root.Lstat(at)
	if err != nil {
		return r.tree.pathError(at, where, err)
	}
	switch {
	case info.IsDir():
		return r.addTree(at, where)
	case info.Mode().IsRegular():
		r.files[at] = true
	}
	return nil
}

// covered says whether the tree of a parent is taken already.
func (r *tracer) covered(dir string) bool {
	for d := dir; ; d = path.Dir(d) {
		if r.trees[d] {
			return true
		}
		if d == "." {
			return false
		}
	}
}

// addTree takes all files below a directory, and what links there lead to.
func (r *tracer) addTree(dir, where string) error {
	if r.covered(dir) {
		return nil
	}
	if dir == "." && r.unit != "." {
		r.whole(where + " reads the root of the artifact")
	}
	r.trees[dir] = true
	return r.tree.walk(dir, func(name string, link bool) error {
		r.files[name] = true
		if !link {
			return nil
		}
		at, links, err := r.tree.resolve(path.Dir(name), path.Base(name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a dangling link stays one
		}
		if err != nil {
			return r.tree.pathError(name, "symbolic link", err)
		}
		r.addLinks(links)
		return r.add(at, where)
	})
}

// addAll takes everything but the links that lead out, which are nobody's.
func (r *tracer) addAll() error {
	return r.tree.walk(".", func(name string, link bool) error {
		if link {
			_, _, err := r.tree.resolve(path.Dir(name), path.Base(name))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil
			}
		}
		r.files[name] = true
		return nil
	})
}

func (r *tracer) finish() *Reach {
	out := r.out
	out.Files = slices.Sorted(maps.Keys(r.files))
	sortUnique(&out.Remote, func(c ModuleCall) string { return c.In + "\x00" + c.Name + "\x00" + c.Source + "\x00" + c.Version })
	sortUnique(&out.Local, func(c ModuleCall) string { return c.In + "\x00" + c.Name + "\x00" + c.Source + "\x00" + c.Version })
	sortUnique(&out.Providers, func(p Provider) string { return p.In + "\x00" + p.Name + "\x00" + p.Source + "\x00" + p.Version })
	slices.Sort(out.Core)
	out.Core = slices.Compact(out.Core)
	return out
}

func sortUnique[T comparable](list *[]T, key func(T) string) {
	sort.Slice(*list, func(i, j int) bool { return key((*list)[i]) < key((*list)[j]) })
	*list = slices.Compact(*list)
}

// tree is an artifact on disk. os.Root keeps every access inside it.
type tree struct{ root *os.Root }

func openTree(root string) (*tree, error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	return &tree{root: r}, nil
}

func (t *tree) close() { _ = t.root.Close() }

// unitDir resolves spec.path: relative to the root, also with a leading slash.
func (t *tree) unitDir(dir string) (string, error) {
	at, _, err := t.resolve(".", strings.TrimLeft(dir, "/"))
	if err != nil {
		return "", t.pathError(dir, dirWhere, err)
	}
	info, err := t.root.Stat(at)
	if err != nil {
		return "", t.pathError(dir, dirWhere, err)
	}
	if !info.IsDir() {
		return "", &PathError{Path: dir, Where: dirWhere, Err: ErrKind}
	}
	return at, nil
}

// pathError gives err its type, if it is about the path.
func (t *tree) pathError(name, where string, err error) error {
	for _, known := range []error{ErrOutside, ErrKind} {
		if errors.Is(err, known) {
			return &PathError{Path: name, Where: where, Err: known}
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return &PathError{Path: name, Where: where, Err: ErrNotFound}
	}
	return fmt.Errorf("read %s %q: %w", where, name, err)
}

// resolve follows name from the directory base as the kernel would: "..", and
// links, step by step. It returns the place, and the links that were passed.
func (t *tree) resolve(base, name string) (at string, links []string, err error) {
	if strings.HasPrefix(name, "/") {
		return "", nil, ErrOutside
	}
	at = path.Clean(base)
	todo := strings.Split(name, "/")
	for len(todo) > 0 {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if at == "." {
				return "", nil, ErrOutside
			}
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		info, err := t.root.Lstat(next)
		if err != nil {
			return "", links, notThere(err)
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if len(links) >= maxLinks {
			return "", links, ErrOutside // a loop leads nowhere inside
		}
		target, err := t.root.Readlink(next)
		if err != nil {
			return "", links, err
		}
		if strings.HasPrefix(target, "/") {
			return "", links, ErrOutside
		}
		links = append(links, next)
		todo = append(strings.Split(target, "/"), todo...)
	}
	return at, links, nil
}

// notThere makes every way in which a name cannot exist (also below a file, or
// too long, or with a zero byte) the same.
func notThere(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return err
	}
	return fmt.Errorf("%w (%v)", fs.ErrNotExist, err)
}

// walk calls fn for each file and link below dir, but not below .git.
func (t *tree) walk(dir string, fn func(name string, link bool) error) error {
	return fs.WalkDir(t.root.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Name() == ".git" && name != ".":
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.Type()&fs.ModeSymlink != 0:
			return fn(name, true)
		case d.Type().IsRegular():
			return fn(name, false)
		}
		return nil
	})
}

// read returns a file whole; ok is false when it is longer than limit.
func (t *tree) read(name string, limit int64) (b []byte, ok bool, err error) {
	info, err := t.root.Stat(name)
	if err != nil || info.Size() > limit || !info.Mode().IsRegular() {
		return nil, false, err
	}
	b, err = t.root.ReadFile(name)
	return b, err == nil, err
}
