// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Supported asks the kernel.
func Supported() Support {
	version, err := ll.LandlockGetABIVersion()
	if err != nil {
		version = 0
	}
	return Support{Landlock: version, Limits: true}
}

// handled are the accesses that need leave: everything about files that Landlock 5 knows,
// and from 6 on signals and abstract sockets beyond the run. The network stays open.
var handled = landlock.Config{
	HandledAccessFS: ll.AccessFSExecute | ll.AccessFSWriteFile | ll.AccessFSReadFile | ll.AccessFSReadDir |
		ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeChar | ll.AccessFSMakeDir | ll.AccessFSMakeReg |
		ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeBlock | ll.AccessFSMakeSym | ll.AccessFSRefer |
		ll.AccessFSTruncate | ll.AccessFSIoctlDev,
	Scoped: ll.ScopeAbstractUnixSocket | ll.ScopeSignal,
}.BestEffort()

// start starts the command on a thread that is restricted first and ends afterwards: a
// child has the restrictions of the thread that starts it, and Terrace's other threads keep
// what they have.
func (p Profile) start(cmd *exec.Cmd) error {
	if !p.Confine {
		return cmd.Start()
	}
	ruleset, flags, err := p.ruleset()
	if err != nil {
		return fmt.Errorf("confine the process: %w", err)
	}
	if ruleset < 0 {
		return cmd.Start() // the kernel has no Landlock
	}
	defer unix.Close(ruleset)
	done := make(chan error)
	go func() {
		// Not unlocked: a thread with restrictions must not serve other goroutines, so
		// it ends with this one. The runtime starts new threads elsewhere meanwhile.
		runtime.LockOSThread()
		done <- func() error {
			if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
				return fmt.Errorf("confine the process: no new privileges: %w", err)
			}
			if err := dropCapabilities(); err != nil {
				return fmt.Errorf("confine the process: drop capabilities: %w", err)
			}
			if err := ll.LandlockRestrictSelf(ruleset, flags); err != nil {
				return fmt.Errorf("confine the process: landlock_restrict_self: %w", err)
			}
			return cmd.Start()
		}()
	}()
	return <-done
}

// kept are the capabilities that a run has when Terrace has them, which it does as root: what
// programs need to work with files and accounts of their own. The others open ways around the
// confinement: with CAP_PERFMON, for one, the environment of any process can be read in /proc.
var kept = []uintptr{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL,
	unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_NET_BIND_SERVICE,
}

// dropCapabilities takes all but the kept ones out of reach of what this thread starts. The
// thread itself keeps them until it ends; what it executes cannot get them back.
func dropCapabilities() error {
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if slices.Contains(kept, c) {
			continue
		}
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err != nil || has == 0 {
			continue // the kernel does not know it, or it is out of reach already
		}
		// Who may not drop a capability is not root, and gets none by executing a program.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EPERM {
			return err
		}
	}
	return nil
}

// ruleset is a file descriptor that stands for the profile, -1 when the kernel knows no
// Landlock.
func (p Profile) ruleset() (fd int, flags uint32, err error) {
	// Files are moved between the run's directories.
	rules := []landlock.Rule{
		landlock.RWDirs(p.Write...).WithRefer(),
		landlock.RWFiles(systemWrite...).IgnoreIfMissing(),
	}
	for _, path := range append(systemRead, p.Read...) {
		info, err := os.Stat(path)
		switch {
		case err != nil:
			// What is missing cannot be read; a broken link of the system is not the run's fault.
		case info.IsDir():
			rules = append(rules, landlock.RODirs(path).IgnoreIfMissing())
		default:
			rules = append(rules, landlock.ROFiles(path).IgnoreIfMissing())
		}
	}
	return handled.NewRulesetFD(rules...)
}

// limit bounds a process that has just been started. It has not read a line of the
// run's module yet, and children get the same.
func (p Profile) limit(pid int) error {
	for _, l := range []struct {
		resource int
		value    uint64
	}{{unix.RLIMIT_DATA, p.Memory}, {unix.RLIMIT_NOFILE, p.OpenFiles}} {
		if l.value == 0 {
			continue
		}
		if err := unix.Prlimit(pid, l.resource, &unix.Rlimit{Cur: l.value, Max: l.value}, nil); err != nil {
			return err
		}
	}
	return nil
}
