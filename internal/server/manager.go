// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"maps"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/runtime/events"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/config"
	"github.com/terrace-dev/terrace/internal/install"
)

// Scheme knows the kinds that Terrace works with.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(s))
	utilruntime.Must(infra.AddToScheme(s))
	utilruntime.Must(v1alpha1.AddToScheme(s))
	utilruntime.Must(sourcev1.AddToScheme(s))
	utilruntime.Must(kustomizev1.AddToScheme(s))
	return s
}

// newManager returns the manager of the controllers. It serves no HTTP itself:
// metrics and health are on the process's one server.
func newManager(cfg config.Config, api *rest.Config) (ctrl.Manager, error) {
	api = rest.CopyConfig(api)
	api.QPS = -1 // the API server's own flow control decides
	// The API server warns about the form of Flux's and the Terraform Controller's
	// finalizers at every write of one; their names are a contract.
	api.WarningHandler = rest.NoWarnings{}
	api.WarningHandlerWithContext = rest.NoWarnings{}
	if api.UserAgent == "" {
		api.UserAgent = "terrace"
	}
	opts := ctrl.Options{
		Scheme:  Scheme(),
		Logger:  quietLogger(ctrl.Log),
		Metrics: metricsserver.Options{BindAddress: "0"},
		// Names are unique in one manager; several managers in one process, as tests have
		// them, are not a mistake. The priority queue of controller-runtime 0.24 can hang when
		// it is shut down while something is handed out (kubernetes-sigs/controller-runtime#3538),
		// and Terrace would stop only when its grace period ends.
		Controller:       ctrlconfig.Controller{SkipNameValidation: new(true), UsePriorityQueue: new(false)},
		LeaderElection:   cfg.LeaderElection,
		LeaderElectionID: infra.LeaderElectionID,
		// The lease is given back when the process stops in order, so that the next one starts at once.
		LeaderElectionReleaseOnCancel: true,
		LeaderElectionNamespace:       cfg.LeaderElectionNamespace,
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
		},
		// Secrets and ConfigMaps are watched as metadata; their content is read when it
		// is needed and never kept.
		Client: client.Options{Cache: &client.CacheOptions{
			DisableFor:   []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}},
			Unstructured: true,
		}},
		GracefulShutdownTimeout: &cfg.ShutdownGrace,
	}
	if cfg.LeaderElection && opts.LeaderElectionNamespace == "" {
		opts.LeaderElectionNamespace = install.Namespace
	}
	opts.Cache.ByObject = map[client.Object]cache.ByObject{}
	if len(cfg.WatchNamespaces) > 0 {
		opts.Cache.DefaultNamespaces = map[string]cache.Config{}
		for _, ns := range cfg.WatchNamespaces {
			opts.Cache.DefaultNamespaces[ns] = cache.Config{}
		}
		// Policies in Terrace's own namespace are for the units of every namespace.
		everywhere := maps.Clone(opts.Cache.DefaultNamespaces)
		everywhere[install.Namespace] = cache.Config{}
		opts.Cache.ByObject[&v1alpha1.Policy{}] = cache.ByObject{Namespaces: everywhere}
	}
	if cfg.WatchLabelSelector != "" {
		selector, err := labels.Parse(cfg.WatchLabelSelector)
		if err != nil {
			return nil, fmt.Errorf("read --watch-label-selector: %w", err)
		}
		for _, o := range []client.Object{&infra.Terraform{}, &kustomizev1.Kustomization{}, &sourcev1.GitRepository{}} {
			opts.Cache.ByObject[o] = cache.ByObject{Label: selector}
		}
	}
	mgr, err := ctrl.NewManager(api, opts)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	return mgr, nil
}

// newRecorder returns the recorder of one controller. With a webhook address events
// are posted there as well, from a queue of their own: a receiver that is slow or
// away must not hold up a reconcile.
func newRecorder(ctx context.Context, mgr ctrl.Manager, address, source string) (record.EventRecorder, error) {
	rec, err := events.NewRecorder(mgr, ctrl.Log.WithName("events"), address, source)
	if err != nil {
		return nil, fmt.Errorf("read --events-addr: %w", err)
	}
	if address == "" {
		return rec, nil
	}
	q := &queuedRecorder{to: rec, queue: make(chan func(), 1024)}
	go q.work(ctx)
	return q, nil
}

// queuedRecorder records in order from one goroutine, and drops what a full queue
// cannot take: an event is news, the condition is the record.
type queuedRecorder struct {
	to    record.EventRecorder
	queue chan func()
}

func (q *queuedRecorder) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-q.queue:
			f()
		}
	}
}

func (q *queuedRecorder) add(f func()) {
	select {
	case q.queue <- f:
	default:
		ctrl.Log.WithName("events").Info("drop event: the queue for --events-addr is full")
	}
}

func (q *queuedRecorder) Event(o runtime.Object, kind, reason, message string) {
	o = o.DeepCopyObject()
	q.add(func() { q.to.Event(o, kind, reason, message) })
}

func (q *queuedRecorder) Eventf(o runtime.Object, kind, reason, format string, args ...any) {
	o = o.DeepCopyObject()
	q.add(func() { q.to.Eventf(o, kind, reason, format, args...) })
}

func (q *queuedRecorder) AnnotatedEventf(o runtime.Object, annotations map[string]string, kind, reason, format string, args ...any) {
	o = o.DeepCopyObject()
	q.add(func() { q.to.AnnotatedEventf(o, annotations, kind, reason, format, args...) })
}
