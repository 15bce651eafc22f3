// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// identify asks the kernel about a process. The error is fs.ErrNotExist when there
// is none.
func identify(pid int) (identity, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	// proc_pid_stat(5): the second field is the command in parentheses and may hold
	// anything, so count from the last one. What follows is field 3, the state.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	const state, startTime = 0, 22 - 3
	if len(fields) <= startTime {
		return identity{}, fmt.Errorf("identify process %d: unknown format of its stat file", pid)
	}
	start, err := strconv.ParseUint(string(fields[startTime]), 10, 64)
	if err != nil {
		return identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	return identity{startTime: start, dead: bytes.ContainsAny(fields[state], "ZXx")}, nil
}

// bootID names the time between two boots of the machine: start times count from
// its begin.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// marked returns the processes whose environment has NAME=VALUE, as far as we may
// see it.
func marked(name, value string) ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	want := []byte(name + "=" + value)
	var out []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// In this order: a process that takes over the PID in between has another
		// start time, and is left alone.
		id, err := identify(pid)
		if err != nil || id.dead {
			continue
		}
		environ, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err != nil {
			continue
		}
		for v := range bytes.SplitSeq(environ, []byte{0}) {
			if bytes.Equal(v, want) {
				out = append(out, Process{PID: pid, StartTime: id.startTime})
				break
			}
		}
	}
	boot, err := bootID()
	for i := range out {
		out[i].Boot = boot
	}
	return out, err
}
