// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package run

import (
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// zombie is SZOMB of sys/proc.h.
const zombie = 5

// identify asks the kernel about a process. The error is fs.ErrNotExist when there
// is none.
func identify(pid int) (identity, error) {
	p, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return identity{}, fmt.Errorf("identify process %d: %w (%v)", pid, fs.ErrNotExist, err)
	}
	t := p.Proc.P_starttime
	return identity{
		startTime: uint64(t.Sec)*1_000_000 + uint64(t.Usec),
		dead:      p.Proc.P_stat == zombie,
	}, nil
}

// bootID names the time between two boots of the machine.
func bootID() (string, error) {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return id, nil
}

// marked finds nothing here: darwin does not show the environment of processes.
func marked(string, string) ([]Process, error) { return nil, nil }
