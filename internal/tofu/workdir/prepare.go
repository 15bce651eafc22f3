// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package workdir

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
)

// The names of the files that Terrace generates in the module directory.
const (
	VarsFile          = "generated.auto.tfvars.json"
	BackendFile       = "backend_override.tf"
	BackendConfigFile = "terrace.tfbackend"
	RenderedFile      = renderedFile
	TemplateFile      = templateFile
)

// Request is what a run needs in its directory.
type Request struct {
	// Source is the root of the unpacked artifact that Reach was found in.
	Source string
	Reach  *Reach
	// Hasher may be nil.
	Hasher *Hasher
	// Files are generated in the module directory, by name: VarsFile,
	// BackendFile, BackendConfigFile, RenderedFile.
	Files map[string][]byte
	// Decrypted are files of the artifact, by their names relative to its root, with the
	// content that stands in their place until Scrub: the artifact keeps its own.
	Decrypted map[string][]byte
	// Mappings are spec.fileMappings with their contents.
	Mappings []Mapping
	// CLIConfig is a CLI configuration; nil: none.
	CLIConfig []byte
	// Init is what decides, besides what is in the directory, whether init has
	// to run again.
	Init Init
}

// Init is what init depends on that is not in the artifact.
type Init struct {
	// Tool names the tool and its version: tofu.Tool.Digest.
	Tool string
	// PluginCache is the path of the provider cache.
	PluginCache string
	// Upgrade is spec.upgradeOnInit.
	Upgrade bool
}

// Prepared is a directory that is ready for a run: absolute paths.
type Prepared struct {
	Module, DataDir, Home, Tmp string
	// CLIConfig is the CLI configuration file; empty: none.
	CLIConfig string
	// InitNeeded says that init must run first. Call [Dir.InitDone] after it.
	InitNeeded bool

	reach       *Reach
	fingerprint string
}

// Prepare makes the directory what a run needs: HOME and TMPDIR empty, the
// artifact's files as they are in the artifact, generated files 0600, and the
// lock file that the last init left, when the artifact has none or no init is
// needed. The error is a *MappingError for a mapping that cannot be placed.
func (d *Dir) Prepare(q Request) (*Prepared, error) {
	for _, part := range []string{homePart, tmpPart} {
		if err := d.empty(part); err != nil {
			return nil, fmt.Errorf("empty %s of the work directory: %w", part, err)
		}
	}
	if err := d.clearGenerated(); err != nil {
		return nil, fmt.Errorf("remove generated files: %w", err)
	}
	if err := d.Sync(q.Source, q.Reach, q.Hasher); err != nil {
		return nil, err
	}
	p := &Prepared{
		Module: d.Module(q.Reach), DataDir: d.DataDir(), Home: d.Home(), Tmp: d.Tmp(),
		reach: q.Reach,
	}
	files := map[string][]byte{}
	for name, content := range q.Decrypted {
		files[path.Join(workPart, name)] = content
	}
	for name, content := range q.Files {
		files[path.Join(workPart, q.Reach.Path, name)] = content
	}
	for _, m := range q.Mappings {
		name, err := m.place(q.Reach)
		if err != nil {
			return nil, err
		}
		files[name] = m.Content
	}
	if q.CLIConfig != nil {
		files[cliConfigPart] = q.CLIConfig
		p.CLIConfig = d.path + "/" + cliConfigPart
	}
	if err := d.writeGenerated(files); err != nil {
		return nil, fmt.Errorf("write generated files: %w", err)
	}
	if err := d.prepareInit(p, q); err != nil {
		return nil, fmt.Errorf("compare with the last init: %w", err)
	}
	return p, nil
}

// initRecord is what the last init was made from, and what it left.
type initRecord struct {
	Fingerprint string   `json:"fingerprint"`
	Left        []string `json:"left"`
}

func (d *Dir) prepareInit(p *Prepared, q Request) error {
	lock := path.Join(workPart, q.Reach.Path, LockFile)
	_, hasLock := slices.BinarySearch(q.Reach.Files, path.Join(q.Reach.Path, LockFile))
	var locked []byte
	if hasLock {
		var err error
		if locked, err = d.root.ReadFile(lock); err != nil {
			return err
		}
	}
	p.fingerprint = fingerprint(q, locked)
	var last initRecord
	if err := d.load(initPart, &last); err != nil {
		return err
	}
	p.InitNeeded = last.Fingerprint != p.fingerprint || !d.initIntact(last)
	if p.InitNeeded {
		// An init that found the backend of before would move its state to the
		// new one, or stop because the workspace is not there yet. Moving state
		// is for people to ask for.
		for _, name := range []string{"terraform.tfstate", "environment"} {
			if err := d.root.RemoveAll(path.Join(dataPart, name)); err != nil {
				return err
			}
		}
	}
	if p.InitNeeded && hasLock {
		return nil
	}
	saved, err := d.root.ReadFile(lockPart)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return d.write(lock, saved)
}

// fingerprint covers all that init reads: a changed one makes it run.
func fingerprint(q Request, lock []byte) string {
	w := sha256.New()
	// Encoding the parts one by one keeps their borders.
	_ = json.NewEncoder(w).Encode([]any{
		"terrace init 1", q.Init, q.Reach.Path, q.Reach.Backend, q.Reach.Remote, q.Reach.Local,
		q.Reach.Providers, q.Reach.Core, lock, q.CLIConfig,
		q.Files[BackendFile], q.Files[BackendConfigFile],
	})
	return hex.EncodeToString(w.Sum(nil))
}

// initIntact says whether what the last init left is still there, and the
// providers that it linked to.
func (d *Dir) initIntact(last initRecord) bool {
	for _, name := range last.Left {
		if _, err := d.root.Lstat(path.Join(dataPart, name)); err != nil {
			return false
		}
	}
	for _, link := range d.providerLinks() {
		// Not by d.root: the links lead to the plugin cache.
		if _, err := filepath.EvalSymlinks(link); err != nil {
			return false
		}
	}
	return true
}

func (d *Dir) providerLinks() []string {
	links, _ := fs.Glob(d.root.FS(), path.Join(dataPart, "providers", "*", "*", "*", "*", "*"))
	for i, l := range links {
		links[i] = d.path + "/" + l
	}
	return links
}

// InitDone records that init has succeeded for what Prepare was given, and
// keeps the lock file that it left.
func (d *Dir) InitDone(p *Prepared) error {
	rec := initRecord{Fingerprint: p.fingerprint}
	for _, name := range []string{"providers", "modules/modules.json", "terraform.tfstate"} {
		if _, err := d.root.Lstat(path.Join(dataPart, name)); err == nil {
			rec.Left = append(rec.Left, name)
		}
	}
	lock, err := d.root.ReadFile(path.Join(workPart, p.reach.Path, LockFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = d.root.RemoveAll(lockPart)
	case err == nil:
		err = d.write(lockPart, lock)
	}
	if err == nil {
		err = d.save(initPart, rec)
	}
	if err != nil {
		return fmt.Errorf("record init: %w", err)
	}
	return nil
}

// ForgetInit makes the next Prepare say that init is needed.
func (d *Dir) ForgetInit() error {
	if err := d.root.RemoveAll(initPart); err != nil {
		return fmt.Errorf("forget init: %w", err)
	}
	return nil
}

// Scrub removes what may hold secrets when no run needs it any more: generated and
// decrypted files, HOME, TMPDIR. What init made, local state and the artifact's files stay.
func (d *Dir) Scrub() error {
	if err := d.clearGenerated(); err != nil {
		return fmt.Errorf("remove generated files: %w", err)
	}
	for _, part := range []string{homePart, tmpPart} {
		if err := d.empty(part); err != nil {
			return fmt.Errorf("empty %s of the work directory: %w", part, err)
		}
	}
	return nil
}
