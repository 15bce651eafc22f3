// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package embedded is `terrace up`: the control plane and the controllers in one
// process. It starts them in order, hands the API what the command line brought
// along (definitions, manifests, a Git repository), and stops them in order. What
// each part does is in package controlplane and package server.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/terrace-dev/terrace/api/crds"
	"github.com/terrace-dev/terrace/internal/config"
	"github.com/terrace-dev/terrace/internal/controlplane"
	"github.com/terrace-dev/terrace/internal/install"
	"github.com/terrace-dev/terrace/internal/server"
	"github.com/terrace-dev/terrace/internal/tofu"
)

// stopTimeout is how long the API server and etcd get to end. What is left then
// is abandoned with the process, which loses nothing that was acknowledged.
const stopTimeout = 30 * time.Second

// Up starts everything that cfg asks for, writes to out that it is ready and how
// to reach it, and runs until ctx ends or a part fails. Then it stops: runs first,
// which get an interrupt and are waited for, the controllers, the API server,
// etcd.
//
// What a person can mend is found before anything starts, where that is possible,
// and comes as *controlplane.StartError or as the error of the part whose
// affair it is. Objects of cfg.Files that were applied before one failed stay.
func Up(ctx context.Context, cfg config.Config, out io.Writer) (err error) {
	begun := time.Now()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	objects, err := readManifests(cfg.Files)
	if err != nil {
		return err
	}
	if !cfg.WithoutControllers {
		if _, err := tofu.Find(ctx, cfg.Tofu); err != nil {
			return startError(ctx, err)
		}
	}
	cp, err := controlplane.Start(ctx, controlplane.Config{
		DataDir: cfg.DataDir, APIAddress: cfg.APIAddress, Log: ctrl.Log.WithName("controlplane"),
	})
	if err != nil {
		return startError(ctx, err)
	}
	defer func() {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		err = errors.Join(err, cp.Stop(stopping))
	}()
	cfg.DataDir = cp.DataDir()

	if err := fill(ctx, cp, cfg, objects); err != nil {
		return startError(ctx, err)
	}
	// Nobody is told that it is ready before everything is open that may not open:
	// the port of the server, the key of plans.
	var srv *server.Server
	if !cfg.WithoutControllers {
		if srv, err = server.New(ctx, cfg, cp.RESTConfig()); err != nil {
			return startError(ctx, err)
		}
	}
	announce(out, cp, time.Since(begun))
	return serve(ctx, cp, cfg, srv, out)
}

// gcPercent makes the collector run when two fifths of what lives have been added,
// not as much again. An API server, etcd and the controllers in one heap leave more
// garbage than they keep, and the machine may be small; the price is a little CPU.
const gcPercent = 40

// startError is err, or what to say to who ended the start: which step noticed it
// is of no interest to them.
func startError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("start the control plane: interrupted")
	}
	return err
}

// fill gives the API what the command line brought along.
func fill(ctx context.Context, cp *controlplane.ControlPlane, cfg config.Config, objects []manifest) error {
	definitions, err := crds.All()
	if err != nil {
		return err
	}
	if err := controlplane.InstallCRDs(ctx, cp.RESTConfig(), definitions); err != nil {
		return err
	}
	a, err := newApplier(cp.RESTConfig())
	if err != nil {
		return err
	}
	rules, err := admission()
	if err != nil {
		return err
	}
	if err := a.apply(ctx, rules); err != nil {
		return err
	}
	if err := a.apply(ctx, objects); err != nil {
		return err
	}
	if cfg.Git.URL == "" {
		return nil
	}
	source, err := gitSource(cfg.Git)
	if err != nil {
		return err
	}
	return a.apply(ctx, []manifest{source})
}

// admission is what the API server refuses of the kinds.
func admission() ([]manifest, error) {
	objects, err := install.Admission()
	if err != nil {
		return nil, err
	}
	var out []manifest
	for _, o := range objects {
		out = append(out, manifest{object: o, from: "Terrace's rules of admission"})
	}
	return out, nil
}

// serve runs the controllers, unless srv is nil, until ctx ends or a part fails.
func serve(ctx context.Context, cp *controlplane.ControlPlane, cfg config.Config, srv *server.Server, out io.Writer) error {
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error {
		select {
		case <-running.Done():
			return nil
		case err := <-cp.Wait():
			return err
		}
	})
	if srv == nil {
		return g.Wait()
	}
	g.Go(func() error { return srv.Run(running) })
	if cfg.Git.URL != "" {
		g.Go(func() error { return showSource(running, cp.RESTConfig(), cfg.Git, out) })
	}
	return g.Wait()
}

// announce says how to reach the control plane.
func announce(out io.Writer, cp *controlplane.ControlPlane, took time.Duration) {
	// One write: who waits for the first line may count on the others.
	fmt.Fprintf(out, `Terrace is ready at %s after %.1f s; its data is in %s
  terrace kubectl%s get terraforms -A
  export KUBECONFIG=%s    # for kubectl and every other client
`, cp.URL(), took.Seconds(), cp.DataDir(), dataDirFlag(cp.DataDir()), quote(cp.KubeconfigPath()))
}

// dataDirFlag is what other commands need to find the directory; they look at
// the default one by themselves.
func dataDirFlag(dir string) string {
	if usual, err := filepath.Abs(config.DefaultDataDir); err == nil && usual == dir {
		return ""
	}
	return " --data-dir " + quote(dir)
}

// quote makes a path one word for a shell.
func quote(path string) string {
	if strings.ContainsFunc(path, func(r rune) bool {
		return !strings.ContainsRune("/._-+:@%,=", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) {
		return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
	}
	return path
}

// exists says whether something is at path.
func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
