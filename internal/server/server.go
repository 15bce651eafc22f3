// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package server puts Terrace together: the stores, the executor, the controllers
// and the HTTP server, on an API server that is already there. It is the one place
// that sees every room, and it is meant to be read as a list.
//
// It does not start an API server; package server/embedded does, and hands its
// address here.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/fluxcd/pkg/ssa/utils"
	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/artifact"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/blob"
	"github.com/terrace-dev/terrace/internal/config"
	"github.com/terrace-dev/terrace/internal/controller/gitrepository"
	"github.com/terrace-dev/terrace/internal/controller/kustomization"
	"github.com/terrace-dev/terrace/internal/controller/policy"
	"github.com/terrace-dev/terrace/internal/controller/terraform"
	"github.com/terrace-dev/terrace/internal/history"
	"github.com/terrace-dev/terrace/internal/install"
	"github.com/terrace-dev/terrace/internal/run"
	"github.com/terrace-dev/terrace/internal/run/isolation"
	"github.com/terrace-dev/terrace/internal/state/gate"
	"github.com/terrace-dev/terrace/internal/tofu"
	"github.com/terrace-dev/terrace/internal/tofu/workdir"
)

// Server is a Terrace process without its API server.
type Server struct {
	config   config.Config
	log      logr.Logger
	manager  ctrl.Manager
	gate     *gate.Gate
	runs     *run.Executor
	history  *history.Keeper
	blobs    *blob.Store
	states   *states
	ledger   *audit.Ledger
	listener net.Listener
	web      *web
}

// Run serves until ctx ends, and then stops in order: runs first, which get an
// interrupt and are waited for, while what they report is still recorded; then the
// controllers and the HTTP server.
func Run(ctx context.Context, cfg config.Config, api *rest.Config) error {
	s, err := New(ctx, cfg, api)
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// New opens everything that a server needs in the data directory and registers the
// controllers. Nothing is reconciled before Run, and nothing is left open on error.
func New(ctx context.Context, cfg config.Config, api *rest.Config) (_ *Server, err error) {
	s := &Server{config: cfg, log: ctrl.Log.WithName("terrace")}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	dir := func(elem ...string) string { return filepath.Join(append([]string{cfg.DataDir}, elem...)...) }

	tool, err := tofu.Find(ctx, cfg.Tofu)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir("keys"), 0o700); err != nil {
		return nil, fmt.Errorf("open data directory: %w", err)
	}
	// What an earlier process was fetching when it ended is of no use.
	if err := errors.Join(os.RemoveAll(dir("fetch")), os.MkdirAll(dir("fetch"), 0o700)); err != nil {
		return nil, fmt.Errorf("open data directory: %w", err)
	}
	if s.blobs, err = blob.Open(ctx, blob.Options{URL: dir("plans"), KeyFile: dir("keys", "plans.key")}); err != nil {
		return nil, err
	}
	if s.listener, err = listen(ctx, cfg.ListenAddress); err != nil {
		return nil, err
	}
	artifacts, err := artifact.NewStore(artifact.Options{
		Dir: dir("artifacts"), AdvertisedURL: advertised(cfg, s.listener),
		RetentionTTL: cfg.ArtifactRetentionTTL, RetentionRecords: cfg.ArtifactRetentionRecords,
	})
	if err != nil {
		return nil, err
	}
	if s.gate, err = gate.New(gate.Options{Config: api, Address: "127.0.0.1:0"}); err != nil {
		return nil, err
	}
	if s.manager, err = newManager(cfg, api); err != nil {
		return nil, err
	}

	if s.ledger, err = audit.Open(audit.Options{Dir: dir("audit"), KeyFile: dir("keys", "audit.key")}); err != nil {
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	// What belongs to no run ended with the process that did it; runs are settled with their units.
	if _, err := s.ledger.Interrupt(ctx, "", "Terrace ended before it did"); err != nil {
		return nil, err
	}
	if s.states, err = openStates(ctx, s, api); err != nil {
		return nil, err
	}
	if err := s.manager.Add(s.states); err != nil {
		return nil, err
	}
	profile, err := isolate(cfg)
	if err != nil {
		return nil, err
	}
	if profile.Confine {
		s.log.Info("runs are confined", "by", isolation.Supported().String())
	}
	metrics := newMetrics(s.manager.GetClient())
	// The executor may find interrupted runs before there is a controller to wake; that
	// one looks at every unit when it starts.
	var waker atomic.Pointer[terraform.Controller]
	wake := func(u run.Unit) {
		if c := waker.Load(); c != nil {
			c.Wake(u)
		}
	}
	s.runs, err = run.New(run.Options{
		Dir: dir("runs"), Concurrency: cfg.ConcurrentRuns, Timeout: cfg.RunTimeout,
		OnChange: wake, Observe: metrics.observe, Log: run.LogLimit{Runs: cfg.RunLogsKept},
	})
	if err != nil {
		return nil, err
	}
	metrics.runs = s.runs
	s.history = history.New(history.Options{
		Client: s.manager.GetClient(), Reader: s.manager.GetAPIReader(), Keep: cfg.RunLogsKept, Namespaces: cfg.WatchNamespaces,
	})
	if err := s.manager.Add(s.history); err != nil {
		return nil, err
	}

	gitRecorder, err := newRecorder(ctx, s.manager, cfg.EventsAddr, sourceEvents)
	if err != nil {
		return nil, err
	}
	git, err := gitrepository.New(gitrepository.Options{
		Client: s.manager.GetClient(), APIReader: s.manager.GetAPIReader(), Artifacts: artifacts, Recorder: gitRecorder,
		Dir: dir("fetch"), AllowLocal: cfg.AllowLocalSources,
		Concurrent: cfg.Concurrent, DefaultServiceAccount: cfg.DefaultServiceAccount,
	})
	if err != nil {
		return nil, err
	}
	unitRecorder, err := newRecorder(ctx, s.manager, cfg.EventsAddr, infra.EventSource)
	if err != nil {
		return nil, err
	}
	policies := policy.New(policy.Options{
		Client: s.manager.GetClient(), Artifacts: artifacts, Namespace: install.Namespace, Concurrent: cfg.Concurrent,
	})
	if err := policies.Register(s.manager); err != nil {
		return nil, err
	}
	units, err := terraform.New(terraform.Options{
		Client: s.manager.GetClient(), Metadata: s.manager.GetCache(), Reader: s.manager.GetAPIReader(), Recorder: unitRecorder,
		Artifacts: artifacts, Blobs: s.blobs, Runs: s.runs, Ledger: s.ledger, History: s.history, Policies: policies, Namespace: install.Namespace,
		AllowedProviders: cfg.AllowedProviders, SOPSAgeSecret: cfg.SOPSAgeSecret, Gate: s.gate, States: s.states.runs(cfg), Tool: tool,
		Dir: dir("units"), PluginCache: dir("providers"), CLIConfig: cfg.TofuCLIConfig, Isolation: profile,
		RunTimeout: cfg.RunTimeout, Grace: cfg.ShutdownGrace, Concurrent: cfg.Concurrent,
		// Either flag is known from one of the controllers that Terrace stands in for; the refusal wins.
		AllowCrossNamespaceRefs: cfg.AllowCrossNamespaceRefs && !cfg.NoCrossNamespaceRefs, AllowBreakTheGlass: cfg.AllowBreakTheGlass,
		PlanSecrets: cfg.PlanSecrets, SeesAll: len(cfg.WatchNamespaces) == 0 && cfg.WatchLabelSelector == "",
	})
	if err != nil {
		return nil, err
	}
	waker.Store(units)
	appRecorder, err := newRecorder(ctx, s.manager, cfg.EventsAddr, kustomization.EventSource)
	if err != nil {
		return nil, err
	}
	customStage, err := utils.ParseGroupKindSet(cfg.CustomApplyStageKinds)
	if err != nil {
		return nil, fmt.Errorf("read --custom-apply-stage-kinds: %w", err)
	}
	apps, err := kustomization.New(kustomization.Options{
		Client: s.manager.GetClient(), Metadata: s.manager.GetCache(), Reader: s.manager.GetAPIReader(), Recorder: appRecorder,
		Artifacts: artifacts, Blobs: s.blobs, API: api, Dir: dir("kustomizations"), Namespace: install.Namespace, Concurrent: cfg.Concurrent,
		NoCrossNamespaceRefs: cfg.NoCrossNamespaceRefs, DefaultServiceAccount: cfg.DefaultServiceAccount,
		Policies: policies, Ledger: s.ledger, OverrideManagers: cfg.OverrideManagers,
		AllowRemoteBases: cfg.AllowRemoteBases, SOPSAgeSecret: cfg.SOPSAgeSecret,
		CustomStage: customStage, PruneLimit: cfg.PruneLimit, PruneLimitMin: cfg.PruneLimitMin,
	})
	if err != nil {
		return nil, err
	}
	if err := git.Register(s.manager); err != nil {
		return nil, err
	}
	if err := units.Register(s.manager); err != nil {
		return nil, err
	}
	if err := apps.Register(s.manager); err != nil {
		return nil, err
	}
	s.web, err = newWeb(ctx, s, artifacts, units, metrics)
	return s, err
}

// Address is the host:port of the HTTP server.
func (s *Server) Address() string { return s.listener.Addr().String() }

// Run serves until ctx ends. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	defer s.close()
	// What records the end of runs has to outlive them, so only the runs end with ctx.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, serving := errgroup.WithContext(serving)
	g.Go(func() error { return s.gate.Start(serving) })
	g.Go(func() error { return s.states.serve(serving) })
	g.Go(func() error { return s.web.serve(serving, s.listener) })
	g.Go(func() error { return s.manager.Start(serving) })
	g.Go(func() error { return s.profile(serving) })

	select {
	case <-ctx.Done():
		s.log.Info("stopping: running runs are interrupted and waited for", "grace", s.config.ShutdownGrace.String(), "running", s.runs.Stats().Running)
	case <-serving.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.ShutdownGrace)
	defer cancel()
	runsErr := s.runs.Shutdown(grace)
	stop()
	err := g.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, runsErr)
}

// close releases what New opened; what Run has closed already does not mind.
func (s *Server) close() {
	if s.listener != nil {
		_ = s.listener.Close()
	}
	if s.blobs != nil {
		_ = s.blobs.Close()
	}
	if s.states != nil {
		s.states.close()
	}
	if s.ledger != nil {
		_ = s.ledger.Close()
	}
}

// isolate is what the runs of this process may do. The providers that the operator's CLI
// configuration names are the operator's word; those of a unit's are not.
func isolate(cfg config.Config) (isolation.Profile, error) {
	p := isolation.Profile{
		Confine: cfg.RunConfine, Read: cfg.RunAllowRead, Write: cfg.RunAllowWrite,
		Memory: cfg.RunMemoryBytes(), OpenFiles: uint64(cfg.RunOpenFiles),
	}
	if cfg.TofuCLIConfig == "" {
		return p, nil
	}
	content, err := os.ReadFile(cfg.TofuCLIConfig)
	if err != nil {
		return p, fmt.Errorf("read --tofu-cli-config: %w", err)
	}
	return p.With(workdir.Mirrors(content), nil), nil
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on --listen-address: %w", err)
	}
	return l, nil
}

// advertised is where other consumers of artifacts find them.
func advertised(cfg config.Config, l net.Listener) string {
	if cfg.StorageAdvAddress != "" {
		return "http://" + cfg.StorageAdvAddress
	}
	return "http://" + l.Addr().String()
}

// sourceEvents is the reporter of source events, by the name that Flux gives it.
const sourceEvents = "source-controller"
