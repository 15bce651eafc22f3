// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ErrLocked says that a state is locked by somebody else. The facts are in
// *LockedError.
var ErrLocked = errors.New("state is locked")

// Lock is what the holder of a state's lock says of itself: the LockInfo of
// Terraform.
type Lock struct {
	ID        string    `json:"ID"`
	Operation string    `json:"Operation"`
	Info      string    `json:"Info"`
	Who       string    `json:"Who"` // user@host
	Version   string    `json:"Version"`
	Created   time.Time `json:"Created"`
	Path      string    `json:"Path"`
}

// ParseLock reads the holder of a Lease and its LockAnnotation. A lock whose
// annotation is missing or unreadable still has its ID; with no holder it is nil.
func ParseLock(holder, annotation string) *Lock {
	if holder == "" {
		return nil
	}
	var l Lock
	if json.Unmarshal([]byte(annotation), &l) != nil {
		l = Lock{}
	}
	l.ID = holder
	return &l
}

// LockedError says who holds a lock. It matches ErrLocked.
type LockedError struct{ Lock Lock }

func (e *LockedError) Error() string {
	l := e.Lock
	s := fmt.Sprintf("state is locked by %q", l.ID)
	if l.Who != "" {
		s += " of " + l.Who
	}
	if l.Operation != "" {
		s += " (" + l.Operation + ")"
	}
	if !l.Created.IsZero() {
		s += " since " + l.Created.UTC().Format(time.RFC3339)
	}
	return s
}

// Is makes errors.Is match ErrLocked.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }
