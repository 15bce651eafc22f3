// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Command kustomization measures Terrace with Flux's published workload: N
// Kustomizations that wait, each of a ServiceAccount, a Service, a Deployment and an
// Ingress, applied as an account that a RoleBinding lets administer one namespace. In
// the same run a bare client applies the same objects, which is the floor. Run it
// through `make bench`.
//
// It differs from Flux's in four points. The units are N paths of one Git repository
// on this machine, not N artifacts of an OCI registry. The value that the upgrade
// changes is in one ConfigMap that every unit substitutes from, not in each
// Kustomization. No kubelet and no deployment controller run; the benchmark writes
// the status of each Deployment the moment it sees it, so that nothing is waited for
// but Terrace. And there is no rate limit on the machine's side: the control plane is
// `terrace up --without-controllers`, on the same cores.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/terrace-dev/terrace/bench/rig"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.StringVar(&o.terrace, "terrace", "bin/terrace", "terrace binary")
	flag.StringVar(&o.tofu, "tofu", "bin/tofu", "tofu binary, which Terrace wants to find; no unit uses it")
	flag.IntVar(&o.apps, "apps", 100, "number of Kustomizations")
	flag.IntVar(&o.concurrent, "concurrent", 4, "Kustomizations reconciled at a time, and requests of the bare client at a time")
	flag.StringVar(&o.profiles, "profiles", "", "directory for heap profiles of the controllers, one after each phase (default: none are taken)")
	flag.BoolVar(&o.keep, "keep", false, "leave the directory, with the logs")
	flag.Parse()
	if err := run(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

type options struct {
	terrace, tofu    string
	apps, concurrent int
	profiles         string
	keep             bool
}

func run(ctx context.Context, o options) (err error) {
	if o.apps < 2 || o.concurrent < 1 {
		return errors.New("-apps must be 2 or more, -concurrent 1 or more")
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
		b.floor, b.begin, b.install, b.upgrade, b.idle, b.noChange, b.unrelatedCommit, b.oneAppCommit, b.restart, b.delete,
	} {
		if err := phase(ctx); err != nil {
			b.table(os.Stdout) // a long run that ends early was not for nothing
			return err
		}
	}
	b.print(os.Stdout)
	return nil
}
