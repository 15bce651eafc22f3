// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package workdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// The parts of a Dir.
const (
	workPart      = "work"
	dataPart      = "data"
	homePart      = "home"
	tmpPart       = "tmp"
	syncedPart    = "synced.json"
	generatedPart = "generated.json"
	initPart      = "init.json"
	lockPart      = "lock.hcl"
	cliConfigPart = "cli.tfrc"
)

// LockFile is the file by which the engine remembers its choice of providers.
const LockFile = ".terraform.lock.hcl"

// ErroredState is the file that the engine leaves in the module directory when
// it could not write the state to the backend.
const ErroredState = "errored.tfstate"

// Dir is the place on disk of one unit. Its path must stay the same for all runs
// of the unit: what init makes refers to it. One run at a time may use it.
type Dir struct {
	path string
	root *os.Root
}

// OpenDir opens the place at path, an absolute path, and makes it when it is
// missing, for its owner alone (0700).
func OpenDir(dir string) (*Dir, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open work directory: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open work directory: %w", err)
	}
	d := &Dir{path: dir, root: root}
	for _, part := range []string{workPart, dataPart, homePart, tmpPart} {
		if err := root.MkdirAll(part, 0o700); err != nil {
			_ = root.Close()
			return nil, fmt.Errorf("open work directory: %w", err)
		}
	}
	return d, nil
}

// Close lets go of the directory; the files stay.
func (d *Dir) Close() error { return d.root.Close() }

// Path is where the Dir is.
func (d *Dir) Path() string { return d.path }

// Module is the absolute path of the module directory at reach.Path.
func (d *Dir) Module(r *Reach) string { return d.path + "/" + path.Join(workPart, r.Path) }

// File is the absolute path of a file of the artifact, named relative to its
// root: of a variable file for example.
func (d *Dir) File(name string) string { return d.path + "/" + path.Join(workPart, name) }

// DataDir is TF_DATA_DIR: what init makes.
func (d *Dir) DataDir() string { return d.path + "/" + dataPart }

// Home is HOME of a run; [Dir.Prepare] empties it.
func (d *Dir) Home() string { return d.path + "/" + homePart }

// Tmp is TMPDIR of a run; [Dir.Prepare] empties it.
func (d *Dir) Tmp() string { return d.path + "/" + tmpPart }

// DataName is the name of DataDir in the directory of a Dir: all in it is made by
// init, and can be made again.
const DataName = dataPart

// RemoveDir removes the place at path and all that is in it, local state too.
func RemoveDir(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove work directory: %w", err)
	}
	return nil
}

// synced is what Sync wrote: by name below work.
type synced map[string]syncedFile

type syncedFile struct {
	entry
	Size int64     `json:"size,omitempty"`
	Time time.Time `json:"time,omitzero"`
}

// Sync makes the work directory hold what the reach names, as it is below src.
// It copies what is not there yet or was changed, and removes what an earlier
// Sync wrote and the reach no longer names. What a run made itself stays: lock
// file, local state, files that resources are. Links are kept as links; the copy
// shares blocks where the file system can.
func (d *Dir) Sync(src string, r *Reach, h *Hasher) error {
	from, err := os.OpenRoot(src)
	if err != nil {
		return fmt.Errorf("copy artifact: %w", err)
	}
	defer from.Close()
	if err := d.sync(from, r, h); err != nil {
		return fmt.Errorf("copy artifact to the work directory: %w", err)
	}
	return nil
}

func (d *Dir) sync(from *os.Root, r *Reach, h *Hasher) error {
	var before synced
	if err := d.load(syncedPart, &before); err != nil {
		return err
	}
	want := synced{}
	err := r.entries(from, h, func(name string, e entry) error {
		want[name] = syncedFile{entry: e}
		return nil
	})
	if err != nil {
		return err
	}
	to, err := d.root.OpenRoot(workPart)
	if err != nil {
		return err
	}
	defer to.Close()
	if err := d.removeStale(to, before, want); err != nil {
		return err
	}
	// Until the end the record names all that may be there and vouches for
	// nothing: a sync that is killed is done again in full.
	unsure := synced{}
	for name := range want {
		unsure[name] = syncedFile{}
	}
	changed := false
	for _, name := range r.Files {
		w := want[name]
		if was, ok := before[name]; ok && was.entry == w.entry && was.intact(to, name) {
			want[name] = was
			continue
		}
		if !changed {
			changed = true
			if err := d.save(syncedPart, unsure); err != nil {
				return err
			}
		}
		if want[name], err = d.copy(from, to, r, name, w); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := to.MkdirAll(r.Path, 0o700); err != nil {
		return err
	}
	if !changed && len(before) == len(want) {
		return nil
	}
	return d.save(syncedPart, want)
}

// intact says whether the copy still looks as it was left.
func (f syncedFile) intact(to *os.Root, name string) bool {
	info, err := to.Lstat(name)
	if err != nil {
		return false
	}
	if f.Link != "" {
		target, err := to.Readlink(name)
		return err == nil && target == f.Link
	}
	return info.Mode().IsRegular() && info.Size() == f.Size && info.ModTime().Equal(f.Time)
}

func (d *Dir) removeStale(to *os.Root, before, want synced) error {
	for name := range before {
		if _, ok := want[name]; ok {
			continue
		}
		if err := to.Remove(name); err != nil && !gone(err) {
			return err
		}
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if to.Remove(dir) != nil {
				break // not empty
			}
		}
	}
	return nil
}

// gone says that there is no such file, also because a parent is a file now or
// a link that leads out.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), "not a directory") ||
		strings.Contains(err.Error(), "escapes")
}

func (d *Dir) copy(from, to *os.Root, r *Reach, name string, w syncedFile) (syncedFile, error) {
	if ownedByRun(r, name) {
		if _, err := to.Lstat(name); err == nil {
			return w, nil
		}
	}
	if err := makeParents(to, name); err != nil {
		return w, err
	}
	if err := to.RemoveAll(name); err != nil {
		return w, err
	}
	if w.Link != "" {
		return w, to.Symlink(w.Link, name)
	}
	mode := fs.FileMode(0o600)
	if w.Exec {
		mode = 0o700
	}
	in, err := from.Open(name)
	if err != nil {
		return w, err
	}
	defer in.Close()
	out, err := to.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return w, err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return w, err
	}
	info, err := out.Stat()
	if err != nil {
		_ = out.Close()
		return w, err
	}
	w.Size, w.Time = info.Size(), info.ModTime()
	return w, out.Close()
}

// ownedByRun is local state: an older one from Git must not replace it.
func ownedByRun(r *Reach, name string) bool {
	rel, ok := strings.CutPrefix(path.Join("/", name), path.Join("/", r.Path)+"/")
	if r.Path == "." {
		rel, ok = name, true
	}
	return ok && (rel == "terraform.tfstate" || strings.HasPrefix(rel, "terraform.tfstate.d/"))
}

// makeParents makes the directories above name; whatever a run put in their
// place goes.
func makeParents(to *os.Root, name string) error {
	dir := path.Dir(name)
	if dir == "." {
		return nil
	}
	for i := range dir {
		if dir[i] != '/' {
			continue
		}
		if err := realDir(to, dir[:i]); err != nil {
			return err
		}
	}
	return realDir(to, dir)
}

func realDir(to *os.Root, dir string) error {
	info, err := to.Lstat(dir)
	if err == nil && info.IsDir() {
		return nil
	}
	if err == nil {
		if err := to.Remove(dir); err != nil {
			return err
		}
	}
	return to.Mkdir(dir, 0o700)
}

// writeGenerated writes files of ours for the run: names are relative to the
// Dir. What was generated before and is not now is removed by clearGenerated.
func (d *Dir) writeGenerated(files map[string][]byte) error {
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	// The record first: a file that is not recorded would stay for ever.
	if err := d.save(generatedPart, names); err != nil {
		return err
	}
	for _, name := range names {
		if err := d.write(name, files[name]); err != nil {
			return err
		}
	}
	return nil
}

// Generate adds a file of ours to those in the module's directory, or replaces it; without
// content it goes. Scrub removes it with the others.
func (d *Dir) Generate(r *Reach, file string, content []byte) error {
	name := path.Join(workPart, r.Path, file)
	var names []string
	if err := d.load(generatedPart, &names); err != nil {
		return fmt.Errorf("generate %s: %w", file, err)
	}
	if len(content) == 0 {
		if err := d.root.Remove(name); err != nil && !gone(err) {
			return fmt.Errorf("generate %s: %w", file, err)
		}
		return nil
	}
	if !slices.Contains(names, name) {
		// The record first: a file that is not recorded would stay for ever.
		if err := d.save(generatedPart, append(names, name)); err != nil {
			return fmt.Errorf("generate %s: %w", file, err)
		}
	}
	if err := d.write(name, content); err != nil {
		return fmt.Errorf("generate %s: %w", file, err)
	}
	return nil
}

// write makes a new private file; what was there goes, and no link is followed.
func (d *Dir) write(name string, content []byte) error {
	if err := makeParents(d.root, name); err != nil {
		return err
	}
	if err := d.root.RemoveAll(name); err != nil {
		return err
	}
	f, err := d.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(content); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

func (d *Dir) clearGenerated() error {
	var names []string
	if err := d.load(generatedPart, &names); err != nil {
		return err
	}
	for _, name := range names {
		if err := d.root.Remove(name); err != nil && !gone(err) {
			return err
		}
	}
	if len(names) == 0 {
		return nil
	}
	return d.save(generatedPart, []string{})
}

func (d *Dir) empty(part string) error {
	if err := d.root.RemoveAll(part); err != nil {
		return err
	}
	return d.root.Mkdir(part, 0o700)
}

// load reads a record of ours. One that is torn counts as missing: everything
// that it says can be found again.
func (d *Dir) load(part string, to any) error {
	b, err := d.root.ReadFile(part)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_ = json.Unmarshal(b, to)
	return nil
}

// save writes a record at once or not at all.
func (d *Dir) save(part string, from any) error {
	b, err := json.Marshal(from)
	if err != nil {
		return err
	}
	if err := d.write(part+".new", b); err != nil {
		return err
	}
	return d.root.Rename(part+".new", part)
}
