// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/kube"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func unitName(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "ns", Name: name}
}

func key(kind, name string) kube.Key {
	group, version := "", "v1"
	if g, k, ok := strings.Cut(kind, "/"); ok {
		group, kind = g, k
	}
	return kube.Key{Kind: schema.GroupVersionKind{Group: group, Version: version, Kind: kind}, Namespace: "ns", Name: name}
}

func objectOf(k kube.Key) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(k.Kind)
	o.SetNamespace(k.Namespace)
	o.SetName(k.Name)
	return o
}

func TestClaimsMissing(t *testing.T) {
	a, b, child := unitName("a"), unitName("b"), unitName("child")
	ks := key("kustomize.toolkit.fluxcd.io/Kustomization", "child")
	for name, tc := range map[string]struct {
		reason   string
		before   func(*claims, func(types.NamespacedName))
		siblings []types.NamespacedName
		missing  types.NamespacedName
	}{
		"alone":       {"nobody else uses the source", func(*claims, func(types.NamespacedName)) {}, []types.NamespacedName{a}, types.NamespacedName{}},
		"unseen":      {"another has never looked", func(*claims, func(types.NamespacedName)) {}, []types.NamespacedName{a, b}, b},
		"looked":      {"it has looked", func(c *claims, w func(types.NamespacedName)) { c.looked(b, "src", "r2", 0, w) }, []types.NamespacedName{a, b}, types.NamespacedName{}},
		"behind":      {"it has looked at the one before", func(c *claims, w func(types.NamespacedName)) { c.looked(b, "src", "r1", 0, w) }, []types.NamespacedName{a, b}, b},
		"elsewhere":   {"it has looked at that of another source", func(c *claims, w func(types.NamespacedName)) { c.looked(b, "other", "r2", 0, w) }, []types.NamespacedName{a, b}, b},
		"to be made":  {"another is about to make a unit", withChild(b, ks), []types.NamespacedName{a, b}, child},
		"is being me": {"the unit itself need not look", withChild(b, key("kustomize.toolkit.fluxcd.io/Kustomization", "a")), []types.NamespacedName{b}, types.NamespacedName{}},
		"exists": {"it is among those that exist by now", func(c *claims, w func(types.NamespacedName)) {
			withChild(b, ks)(c, w)
			c.looked(child, "src", "r2", 0, w)
		}, []types.NamespacedName{a, b, child}, types.NamespacedName{}},
		"other source": {"a child with another source has looked at that", func(c *claims, w func(types.NamespacedName)) {
			withChild(b, ks)(c, w)
			c.looked(child, "other", "r9", 0, w)
		}, []types.NamespacedName{a, b}, types.NamespacedName{}},
		"no child":      {"a kind of the same name in another group is no unit", withChild(b, key("example.com/Kustomization", "child")), []types.NamespacedName{a, b}, types.NamespacedName{}},
		"changed since": {"it has looked with another spec", func(c *claims, w func(types.NamespacedName)) { c.looked(b, "src", "r2", 7, w) }, []types.NamespacedName{a, b}, b},
		"unapplied": {"it has children that have not their new specs yet", func(c *claims, w func(types.NamespacedName)) {
			withChild(b, key("kustomize.toolkit.fluxcd.io/Kustomization", "a"))(c, w)
			c.claim(b, "", []*unstructured.Unstructured{objectOf(ks)})
		}, []types.NamespacedName{a, b}, b},
		"remote": {"a Kustomization that it makes in another cluster is no unit here", func(c *claims, w func(types.NamespacedName)) {
			c.claim(b, "kubeconfig", []*unstructured.Unstructured{objectOf(ks)})
			c.looked(b, "src", "r2", 0, w)
		}, []types.NamespacedName{a, b}, types.NamespacedName{}},
		"withdrawn": {"who was suspended has to look anew", func(c *claims, w func(types.NamespacedName)) {
			c.looked(b, "src", "r2", 0, w)
			c.withdraw(b)
		}, []types.NamespacedName{a, b}, b},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClaims()
			tc.before(c, func(types.NamespacedName) {})
			if who, missing := c.missing(a, "src", "r2", firstSpecs(tc.siblings...)); who != tc.missing || missing != (tc.missing.Name != "") {
				t.Errorf("%s: misses %v %v, want %v", tc.reason, who, missing, tc.missing)
			}
		})
	}
}

func withChild(parent types.NamespacedName, child kube.Key) func(*claims, func(types.NamespacedName)) {
	return func(c *claims, wake func(types.NamespacedName)) {
		c.claim(parent, "", []*unstructured.Unstructured{objectOf(child)})
		c.looked(parent, "src", "r2", 0, wake)
		c.settled(parent, wake)
	}
}

// firstSpecs are units that have never been changed.
func firstSpecs(names ...types.NamespacedName) map[types.NamespacedName]int64 {
	out := map[types.NamespacedName]int64{}
	for _, n := range names {
		out[n] = 0
	}
	return out
}

func TestClaimsWake(t *testing.T) {
	a, b := unitName("a"), unitName("b")
	c := newClaims()
	var woken []types.NamespacedName
	wake := func(u types.NamespacedName) { woken = append(woken, u) }
	c.looked(a, "src", "r2", 0, wake)
	c.missing(a, "src", "r2", firstSpecs(a, b))
	for _, step := range []struct {
		reason           string
		source, revision string
		want             []types.NamespacedName
	}{
		{"another source is of no interest", "other", "r2", nil},
		{"what was waited for", "src", "r2", []types.NamespacedName{a}},
		{"the same again wakes nobody", "src", "r2", nil},
		{"nobody waits any more", "src", "r3", nil},
	} {
		woken = nil
		c.looked(b, step.source, step.revision, 0, wake)
		if !slices.Equal(woken, step.want) {
			t.Errorf("%s: woke %v", step.reason, woken)
		}
	}
	c.claim(b, "", []*unstructured.Unstructured{objectOf(key("kustomize.toolkit.fluxcd.io/Kustomization", "child"))})
	c.looked(b, "src", "r2", 0, wake)
	for _, want := range []int{1, 0} {
		woken = nil
		c.missing(a, "src", "r2", firstSpecs(a, b))
		if c.settled(b, wake); len(woken) != want {
			t.Errorf("when the children of another have their specs: woke %v, want %d", woken, want)
		}
	}
}

func TestClaimant(t *testing.T) {
	a, b, x, y := unitName("a"), unitName("b"), key("ConfigMap", "x"), key("ConfigMap", "y")
	c := newClaims()
	c.claim(a, "", []*unstructured.Unstructured{objectOf(x), objectOf(y)})
	c.claim(b, "", []*unstructured.Unstructured{objectOf(y)})
	check := func(step string, id kube.ID, want types.NamespacedName) {
		t.Helper()
		if who, ok := c.claimant(a, "", id); who != want || ok != (want.Name != "") {
			t.Errorf("%s: %s is claimed by %v", step, kube.Subject(id), who)
		}
	}
	check("its own claim does not count", x.ID(), types.NamespacedName{})
	check("another's does", y.ID(), b)
	if !c.claims(b, "", y.ID()) || c.claims(b, "", x.ID()) || c.claims(unitName("nobody"), "", x.ID()) {
		t.Error("who claims what is not told")
	}
	other := y
	other.Kind.Version = "v2"
	check("whatever the version", other.ID(), b)
	c.claim(b, "kubeconfig", []*unstructured.Unstructured{objectOf(y)})
	check("it wants one of another cluster", y.ID(), types.NamespacedName{})
	if who, ok := c.claimant(a, "kubeconfig", y.ID()); who != b || !ok || c.claims(b, "", y.ID()) || !c.claims(b, "kubeconfig", y.ID()) {
		t.Errorf("in the other cluster it is claimed by %v", who)
	}
	c.claim(b, "", nil)
	check("it wants the object no more", y.ID(), types.NamespacedName{})
	c.claim(b, "", []*unstructured.Unstructured{objectOf(y)})
	c.withdraw(b)
	check("it is gone", y.ID(), types.NamespacedName{})
	if len(c.units) != 1 {
		t.Errorf("%d units are remembered, want 1", len(c.units))
	}
}

func names(keys []kube.Key) string {
	var out []string
	for _, k := range keys {
		out = append(out, k.Name+"@"+k.Kind.Version)
	}
	return strings.Join(out, " ")
}

func TestInventory(t *testing.T) {
	x, y, z := key("ConfigMap", "x"), key("ConfigMap", "y"), key("Namespace", "z")
	z.Namespace = ""
	x2 := x
	x2.Kind.Version = "v2"
	for name, tc := range map[string]struct {
		reason    string
		got, want string
	}{
		"union":        {"the first version counts", names(union([]kube.Key{x, y}, []kube.Key{x2, z})), "x@v1 y@v1 z@v1"},
		"union of one": {"doubles go", names(union([]kube.Key{x, x2})), "x@v1"},
		"without":      {"whatever the version", names(without([]kube.Key{x, y}, []kube.Key{x2})), "y@v1"},
		"without none": {"nothing is taken away", names(without([]kube.Key{x, y}, nil)), "x@v1 y@v1"},
		"read":         {"in the order in which they are applied, each once", names(keysOf(inventoryOf([]kube.Key{y, x, z, y}))), "z@v1 x@v1 y@v1"},
		"nothing":      {"there is none", names(keysOf(nil)), ""},
		"unreadable": {"an entry that is none is left out", names(keysOf(&kustomizev1.ResourceInventory{
			Entries: []kustomizev1.ResourceRef{{ID: "nonsense", Version: "v1"}, entryOf(x)}})), "x@v1"},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %s: %q, want %q", name, tc.reason, tc.got, tc.want)
		}
	}
	if inventory := inventoryOf(nil); inventory == nil || inventory.Entries == nil {
		t.Error("an empty inventory is not told from one that was never written")
	}
	a := []kube.Key{x, y}
	without(a, []kube.Key{x})
	if names(a) != "x@v1 y@v1" {
		t.Error("without has changed its argument")
	}
}

func TestEntry(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		key    kube.Key
		id     string
	}{
		"core":       {"no group", key("ConfigMap", "c"), "ns_c__ConfigMap"},
		"group":      {"with one", key("apps/Deployment", "d"), "ns_d_apps_Deployment"},
		"rbac":       {"colons are allowed in these names", key("rbac.authorization.k8s.io/Role", "system:a:b"), "ns_system__a__b_rbac.authorization.k8s.io_Role"},
		"underlines": {"two kinds of one name", key("rbac.authorization.k8s.io/RoleBinding", "a:b"), "ns_a__b_rbac.authorization.k8s.io_RoleBinding"},
		"cluster": {"no namespace", kube.Key{Kind: schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"}, Name: "system:x"},
			"_system__x_rbac.authorization.k8s.io_ClusterRole"},
	} {
		t.Run(name, func(t *testing.T) {
			e := entryOf(tc.key)
			if e.ID != tc.id || e.Version != "v1" {
				t.Errorf("%s: %v, want %s", tc.reason, e, tc.id)
			}
			if back, err := parseEntry(e); err != nil || back != tc.key {
				t.Errorf("read back: %v %v", back, err)
			}
		})
	}
	for _, bad := range []string{"", "a", "a_b", "a_b_c"} {
		if k, err := parseEntry(kustomizev1.ResourceRef{ID: bad}); err == nil && bad != "a_b_c" {
			t.Errorf("%q was read as %v", bad, k)
		}
	}
}

// notApplied are the fields of a spec that do not decide what is applied, each with
// what they decide. A field that is in neither place makes the test fail.
var notApplied = map[string]string{
	"DependsOn":          "when",
	"Interval":           "when",
	"RetryInterval":      "when",
	"Timeout":            "how long a wait goes on",
	"Prune":              "what goes, which is looked at each time",
	"DeletionPolicy":     "what goes with the unit",
	"HealthChecks":       "what is waited for",
	"HealthCheckExprs":   "what is healthy",
	"Wait":               "what is waited for",
	"Suspend":            "whether anything happens",
	"ServiceAccountName": "the account, which is among the inputs with its default",
	"SourceRef":          "where the tree comes from, whose content is among the inputs",
}

func TestAppliedSpec(t *testing.T) {
	kind := reflect.TypeFor[kustomizev1.KustomizationSpec]()
	for i := range kind.NumField() {
		field := kind.Field(i)
		var spec kustomizev1.KustomizationSpec
		fill(reflect.ValueOf(&spec).Elem().Field(i))
		if reflect.ValueOf(spec).Field(i).IsZero() {
			t.Errorf("%s: the test does not know how to set a %s", field.Name, field.Type)
			continue
		}
		covered := !reflect.ValueOf(appliedSpec(spec)).Field(i).IsZero()
		why, named := notApplied[field.Name]
		switch {
		case covered && named:
			t.Errorf("%s is among the inputs although it decides only %s", field.Name, why)
		case !covered && !named:
			t.Errorf("%s is not among the inputs of a build: add it to appliedSpec, or say here what else it decides", field.Name)
		}
		c := &Controller{key: []byte("key")}
		digest := func(s kustomizev1.KustomizationSpec) string {
			return c.inputDigest(&kustomizev1.Kustomization{Spec: s}, "tree", nil)
		}
		changes := covered || field.Name == "ServiceAccountName"
		if (digest(spec) != digest(kustomizev1.KustomizationSpec{})) != changes {
			t.Errorf("%s: the digest of the inputs changes: %v, want %v", field.Name, !changes, changes)
		}
	}
	for name := range notApplied {
		if _, ok := kind.FieldByName(name); !ok {
			t.Errorf("a spec has no field %s", name)
		}
	}
}

// fill sets a value to something that is not zero.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int64:
		v.SetInt(1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Struct:
		fill(v.Field(0))
	}
}

func TestInputDigest(t *testing.T) {
	c := &Controller{key: []byte("key")}
	ks := &kustomizev1.Kustomization{}
	digest := c.inputDigest(ks, "tree", map[string]string{"Secret/ns/s": "1"})
	for name, other := range map[string]string{
		"another tree":      c.inputDigest(ks, "tree2", map[string]string{"Secret/ns/s": "1"}),
		"another reference": c.inputDigest(ks, "tree", map[string]string{"Secret/ns/s": "2"}),
		"no reference":      c.inputDigest(ks, "tree", nil),
		"another key":       (&Controller{key: []byte("other")}).inputDigest(ks, "tree", map[string]string{"Secret/ns/s": "1"}),
		"another account":   (&Controller{key: []byte("key"), opts: Options{DefaultServiceAccount: "d"}}).inputDigest(ks, "tree", map[string]string{"Secret/ns/s": "1"}),
	} {
		if other == digest {
			t.Errorf("%s: the digest is the same", name)
		}
	}
	if c.inputDigest(ks, "tree", map[string]string{"Secret/ns/s": "1"}) != digest {
		t.Error("the same inputs have another digest")
	}
}

func TestWakes(t *testing.T) {
	w := &wakes{out: make(chan event.GenericEvent, 1), pending: map[types.NamespacedName]bool{}}
	// Nobody takes anything: one event is in the channel, one waits to be put there, and
	// what is added meanwhile waits once each. None of it blocks.
	for range 1000 {
		w.add(unitName("a"))
		w.add(unitName("b"))
		w.add(unitName("c"))
	}
	w.mu.Lock()
	if len(w.order) > 3 || len(w.order) != len(w.pending) {
		t.Errorf("%d wakes wait: %v", len(w.order), w.order)
	}
	w.mu.Unlock()
	w.add(unitName("last"))
	counts := map[string]int{}
	for counts["last"] == 0 {
		counts[(<-w.out).Object.GetName()]++
	}
	for name, n := range counts {
		if n > 3 {
			t.Errorf("%s came %d times", name, n)
		}
	}
	if len(counts) != 4 {
		t.Errorf("woken: %v", counts)
	}
	// A wake that comes after it was handed over is handed over again.
	w.add(unitName("a"))
	for (<-w.out).Object.GetName() != "a" {
	}
}

func TestCut(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, text string
		n            int
	}{
		"short":   {"it fits", "abc", 3},
		"long":    {"it does not", strings.Repeat("a", 50), 20},
		"umlauts": {"no half of a letter is left", strings.Repeat("ä", 50), 20},
		"odd":     {"wherever it falls", "a" + strings.Repeat("→", 50), 21},
	} {
		got := cut(tc.text, tc.n)
		if len(got) > tc.n || !utf8.ValidString(got) || strings.ContainsRune(got, utf8.RuneError) {
			t.Errorf("%s: %s: %q, %d bytes", name, tc.reason, got, len(got))
		}
		if len(tc.text) > tc.n != strings.HasSuffix(got, "…") {
			t.Errorf("%s: %s: %q", name, tc.reason, got)
		}
	}
}

// pruning is a cycle of a unit whose inventory has x and y.
func pruning(prune bool, desired ...kube.Key) (*Controller, *cycle) {
	c := &Controller{opts: Options{Clock: clocktesting.NewFakeClock(noon), PruneLimit: 50, PruneLimitMin: 1}, claims: newClaims()}
	ks := &kustomizev1.Kustomization{}
	ks.Spec.Prune = prune
	ks.Status.Inventory = inventoryOf([]kube.Key{key("ConfigMap", "x"), key("ConfigMap", "y")})
	mem := &unit{built: &built{desired: map[kube.Key]string{}}}
	for _, k := range desired {
		mem.built.desired[k] = ""
	}
	return c, &cycle{ks: ks, name: unitName("a"), mem: mem, artifact: &meta.Artifact{Revision: "r2"}}
}

func TestPruneForgets(t *testing.T) {
	x, y := key("ConfigMap", "x"), key("ConfigMap", "y")
	for name, tc := range map[string]struct {
		reason  string
		prune   bool
		desired []kube.Key
		want    string
	}{
		"nothing to prune":  {"the wait for others ends with its cause", true, []kube.Key{x, y}, "x@v1 y@v1"},
		"nothing is pruned": {"what was begun and dropped is no concern any more", false, []kube.Key{x}, "x@v1"},
	} {
		t.Run(name, func(t *testing.T) {
			c, cy := pruning(tc.prune, tc.desired...)
			cy.mem.pruneWait = noon.Add(-time.Hour)
			if !tc.prune {
				cy.mem.begun = []kube.Key{key("ConfigMap", "dropped")}
			}
			if res, err := c.prune(t.Context(), cy); err != nil || !res.IsNext() {
				t.Fatalf("%v %v", res, err)
			}
			if !cy.mem.pruneWait.IsZero() {
				t.Errorf("%s: it waits since %v", tc.reason, cy.mem.pruneWait)
			}
			if got := names(keysOf(cy.ks.Status.Inventory)); got != tc.want || len(cy.mem.begun) != 0 {
				t.Errorf("%s: inventory %s, begun %s", tc.reason, got, names(cy.mem.begun))
			}
			if cy.mem.dirty == tc.prune {
				t.Errorf("the journal is written: %v", cy.mem.dirty)
			}
		})
	}
}

func TestPruneLimit(t *testing.T) {
	x, y := key("ConfigMap", "x"), key("ConfigMap", "y")
	for name, tc := range map[string]struct {
		reason  string
		desired []kube.Key
		change  func(*Controller, *cycle)
		stalls  bool
	}{
		"all":      {"everything would go", nil, nil, true},
		"half":     {"that is the limit", []kube.Key{x}, nil, false},
		"none":     {"nothing goes", []kube.Key{x, y}, nil, false},
		"no prune": {"nothing goes in any case", nil, func(_ *Controller, cy *cycle) { cy.ks.Spec.Prune = false }, false},
		"few":      {"so few may go", nil, func(c *Controller, _ *cycle) { c.opts.PruneLimitMin = 2 }, false},
		"approved": {"a person has agreed to this revision", nil, func(_ *Controller, cy *cycle) { approved(cy, "r2") }, false},
		"other":    {"or to another one", nil, func(_ *Controller, cy *cycle) { approved(cy, "r1") }, true},
		"handed on": {"another unit takes them", nil, func(c *Controller, _ *cycle) {
			c.claims.claim(unitName("b"), "", []*unstructured.Unstructured{objectOf(x)})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c, cy := pruning(true, tc.desired...)
			if tc.change != nil {
				tc.change(c, cy)
			}
			res := c.pruneLimit(cy)
			if res.IsStalled() != tc.stalls {
				t.Errorf("%s: %+v", tc.reason, res)
			}
			if tc.stalls && (!strings.Contains(res.Message, "2 of 2 objects") || !strings.Contains(res.Message, ": r2")) {
				t.Errorf("message: %s", res.Message)
			}
		})
	}
}

func approved(cy *cycle, revision string) {
	cy.ks.Annotations = map[string]string{v1alpha1.PruneApprovedAnnotation: revision}
}

// TestRecord keeps what happened to an object over the tries of one attempt; what a
// dry-run has announced and did not come has not happened.
func TestRecord(t *testing.T) {
	x := key("ConfigMap", "x")
	change := func(a kube.Action, done bool) kube.Change { return kube.Change{Key: x, Action: a, Done: done} }
	for name, tc := range map[string]struct {
		reason      string
		first, then kube.Change
		want        kube.Action
	}{
		"applied":   {"it was applied in an earlier try", change(kube.Configured, true), change(kube.Unchanged, false), kube.Configured},
		"announced": {"its stage was refused, and then somebody else did it", change(kube.Configured, false), change(kube.Unchanged, false), kube.Unchanged},
		"twice":     {"it was applied again", change(kube.Created, true), change(kube.Configured, true), kube.Configured},
	} {
		c := &Controller{}
		cy := &cycle{mem: &unit{attempt: &attempt{changes: map[kube.ID]kube.Change{}}}}
		c.record(cy, tc.first)
		c.record(cy, tc.then)
		if got := cy.mem.attempt.changes[x.ID()].Action; got != tc.want {
			t.Errorf("%s: %s: %s, want %s", name, tc.reason, got, tc.want)
		}
	}
}

// TestRekey takes the names that objects have in the cluster for those that count.
func TestRekey(t *testing.T) {
	built, live := key("example.com/Issuer", "i"), key("example.com/Issuer", "i")
	live.Namespace = ""
	c, cy := pruning(true, built)
	cy.mem.begun = []kube.Key{built}
	c.rekey(cy, &build{objects: []*unstructured.Unstructured{objectOf(live)}})
	if _, ok := cy.mem.built.desired[live]; !ok || len(cy.mem.built.desired) != 1 || len(cy.mem.begun) != 0 {
		t.Errorf("wants %v, has begun %v", cy.mem.built.desired, cy.mem.begun)
	}
	if !c.claims.claims(cy.name, "", live.ID()) || c.claims.claims(cy.name, "", built.ID()) {
		t.Error("it claims the wrong object")
	}
}
