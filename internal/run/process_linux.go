// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
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

// environ is the environment of a process. It is empty for a moment while the process goes from
// one program to the next, and always for the kernel's own; so what is empty is looked at
// a few times.
func environ(pid string) []byte {
	for range 5 {
		content, err := os.ReadFile("/proc/" + pid + "/environ")
		if err != nil || len(content) > 0 {
			return content
		}
		if line, err := os.ReadFile("/proc/" + pid + "/stat"); err != nil || kernelThread(line) {
			return nil
		}
		time.Sleep(2 * time.Millisecond)
	}
	return nil
}

// kernelThread tells it by the flags of a process, the seventh field after the state and
// its command in parentheses (PF_KTHREAD of the kernel's sched.h).
func kernelThread(stat []byte) bool {
	const flag, field = 0x00200000, 6
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= field {
		return true
	}
	flags, err := strconv.ParseUint(string(fields[field]), 10, 64)
	return err != nil || flags&flag != 0
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
		for v := range bytes.SplitSeq(environ(e.Name()), []byte{0}) {
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
