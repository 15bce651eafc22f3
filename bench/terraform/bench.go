// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/bench/rig"
)

// bench is a benchmark under way.
type bench struct {
	options
	*rig.Rig
	fleet *fleet

	floorLocal, floorLocalDrift   result
	floor, floorDrift             result
	created, drifted              result
	unrelated, oneUnit, restarted result
	apiMemory, controllerMemory   float64 // MiB, with every unit applied
}

// result is what one phase cost, for all units together. The children of the
// controllers are tofu and what it starts, and what is counted aside are the
// requests of its state backend.
type result struct {
	rig.Cost
	name     string
	units    int  // by which "per unit" divides
	paced    bool // the time is the interval's, and says nothing
	raw      bool // tofu was started by the benchmark
	commands map[string]int
	// perCommand splits the CPU by subcommand; known for the raw CLI only.
	perCommand map[string]time.Duration
}

// add takes in another measurement of the same phase.
func (r *result) add(o result) {
	r.units += o.units
	r.Wall += o.Wall
	r.Children += o.Children
	r.Requests.Aside += o.Requests.Aside
	r.Revisions += o.Revisions
	for name, n := range o.commands {
		r.commands[name] += n
	}
	for name, d := range o.perCommand {
		r.perCommand[name] += d
	}
}

func (r result) processes() int {
	n := 0
	for _, c := range r.commands {
		n += c
	}
	return n
}

// start brings up the API server and the repository. The controllers start after the
// raw CLI was measured, so as not to be in its way.
func (b *bench) start(ctx context.Context) error {
	var err error
	b.Rig, err = rig.Start(ctx, rig.Options{
		Terrace: b.terrace, AddToScheme: infra.AddToScheme, Aside: ofTofu,
		Served: []string{"/apis/infra.contrib.fluxcd.io/v1alpha2/terraforms"},
	})
	if err != nil {
		return err
	}
	// The wrapper becomes tofu: one process, whose first argument is on record.
	wrapper := fmt.Sprintf("#!/bin/sh\necho \"$*\" >>'%s'\nexec '%s' \"$@\"\n", b.commandLog(), b.tofu)
	if err := os.Mkdir(filepath.Dir(b.commandLog()), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(b.wrapper(), []byte(wrapper), 0o700); err != nil {
		return err
	}
	b.fleet, err = newFleet(ctx, b.Rig, b.units)
	return err
}

func (b *bench) wrapper() string    { return filepath.Join(b.Dir, "tofu") }
func (b *bench) commandLog() string { return filepath.Join(b.Dir, "wrapper", "commands.log") }

func (b *bench) stop(keep bool) error {
	if b.fleet != nil {
		b.fleet.seen.Stop()
	}
	return b.Stop(keep)
}

func (b *bench) startController() error {
	// Runs are confined, as they are everywhere; what the wrapper does is no part of them.
	return b.StartController("--tofu", b.wrapper(), "--concurrent-runs", strconv.Itoa(b.concurrent),
		"--run-allow-read", b.tofu, "--run-allow-write", filepath.Dir(b.commandLog()))
}

// ofTofu tells a request that tofu's state backend causes, in the gate or in the state
// service, from those of Terrace itself.
func ofTofu(r *http.Request) bool {
	resource, name := rig.Target(r.URL.Path)
	if r.Method == http.MethodPost && resource == "secrets" {
		name = created(r)
	}
	return tofuState(resource, name, r.URL.Query().Get("labelSelector"))
}

// created tells a state Secret that is being created from others by its body, in
// whatever encoding that is, and leaves the body as it was.
func created(r *http.Request) string {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return "" // the server will have the same trouble, and answer it
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if bytes.Contains(body, []byte("tfstateSecretSuffix")) {
		return "tfstate-"
	}
	return "(new)"
}

// tofuState tells whether a request is one of the kubernetes state backend, or one
// that the state service makes for the http backend.
func tofuState(resource, name, selector string) bool {
	switch resource {
	case "states", "states/status":
		return true
	case "secrets":
		return strings.HasPrefix(name, "tfstate-") || name == "" && strings.Contains(selector, "tfstate=true")
	case "leases":
		return strings.HasPrefix(name, "lock-tfstate-") || name == ""
	}
	return false
}

// commands counts the subcommands that the wrapper has noted since the last call.
// What only asks for the version is not a run and not counted.
func (b *bench) commands() (map[string]int, error) {
	text, err := os.ReadFile(b.commandLog())
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	count := map[string]int{}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		for len(words) > 1 && strings.HasPrefix(words[0], "-") {
			words = words[1:]
		}
		if len(words) > 0 && words[0] != "version" && words[0] != "-version" {
			count[words[0]]++
		}
	}
	return count, os.WriteFile(b.commandLog(), nil, 0o600)
}

// measure runs do, which ends when all that the phase asks for has happened, and
// returns what it and the time after it cost.
func (b *bench) measure(ctx context.Context, name string, units int, after time.Duration, do func(context.Context) error) (result, error) {
	r := result{name: name, units: units}
	if _, err := b.commands(); err != nil {
		return r, err
	}
	var err error
	if r.Cost, err = b.Measure(ctx, name, func(ctx context.Context) error { return rig.Pause(ctx, after) }, do); err != nil {
		return r, err
	}
	r.commands, err = b.commands()
	return r, err
}

// aftermath is how long a phase's late effects are waited for.
const aftermath = 2 * time.Second

// create is from the objects to the output Secrets. Starting the controllers is
// not part of it.
func (b *bench) create(ctx context.Context) error {
	if err := b.startController(); err != nil {
		return err
	}
	if err := b.Settle(ctx); err != nil {
		return err
	}
	b.fleet.follow(ctx)
	var err error
	b.created, err = b.measure(ctx, "create to outputs", b.units, aftermath, func(ctx context.Context) error {
		if err := b.fleet.createObjects(ctx); err != nil {
			return err
		}
		return b.fleet.until(ctx, "outputs in Secrets", func(tf *infra.Terraform) bool {
			return ready(tf) && tf.Status.Outputs != nil && tf.Status.Outputs.SecretName != ""
		})
	})
	if err != nil {
		return err
	}
	api, err := b.API.Resident()
	if err != nil {
		return err
	}
	controller, err := b.Controller.Resident()
	b.apiMemory, b.controllerMemory = api.Now, controller.Now
	return err
}

// drift lets the checks of all units come due once, two seconds apart on the
// average so that they do not queue, and divides by the number of checks.
func (b *bench) drift(ctx context.Context) error {
	interval := max(10*time.Second, 2*time.Duration(b.units)*time.Second)
	planned := b.fleet.planTimes()
	if err := b.fleet.setInterval(ctx, interval.String()); err != nil {
		return err
	}
	// The first checks are due all at once; they are not measured, and end apart.
	err := b.fleet.until(ctx, "the first drift check", func(tf *infra.Terraform) bool {
		return ready(tf) && !tf.Status.LastPlanAt.Equal(planned[tf.Name])
	})
	if err != nil {
		return err
	}
	// Checks are cut by both ends of the window, about as many by one as by the other.
	b.drifted, err = b.measure(ctx, "no-change drift check", 1, 0, func(ctx context.Context) error {
		return rig.Pause(ctx, interval)
	})
	if err != nil {
		return err
	}
	b.drifted.paced = true
	b.drifted.units = b.drifted.commands["plan"]
	if b.drifted.units == 0 {
		return fmt.Errorf("no drift check within %s", interval)
	}
	if err := b.fleet.setInterval(ctx, "10h"); err != nil {
		return err
	}
	err = b.fleet.until(ctx, "the old interval", func(tf *infra.Terraform) bool {
		return ready(tf) && tf.Status.NextDriftCheckAt != nil && time.Until(tf.Status.NextDriftCheckAt.Time) > time.Hour
	})
	if err != nil {
		return err
	}
	// A check that was under way must not be counted for the next phase.
	return rig.Pause(ctx, 5*time.Second)
}

func (b *bench) unrelatedCommit(ctx context.Context) error {
	var err error
	b.unrelated, err = b.measure(ctx, "commit that touches no unit", b.units, aftermath, func(ctx context.Context) error {
		return b.commit(ctx, "README.md", "# Bench, changed\n")
	})
	return err
}

func (b *bench) oneUnitCommit(ctx context.Context) error {
	var err error
	b.oneUnit, err = b.measure(ctx, "commit that touches one unit", 1, aftermath, func(ctx context.Context) error {
		return b.commit(ctx, filepath.Join(b.fleet.names[0], "main.tf"), module(b.fleet.names[0], 1))
	})
	return err
}

// commit changes a file, wakes the source, and waits until every unit is ready at
// the commit.
func (b *bench) commit(ctx context.Context, file, text string) error {
	hash, err := b.fleet.repository.Change(ctx, b, file, text)
	if err != nil {
		return err
	}
	return b.fleet.until(ctx, "the commit", func(tf *infra.Terraform) bool {
		return ready(tf) && strings.HasSuffix(tf.Status.LastPlannedRevision, hash)
	})
}

// restart stops the controllers and starts them again. It is over when they have
// come to rest, of which a second and a half is the wait that says so.
func (b *bench) restart(ctx context.Context) error {
	if err := b.StopController(); err != nil {
		return err
	}
	var err error
	b.restarted, err = b.measure(ctx, "restart of the controllers", b.units, aftermath, func(ctx context.Context) error {
		if err := b.startController(); err != nil {
			return err
		}
		return b.Settle(ctx)
	})
	return err
}
