// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomize

import (
	"errors"
	"syscall"
)

// isFault tells whether an error of the file system says something about the
// machine and not about the tree.
func isFault(err error) bool {
	for _, e := range []syscall.Errno{syscall.EIO, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ESTALE, syscall.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
