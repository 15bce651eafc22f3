// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

// bench is a benchmark under way.
type bench struct {
	options
	dir        string
	api        *process // API server and etcd
	controller *process
	proxy      *proxy
	fleet      *fleet

	floorLocal, floorLocalDrift   result
	floor, floorDrift             result
	created, drifted              result
	unrelated, oneUnit, restarted result
	apiMemory, controllerMemory   float64 // MiB, with every unit applied
}

// result is what one phase cost, for all units together.
type result struct {
	name     string
	units    int  // by which "per unit" divides
	paced    bool // the time is the interval's, and says nothing
	raw      bool
	wall     time.Duration
	terrace  time.Duration // CPU of the controllers
	tofu     time.Duration // CPU of tofu and what it starts
	api      time.Duration // CPU of the API server and etcd
	commands map[string]int
	// perCommand splits tofu by subcommand; known for the raw CLI only.
	perCommand map[string]time.Duration
	requests   requests
	revisions  int64 // of etcd: each is one write
}

// add takes in another measurement of the same phase.
func (r *result) add(o result) {
	r.units += o.units
	r.wall += o.wall
	r.tofu += o.tofu
	r.requests.tofu += o.requests.tofu
	r.revisions += o.revisions
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

func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: %s\n", fmt.Sprintf(format, args...))
}

func (b *bench) kubeconfig() string      { return filepath.Join(b.dir, "api", "kubeconfig") }
func (b *bench) proxyKubeconfig() string { return filepath.Join(b.dir, "proxy.kubeconfig") }

// start brings up the API server, the proxy and the repository. The controllers
// start after the raw CLI was measured, so as not to be in its way.
func (b *bench) start(ctx context.Context) error {
	b.progress("directory %s", b.dir)
	var err error
	b.api, err = startProcess(b.dir, "api", b.terrace, "up", "--without-controllers", "--data-dir", filepath.Join(b.dir, "api"), "--api-address", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var cfg *rest.Config
	err = b.api.await(ctx, "the API server", func(ctx context.Context) error {
		if cfg, err = clientcmd.BuildConfigFromFlags("", b.kubeconfig()); err != nil {
			return err
		}
		return apiReady(ctx, cfg)
	})
	if err != nil {
		return err
	}
	if b.proxy, err = startProxy(cfg); err != nil {
		return err
	}
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["bench"] = &clientcmdapi.Cluster{Server: b.proxy.url}
	kubeconfig.AuthInfos["bench"] = &clientcmdapi.AuthInfo{}
	kubeconfig.Contexts["bench"] = &clientcmdapi.Context{Cluster: "bench", AuthInfo: "bench"}
	kubeconfig.CurrentContext = "bench"
	if err := clientcmd.WriteToFile(*kubeconfig, b.proxyKubeconfig()); err != nil {
		return err
	}
	// The wrapper becomes tofu: one process, whose first argument is on record.
	wrapper := fmt.Sprintf("#!/bin/sh\necho \"$*\" >>'%s'\nexec '%s' \"$@\"\n", b.commandLog(), b.tofu)
	if err := os.WriteFile(b.wrapper(), []byte(wrapper), 0o700); err != nil {
		return err
	}
	b.fleet, err = newFleet(ctx, cfg, b.dir, b.units)
	return err
}

// apiReady tells that the server is healthy and serves the kinds.
func apiReady(ctx context.Context, cfg *rest.Config) error {
	c, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	for _, path := range []string{"/readyz", "/apis/infra.contrib.fluxcd.io/v1alpha2/terraforms", "/apis/source.toolkit.fluxcd.io/v1/gitrepositories"} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.Host+path, nil)
		if err != nil {
			return err
		}
		resp, err := c.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", path, resp.Status)
		}
	}
	return nil
}

func (b *bench) wrapper() string    { return filepath.Join(b.dir, "tofu") }
func (b *bench) commandLog() string { return filepath.Join(b.dir, "commands.log") }

func (b *bench) stop() error {
	if b.fleet != nil && b.fleet.stop != nil {
		b.fleet.stop()
	}
	err := errors.Join(b.controller.stop(), b.api.stop())
	if b.proxy != nil {
		err = errors.Join(err, b.proxy.server.Close())
	}
	return err
}

func (b *bench) startController() error {
	var err error
	b.controller, err = startProcess(b.dir, "controller", b.terrace, "controller",
		"--kubeconfig", b.proxyKubeconfig(), "--data-dir", filepath.Join(b.dir, "controller"),
		"--listen-address", "127.0.0.1:0", "--leader-election=false", "--allow-local-sources",
		"--tofu", b.wrapper(), "--concurrent-runs", strconv.Itoa(b.concurrent))
	return err
}

// revision is the API's resource version, which is etcd's revision.
func (b *bench) revision(ctx context.Context) (int64, error) {
	var list corev1.NamespaceList
	if err := b.fleet.List(ctx, &list, client.Limit(1)); err != nil {
		return 0, err
	}
	return strconv.ParseInt(list.ResourceVersion, 10, 64)
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
// returns what it and the time after it cost. What the controllers used before is
// left out, unless they are started within.
func (b *bench) measure(ctx context.Context, name string, units int, after time.Duration, do func(context.Context) error) (result, error) {
	b.progress("%s", name)
	r := result{name: name, units: units}
	if _, err := b.commands(); err != nil {
		return r, err
	}
	revision, err := b.revision(ctx)
	if err != nil {
		return r, err
	}
	apiBefore, err := b.api.cpu()
	if err != nil {
		return r, err
	}
	var before cpu
	same := b.controller
	if same != nil {
		if before, err = same.cpu(); err != nil {
			return r, err
		}
	}
	b.proxy.take()
	begun := time.Now()

	if err := do(ctx); err != nil {
		return r, fmt.Errorf("%s: %w", name, err)
	}

	r.wall = time.Since(begun)
	// What is on its way when the units say that they are ready belongs to them too:
	// events, and the reconcile that finds nothing to do.
	if err := pause(ctx, after); err != nil {
		return r, err
	}
	r.requests = b.proxy.take()
	spent, err := b.controller.cpu()
	if err != nil {
		return r, err
	}
	if b.controller != same {
		before = cpu{}
	}
	used := spent.minus(before)
	r.terrace, r.tofu = used.own, used.children
	apiAfter, err := b.api.cpu()
	if err != nil {
		return r, err
	}
	r.api = apiAfter.minus(apiBefore).own
	if r.commands, err = b.commands(); err != nil {
		return r, err
	}
	now, err := b.revision(ctx)
	r.revisions = now - revision
	return r, err
}

// aftermath is how long a phase's late effects are waited for.
const aftermath = 2 * time.Second

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// create is from the objects to the output Secrets. Starting the controllers is
// not part of it.
func (b *bench) create(ctx context.Context) error {
	if err := b.startController(); err != nil {
		return err
	}
	if err := b.settle(ctx); err != nil {
		return err
	}
	if err := b.fleet.follow(ctx); err != nil {
		return err
	}
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
	if b.apiMemory, err = b.api.resident(); err != nil {
		return err
	}
	b.controllerMemory, err = b.controller.resident()
	return err
}

// settle waits until the controllers have made no request for a second and a half:
// they have started, or have found that there is nothing to do.
func (b *bench) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, phaseTimeout)
	defer cancel()
	last := b.proxy.total()
	for quiet, some := 0, false; quiet < 3; {
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return fmt.Errorf("wait for the controllers to settle; see %s: %w", b.controller.log, err)
		}
		select {
		case <-b.controller.exited:
			return fmt.Errorf("the controllers ended: %v; see %s", b.controller.err, b.controller.log)
		default:
		}
		if n := b.proxy.total(); n != last {
			last, quiet, some = n, 0, true
		} else if some {
			quiet++
		}
	}
	return nil
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
		return pause(ctx, interval)
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
	return pause(ctx, 5*time.Second)
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
	if err := b.fleet.write(file, text); err != nil {
		return err
	}
	hash, err := b.fleet.commit(ctx)
	if err != nil {
		return err
	}
	if err := b.fleet.wakeSource(ctx); err != nil {
		return err
	}
	return b.fleet.until(ctx, "the commit", func(tf *infra.Terraform) bool {
		return ready(tf) && strings.HasSuffix(tf.Status.LastPlannedRevision, hash)
	})
}

// restart stops the controllers and starts them again. It is over when they have
// come to rest, of which a second and a half is the wait that says so.
func (b *bench) restart(ctx context.Context) error {
	if err := b.controller.stop(); err != nil {
		return err
	}
	b.controller = nil
	var err error
	b.restarted, err = b.measure(ctx, "restart of the controllers", b.units, aftermath, func(ctx context.Context) error {
		if err := b.startController(); err != nil {
			return err
		}
		return b.settle(ctx)
	})
	return err
}
