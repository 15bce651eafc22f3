// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"errors"
	"fmt"
)

// StartError says why a control plane cannot start or go on, in words for the person who
// started it. Error gives the first line; Hint is the next step to take, a
// sentence without a full stop, empty when none is known.
type StartError struct {
	// What was tried, on what, and why it did not work.
	What string
	Hint string
	// Err is the cause, when there is one beyond What; it is not in the text.
	Err error
}

// Error returns What.
func (e *StartError) Error() string { return e.What }

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// ErrHeld is the cause of the StartError of a data directory that another
// process holds.
var ErrHeld = errors.New("data directory is held")

// ErrCorrupt is the cause of the StartError of a data directory whose content
// cannot be read back.
var ErrCorrupt = errors.New("data directory is damaged")

// ErrStorageFull is in the chain of Health while writes are refused for want of space.
var ErrStorageFull = errors.New("storage is full")

// corrupt wraps what was found in a damaged directory. The hint names the loss:
// a Terraform state that is kept in a Secret is lost with etcd.
func corrupt(dir string, why any) error {
	return &StartError{
		What: fmt.Sprintf("open the database of %s: %v", dir, why),
		Hint: fmt.Sprintf("restore %s from a backup; or move %s/etcd away to begin with an empty control plane, which loses all objects and the Terraform states kept in Secrets", dir, dir),
		Err:  ErrCorrupt,
	}
}
