// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package durable writes small files that a crash must not leave in half, and keeps private
// those that hold keys. It knows nothing of what is in them.
package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Create writes a file, 0600, whole or not at all, and makes its directory, 0700. A file that is
// there already, because another process was first, stays, and that is no error.
func Create(file string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	temp, err := spool(file, content)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	// A link, not a rename: it never replaces a file that is there already.
	if err := os.Link(temp, file); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return SyncDir(filepath.Dir(file))
}

// Replace writes a file, 0600, whole or not at all, in the place of the one that is there.
func Replace(file string, content []byte) error {
	temp, err := spool(file, content)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	if err := os.Rename(temp, file); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(file))
}

// spool writes a file beside another, 0600 and on disk, and returns its name.
func spool(file string, content []byte) (string, error) {
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}

// Private looks at a file that nobody else may read, and returns an error that says so when
// others can; fs.ErrNotExist when there is none.
func Private(file string) (fs.FileInfo, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("others can read it (mode %04o); make it 0600", info.Mode().Perm())
	}
	return info, nil
}

// SyncDir makes the names in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
