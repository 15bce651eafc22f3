// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Command terraform measures Terrace with N Terraform units of terraform_data, beside
// the raw CLI doing the same on the same machine in the same run. Run it through
// `make bench`.
//
// tofu is counted by a wrapper; its CPU is that of the controllers' children, as the
// kernel accounts for it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/terrace-dev/terrace/bench/rig"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.StringVar(&o.terrace, "terrace", "bin/terrace", "terrace binary")
	flag.StringVar(&o.tofu, "tofu", "bin/tofu", "tofu or terraform binary")
	flag.IntVar(&o.units, "units", 30, "number of units")
	flag.IntVar(&o.concurrent, "concurrent", runtime.NumCPU(), "runs at a time, of Terrace and of the raw CLI alike")
	flag.BoolVar(&o.keep, "keep", false, "leave the directory, with the logs")
	flag.Parse()
	if err := run(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

type options struct {
	terrace, tofu     string
	units, concurrent int
	keep              bool
}

func run(ctx context.Context, o options) (err error) {
	if o.units < 2 || o.concurrent < 1 {
		return errors.New("-units must be 2 or more, -concurrent 1 or more")
	}
	if err := rig.Binaries(&o.terrace, &o.tofu); err != nil {
		return err
	}
	b := &bench{options: o}
	defer func() { err = errors.Join(err, b.stop(o.keep || err != nil)) }()
	if err := b.start(ctx); err != nil {
		return err
	}
	for _, phase := range []func(context.Context) error{
		b.rawLocal, b.rawCluster, b.create, b.drift, b.unrelatedCommit, b.oneUnitCommit, b.restart, b.rawClusterAgain,
	} {
		if err := phase(ctx); err != nil {
			return err
		}
	}
	b.print(os.Stdout)
	return nil
}
