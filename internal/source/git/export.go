// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	fluxgit "github.com/fluxcd/pkg/git"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// maxSubmoduleDepth bounds submodules in submodules, which may name each other.
const maxSubmoduleDepth = 10

// exporter writes trees below a directory. It writes through os.Root, so that no
// entry's name can lead out of it.
type exporter struct {
	root   *os.Root
	dir    string
	sparse []string
}

// export writes the files of commit into dir.
func (r Request) export(ctx context.Context, repo *repository, commit *object.Commit, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	x := &exporter{root: root, dir: dir}
	for _, d := range r.Sparse {
		if d = path.Clean(filepath.ToSlash(d)); d == "." {
			x.sparse = nil
			break
		}
		x.sparse = append(x.sparse, strings.TrimPrefix(d, "/"))
	}
	if err := x.commit(ctx, r, repo, commit, "", 0); err != nil {
		return err
	}
	for _, d := range x.sparse {
		if _, err := root.Stat(d); err != nil {
			return fmt.Errorf("sparse checkout dir '%s': %w", d, ErrSparse)
		}
	}
	return nil
}

func (x *exporter) commit(ctx context.Context, r Request, repo *repository, c *object.Commit, at string, depth int) error {
	tree, err := c.Tree()
	if err != nil {
		return fmt.Errorf("read tree of commit %s: %w", c.Hash, err)
	}
	var modules *config.Modules
	if r.Submodules {
		if modules, err = readModules(tree); err != nil {
			return err
		}
	}
	return x.tree(ctx, tree, at, func(name string, hash plumbing.Hash) error {
		if modules == nil {
			return nil
		}
		return x.submodule(ctx, r, modules, strings.TrimPrefix(strings.TrimPrefix(name, at), "/"), name, hash, depth)
	})
}

// tree writes a tree at the path at; submodule is called with the path and
// commit of each.
func (x *exporter) tree(ctx context.Context, t *object.Tree, at string, submodule func(string, plumbing.Hash) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, e := range t.Entries {
		if e.Name == "" || e.Name == "." || e.Name == ".." || strings.ContainsAny(e.Name, "/\\\x00") {
			return fmt.Errorf("tree %s has an entry with the bad name %q", t.Hash, e.Name)
		}
		name := path.Join(at, e.Name)
		wanted, above := x.wants(name)
		if !wanted && !above {
			continue
		}
		var err error
		switch e.Mode {
		case filemode.Dir:
			err = x.subtree(ctx, t, e, name, submodule)
		case filemode.Regular, filemode.Deprecated, filemode.Executable:
			if wanted {
				err = x.file(t, e, name)
			}
		case filemode.Submodule:
			if wanted {
				err = errors.Join(x.mkdir(name), submodule(name, e.Hash))
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (x *exporter) subtree(ctx context.Context, t *object.Tree, e object.TreeEntry, name string, submodule func(string, plumbing.Hash) error) error {
	sub, err := t.Tree(e.Name)
	if err != nil {
		return fmt.Errorf("read directory %s: %w", name, err)
	}
	if err := x.mkdir(name); err != nil {
		return err
	}
	return x.tree(ctx, sub, name, submodule)
}

func (x *exporter) mkdir(name string) error {
	if err := x.root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func (x *exporter) file(t *object.Tree, e object.TreeEntry, name string) error {
	f, err := t.TreeEntryFile(&e)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	content, err := f.Reader()
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	defer content.Close()
	mode := fs.FileMode(0o600)
	if e.Mode == filemode.Executable {
		mode = 0o700
	}
	out, err := x.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if _, err := io.Copy(out, content); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", name, err), out.Close())
	}
	return out.Close()
}

// wants reports whether a path is wanted, and whether something below it may be.
func (x *exporter) wants(name string) (wanted, above bool) {
	if len(x.sparse) == 0 {
		return true, true
	}
	for _, d := range x.sparse {
		if name == d || strings.HasPrefix(name, d+"/") {
			return true, true
		}
		above = above || strings.HasPrefix(d, name+"/")
	}
	return false, above
}

func readModules(t *object.Tree) (*config.Modules, error) {
	m := config.NewModules()
	f, err := t.File(".gitmodules")
	if errors.Is(err, object.ErrFileNotFound) {
		return m, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read .gitmodules: %w", err)
	}
	content, err := f.Contents()
	if err != nil {
		return nil, fmt.Errorf("read .gitmodules: %w", err)
	}
	if err := m.Unmarshal([]byte(content)); err != nil {
		return nil, fmt.Errorf("read .gitmodules: %w", err)
	}
	return m, nil
}

// submodule fetches the submodule that modules has at own (its path in its
// repository) and writes it to name (its path in the whole).
func (x *exporter) submodule(ctx context.Context, parent Request, modules *config.Modules, own, name string, hash plumbing.Hash, depth int) error {
	if depth >= maxSubmoduleDepth {
		return fmt.Errorf("submodule %s: submodules are nested more than %d deep", name, maxSubmoduleDepth)
	}
	var module *config.Submodule
	for _, m := range modules.Submodules {
		if path.Clean(m.Path) == own {
			module = m
		}
	}
	if module == nil {
		return fmt.Errorf("submodule %s: .gitmodules does not list it", name)
	}
	r, err := parent.submodule(module.URL)
	if err != nil {
		return fmt.Errorf("submodule %s: %w", name, err)
	}
	r.Ref = Reference{Commit: hash.String()}
	if err := x.fetchSubmodule(ctx, r, name, depth); err != nil {
		return fmt.Errorf("submodule %s: %w", name, r.explain(ctx, err))
	}
	return nil
}

func (x *exporter) fetchSubmodule(ctx context.Context, r Request, name string, depth int) error {
	repo, err := r.open(filepath.Dir(x.dir))
	if err != nil {
		return err
	}
	defer repo.close()
	c, _, err := newest(ctx, repo, []target{commitTarget(r.Ref)})
	if err != nil {
		return err
	}
	return x.commit(ctx, r, repo, c, name, depth+1)
}

// submodule is the request for a repository that r's names in .gitmodules.
func (r Request) submodule(location string) (Request, error) {
	location, err := resolveURL(r.URL, location)
	if err != nil {
		return Request{}, err
	}
	sub := Request{URL: location, Proxy: r.Proxy, Submodules: true}
	if _, local := Local(location); local {
		// A remote repository must not reach into this machine.
		_, parentLocal := Local(r.URL)
		sub.AllowLocal = r.AllowLocal && parentLocal
		return sub, nil
	}
	u, err := url.Parse(location)
	if err != nil {
		return Request{}, errors.New("its URL cannot be understood")
	}
	if r.Auth != nil && string(r.Auth.Transport) == u.Scheme && r.Auth.Host == u.Host {
		sub.Auth = r.Auth
		return sub, nil
	}
	// Whoever may commit could otherwise send the credentials anywhere.
	sub.Auth = &fluxgit.AuthOptions{Transport: fluxgit.TransportType(u.Scheme), Host: u.Host}
	if r.Auth != nil {
		sub.Auth.CAFile = r.Auth.CAFile
	}
	if password, ok := u.User.Password(); ok {
		sub.Auth.Username, sub.Auth.Password = u.User.Username(), password
	}
	return sub, nil
}

// resolveURL makes a submodule's URL absolute: it may be relative to its
// parent's, or in the short form of SSH, user@host:path.
func resolveURL(parent, location string) (string, error) {
	if strings.HasPrefix(location, "./") || strings.HasPrefix(location, "../") {
		if p, ok := Local(parent); ok {
			return filepath.Abs(filepath.Join(p, filepath.FromSlash(location)))
		}
		u, err := url.Parse(parent)
		if err != nil {
			return "", errors.New("its parent's URL cannot be understood")
		}
		return u.JoinPath(location).String(), nil
	}
	if strings.Contains(location, "://") || filepath.IsAbs(location) {
		return location, nil
	}
	if host, p, ok := strings.Cut(location, ":"); ok && !strings.Contains(host, "/") {
		if !strings.HasPrefix(p, "/") {
			p = "/" + p
		}
		return "ssh://" + host + p, nil
	}
	return "", fmt.Errorf("URL '%s' cannot be understood", Redact(location))
}
