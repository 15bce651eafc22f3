// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/terrace-dev/terrace/internal/run/isolation"
)

const (
	// defaultPath is the PATH of a run that is given none: where the system's
	// own commands are on every Unix. Terrace's PATH is not handed on.
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

	// defaultGrace is Session.Grace when it is zero.
	defaultGrace = time.Minute

	// maxCapture bounds what a subcommand may print for us to decode (show,
	// output, state pull).
	maxCapture = 512 << 20
)

// Session is the way to run one tool in one module directory. Fill it in and
// call its methods one after another; a Session must not be used by two
// goroutines at once, because the directory cannot be.
//
// Every method ends in one of: nil; a *LockError when the state is locked by
// someone else; an *ExitError when the process ran and failed, was cancelled or
// killed (errors.Is finds the cause of ctx then); any other error when it could
// not be started or what it printed could not be read.
type Session struct {
	Tool *Tool
	// Dir is the module directory that the tool runs in.
	Dir string
	// DataDir is TF_DATA_DIR: what init makes, kept between runs. Empty leaves
	// it to the tool (.terraform in Dir).
	DataDir string
	// Home and Tmp are HOME and TMPDIR of the process. Tmp also takes the
	// files that its output goes to. Both must exist.
	Home, Tmp string
	// Env is what the spec gives: it may add anything and override everything
	// but TF_DATA_DIR, TF_INPUT and TF_IN_AUTOMATION. Nothing of Terrace's own
	// environment reaches the process.
	Env map[string]string
	// CLIConfig is the path of a CLI configuration file; empty: none.
	CLIConfig string
	// PluginCache is the directory of the shared provider cache, made when it
	// is missing; empty: none.
	PluginCache string
	// Isolation is what the processes may do. Its Read and Write are what the run's
	// own directories are not enough for; the session adds the tool, its configuration and
	// the provider cache, which only init may write to.
	Isolation isolation.Profile
	// Output gets what the process prints on standard output soon after it does,
	// Errors what it prints on standard error; nil Errors is Output. They are
	// called from one goroutine; their errors are ignored. What show, output and
	// state pull print on standard output does not go there. nil discards.
	Output, Errors io.Writer
	// Grace is the time from the interrupt that a cancelled ctx causes to the
	// kill; zero means one minute.
	Grace time.Duration
	// Started is told of each process as soon as it runs. When it returns an
	// error the process group is killed and the method returns that error.
	Started func(Process) error
	// Mask removes secrets from the texts of errors; nil changes nothing.
	// Output and Errors are not masked here.
	Mask func(string) string
}

// Process names a process so that it can be found again after a restart: a PID
// alone may by then belong to another one.
type Process struct {
	PID int
	// StartTime is what [ProcessStart] says of the PID; 0 when unknown.
	StartTime uint64
	// Subcommand is "init", "plan", "state push", …
	Subcommand string
}

// command is one process to be.
type command struct {
	sub  string   // for messages: "state pull"
	args []string // all of them, the subcommand first
	// okCodes are the exit codes that are no failure besides 0.
	okCodes []int
	// capture makes run return standard output instead of showing it.
	capture bool
	// files are inherited by the process from descriptor 3 on.
	files []*os.File
}

// result is how a process ended, without failure.
type result struct {
	code   int
	stdout []byte
}

// run starts the process, follows its output, waits for it, and turns the way
// that it ended into a result or a typed error.
func (s *Session) run(ctx context.Context, c command) (*result, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.name(c.sub), err)
	}
	out, err := s.outputFile(c.sub, "out")
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.name(c.sub), err)
	}
	killed := false
	defer func() {
		if killed && c.sub == "apply" {
			_ = out.Close() // MadeIn reads it
			return
		}
		discard(out)
	}()
	errOut, err := s.outputFile(c.sub, "err")
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.name(c.sub), err)
	}
	defer discard(errOut)

	cmd := exec.Command(s.Tool.Path, c.args...)
	cmd.Dir = s.Dir
	cmd.Env = s.environ(c.sub)
	cmd.Stdout, cmd.Stderr = out, errOut
	cmd.ExtraFiles = c.files
	// A group of its own: what the user types at Terrace's terminal does not
	// reach it, and at the end everything that it left running can be killed.
	// Not Pdeathsig: an apply that is killed with Terrace would lose its state.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.isolation(c.sub).Start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.name(c.sub), err)
	}

	errs := &collector{}
	follow := s.follow(c, out.Name(), errOut.Name(), errs)
	startErr := s.tell(cmd.Process.Pid, c.sub)
	if startErr != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	waitErr := s.wait(ctx, cmd)
	if err := follow.stop(); err != nil {
		return nil, fmt.Errorf("read the output of %s: %w", s.name(c.sub), err)
	}
	if startErr != nil {
		return nil, fmt.Errorf("start %s: %w", s.name(c.sub), startErr)
	}

	res := &result{code: cmd.ProcessState.ExitCode()}
	killed = res.code < 0 || res.code > 1 // a tool that crashes has a code that no error has
	if res.code == 0 || slices.Contains(c.okCodes, res.code) {
		// It may have finished although ctx was cancelled meanwhile: what is
		// done is done, and told so.
		if c.capture {
			if res.stdout, err = readBounded(out.Name(), maxCapture); err != nil {
				return nil, fmt.Errorf("read the output of %s: %w", s.name(c.sub), err)
			}
		}
		return res, nil
	}
	var exit *exec.ExitError
	if waitErr != nil && !errors.As(waitErr, &exit) {
		return nil, fmt.Errorf("wait for %s: %w", s.name(c.sub), waitErr)
	}
	return nil, s.failure(c.sub, res.code, errs.String(), context.Cause(ctx))
}

// isolation is the profile of one subcommand.
func (s *Session) isolation(sub string) isolation.Profile {
	read := []string{s.Tool.Path}
	write := []string{s.Home, s.Tmp}
	if s.CLIConfig != "" {
		read = append(read, s.CLIConfig)
	}
	switch {
	case s.PluginCache == "":
	case sub == initSub:
		write = append(write, s.PluginCache)
	default:
		read = append(read, s.PluginCache)
	}
	return s.Isolation.With(read, write)
}

// name is "tofu plan" or "terraform plan".
func (s *Session) name(sub string) string {
	if s.Tool.Product == Terraform {
		return "terraform " + sub
	}
	return "tofu " + sub
}

// tell hands the process to Started.
func (s *Session) tell(pid int, sub string) error {
	if s.Started == nil {
		return nil
	}
	start, err := ProcessStart(pid)
	if err != nil {
		start = 0 // it has ended already, or the system does not say
	}
	return s.Started(Process{PID: pid, StartTime: start, Subcommand: sub})
}

// wait returns when the process has ended and nothing of its group is left. A
// cancelled ctx interrupts the tool alone: it then stops its providers in order
// and writes the state. (Providers ignore SIGINT by themselves, but programs
// that a provisioner started do not, and the tool tells them when it is time.)
// After the grace period the whole group is killed.
func (s *Session) wait(ctx context.Context, cmd *exec.Cmd) error {
	pid := cmd.Process.Pid
	ended := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-ended:
			return
		case <-ctx.Done():
		}
		_ = cmd.Process.Signal(syscall.SIGINT)
		grace := s.Grace
		if grace == 0 {
			grace = defaultGrace
		}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-ended:
		case <-timer.C:
			_ = syscall.Kill(-pid, syscall.SIGKILL)
		}
	}()
	// The group is killed before the leader is reaped, while its id cannot be
	// given to anyone else.
	watched := waitExit(pid)
	var err error
	if !watched {
		err = cmd.Wait()
	}
	close(ended)
	<-stopped
	if watched {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		err = cmd.Wait()
	}
	return err
}

// environ is the whole environment of the process, sorted.
func (s *Session) environ(sub string) []string {
	env := map[string]string{
		"PATH":               defaultPath,
		"HOME":               s.Home,
		"TMPDIR":             s.Tmp,
		"CHECKPOINT_DISABLE": "1",
	}
	if s.CLIConfig != "" {
		env["TF_CLI_CONFIG_FILE"] = s.CLIConfig
	}
	if s.PluginCache != "" && sub == initSub {
		// Only for init, which makes sure that it is there: any command would
		// refuse to start without it, though no other one reads it.
		env["TF_PLUGIN_CACHE_DIR"] = s.PluginCache
		// Without it a unit that has no lock file yet installs the package
		// into the cache once more, over the file that another run executes.
		env["TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE"] = "1"
	}
	maps.Copy(env, s.Env)
	env["TF_IN_AUTOMATION"] = "1"
	env["TF_INPUT"] = "0"
	delete(env, "TF_DATA_DIR")
	if s.DataDir != "" {
		env["TF_DATA_DIR"] = s.DataDir
	}
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}

// outputFile makes a private file that the process writes to. It is removed at
// the end; if Terrace dies first it stays in Tmp, where the process goes on
// writing.
func (s *Session) outputFile(sub, kind string) (*os.File, error) {
	return os.CreateTemp(s.Tmp, strings.ReplaceAll(sub, " ", "-")+"-*."+kind)
}

func discard(f *os.File) {
	_ = f.Close()
	_ = os.Remove(f.Name())
}

func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("it is longer than %d bytes", limit)
	}
	return b, err
}
