// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/dependency"
	"github.com/terrace-dev/terrace/internal/kube"
	"github.com/terrace-dev/terrace/internal/testenv"
)

// connected is a cycle of a unit that applies to a real API server; the units
// themselves are in none.
func connected(t *testing.T, env *testenv.Env, ns string) (*Controller, *cycle) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(kustomizev1.AddToScheme(scheme), infra.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	cluster, err := kube.NewCluster(env.Config, owner, func(types.NamespacedName) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	k, err := cluster.Client("")
	if err != nil {
		t.Fatal(err)
	}
	units := fake.NewClientBuilder().WithScheme(scheme).WithIndex(&kustomizev1.Kustomization{}, dependency.BySource, func(o client.Object) []string {
		return []string{sourceOf(o.(*kustomizev1.Kustomization))}
	}).Build()
	ledger, err := audit.Open(audit.Options{Dir: filepath.Join(t.TempDir(), "audit"), KeyFile: filepath.Join(t.TempDir(), "audit.key")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ledger.Close() })
	c := &Controller{opts: Options{Clock: clocktesting.NewFakeClock(noon), Client: units, Ledger: ledger}, claims: newClaims(), memory: newMemory(), journal: journal{t.TempDir()}}
	c.targets = &targets{c: c, local: cluster}
	ks := &kustomizev1.Kustomization{}
	ks.Namespace, ks.Name = ns, "a"
	ks.Spec.Prune = true
	mem := &unit{uid: "u", verified: kube.Verified{}, built: &built{desired: map[kube.Key]string{}, ttlJobs: map[kube.ID]bool{}}, due: noon.Add(time.Hour)}
	return c, &cycle{
		ks: ks, base: ks.DeepCopy(), name: client.ObjectKeyFromObject(ks), mem: mem, cluster: cluster, client: k,
		artifact: &meta.Artifact{Revision: "r2"}, begun: noon,
	}
}

// wants applies a ConfigMap for a unit, and returns its key.
func wants(t *testing.T, cy *cycle, name string) kube.Key {
	t.Helper()
	k := key("ConfigMap", name)
	k.Namespace = cy.name.Namespace
	o := objectOf(k)
	_ = unstructured.SetNestedField(o.Object, "1", "data", "k")
	owner.Label(o, cy.name)
	if _, err := cy.client.Apply(t.Context(), []*unstructured.Unstructured{o}, kube.Options{Unit: cy.name, Verified: cy.mem.verified}); err != nil {
		t.Fatal(err)
	}
	cy.mem.built.desired[k] = kube.DesiredDigest(o)
	return k
}

func TestDrifted(t *testing.T) {
	env := testenv.Start(t)
	relabel := func(t *testing.T, cy *cycle, k kube.Key, to types.NamespacedName) {
		t.Helper()
		o := objectOf(k)
		owner.Label(o, to)
		patch := o.DeepCopy()
		if err := env.Client.Patch(t.Context(), patch, client.Merge, client.FieldOwner("other")); err != nil {
			t.Fatal(err)
		}
		patch.SetGroupVersionKind(k.Kind)
		cy.cluster.View.Observe(patch)
	}
	for name, tc := range map[string]struct {
		reason string
		change func(*testing.T, *Controller, *cycle, kube.Key)
		want   bool
	}{
		"as applied":  {"nothing has changed", func(*testing.T, *Controller, *cycle, kube.Key) {}, false},
		"unconfirmed": {"nobody knows whether it is as it should be", func(_ *testing.T, _ *Controller, cy *cycle, _ kube.Key) { clear(cy.mem.verified) }, true},
		"other wish":  {"it was confirmed in another form", func(_ *testing.T, _ *Controller, cy *cycle, k kube.Key) { cy.mem.built.desired[k] = "other" }, true},
		"missing": {"it is not there", func(_ *testing.T, _ *Controller, cy *cycle, k kube.Key) {
			k.Name = "missing"
			cy.mem.built.desired[k] = "d"
		}, true},
		"cleaned up": {"it has gone by itself, as it was told to", func(_ *testing.T, _ *Controller, cy *cycle, k kube.Key) {
			k.Name = "job"
			cy.mem.built.desired[k], cy.mem.built.ttlJobs[k.ID()] = "d", true
		}, false},
		"skipped": {"it opts out, and has not changed since", func(_ *testing.T, _ *Controller, cy *cycle, k kube.Key) {
			r, _ := cy.cluster.View.Get(k)
			cy.mem.verified[k.ID()] = kube.Pair{Desired: cy.mem.built.desired[k], Content: skipped + r.Content}
		}, false},
		"skipped and gone": {"there was none when it was skipped, and is none", func(_ *testing.T, _ *Controller, cy *cycle, k kube.Key) {
			k.Name = "none"
			cy.mem.built.desired[k] = "d"
			cy.mem.verified[k.ID()] = kube.Pair{Desired: "d", Content: skipped}
		}, false},
		"taken away": {"another's label is drift", func(t *testing.T, _ *Controller, cy *cycle, k kube.Key) { relabel(t, cy, k, unitName("b")) }, true},
		"contested": {"another unit wants it as well: they would repair it without end", func(t *testing.T, c *Controller, cy *cycle, k kube.Key) {
			c.claims.claim(unitName("b"), "", []*unstructured.Unstructured{objectOf(k)})
			relabel(t, cy, k, unitName("b"))
		}, false},
		"its turn": {"once an interval it is taken back, as in Flux", func(t *testing.T, c *Controller, cy *cycle, k kube.Key) {
			c.claims.claim(unitName("b"), "", []*unstructured.Unstructured{objectOf(k)})
			relabel(t, cy, k, unitName("b"))
			cy.mem.due = noon
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			c, cy := connected(t, env, env.Namespace(t))
			k := wants(t, cy, "c")
			tc.change(t, c, cy, k)
			if got, err := c.drifted(t.Context(), cy); err != nil || got != tc.want {
				t.Errorf("%s: drifted %v %v", tc.reason, got, err)
			}
		})
	}
}

// TestPruneOnce does not prune again, at each reconcile, what a revision began and a
// later one dropped.
func TestPruneOnce(t *testing.T) {
	env := testenv.Start(t)
	c, cy := connected(t, env, env.Namespace(t))
	keep, stale := wants(t, cy, "keep"), wants(t, cy, "stale")
	delete(cy.mem.built.desired, stale)
	cy.ks.Status.Inventory = inventoryOf([]kube.Key{keep, stale})
	never := keep
	never.Name = "never-applied"
	if err := c.begin(cy, []kube.Key{keep, never}); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		reason string
		worked bool
		news   bool
	}{
		{"what is stale goes", true, true},
		{"there is nothing left to do", false, false},
	} {
		cy.worked, cy.mem.news = false, ""
		if res, err := c.prune(t.Context(), cy); err != nil || !res.IsNext() {
			t.Fatalf("%s: %+v %v", step.reason, res, err)
		}
		if err := c.settleJournal(cy); err != nil {
			t.Fatal(err)
		}
		if cy.worked != step.worked || (cy.mem.news != "") != step.news {
			t.Errorf("%s: worked %v, news %q", step.reason, cy.worked, cy.mem.news)
		}
	}
	if got := names(keysOf(cy.ks.Status.Inventory)); got != "keep@v1" || len(cy.mem.begun) != 0 {
		t.Errorf("inventory %s, begun %s", got, names(cy.mem.begun))
	}
	if p, err := c.journal.read(cy.name); err != nil || len(p.Begun) != 0 {
		t.Errorf("the journal has begun %v %v", p.Begun, err)
	}
	testenv.Gone(t, env, objectOf(stale))
}

// TestPruneWaits leaves what is stale until the other units of the source have looked.
func TestPruneWaits(t *testing.T) {
	env := testenv.Start(t)
	c, cy := connected(t, env, env.Namespace(t))
	stale := wants(t, cy, "stale")
	delete(cy.mem.built.desired, stale)
	cy.ks.Status.Inventory = inventoryOf([]kube.Key{stale})
	sibling := &kustomizev1.Kustomization{}
	sibling.Namespace, sibling.Name = cy.name.Namespace, "b"
	if err := c.opts.Client.Create(t.Context(), sibling); err != nil {
		t.Fatal(err)
	}
	other := client.ObjectKeyFromObject(sibling)
	clock := c.opts.Clock.(*clocktesting.FakeClock)
	for _, step := range []struct {
		reason string
		before func()
		waits  bool
		want   string
	}{
		{"the other has not looked", func() {}, true, "stale@v1"},
		{"nor has it a while later", func() { clock.Step(handOver - time.Second) }, true, "stale@v1"},
		{"it has looked and wants the object", func() {
			c.claims.claim(other, "", []*unstructured.Unstructured{objectOf(stale)})
			c.claims.looked(other, sourceOf(cy.ks), "r2", 0, func(types.NamespacedName) {})
		}, false, ""},
	} {
		step.before()
		res, err := c.prune(t.Context(), cy)
		if err != nil || res.IsNext() == step.waits || names(keysOf(cy.ks.Status.Inventory)) != step.want {
			t.Fatalf("%s: %+v %v, inventory %s", step.reason, res, err, names(keysOf(cy.ks.Status.Inventory)))
		}
	}
	if err := env.Client.Get(t.Context(), types.NamespacedName{Namespace: stale.Namespace, Name: stale.Name}, objectOf(stale)); err != nil {
		t.Errorf("an object that was handed over: %v", err)
	}
	// One that cannot look holds it up for a while only.
	c.claims.withdraw(other)
	cy.ks.Status.Inventory = inventoryOf([]kube.Key{stale})
	if res, _ := c.prune(t.Context(), cy); res.IsNext() {
		t.Error("the second wait was cut short by the first")
	}
	clock.Step(handOver)
	if res, err := c.prune(t.Context(), cy); err != nil || !res.IsNext() {
		t.Errorf("after %s: %+v %v", handOver, res, err)
	}
	testenv.Gone(t, env, objectOf(stale))
}
