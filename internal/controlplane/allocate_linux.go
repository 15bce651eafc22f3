// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// allocate gives every part of the file a place on the disk. The database grows
// by empty chunks whose blocks the file system finds when they are written;
// with the blocks found beforehand, a disk that another program fills in a
// moment does not end etcd in the middle of a commit.
func allocate(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, info.Size())
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil // a file system that cannot, or one that copies on write
	}
	return err
}
