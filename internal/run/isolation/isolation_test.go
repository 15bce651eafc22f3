// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

func needLandlock(t *testing.T, version int) {
	t.Helper()
	if have := Supported().Landlock; have < version {
		t.Skipf("the kernel has Landlock %d, and this needs %d", have, version)
	}
}

// shell runs a script under the profile and returns what it printed.
func shell(t *testing.T, p Profile, dir, script string) (string, error) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := p.Start(cmd); err != nil {
		t.Fatalf("start: %v", err)
	}
	err := cmd.Wait()
	return out.String(), err
}

func TestConfine(t *testing.T) {
	needLandlock(t, 1)
	dir := t.TempDir()
	for _, d := range []string{"own", "own/sub", "other", "artifact"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"own/a": "mine", "other/secret": "CANARY", "artifact/file": "given"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := Profile{Confine: true, Write: []string{filepath.Join(dir, "own")}, Read: []string{filepath.Join(dir, "artifact"), filepath.Join(dir, "missing")}}
	for name, tc := range map[string]struct {
		reason string
		script string
		fails  bool
		want   string
	}{
		"ReadsItsOwn":        {reason: "the working directory", script: "cat a", want: "mine"},
		"WritesItsOwn":       {reason: "state, plan, providers", script: "echo new > b && cat b", want: "new"},
		"MovesItsOwn":        {reason: "files are installed by rename, also into other directories", script: "echo x > c && mv c sub/c && cat sub/c", want: "x"},
		"ReadsWhatIsGiven":   {reason: "the artifact", script: "cat ../artifact/file", want: "given"},
		"WritesNothingGiven": {reason: "the artifact is shared", script: "echo x > ../artifact/file", fails: true},
		"ReadsNobodyElse":    {reason: "other units' directories", script: "cat ../other/secret", fails: true},
		"ListsNobodyElse":    {reason: "names tell as well", script: "ls ../other", fails: true},
		"LinksNobodyElse":    {reason: "a link is not a way around", script: "ln -s ../other/secret l && cat l", fails: true},
		"NoShadow":           {reason: "of /etc only what programs need", script: "cat /etc/shadow", fails: true},
		"NoOtherEnvironment": {reason: "the environment of Terrace has what runs must not have", script: "cat /proc/" + strconv.Itoa(os.Getpid()) + "/environ", fails: true},
		"NoOtherMemory":      {reason: "nor its files by way of /proc", script: "ls /proc/" + strconv.Itoa(os.Getpid()) + "/cwd/", fails: true},
		"NoCapabilities":     {reason: "as root there are ways around files' permissions that the kernel asks capabilities for", script: "grep -q '^CapBnd:.*[1-9a-f].\\{8\\}$' /proc/self/status", fails: true},
		"NoTmp":              {reason: "others' files lie there; TMPDIR is the run's own", script: "ls /tmp", fails: true},
		"ChildrenToo":        {reason: "what a provisioner starts is as confined", script: "sh -c 'sh -c \"cat ../other/secret\"'", fails: true},
		"SystemPrograms":     {reason: "local-exec needs them", script: "ls / > /dev/null 2>&1; uname > /dev/null && echo ok", want: "ok"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := shell(t, p, filepath.Join(dir, "own"), tc.script)
			if (err != nil) != tc.fails {
				t.Errorf("%s: %q ended with %v, want failure %v:\n%s", tc.reason, tc.script, err, tc.fails, out)
			}
			if !tc.fails && strings.TrimSpace(out) != tc.want {
				t.Errorf("%s: %q printed %q, want %q", tc.reason, tc.script, out, tc.want)
			}
			if strings.Contains(out, "CANARY") {
				t.Errorf("%s: %q read what is not its own:\n%s", tc.reason, tc.script, out)
			}
		})
	}
	// The process that starts others is not restricted itself, whatever thread it goes on with.
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			if _, err := os.ReadFile(filepath.Join(dir, "other/secret")); err != nil {
				t.Errorf("the starter is restricted too: %v", err)
			}
		})
	}
	wg.Wait()
}

func TestSignalsStayInside(t *testing.T) {
	needLandlock(t, scopeVersion)
	out, err := shell(t, Profile{Confine: true, Write: []string{t.TempDir()}}, "/", "kill -0 "+strconv.Itoa(os.Getpid()))
	if err == nil {
		t.Errorf("a run can signal Terrace: %s", out)
	}
	if out, err := shell(t, Profile{}, "/", "kill -0 "+strconv.Itoa(os.Getpid())); err != nil {
		t.Errorf("without confinement it can, or this test shows nothing: %v: %s", err, out)
	}
}

func TestNoNewPrivileges(t *testing.T) {
	needLandlock(t, 1)
	for _, tc := range []struct {
		p    Profile
		want string
	}{
		{Profile{Confine: true, Write: []string{t.TempDir()}}, "NoNewPrivs:\t1"},
		{Profile{}, "NoNewPrivs:\t0"},
	} {
		out, err := shell(t, tc.p, "/", "grep NoNewPrivs /proc/self/status")
		if err != nil || strings.TrimSpace(out) != tc.want {
			t.Errorf("confine %v: %q, %v; want %q", tc.p.Confine, out, err, tc.want)
		}
	}
}

func TestLimits(t *testing.T) {
	if !Supported().Limits {
		t.Skip("this system has no limits")
	}
	// The script waits for its input, so that the limits are there when it looks.
	look := func(p Profile) string {
		cmd := exec.Command("/bin/sh", "-c", "read go; ulimit -n; ulimit -d")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		cmd.Stdout = &out
		if err := p.Start(cmd); err != nil {
			t.Fatal(err)
		}
		if _, err := in.Write([]byte("go\n")); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(out.String()), " ")
	}
	if got, want := look(Profile{OpenFiles: 77, Memory: 512 << 20}), "77 524288"; got != want {
		t.Errorf("open files and KiB of data: %s, want %s", got, want)
	}
}

func TestSupportIsTold(t *testing.T) {
	for _, tc := range []struct {
		s    Support
		want string
	}{
		{Support{Landlock: 7, Limits: true}, "files, privileges, signals, limits (Landlock 7)"},
		{Support{Landlock: 3, Limits: true}, "files, privileges, limits; not signals, which this system lacks"},
		{Support{}, "none: this system has neither Landlock nor limits"},
	} {
		if got := tc.s.String(); got != tc.want {
			t.Errorf("%+v: %q, want %q", tc.s, got, tc.want)
		}
	}
}
