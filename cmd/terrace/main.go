// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Command terrace is the whole product in one binary: the command line, the
// controllers, the embedded control plane and kubectl. This package does no
// more than give internal/cli the parts that are heavy to link, turn signals
// into the end of a context, and pass the exit code on.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
	_ "time/tzdata" // apply windows name time zones, which a small image may not have

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/terrace-dev/terrace/internal/cli"
)

// Stamped by the linker; see the Makefile.
var (
	version = "dev"
	commit  = "unknown"
	date    = "unknown"
)

func main() {
	// Kubernetes packages register flags of their own here when they are linked in,
	// and cobra would offer them with every verb: a --version that is not ours.
	pflag.CommandLine = pflag.NewFlagSet("terrace", pflag.ContinueOnError)

	// The first signal ends the context, and with it the work, in order. A second
	// one finds the default handler again and ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	code := cli.Main(ctx, os.Args[1:], environment())
	stop()
	os.Exit(code)
}

func environment() cli.Env {
	return cli.Env{
		Stdin:       os.Stdin,
		Stdout:      os.Stdout,
		Stderr:      os.Stderr,
		Color:       colors(),
		Interactive: term.IsTerminal(int(os.Stdin.Fd())),
		LookupEnv:   os.LookupEnv,
		Now:         time.Now,
		Build: cli.Build{
			Version: version, Commit: commit, Date: date,
			GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		},
		Up:         up,
		Controller: controller,
		Kubectl:    runKubectl,
	}
}

// colors follows no-color.org: a terminal gets colours unless NO_COLOR is set.
func colors() bool {
	if v, ok := os.LookupEnv("NO_COLOR"); ok && v != "" {
		return false
	}
	return os.Getenv("TERM") != "dumb" && term.IsTerminal(int(os.Stdout.Fd()))
}
