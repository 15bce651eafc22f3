// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line: one file a verb, each of which turns flags
// into one request and its answer into printed output. It decides nothing that
// a controller decides; it reads and writes objects of the Kubernetes API, and
// reads plans and run logs from the process's own HTTP server.
//
// Results go to stdout. Errors and hints go to stderr and are printed by Main
// alone, as "terrace: error: …" and "terrace: hint: …". The exit code is 0 when
// it was done, 1 when it failed, 2 when there are changes and --exit-code asked
// for it, 64 when the command line was wrong.
//
// The heavy parts (the embedded control plane, the controllers, kubectl) are
// handed in by cmd/terrace, so that tests of this package do not link them.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/terrace-dev/terrace/internal/config"
)

// Exit codes of Main.
const (
	ExitDone    = 0
	ExitFailed  = 1
	ExitChanges = 2
	ExitUsage   = 64
)

// Env is the world that a command runs in. A verb whose function is nil does
// not exist in the program.
type Env struct {
	// Stdin, Stdout and Stderr are the three streams.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Color allows colours on Stdout.
	Color bool
	// Interactive says that a person sits at Stdin and can be asked.
	Interactive bool
	// LookupEnv reads the environment, as os.LookupEnv does.
	LookupEnv func(string) (string, bool)
	// Now is the clock, for ages and for the times that requests carry.
	Now func() time.Time
	// Build is what this binary was built from.
	Build Build

	// Up runs the control plane and the controllers until ctx ends. It writes to
	// out what a person is told.
	Up func(ctx context.Context, c config.Config, out io.Writer) error
	// Controller runs the controllers against an existing cluster until ctx ends.
	Controller func(ctx context.Context, c config.Config) error
	// Kubectl runs kubectl with args and returns its exit code. kubeconfig is
	// the file to use when args name none; empty means kubectl's own choice.
	Kubectl func(ctx context.Context, kubeconfig string, args []string) int
}

// Build is the version stamp of a binary.
type Build struct {
	Version   string `json:"version"`
	Commit    string `json:"commit"`
	Date      string `json:"date"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
}

// Main runs the command line args, which do not include the program's name,
// and returns the exit code. It is the only place that prints errors.
func Main(ctx context.Context, args []string, env Env) int {
	a := &app{env: env}
	root := newRoot(a)
	root.SetArgs(args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	return a.report(root.ExecuteContext(ctx))
}

// app is what the verbs of one invocation share.
type app struct {
	env   Env
	flags globalFlags
}

// newRoot is the list of the verbs.
func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "terrace",
		Short: "Full-stack GitOps: what Git says, from the network to the application",
		Long: `Terrace makes what a Git repository says, keeps it so, shows every change as a
plan before it happens, and records who let it happen.

A UNIT is one thing that Terrace reconciles. Name it as NAME, KIND/NAME or
KIND.GROUP/NAME; tf is short for terraform, ks for kustomization, hr for
helmrelease.

The cluster is found as kubectl finds it: --kubeconfig, then KUBECONFIG, then
~/.kube/config, then the account of the pod. --data-dir DIR (or
TERRACE_DATA_DIR) names the control plane of "terrace up --data-dir DIR"
instead. When nothing else is there, .terrace in the current directory, the
default of "terrace up", is used.`,
		Example: `  terrace up --git https://example.org/infra.git &
  terrace get
  terrace show plan tf/network
  terrace approve tf/network`,
		Version:       versionLine(a.env.Build),
		Args:          cobra.ArbitraryArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknownVerb(cmd, args[0])
		},
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(&cobra.Command{Use: "no-help", Hidden: true})
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef(cmd, "%v", err)
	})
	root.AddGroup(
		&cobra.Group{ID: "see", Title: "See what is there:"},
		&cobra.Group{ID: "do", Title: "Act on units:"},
		&cobra.Group{ID: "run", Title: "Run Terrace:"},
	)
	in := func(group string, verbs ...*cobra.Command) {
		for _, v := range verbs {
			v.GroupID = group
			root.AddCommand(v)
		}
	}
	see := []*cobra.Command{newGet(a), newTree(a), newTrace(a), newShow(a), newBuild(a), newDiff(a), newEvents(a), newLogs(a), newAudit(a), newExport(a)}
	do := []*cobra.Command{newApprove(a), newReplan(a), newReconcile(a), newImport(a), newSuspend(a), newResume(a),
		newCancel(a), newState(a), newForceUnlock(a), newBreakGlass(a)}
	for _, v := range slices.Concat(see, do) {
		a.flags.add(v.PersistentFlags())
	}
	in("see", see...)
	in("see", newPolicy(a))
	in("do", do...)
	if a.env.Up != nil {
		in("run", newUp(a))
	}
	if a.env.Controller != nil {
		in("run", newController(a))
	}
	in("run", newInstall(a))
	if a.env.Kubectl != nil {
		in("run", newKubectl(a))
	}
	in("run", newDemo(a))
	root.AddCommand(newVersion(a), newCompletion(a))
	return root
}

// exitCode is an error that has been told of already, or is none: only the
// code is left to pass on.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// codedError is a failure of a verb that has a code of its own for it.
type codedError struct {
	err  error
	code int
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

// usageError is a command line that cannot be understood.
type usageError struct {
	err  error
	hint string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }
func (e *usageError) Hint() string  { return e.hint }

// usagef is a usage error of cmd whose hint is the verb's help.
func usagef(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{
		err:  fmt.Errorf("%s: "+format, append([]any{verbName(cmd)}, args...)...),
		hint: fmt.Sprintf("see %q", cmd.CommandPath()+" --help"),
	}
}

// verbName is the command's path without the program: "show plan".
func verbName(cmd *cobra.Command) string {
	if !cmd.HasParent() {
		return "read command line"
	}
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

func unknownVerb(root *cobra.Command, name string) error {
	hint := fmt.Sprintf("see %q", "terrace --help")
	root.SuggestionsMinimumDistance = 2
	if s := root.SuggestionsFor(name); len(s) > 0 {
		hint = "did you mean " + strings.Join(s, " or ") + "?"
	}
	return &usageError{err: fmt.Errorf("read command line: %q is not a verb", name), hint: hint}
}

// hinted is an error with a next step for the user.
type hinted struct {
	err  error
	hint string
}

func (e *hinted) Error() string { return e.err.Error() }
func (e *hinted) Unwrap() error { return e.err }
func (e *hinted) Hint() string  { return e.hint }

// WithHint adds the next step for the user to an error; Main prints it. An
// error of any package can carry one: it needs a method Hint() string.
func WithHint(err error, hint string) error {
	return &hinted{err: err, hint: hint}
}

func hintf(err error, format string, args ...any) error {
	return &hinted{err: err, hint: fmt.Sprintf(format, args...)}
}

// report prints err, one line a joined error, and chooses the exit code.
func (a *app) report(err error) int {
	if err == nil {
		return ExitDone
	}
	var code exitCode
	if errors.As(err, &code) {
		return int(code)
	}
	result := ExitFailed
	var hints []string
	var withCode *codedError
	if errors.As(err, &withCode) {
		result = withCode.code
	}
	for _, e := range split(err) {
		fmt.Fprintf(a.env.Stderr, "terrace: error: %s\n", e)
		var u *usageError
		if errors.As(e, &u) {
			result = ExitUsage
		}
		var setting *config.SettingError
		if errors.As(e, &setting) {
			result = ExitUsage
		}
		var h interface{ Hint() string }
		if errors.As(e, &h) && h.Hint() != "" {
			hints = append(hints, h.Hint())
		}
	}
	said := map[string]bool{}
	for _, h := range hints {
		if !said[h] {
			fmt.Fprintf(a.env.Stderr, "terrace: hint: %s\n", h)
		}
		said[h] = true
	}
	return result
}

// split returns the errors that errors.Join joined, or err itself.
func split(err error) []error {
	if coded, ok := err.(*codedError); ok {
		return split(coded.err)
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, e := range joined.Unwrap() {
			out = append(out, split(e)...)
		}
		return out
	}
	return []error{err}
}
