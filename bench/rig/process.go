// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is a terrace process that is measured from outside.
type Process struct {
	cmd    *exec.Cmd
	log    string
	exited chan struct{}
	err    error
}

// startProcess starts a command whose output goes to dir/name.log.
func startProcess(dir, name, binary string, args ...string) (*Process, error) {
	p := &Process{cmd: exec.Command(binary, args...), log: filepath.Join(dir, name+".log"), exited: make(chan struct{})}
	f, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p.cmd.Stdout, p.cmd.Stderr = f, f
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// Stop sends SIGTERM and, a minute later, SIGKILL.
func (p *Process) Stop() error {
	if p == nil {
		return nil
	}
	select {
	case <-p.exited:
		return nil
	default:
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.exited:
		return p.err
	case <-time.After(time.Minute):
		_ = p.cmd.Process.Kill() // it may have ended just now
		<-p.exited
		return fmt.Errorf("%s did not stop within a minute", p.log)
	}
}

// await calls try until it succeeds, the process ends, or a minute and a half is over.
func (p *Process) await(ctx context.Context, what string, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("wait for %s: the process ended: %v; see %s", what, p.err, p.log)
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// cpu is processor time, user and system.
type cpu struct {
	own      time.Duration
	children time.Duration // that were waited for, and theirs
}

func (c cpu) minus(o cpu) cpu { return cpu{c.own - o.own, c.children - o.children} }

// cpu reads what the process and its ended children have used so far.
func (p *Process) cpu() (cpu, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return cpu{}, err
	}
	return parseStat(text)
}

// parseStat reads utime, stime, cutime and cstime, fields 14 to 17 of proc(5)'s
// stat. The second field is the command in parentheses and may hold anything, so
// counting starts after the last one.
func parseStat(text []byte) (cpu, error) {
	const tick = time.Second / 100 // USER_HZ, which is 100 on every Linux that Go runs on
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 15 {
		return cpu{}, fmt.Errorf("read stat: %d fields after the command", len(fields))
	}
	var ticks [4]time.Duration
	for i := range ticks {
		n, err := strconv.ParseInt(fields[11+i], 10, 64)
		if err != nil {
			return cpu{}, fmt.Errorf("read stat: %w", err)
		}
		ticks[i] = time.Duration(n) * tick
	}
	return cpu{own: ticks[0] + ticks[1], children: ticks[2] + ticks[3]}, nil
}

// Memory is what a process has resident, in MiB: now, and at most so far.
type Memory struct{ Now, Peak float64 }

// Resident reads how much memory the process holds.
func (p *Process) Resident() (Memory, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return Memory{}, err
	}
	return parseStatus(text)
}

// parseStatus reads VmRSS and VmHWM, which proc(5) gives in KiB.
func parseStatus(text []byte) (m Memory, err error) {
	for name, to := range map[string]*float64{"VmRSS:": &m.Now, "VmHWM:": &m.Peak} {
		_, after, found := strings.Cut(string(text), "\n"+name)
		fields := strings.Fields(after)
		if !found || len(fields) < 2 || fields[1] != "kB" {
			return Memory{}, fmt.Errorf("read status: no %s in kB", name)
		}
		kib, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			return Memory{}, fmt.Errorf("read status: %w", err)
		}
		*to = kib / 1024
	}
	return m, nil
}
