// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/terrace-dev/terrace/bench/rig"
)

// rawLocal and rawCluster measure the CLI itself, as many at a time as Terrace may
// run: with its state in a file, which is the least that can be, and with its
// state in the control plane, which is what Terrace's units do.
func (b *bench) rawLocal(ctx context.Context) error {
	return b.raw(ctx, "raw CLI, state in a file", "", &b.floorLocal, &b.floorLocalDrift)
}

func (b *bench) rawCluster(ctx context.Context) error {
	return b.rawInCluster(ctx, "", &b.floor, &b.floorDrift)
}

// rawClusterAgain measures the CLI once more after Terrace, and adds the two up: a
// machine that was busier at one end than at the other would else favour somebody.
func (b *bench) rawClusterAgain(ctx context.Context) error {
	var create, drift result
	if err := b.rawInCluster(ctx, "-again", &create, &drift); err != nil {
		return err
	}
	b.floor.add(create)
	b.floorDrift.add(drift)
	return nil
}

func (b *bench) rawInCluster(ctx context.Context, suffix string, create, drift *result) error {
	backend := fmt.Sprintf("terraform {\n  backend \"kubernetes\" {\n    config_path = %q\n    namespace = %q\n    secret_suffix = \"%%s%s\"\n  }\n}\n", b.Kubeconfig(), rawNamespace, suffix)
	return b.raw(ctx, "raw CLI, state in a Secret", backend, create, drift)
}

// raw does for each unit init, plan, apply and output, and then one plan.
func (b *bench) raw(ctx context.Context, name, backend string, create, drift *result) error {
	root, err := os.MkdirTemp(b.Dir, "raw-")
	if err != nil {
		return err
	}
	for _, unit := range b.fleet.names {
		dir := filepath.Join(root, unit)
		if err := os.MkdirAll(filepath.Join(dir, ".home"), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "main.tf"), []byte(module(unit, 0)), 0o600); err != nil {
			return err
		}
		if backend == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "backend.tf"), fmt.Appendf(nil, backend, unit), 0o600); err != nil {
			return err
		}
	}
	*create, err = b.rawPhase(ctx, name+": create", root,
		[]string{"init", "-input=false"}, []string{"plan", "-input=false", "-out=tfplan"}, []string{"apply", "-input=false", "tfplan"}, []string{"output", "-json"})
	if err != nil {
		return err
	}
	*drift, err = b.rawPhase(ctx, name+": one plan", root, []string{"plan", "-input=false", "-detailed-exitcode"})
	return err
}

// rawPhase runs the commands in every unit's directory.
func (b *bench) rawPhase(ctx context.Context, name, root string, commands ...[]string) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, rig.PhaseTimeout)
	defer cancel()
	r := result{name: name, units: len(b.fleet.names), raw: true, commands: map[string]int{}, perCommand: map[string]time.Duration{}}
	var mu sync.Mutex
	var used time.Duration
	var err error
	r.Cost, err = b.Measure(ctx, name, rig.Nothing, func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(b.concurrent)
		for _, unit := range b.fleet.names {
			group.Go(func() error {
				for _, args := range commands {
					cmd := exec.CommandContext(ctx, b.tofu, args...)
					cmd.Dir = filepath.Join(root, unit)
					cmd.Env = []string{"HOME=" + filepath.Join(cmd.Dir, ".home"), "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1"}
					out, err := cmd.CombinedOutput()
					if err != nil {
						return fmt.Errorf("%s in %s: %w: %s", args[0], unit, err, out)
					}
					mu.Lock()
					took := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
					used += took
					r.perCommand[args[0]] += took
					r.commands[args[0]]++
					mu.Unlock()
				}
				return nil
			})
		}
		return group.Wait()
	})
	r.Children = used
	return r, err
}
