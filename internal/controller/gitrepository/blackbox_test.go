// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package gitrepository_test

import (
	"context"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/runtime/events"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/terrace-dev/terrace/internal/artifact"
	"github.com/terrace-dev/terrace/internal/controller/gitrepository"
	"github.com/terrace-dev/terrace/internal/testenv"
)

// run starts the controller for one namespace, as the server does, until the
// test ends.
func run(t *testing.T, env *testenv.Env, namespace string) *testenv.Counter {
	t.Helper()
	cfg, counter := env.CountRequests()
	skip := true
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: testenv.Scheme(), Logger: testr.New(t), Metrics: server.Options{BindAddress: "0"},
		Cache:      cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
		Controller: config.Controller{SkipNameValidation: &skip},
	})
	if err != nil {
		t.Fatal(err)
	}
	artifacts, err := artifact.NewStore(artifact.Options{Dir: t.TempDir(), AdvertisedURL: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	recorder, err := events.NewRecorder(mgr, testr.New(t), "", gitrepository.FieldManager)
	if err != nil {
		t.Fatal(err)
	}
	c, err := gitrepository.New(gitrepository.Options{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Artifacts: artifacts,
		Recorder: recorder, Dir: t.TempDir(), AllowLocal: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Register(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return counter
}

func source(namespace, name, url string) *sourcev1.GitRepository {
	return &sourcev1.GitRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: sourcev1.GitRepositorySpec{
			URL: url, Interval: metav1.Duration{Duration: time.Hour}, Reference: &sourcev1.GitRepositoryRef{Branch: "main"},
		},
	}
}

func named(namespace, name string) *sourcev1.GitRepository {
	return &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func at(revision string) func(*sourcev1.GitRepository) bool {
	return func(g *sourcev1.GitRepository) bool {
		return conditions.IsReady(g) && g.Status.Artifact.HasRevision(revision)
	}
}

// TestAgainstTheAPIServer follows an object through the real API: the writes are
// counted there, and everything but the interval wakes it.
func TestAgainstTheAPIServer(t *testing.T) {
	env := testenv.Start(t)
	ns := env.Namespace(t)
	requests := run(t, env, ns)
	git := testenv.Git(t)
	first := "main@sha1:" + git.Commit(map[string]string{"main.tf": "1"})

	if err := env.Client.Create(t.Context(), source(ns, "infra", git.URL())); err != nil {
		t.Fatal(err)
	}
	g := named(ns, "infra")
	testenv.Eventually(t, env, g, at(first))
	if g.Status.ObservedGeneration != g.Generation {
		t.Errorf("observed generation %d of %d", g.Status.ObservedGeneration, g.Generation)
	}

	// A request with nothing new: the echo is the only write.
	requests.Reset()
	g.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "1"}
	if err := env.Client.Update(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, env, g, func(g *sourcev1.GitRepository) bool { return g.Status.LastHandledReconcileAt == "1" })
	counts := requests.Counts()
	delete(counts, "create events") // the former event is sent when it suits the recorder
	if diff := cmp.Diff(map[string]int{"patch gitrepositories.source.toolkit.fluxcd.io/status": 1}, counts); diff != "" {
		t.Errorf("requests for a look without news: %s", diff)
	}

	second := "main@sha1:" + git.Commit(map[string]string{"main.tf": "2"})
	g.Annotations[meta.ReconcileRequestAnnotation] = "2"
	if err := env.Client.Update(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, env, g, at(second))

	// A Secret that comes later mends its user.
	if err := env.Client.Create(t.Context(), func() client.Object {
		s := source(ns, "waiting", git.URL())
		s.Spec.SecretRef = &meta.LocalObjectReference{Name: "login"}
		return s
	}()); err != nil {
		t.Fatal(err)
	}
	w := named(ns, "waiting")
	testenv.Eventually(t, env, w, func(g *sourcev1.GitRepository) bool {
		return conditions.GetReason(g, meta.ReadyCondition) == sourcev1.AuthenticationFailedReason
	})
	if err := env.Client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "login"}, StringData: map[string]string{"username": "u", "password": "p"},
	}); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, env, w, at(second))

	// Includes wait for each other, without an interval between.
	including := source(ns, "including", git.URL())
	including.Spec.Include = []sourcev1.GitRepositoryInclude{{GitRepositoryRef: meta.LocalObjectReference{Name: "later"}}}
	if err := env.Client.Create(t.Context(), including); err != nil {
		t.Fatal(err)
	}
	i := named(ns, "including")
	testenv.Eventually(t, env, i, func(g *sourcev1.GitRepository) bool {
		return conditions.GetReason(g, meta.ReadyCondition) == "NotFound"
	})
	if err := env.Client.Create(t.Context(), source(ns, "later", git.URL())); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, env, i, at(second))

	for _, o := range []*sourcev1.GitRepository{g, w, i} {
		if err := env.Client.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		testenv.Gone(t, env, o)
	}
}

// TestLocalCommitsAreSeen watches a repository of this machine with an interval
// of an hour.
func TestLocalCommitsAreSeen(t *testing.T) {
	env := testenv.Start(t)
	ns := env.Namespace(t)
	run(t, env, ns)
	git := testenv.Git(t)
	first := "main@sha1:" + git.Commit(map[string]string{"main.tf": "1"})
	if err := env.Client.Create(t.Context(), source(ns, "local", "file://"+git.Dir())); err != nil {
		t.Fatal(err)
	}
	g := named(ns, "local")
	testenv.Eventually(t, env, g, at(first))
	second := "main@sha1:" + git.Commit(map[string]string{"main.tf": "2"})
	testenv.Eventually(t, env, g, at(second))
}
