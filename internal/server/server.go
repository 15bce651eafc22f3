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
	"time"

	"github.com/fluxcd/pkg/ssa/utils"
	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/artifact"
	"github.com/terrace-dev/terrace/internal/attribution"
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
	config    config.Config
	log       logr.Logger
	manager   ctrl.Manager
	gate      *gate.Gate
	runs      *run.Executor
	history   *history.Keeper
	blobs     *blob.Store
	artifacts *artifact.Store
	states    *states
	ledger    *audit.Ledger
	// suspensions records who suspends and resumes, for all controllers.
	suspensions *attribution.Suspensions
	listener    net.Listener
	web         *web
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
	tool, err := tofu.Find(ctx, cfg.Tofu)
	if err != nil {
		return nil, err
	}
	if s.manager, err = newManager(cfg, api); err != nil {
		return nil, err
	}
	if err := s.openStores(ctx, api); err != nil {
		return nil, err
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
	if err := s.openRuns(wake, metrics); err != nil {
		return nil, err
	}
	policies := policy.New(policy.Options{
		Client: s.manager.GetClient(), Artifacts: s.artifacts, Namespace: install.Namespace, Concurrent: cfg.Concurrent,
	})
	if err := policies.Register(s.manager); err != nil {
		return nil, err
	}
	if err := s.addSources(ctx); err != nil {
		return nil, err
	}
	units, err := s.addUnits(ctx, tool, policies)
	if err != nil {
		return nil, err
	}
	waker.Store(units)
	apps, err := s.addApps(ctx, api, policies)
	if err != nil {
		return nil, err
	}
	s.web, err = newWeb(ctx, s, units, apps, metrics)
	return s, err
}

// dir is a path in the data directory.
func (s *Server) dir(elem ...string) string {
	return filepath.Join(append([]string{s.config.DataDir}, elem...)...)
}

// openStores opens what outlives the process, and the ways to it: plans, artifacts, the
// ledger, states.
func (s *Server) openStores(ctx context.Context, api *rest.Config) (err error) {
	if err := os.MkdirAll(s.dir("keys"), 0o700); err != nil {
		return fmt.Errorf("open data directory: %w", err)
	}
	// What an earlier process was fetching when it ended is of no use.
	if err := errors.Join(os.RemoveAll(s.dir("fetch")), os.MkdirAll(s.dir("fetch"), 0o700)); err != nil {
		return fmt.Errorf("open data directory: %w", err)
	}
	if s.ledger, err = audit.Open(audit.Options{Dir: s.dir("audit"), KeyFile: s.dir("keys", "audit.key")}); err != nil {
		return fmt.Errorf("open the ledger: %w", err)
	}
	s.suspensions = attribution.NewSuspensions(s.ledger, attribution.Finder{Reader: s.manager.GetAPIReader()})
	// What belongs to no run ended with the process that did it; runs are settled with their units.
	if _, err := s.ledger.Interrupt(ctx, "", "Terrace ended before it did"); err != nil {
		return err
	}
	if s.blobs, err = s.openSealed(ctx, "Plans", s.dir("plans"), "plans.key"); err != nil {
		return err
	}
	if s.listener, err = listen(ctx, s.config.ListenAddress); err != nil {
		return err
	}
	s.artifacts, err = artifact.NewStore(artifact.Options{
		Dir: s.dir("artifacts"), AdvertisedURL: advertised(s.config, s.listener),
		RetentionTTL: s.config.ArtifactRetentionTTL, RetentionRecords: s.config.ArtifactRetentionRecords,
	})
	if err != nil {
		return err
	}
	if s.gate, err = gate.New(gate.Options{Config: api, Address: "127.0.0.1:0"}); err != nil {
		return err
	}
	if s.states, err = openStates(ctx, s, api); err != nil {
		return err
	}
	return s.manager.Add(s.states)
}

// openRuns opens what executes runs and what keeps their history.
func (s *Server) openRuns(wake func(run.Unit), m *metrics) (err error) {
	s.history = history.New(history.Options{
		Client: s.manager.GetClient(), Reader: s.manager.GetAPIReader(), Keep: s.config.RunLogsKept, Namespaces: s.config.WatchNamespaces,
	})
	s.runs, err = run.New(run.Options{
		Dir: s.dir("runs"), Concurrency: s.config.ConcurrentRuns, Timeout: s.config.RunTimeout,
		OnChange: wake, Observe: m.observe, Log: run.LogLimit{Runs: s.config.RunLogsKept},
		// A log stays as long as the Run that names it.
		Kept: func(u run.Unit, id string) bool {
			return s.history.Keeps(u.Namespace, v1alpha1.UnitReference{Kind: u.Kind, Name: u.Name}, id)
		},
	})
	if err != nil {
		return err
	}
	m.runs = s.runs
	return errors.Join(s.manager.Add(s.history), s.manager.Add(manager.RunnableFunc(s.sweepRuns)))
}

// sweepRuns removes old logs once it is known which Runs there are, and then every day.
func (s *Server) sweepRuns(ctx context.Context) error {
	select {
	case <-s.history.Loaded():
	case <-ctx.Done():
		return nil
	}
	ticker := time.NewTicker(24 * time.Hour)
	defer ticker.Stop()
	for {
		if err := s.runs.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.log.Info("old logs of runs are not removed", "why", err.Error())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// addSources adds the controller of GitRepositories.
func (s *Server) addSources(ctx context.Context) error {
	recorder, err := newRecorder(ctx, s.manager, s.config.EventsAddr, sourceEvents)
	if err != nil {
		return err
	}
	c, err := gitrepository.New(gitrepository.Options{
		Client: s.manager.GetClient(), APIReader: s.manager.GetAPIReader(), Artifacts: s.artifacts, Recorder: recorder, Suspensions: s.suspensions,
		Dir: s.dir("fetch"), AllowLocal: s.config.AllowLocalSources,
		Concurrent: s.config.Concurrent, DefaultServiceAccount: s.config.DefaultServiceAccount,
	})
	if err != nil {
		return err
	}
	return c.Register(s.manager)
}

// addUnits adds the controller of Terraforms.
func (s *Server) addUnits(ctx context.Context, tool *tofu.Tool, policies *policy.Controller) (*terraform.Controller, error) {
	cfg := s.config
	profile, err := isolate(cfg)
	if err != nil {
		return nil, err
	}
	if profile.Confine {
		s.log.Info("runs are confined", "by", isolation.Supported().String())
	}
	recorder, err := newRecorder(ctx, s.manager, cfg.EventsAddr, infra.EventSource)
	if err != nil {
		return nil, err
	}
	c, err := terraform.New(terraform.Options{
		Client: s.manager.GetClient(), Metadata: s.manager.GetCache(), Reader: s.manager.GetAPIReader(), Recorder: recorder,
		Artifacts: s.artifacts, Blobs: s.blobs, Runs: s.runs, Ledger: s.ledger, Suspensions: s.suspensions, History: s.history, Policies: policies, Namespace: install.Namespace,
		AllowedProviders: cfg.AllowedProviders, SOPSAgeSecret: cfg.SOPSAgeSecret, Gate: s.gate, States: s.states.runs(cfg), Tool: tool,
		Dir: s.dir("units"), PluginCache: s.dir("providers"), CLIConfig: cfg.TofuCLIConfig, Isolation: profile,
		RunTimeout: cfg.RunTimeout, Grace: cfg.ShutdownGrace, Concurrent: cfg.Concurrent,
		// Either flag is known from one of the controllers that Terrace stands in for; the refusal wins.
		AllowCrossNamespaceRefs: cfg.AllowCrossNamespaceRefs && !cfg.NoCrossNamespaceRefs, AllowBreakTheGlass: cfg.AllowBreakTheGlass,
		PlanSecrets: cfg.PlanSecrets, SeesAll: len(cfg.WatchNamespaces) == 0 && cfg.WatchLabelSelector == "",
	})
	if err != nil {
		return nil, err
	}
	return c, c.Register(s.manager)
}

// addApps adds the controller of Kustomizations.
func (s *Server) addApps(ctx context.Context, api *rest.Config, policies *policy.Controller) (*kustomization.Controller, error) {
	cfg := s.config
	recorder, err := newRecorder(ctx, s.manager, cfg.EventsAddr, kustomization.EventSource)
	if err != nil {
		return nil, err
	}
	customStage, err := utils.ParseGroupKindSet(cfg.CustomApplyStageKinds)
	if err != nil {
		return nil, fmt.Errorf("read --custom-apply-stage-kinds: %w", err)
	}
	c, err := kustomization.New(kustomization.Options{
		Client: s.manager.GetClient(), Metadata: s.manager.GetCache(), Reader: s.manager.GetAPIReader(), Recorder: recorder,
		Artifacts: s.artifacts, Blobs: s.blobs, API: api, Dir: s.dir("kustomizations"), Namespace: install.Namespace, Concurrent: cfg.Concurrent,
		NoCrossNamespaceRefs: cfg.NoCrossNamespaceRefs, DefaultServiceAccount: cfg.DefaultServiceAccount,
		Policies: policies, Ledger: s.ledger, Suspensions: s.suspensions, OverrideManagers: cfg.OverrideManagers,
		AllowRemoteBases: cfg.AllowRemoteBases, SOPSAgeSecret: cfg.SOPSAgeSecret,
		CustomStage: customStage, PruneLimit: cfg.PruneLimit, PruneLimitMin: cfg.PruneLimitMin,
	})
	if err != nil {
		return nil, err
	}
	return c, c.Register(s.manager)
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
