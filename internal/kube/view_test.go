// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/internal/testenv"
)

func TestViewWakes(t *testing.T) {
	w := newWorld(t)
	other := types.NamespacedName{Namespace: w.ns, Name: "other"}
	if err := w.cluster.View.Ensure(t.Context(), configMaps); err != nil {
		t.Fatal(err)
	}
	cm := w.create(w.cm("a", "1"))
	w.awaitWake(w.unit, "its object was created")
	for _, tc := range []struct {
		reason string
		change func()
		wakes  []types.NamespacedName
	}{
		{"a change of content", func() {
			w.change(cm, func(o *unstructured.Unstructured) { _ = unstructured.SetNestedField(o.Object, "2", "data", "k") })
		}, []types.NamespacedName{w.unit}},
		{"another manager that has the same field changes nothing", func() {
			o := w.object("kind: ConfigMap\nmetadata: {name: a}\ndata: {k: \"2\"}")
			if err := w.env.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("second")); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"the counter of rollouts is nobody's change", func() {
			w.change(cm, func(o *unstructured.Unstructured) {
				o.SetAnnotations(map[string]string{"deployment.kubernetes.io/revision": "7"})
			})
		}, nil},
		{"another owner: both are told", func() {
			w.change(cm, func(o *unstructured.Unstructured) { testOwner.Label(o, other) })
		}, []types.NamespacedName{other, w.unit}},
		{"and back", func() {
			w.change(cm, func(o *unstructured.Unstructured) { testOwner.Label(o, w.unit) })
		}, []types.NamespacedName{other, w.unit}},
		{"the label is taken away", func() {
			w.change(cm, func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{}) })
		}, []types.NamespacedName{w.unit}},
		{"what is not labelled is not seen", func() {
			w.change(cm, func(o *unstructured.Unstructured) { _ = unstructured.SetNestedField(o.Object, "3", "data", "k") })
		}, nil},
		{"the label is back", func() {
			w.change(cm, func(o *unstructured.Unstructured) { testOwner.Label(o, w.unit) })
		}, []types.NamespacedName{w.unit}},
		{"it waits for its finalizer", func() {
			w.change(cm, func(o *unstructured.Unstructured) { o.SetFinalizers([]string{"example.com/hold"}) })
			w.drain()
			w.remove(cm)
		}, []types.NamespacedName{w.unit}},
		{"it is gone", func() {
			w.change(cm, func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
		}, []types.NamespacedName{w.unit}},
	} {
		w.drain()
		tc.change()
		var mine []types.NamespacedName
		for _, u := range w.marks().touch() {
			if (u == w.unit || u == other) && !slices.Contains(mine, u) {
				mine = append(mine, u)
			}
		}
		slices.SortFunc(mine, func(a, b types.NamespacedName) int { return strings.Compare(a.Name, b.Name) })
		if !slices.Equal(mine, tc.wakes) {
			t.Errorf("%s: woke %v, want %v", tc.reason, mine, tc.wakes)
		}
	}
	if r, seen := w.cluster.View.Get(KeyOf(cm)); r != nil || !seen {
		t.Errorf("a deleted object: %v, seen %v", r, seen)
	}
}

func TestObserve(t *testing.T) {
	version := func(uid, version, v string) *unstructured.Unstructured {
		o := named("ConfigMap", "n", "c")
		o.SetUID(types.UID(uid))
		o.SetResourceVersion(version)
		testOwner.Label(o, types.NamespacedName{Namespace: "n", Name: "unit"})
		_ = unstructured.SetNestedField(o.Object, v, "data", "k")
		return o
	}
	key := KeyOf(version("", "", ""))
	for name, tc := range map[string]struct {
		reason string
		then   func(*View, cacheStore)
		want   string
		wakes  int
	}{
		"older":             {"a watch that lags shows what the write has replaced", func(_ *View, s cacheStore) { _ = s.Update(version("u", "9", "old")) }, "written", 0},
		"same":              {"what was written comes by the watch", func(_ *View, s cacheStore) { _ = s.Update(version("u", "10", "written")) }, "written", 0},
		"newer":             {"somebody else's change", func(_ *View, s cacheStore) { _ = s.Update(version("u", "11", "theirs")) }, "theirs", 1},
		"predecessor":       {"an object of the name that was deleted before", func(_ *View, s cacheStore) { _ = s.Update(version("v", "9", "old")) }, "written", 0},
		"successor":         {"one that came after", func(_ *View, s cacheStore) { _ = s.Update(version("v", "12", "new")) }, "new", 1},
		"old deletion":      {"the end of the predecessor", func(_ *View, s cacheStore) { _ = s.Delete(version("v", "9", "old")) }, "written", 0},
		"deletion":          {"it is deleted", func(_ *View, s cacheStore) { _ = s.Delete(version("u", "12", "written")) }, "", 1},
		"older list":        {"a list that was made before the write", func(_ *View, s cacheStore) { _ = s.Replace(nil, "9") }, "written", 0},
		"newer list":        {"a list without it", func(_ *View, s cacheStore) { _ = s.Replace(nil, "12") }, "", 1},
		"observed older":    {"an answer that came late", func(v *View, _ cacheStore) { v.Observe(version("u", "8", "late")) }, "written", 0},
		"list with a newer": {"a list with a change", func(_ *View, s cacheStore) { _ = s.Replace([]any{version("u", "11", "theirs")}, "12") }, "theirs", 1},
	} {
		t.Run(name, func(t *testing.T) {
			wakes := 0
			v := newView(nil, nil, testOwner, nil, func(types.NamespacedName) { wakes++ })
			v.Observe(version("u", "10", "written"))
			wakes = 0
			tc.then(v, &kindStore{v, key.Kind})
			got := ""
			if r, _ := v.Get(key); r != nil {
				got = value(r.Object())
			}
			if got != tc.want || wakes != tc.wakes {
				t.Errorf("%s: has %q, want %q; %d wakes, want %d", tc.reason, got, tc.want, wakes, tc.wakes)
			}
		})
	}
}

// TestLabelTakenAway keeps an object in sight that is watched by its name, whichever of
// the two watches tells first.
func TestLabelTakenAway(t *testing.T) {
	o := named("ConfigMap", "n", "c")
	o.SetResourceVersion("10")
	key := KeyOf(o)
	for name, byName := range map[string]bool{"by name": true, "by label only": false} {
		v := newView(nil, nil, testOwner, nil, func(types.NamespacedName) {})
		if byName {
			v.singles[key] = &single{stream: &stream{}}
		}
		v.Observe(o)
		kinds := &kindStore{v, key.Kind}
		if err := kinds.Delete(o); err != nil {
			t.Fatal(err)
		}
		if r, _ := v.Get(key); (r != nil) != byName {
			t.Errorf("watched %s: it is there: %v", name, r != nil)
		}
		if err := kinds.Replace(nil, "11"); err != nil {
			t.Fatal(err)
		}
		if r, _ := v.Get(key); (r != nil) != byName {
			t.Errorf("watched %s, after a list: it is there: %v", name, r != nil)
		}
	}
}

type cacheStore interface {
	Update(any) error
	Delete(any) error
	Replace([]any, string) error
}

func (w *world) crd() (crd *unstructured.Unstructured, kind schema.GroupVersionKind) {
	w.t.Helper()
	group := w.ns + ".example.com"
	crd = w.object(fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.%[1]s}
spec:
  group: %[1]s
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, group))
	crd.SetNamespace("")
	w.t.Cleanup(func() { _ = w.env.Client.Delete(w.t.Context(), crd.DeepCopy()) })
	return crd, schema.GroupVersionKind{Group: group, Version: "v1", Kind: "Widget"}
}

// applyUntil applies an object each time that the unit is woken, until it has an action.
func (w *world) applyUntil(o *unstructured.Unstructured, want Action) {
	w.t.Helper()
	for {
		changes, err := w.apply(w.options(), o)
		if err == nil && changes[0].Action == want {
			return
		}
		w.t.Logf("%s %v", actions(changes), err)
		w.awaitWake(w.unit, "wanted "+string(want))
	}
}

// TestKinds follows a kind through its life: unknown, served, deleted, served again.
func TestKinds(t *testing.T) {
	w := newWorld(t)
	crd, kind := w.crd()
	o := w.owned(fmt.Sprintf("apiVersion: %s/v1\nkind: Widget\nmetadata: {name: w}\nspec: {size: 1}", kind.Group))
	view := w.cluster.View
	changes := w.mustApply(w.options(), o, w.cm("a", "1"))
	if got := actions(changes); got != "w held, a created" || !strings.Contains(changes[0].Why, "does not know kind Widget") {
		t.Fatalf("unknown: %s: %s", got, changes[0].Why)
	}
	view.AwaitKinds(w.unit, true)
	w.drain()
	w.create(crd.DeepCopy())
	w.applyUntil(o, Created)
	// It may have been served only after the apply had asked for the watch; the answer to
	// the write has woken the unit, which asks again.
	if err := view.Ensure(t.Context(), kind); err != nil {
		t.Fatal(err)
	}
	if r, seen := view.Get(KeyOf(o)); r == nil || !seen {
		t.Errorf("the object is not watched: there %v, seen %v", r != nil, seen)
	}
	w.drain()
	w.remove(crd)
	testenv.Gone(t, w.env, crd)
	w.awaitWake(w.unit, "its object went with its kind")
	w.applyUntil(o, Held)
	w.create(crd.DeepCopy())
	w.applyUntil(o, Created)

	// Who waits no more is woken no more.
	waits := types.NamespacedName{Namespace: w.ns, Name: "waits"}
	view.AwaitKinds(w.unit, false)
	view.AwaitKinds(waits, true)
	w.drain()
	w.change(crd, func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"changed": "true"}) })
	if woken := w.awaitWake(waits, "a CRD has changed"); slices.Contains(woken, w.unit) {
		t.Error("a unit that does not wait for kinds was woken")
	}
}

// TestEndOfAWatch wakes the units whose objects are not seen any more.
func TestEndOfAWatch(t *testing.T) {
	w := newWorld(t)
	view := w.cluster.View
	w.create(w.cm("a", "1"))
	gone := make(chan bool)
	w.refusing(func(r *http.Request) (int, metav1.StatusReason) {
		if testenv.Request(r) == "watch configmaps" && r.URL.Query().Get("sendInitialEvents") == "" {
			<-gone
			return http.StatusNotFound, metav1.StatusReasonNotFound
		}
		if testenv.Request(r) == "watch configmaps" { // the list by a watch
			return http.StatusUnprocessableEntity, metav1.StatusReasonInvalid
		}
		return 0, ""
	})
	if err := view.Ensure(t.Context(), configMaps); err != nil {
		t.Fatal(err)
	}
	w.awaitWake(w.unit, "its object is in the list")
	close(gone)
	for {
		w.awaitWake(w.unit, "the watch of its object has ended")
		if _, seen := view.Get(KeyOf(w.cm("a", ""))); !seen {
			break
		}
	}
	w.refusing(nil)
	if err := view.Ensure(t.Context(), configMaps); err != nil {
		t.Fatal(err)
	}
	if r, seen := view.Get(KeyOf(w.cm("a", ""))); r == nil || !seen {
		t.Error("the kind is not watched again")
	}
}

// TestViewRecovers sees again when the API server lists again, before it wakes anybody.
func TestViewRecovers(t *testing.T) {
	w := newWorld(t)
	view := w.cluster.View
	a := w.create(w.cm("a", "1"))
	w.refusing(func(r *http.Request) (int, metav1.StatusReason) {
		switch testenv.Request(r) {
		case "list configmaps", "watch configmaps":
			return http.StatusForbidden, metav1.StatusReasonForbidden
		}
		return 0, ""
	})
	if err := view.Ensure(t.Context(), configMaps); err != nil {
		t.Fatal(err)
	}
	if _, seen := view.Get(KeyOf(a)); seen {
		t.Fatal("a kind that cannot be listed is seen")
	}
	if r, err := view.Lookup(t.Context(), w.client, KeyOf(a)); err != nil || r == nil || value(r.Object()) != "1" {
		t.Errorf("it was not read instead: %v %v", r, err)
	}
	w.refusing(nil)
	w.awaitWake(w.unit, "its object is seen again")
	if r, seen := view.Get(KeyOf(a)); !seen || r == nil {
		t.Errorf("who was woken sees %v, seen %v", r, seen)
	}
}

func TestKindsThatMayNotBeListed(t *testing.T) {
	var user string
	w := newWorld(t, func(c *rest.Config, ns string) {
		user = "reader-" + ns
		c.Impersonate.UserName = user
		c.Impersonate.Groups = []string{"system:authenticated"}
	})
	w.role(user, `[{apiGroups: [""], resources: [configmaps], verbs: [get, create, patch, delete]}]`)
	if err := w.cluster.View.Ensure(t.Context(), configMaps); err != nil {
		t.Fatal(err)
	}
	opts := w.options()
	w.mustApply(opts, w.cm("a", "1"))
	w.sent()
	if got := actions(w.mustApply(opts, w.cm("a", "1"))); got != "a unchanged" {
		t.Errorf("applied again: %s", got)
	}
	if got := w.sent(); !slices.Equal(got, []string{"get configmaps"}) {
		t.Errorf("sent %v, want one read", got)
	}
	if r, err := w.cluster.View.Lookup(t.Context(), w.client, KeyOf(w.cm("missing", ""))); r != nil || err != nil {
		t.Errorf("an object that is not there: %v %v", r, err)
	}
	changes, err := w.client.Prune(t.Context(), w.unit, []Key{KeyOf(w.cm("a", ""))})
	if err != nil || actions(changes) != "a deleted" || w.get(w.cm("a", "")) != nil {
		t.Errorf("pruned: %s %v", actions(changes), err)
	}
}

func TestWatch(t *testing.T) {
	w := newWorld(t)
	view := w.cluster.View
	cm := w.object("kind: ConfigMap\nmetadata: {name: a}\ndata: {k: \"1\"}")
	if err := view.Watch(t.Context(), w.unit, KeyOf(cm)); err != nil {
		t.Fatal(err)
	}
	if r, seen := view.Get(KeyOf(cm)); r != nil || !seen {
		t.Errorf("an object that is not there: %v %v", r, seen)
	}
	w.create(cm)
	w.awaitWake(w.unit, "the object that it watches was created")
	if r, _ := view.Get(KeyOf(cm)); r == nil || value(r.Object()) != "1" {
		t.Errorf("got %v", r)
	}

	// Another unit has it for a while; it is not lost with the label.
	other := types.NamespacedName{Namespace: w.ns, Name: "other"}
	if err := view.Ensure(t.Context(), configMaps); err != nil {
		t.Fatal(err)
	}
	w.change(cm, func(o *unstructured.Unstructured) { testOwner.Label(o, other) })
	w.awaitWake(other, "it is its object now")
	w.drain()
	w.change(cm, func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{}) })
	w.awaitWake(w.unit, "the object that it watches was changed")
	w.drain()
	if r, seen := view.Get(KeyOf(cm)); r == nil || !seen {
		t.Error("the object is lost with its label although it is watched by name")
	}
	w.remove(cm)
	w.awaitWake(w.unit, "the object that it watches was deleted")

	if err := view.Watch(t.Context(), other, KeyOf(cm)); err != nil {
		t.Fatal(err)
	}
	view.Unwatch(w.unit, map[Key]bool{KeyOf(cm): true})
	if len(view.singles) != 1 || !view.singles[KeyOf(cm)].units[w.unit] {
		t.Error("a watch that is to be kept has ended")
	}
	view.Unwatch(w.unit, nil)
	if len(view.singles) != 1 || view.singles[KeyOf(cm)].units[w.unit] {
		t.Error("the other unit's watch has ended, or the unit's has not")
	}
	view.Unwatch(other, nil)
	if len(view.singles) != 0 {
		t.Error("a watch that nobody needs goes on")
	}
	if err := view.Watch(t.Context(), w.unit, Key{Kind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "No"}, Name: "x"}); err == nil {
		t.Error("an unknown kind is watched")
	} else if _, ok := asUnknown(err); !ok {
		t.Errorf("an unknown kind: %v", err)
	}
}

func TestClose(t *testing.T) {
	w := newWorld(t)
	if err := w.cluster.View.Ensure(t.Context(), configMaps); err != nil {
		t.Fatal(err)
	}
	w.cluster.Close()
	if w.cluster.View.ctx.Err() == nil {
		t.Error("the watches go on")
	}
}
