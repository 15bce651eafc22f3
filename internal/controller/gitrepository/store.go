// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package gitrepository

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/sourceignore"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	"github.com/terrace-dev/terrace/internal/artifact"
	"github.com/terrace-dev/terrace/internal/attribution"
	"github.com/terrace-dev/terrace/internal/status"
)

// Reasons of the StorageOperationFailed condition that Flux's API does not name.
const (
	illegalPath       = "IllegalPath"
	copyFailure       = "CopyFailure"
	sourceIgnoreError = "SourceIgnoreError"
)

// compose copies the included artifacts to their places among the fetched files.
func (c *Controller) compose(ctx context.Context, cy *cycle) (status.Result, error) {
	if cy.checkout.Unchanged {
		return status.Next, nil
	}
	for i, in := range cy.obj.Spec.Include {
		if err := c.copyInclude(ctx, cy, in, cy.includes[i]); err != nil {
			return status.Next, err
		}
	}
	return status.Next, nil
}

func (c *Controller) copyInclude(ctx context.Context, cy *cycle, in sourcev1.GitRepositoryInclude, a *meta.Artifact) error {
	name := in.GitRepositoryRef.Name
	failed := func(reason string, err error) error {
		return cy.fail(sourcev1.StorageOperationFailedCondition, reason,
			fmt.Errorf("include '%s' from '%s' to '%s': %w", name, in.GetFromPath(), in.GetToPath(), err))
	}
	from, to := relative(in.GetFromPath()), relative(in.GetToPath())
	if !filepath.IsLocal(from) || !filepath.IsLocal(to) {
		return failed(illegalPath, errors.New("the path leaves the repository"))
	}
	tree, release, err := c.o.Artifacts.Tree(ctx, a)
	if err != nil {
		return failed(copyFailure, err)
	}
	defer release()
	if err := copyTree(tree, from, cy.dir, to); err != nil {
		return failed(copyFailure, err)
	}
	return nil
}

// relative makes a path of the API, which may begin with a slash, one of the tree.
func relative(p string) string {
	return path.Clean(strings.TrimLeft(filepath.ToSlash(p), "/"))
}

// copyTree copies what is at from in one directory to to in another, which must
// not be there yet.
func copyTree(srcDir, from, dstDir, to string) error {
	src, err := os.OpenRoot(srcDir)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenRoot(dstDir)
	if err != nil {
		return err
	}
	defer dst.Close()
	if entries, err := fs.ReadDir(dst.FS(), to); err == nil && len(entries) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("'%s' is in the repository already", to)
	}
	if err := dst.MkdirAll(path.Dir(to), 0o700); err != nil {
		return err
	}
	return fs.WalkDir(src.FS(), from, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		target := path.Join(to, filepath.ToSlash(rel))
		switch {
		case e.IsDir():
			return dst.MkdirAll(target, 0o700)
		case e.Type().IsRegular():
			return copyFile(src, name, dst, target)
		default:
			return nil
		}
	})
}

func copyFile(src *os.Root, name string, dst *os.Root, target string) error {
	in, err := src.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := dst.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600|info.Mode().Perm()&0o100)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// store archives what was fetched, and records on the object what it is made of.
func (c *Controller) store(ctx context.Context, cy *cycle) (status.Result, error) {
	obj, found := cy.obj, cy.checkout
	if !found.Unchanged {
		if obj.Status.Artifact != nil && !obj.Status.Artifact.HasRevision(found.Revision) {
			conditions.MarkTrue(obj, sourcev1.ArtifactOutdatedCondition, "NewRevision", "new upstream revision '%s'", found.Revision)
		}
		filter, err := ignore(cy.dir, obj.Spec.Ignore)
		if err != nil {
			return status.Next, cy.fail(sourcev1.StorageOperationFailedCondition, sourceIgnoreError,
				fmt.Errorf("read ignore patterns of the repository: %w", err))
		}
		a, err := c.o.Artifacts.Archive(ctx, owner(obj), found.Revision, found.Commit.Hash.String()+".tar.gz", cy.dir, filter)
		if err != nil {
			return status.Next, cy.fail(sourcev1.StorageOperationFailedCondition, sourcev1.ArchiveOperationFailedReason, err)
		}
		a.Metadata = attribution.Metadata(found.Commit)
		obj.Status.Artifact = a
		obj.Status.IncludedArtifacts = cy.includes
		obj.Status.ObservedIgnore = obj.Spec.Ignore
		obj.Status.ObservedRecurseSubmodules = obj.Spec.RecurseSubmodules
		obj.Status.ObservedInclude = obj.Spec.Include
		obj.Status.ObservedSparseCheckout = obj.Spec.SparseCheckout
	}
	conditions.Delete(obj, sourcev1.ArtifactOutdatedCondition)
	conditions.MarkTrue(obj, sourcev1.ArtifactInStorageCondition, meta.SucceededReason,
		"stored artifact for revision '%s'", obj.Status.Artifact.Revision)
	return status.Next, nil
}

// ignore makes the filter of an archive: the patterns of every .sourceignore,
// then those of the object; without any, Flux's defaults.
func ignore(dir string, spec *string) (artifact.Filter, error) {
	patterns, err := sourceignore.LoadIgnorePatterns(dir, nil)
	if err != nil {
		return nil, err
	}
	if spec != nil {
		patterns = append(patterns, sourceignore.ReadPatterns(strings.NewReader(*spec), nil)...)
	}
	matcher := sourceignore.NewDefaultMatcher(nil, nil)
	if len(patterns) > 0 {
		matcher = sourceignore.NewMatcher(append(sourceignore.VCSPatterns(nil), patterns...))
	}
	return func(name string, info fs.FileInfo) bool {
		return matcher.Match(strings.Split(name, "/"), info.IsDir())
	}, nil
}
