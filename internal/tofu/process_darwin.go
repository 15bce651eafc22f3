// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import (
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// ProcessStart returns when the process started, in microseconds since 1970:
// with the PID it names a process for good. The error is fs.ErrNotExist when
// there is no such process.
func ProcessStart(pid int) (uint64, error) {
	p, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return 0, fmt.Errorf("read the start time of process %d: %w (%v)", pid, fs.ErrNotExist, err)
	}
	t := p.Proc.P_starttime
	return uint64(t.Sec)*1_000_000 + uint64(t.Usec), nil
}

// waitExit returns true when the process has ended, and leaves it to be reaped;
// false when the system cannot tell.
func waitExit(pid int) bool {
	kq, err := unix.Kqueue()
	if err != nil {
		return false
	}
	defer unix.Close(kq)
	change := []unix.Kevent_t{{
		Ident: uint64(pid), Filter: unix.EVFILT_PROC,
		Flags: unix.EV_ADD | unix.EV_ONESHOT, Fflags: unix.NOTE_EXIT,
	}}
	events := make([]unix.Kevent_t, 1)
	for {
		_, err := unix.Kevent(kq, change, events, nil)
		switch err {
		case unix.EINTR:
			continue
		case nil, unix.ESRCH: // ESRCH: it ended before we asked
			return true
		default:
			return false
		}
	}
}
