// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package isolation starts the processes of a run so that they and what they start see
// only the files that the run needs, get no new privileges, can signal nobody outside,
// and have bounds. On Linux the kernel's Landlock does it, without privileges; what a kernel
// lacks is left out, and Supported says what that is.
//
// Network access is not restricted: a module's work is to talk to other machines.
package isolation

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// Profile is what the processes of a run may do. The zero Profile restricts nothing.
type Profile struct {
	// Read are files and directories that may be read and executed.
	Read []string
	// Write are directories that may be read, executed and written, with everything below.
	Write []string
	// Confine turns on the confinement to Read, Write and the system's own programs,
	// libraries, certificates and name resolution. Without it both are ignored.
	Confine bool
	// Memory bounds the writable memory of each process, in bytes; 0 does not.
	Memory uint64
	// OpenFiles bounds the open files of each process; 0 does not.
	OpenFiles uint64
}

// Support is what a kernel gives.
type Support struct {
	// Landlock is the version of the kernel's Landlock interface; 0 means none.
	Landlock int
	// Limits tells that Memory and OpenFiles are kept.
	Limits bool
}

// String tells a person what runs are protected by, in one line.
func (s Support) String() string {
	var has, lacks []string
	add := func(ok bool, what string) {
		if ok {
			has = append(has, what)
		} else {
			lacks = append(lacks, what)
		}
	}
	add(s.Landlock > 0, "files")
	add(s.Landlock > 0, "privileges")
	add(s.Landlock >= scopeVersion, "signals")
	add(s.Limits, "limits")
	switch {
	case len(lacks) == 0:
		return fmt.Sprintf("%s (Landlock %d)", strings.Join(has, ", "), s.Landlock)
	case len(has) == 0:
		return "none: this system has neither Landlock nor limits"
	}
	return fmt.Sprintf("%s; not %s, which this system lacks", strings.Join(has, ", "), strings.Join(lacks, ", "))
}

// scopeVersion is the version of Landlock from which on signals are restricted.
const scopeVersion = 6

// systemRead is what programs of any kind read of a system: themselves, libraries,
// certificates, names and time. What may be secret is not among it: of /etc only these.
// What is not there is left out.
var systemRead = []string{
	"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/nix/store",
	"/etc/alternatives", "/etc/ca-certificates", "/etc/ca-certificates.conf", "/etc/crypto-policies", "/etc/pki/tls", "/etc/pki/ca-trust", "/etc/ssl/cert.pem", "/etc/ssl/certs", "/etc/ssl/openssl.cnf",
	"/etc/gai.conf", "/etc/group", "/etc/host.conf", "/etc/hostname", "/etc/hosts", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
	"/etc/localtime", "/etc/mime.types", "/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd", "/etc/protocols", "/etc/resolv.conf", "/etc/services", "/etc/ssh/ssh_config", "/etc/ssh/ssh_config.d", "/etc/ssh/ssh_known_hosts", "/etc/timezone", "/etc/gitconfig",
	"/run/systemd/resolve", "/run/resolvconf", "/var/lib/ca-certificates",
	// A process finds itself here; others of the same user are out of its reach,
	// because Landlock refuses what ptrace would be needed for.
	"/proc", "/sys/fs/cgroup", "/sys/devices/system/cpu", "/sys/kernel/mm",
}

// systemWrite are the devices that everybody writes to.
var systemWrite = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}

// Start starts the command as cmd.Start does, under the profile. An error says why it could
// not be started or restricted; then it does not run.
func (p Profile) Start(cmd *exec.Cmd) error {
	if err := p.start(cmd); err != nil {
		return err
	}
	if err := p.limit(cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return fmt.Errorf("limit the process: %w", err)
	}
	return nil
}

// With returns the profile with more to read and to write.
func (p Profile) With(read, write []string) Profile {
	p.Read = slices.Concat(p.Read, read)
	p.Write = slices.Concat(p.Write, write)
	return p
}
