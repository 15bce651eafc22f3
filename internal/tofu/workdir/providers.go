// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package workdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// ErrLockFile is a lock file that cannot be read as one.
var ErrLockFile = errors.New("the dependency lock file cannot be read")

// Required are the sources of the providers that the modules of the artifact ask for, as
// they are written, without those that only an expression or a template tells. A name that
// is used and not declared is a source of one part. What is missing here is in the lock
// file when init has run.
func (r *Reach) Required() []Provider {
	var out []Provider
	for _, p := range r.Providers {
		if p.Source == "" {
			if r.Whole {
				// What could not be read may declare the name.
				continue
			}
			p.Source = p.Name
		}
		out = append(out, p)
	}
	return out
}

// LockedProviders are the addresses, with hosts, of the providers in the lock file that is
// in the module directory now; none, when there is no lock file. The error is ErrLockFile
// for one that cannot be read.
func (d *Dir) LockedProviders(r *Reach) ([]string, error) {
	return lockedBelow(d.root, path.Join(workPart, r.Path))
}

// LockedProviders are those of the lock file that the artifact at root has.
func (r *Reach) LockedProviders(root string) ([]string, error) {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", LockFile, err)
	}
	defer dir.Close()
	return lockedBelow(dir, r.Path)
}

func lockedBelow(root *os.Root, dir string) ([]string, error) {
	content, err := root.ReadFile(path.Join(dir, LockFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", LockFile, err)
	}
	return lockedProviders(content)
}

func lockedProviders(content []byte) (out []string, err error) {
	defer func() {
		if recover() != nil { // a parser and what a stranger wrote
			out, err = nil, ErrLockFile
		}
	}()
	if len(content) > maxParsedFile {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrLockFile, maxParsedFile)
	}
	file, diags := hclsyntax.ParseConfig(content, LockFile, hcl.InitialPos)
	body, ok := file.Body.(*hclsyntax.Body)
	if diags.HasErrors() || !ok {
		return nil, ErrLockFile
	}
	for _, b := range body.Blocks {
		if b.Type != "provider" {
			continue
		}
		if len(b.Labels) != 1 {
			return nil, ErrLockFile
		}
		out = append(out, b.Labels[0])
	}
	return out, nil
}
