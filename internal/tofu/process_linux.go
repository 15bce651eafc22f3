// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ProcessStart returns when the process started, in clock ticks since boot
// (field 22 of /proc/PID/stat): with the PID and the boot id it names a process
// for good. The error is fs.ErrNotExist when there is no such process.
func ProcessStart(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, fmt.Errorf("read the start time of process %d: %w", pid, err)
	}
	// The second field is the command in parentheses, which may hold anything,
	// also spaces and parentheses: count from the last one.
	end := bytes.LastIndexByte(b, ')')
	fields := bytes.Fields(b[end+1:])
	const startTime = 22 - 3 // the first field here is the third
	if end < 0 || len(fields) <= startTime {
		return 0, fmt.Errorf("read the start time of process %d: unknown format of /proc/PID/stat", pid)
	}
	start, err := strconv.ParseUint(string(fields[startTime]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the start time of process %d: %w", pid, err)
	}
	return start, nil
}

// waitExit returns true when the process has ended, and leaves it to be reaped;
// false when the system cannot tell.
func waitExit(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return err == nil
		}
	}
}
