// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/ssa/jsondiff"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestApply(t *testing.T) {
	w := newWorld(t)
	objects := []*unstructured.Unstructured{w.cm("a", "1"), w.cm("b", "1"), w.cm("c", "1"), w.cm("d", "1")}
	opts := w.options()
	w.sent()
	changes := w.mustApply(opts, objects...)
	if got := actions(changes); got != "a created, b created, c created, d created" {
		t.Errorf("first apply: %s", got)
	}
	if got, want := w.sent(), slices.Concat(slices.Repeat([]string{"dry patch configmaps"}, 3), slices.Repeat([]string{"patch configmaps"}, 4)); !slices.Equal(got, want) {
		t.Errorf("first apply sent %v, want %v", got, want)
	}
	for _, c := range changes {
		if !c.Done || c.After == nil || c.Before != nil {
			t.Errorf("%s: done %v, after %v, before %v", c, c.Done, c.After != nil, c.Before != nil)
		}
	}

	changes = w.mustApply(opts, objects...)
	if got := actions(changes); got != "a unchanged, b unchanged, c unchanged, d unchanged" {
		t.Errorf("second apply: %s", got)
	}
	if got := w.sent(); len(got) != 0 {
		t.Errorf("an apply with nothing to do sent %v", got)
	}

	objects[1] = w.cm("b", "2")
	if got := actions(w.mustApply(opts, objects...)); got != "a unchanged, b configured, c unchanged, d unchanged" {
		t.Errorf("one changed: %s", got)
	}
	if got := w.sent(); !slices.Equal(got, []string{"patch configmaps"}) {
		t.Errorf("one changed object sent %v", got)
	}
	if got := value(w.get(objects[1])); got != "2" {
		t.Errorf("b has %q", got)
	}

	// Somebody else changes an object.
	w.change(objects[2], func(o *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(o.Object, "by hand", "data", "k")
	})
	w.awaitWake(w.unit, "c was changed")
	w.drain()
	w.sent()
	changes = w.mustApply(opts, objects...)
	if got := actions(changes); got != "a unchanged, b unchanged, c configured, d unchanged" {
		t.Errorf("drift: %s", got)
	}
	if value(changes[2].Before) != "by hand" || value(changes[2].After) != "1" {
		t.Errorf("drift from %q to %q", value(changes[2].Before), value(changes[2].After))
	}
}

// TestApplyKnown applies many objects that are as they should be and of which nothing
// is remembered. The map of what was verified is not for concurrent use.
func TestApplyKnown(t *testing.T) {
	w := newWorld(t)
	var objects []*unstructured.Unstructured
	for i := range 50 {
		objects = append(objects, w.cm(fmt.Sprintf("c%02d", i), "1"))
	}
	w.mustApply(w.options(), objects...)
	for range 12 {
		opts := w.options(func(o *Options) { o.Concurrency = 16 })
		for _, c := range w.mustApply(opts, objects...) {
			if c.Action != Unchanged {
				t.Fatalf("%s", c)
			}
		}
		if len(opts.Verified) != len(objects) {
			t.Fatalf("%d of %d objects are verified", len(opts.Verified), len(objects))
		}
		w.sent()
		w.mustApply(opts, objects...)
		if got := w.sent(); len(got) != 0 {
			t.Fatalf("what was verified was asked for again: %v", got)
		}
	}
}

// TestApplyConcurrency holds each dry-run until as many run as may at a time.
func TestApplyConcurrency(t *testing.T) {
	for name, limit := range map[string]int{"two": 2, "six": 6} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			var objects []*unstructured.Unstructured
			for i := range 2*limit + 1 {
				objects = append(objects, w.cm(fmt.Sprintf("c%d", i), "1"))
			}
			arrived := make(chan chan struct{}, len(objects))
			w.refusing(func(r *http.Request) (int, metav1.StatusReason) {
				if r.URL.Query().Get("dryRun") != "" {
					let := make(chan struct{})
					arrived <- let
					<-let
				}
				return 0, ""
			})
			done := make(chan error)
			go func() {
				_, err := w.apply(w.options(func(o *Options) { o.Concurrency = limit }), objects...)
				done <- err
			}()
			for range 2 { // 2*limit dry-runs, of which no more than limit can be here
				var held []chan struct{}
				for range limit {
					held = append(held, <-arrived)
				}
				if len(arrived) != 0 {
					t.Errorf("more than %d dry-runs at a time", limit)
				}
				for _, let := range held {
					close(let)
				}
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestApplyRefused(t *testing.T) {
	bad := "kind: Service\nmetadata: {name: bad}\nspec: {ports: [{port: 99999}]}"
	for name, tc := range map[string]struct {
		reason  string
		objects func(*world) []*unstructured.Unstructured
		dry     bool
	}{
		"by dry-run": {"one of a stage that is refused", func(w *world) []*unstructured.Unstructured {
			return []*unstructured.Unstructured{w.cm("a", "1"), w.cm("b", "1"), w.owned(bad)}
		}, true},
		"by write": {"the one without a dry-run is written first, and refused first", func(w *world) []*unstructured.Unstructured {
			return []*unstructured.Unstructured{w.owned(bad), w.cm("a", "1"), w.cm("b", "1")}
		}, false},
		"no namespace": {"there is no namespace to write to", func(w *world) []*unstructured.Unstructured {
			o := w.cm("c", "1")
			o.SetNamespace("")
			return []*unstructured.Unstructured{w.cm("a", "1"), w.cm("b", "1"), o}
		}, true},
		"missing namespace": {"nor may it be another's", func(w *world) []*unstructured.Unstructured {
			o := w.cm("c", "1")
			o.SetNamespace(w.ns + "-missing")
			return []*unstructured.Unstructured{w.cm("a", "1"), w.cm("b", "1"), o}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			opts := w.options()
			changes, err := w.apply(opts, tc.objects(w)...)
			refused, ok := errors.AsType[*ObjectError](err)
			if !ok || refused.Dry != tc.dry {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			for _, c := range changes {
				if c.Done {
					t.Errorf("%s is done", c)
				}
			}
			for _, name := range []string{"a", "b"} {
				if w.get(w.cm(name, "")) != nil {
					t.Errorf("%s was written", name)
				}
			}
			if len(opts.Verified) != 0 {
				t.Errorf("verified %v", opts.Verified)
			}
		})
	}
}

func TestApplyTellsAllRefusals(t *testing.T) {
	w := newWorld(t)
	objects := []*unstructured.Unstructured{w.cm("a", "1")}
	for i := range maxErrors + 3 {
		objects = append(objects, w.owned(fmt.Sprintf("kind: Service\nmetadata: {name: bad%02d}\nspec: {ports: [{port: 99999}]}", i)))
	}
	_, err := w.apply(w.options(), objects...)
	if err == nil || !strings.Contains(err.Error(), "bad00") || !strings.Contains(err.Error(), "bad09") || !strings.Contains(err.Error(), "and 3 more objects") {
		t.Errorf("the message does not name what is refused, or too much of it: %v", err)
	}
}

func (w *world) secret(v, more string) *unstructured.Unstructured {
	return w.owned(fmt.Sprintf("kind: Secret\nmetadata: {name: s%s}\nimmutable: true\nstringData: {k: %s}", more, v))
}

func TestApplyImmutable(t *testing.T) {
	w := newWorld(t)
	w.mustApply(w.options(), w.secret("one", ""))
	uid := func() string { return string(w.get(w.secret("", "")).GetUID()) }
	first := uid()
	force := func(o *Options) { o.Force = true }

	_, err := w.apply(w.options(), w.secret("two", ""))
	refused, ok := errors.AsType[*ObjectError](err)
	if !ok || !refused.Immutable || uid() != first || strings.Contains(err.Error(), "two") {
		t.Errorf("without force: %v", err)
	}
	invalid := w.owned("kind: Secret\nmetadata: {name: s}\nimmutable: true\ntype: kubernetes.io/tls\nstringData: {k: two}")
	if _, err = w.apply(w.options(force), invalid); err == nil || uid() != first {
		t.Errorf("a successor that is invalid: %v; the object was deleted: %v", err, uid() != first)
	}
	w.refusing(func(r *http.Request) (int, metav1.StatusReason) {
		if strings.Contains(r.URL.Path, "-terrace-check") {
			return http.StatusForbidden, metav1.StatusReasonForbidden
		}
		return 0, ""
	})
	if _, err = w.apply(w.options(force), w.secret("two", "")); err == nil || uid() != first {
		t.Errorf("a successor that a policy refuses: %v; the object was deleted: %v", err, uid() != first)
	}
	w.refusing(nil)
	for name, tc := range map[string]struct {
		opts   Options
		object *unstructured.Unstructured
	}{
		"spec.force": {w.options(force), w.secret("two", "")},
		"annotation": {w.options(), w.secret("three", ", annotations: {kustomize.toolkit.fluxcd.io/force: Enabled}")},
	} {
		before := uid()
		changes := w.mustApply(tc.opts, tc.object, w.cm("a", "1"))
		if changes[0].Action != Recreated || !changes[0].Done || uid() == before {
			t.Errorf("%s: %s", name, actions(changes))
		}
		if got := actions(w.mustApply(tc.opts, tc.object)); got != "s unchanged" {
			t.Errorf("%s: applied again: %s", name, got)
		}
	}
}

// TestApplyRecreatesService recreates a Service that asks for the node ports and the
// address which it has, and which no other Service can have as long as it is there.
func TestApplyRecreatesService(t *testing.T) {
	for name, labelled := range map[string]bool{"labelled": true, "not labelled": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			service := func(name, class, spec, port string) *unstructured.Unstructured {
				return w.owned(fmt.Sprintf("kind: Service\nmetadata: {name: %s}\nspec: {type: LoadBalancer, externalTrafficPolicy: Local, "+
					"loadBalancerClass: example.com/%s, selector: {a: b}, %sports: [{name: http, port: 80, protocol: TCP%s}]}", name, class, spec, port))
			}
			old := service("s", "one", "", "")
			if !labelled {
				old.SetLabels(nil)
			}
			live := w.create(old)
			spec := func(o *unstructured.Unstructured, fields ...string) any {
				v, _, _ := unstructured.NestedFieldNoCopy(o.Object, append([]string{"spec"}, fields...)...)
				return v
			}
			nodePort := func(o *unstructured.Unstructured) any {
				return spec(o, "ports").([]any)[0].(map[string]any)["nodePort"]
			}
			wanted := service("s", "two", fmt.Sprintf("clusterIP: %v, healthCheckNodePort: %v, ", spec(live, "clusterIP"), spec(live, "healthCheckNodePort")), fmt.Sprintf(", nodePort: %v", nodePort(live)))
			opts := w.options(func(o *Options) { o.Force = true })

			other := w.create(service("other", "one", "", ""))
			taken := service("s", "two", "", fmt.Sprintf(", nodePort: %v", nodePort(other)))
			if _, err := w.apply(opts, taken); err == nil || !strings.Contains(err.Error(), "already allocated") || w.get(old) == nil || w.get(old).GetUID() != live.GetUID() {
				t.Errorf("a node port of another Service: %v; the old one is %v", err, w.get(old))
			}
			if got := actions(w.mustApply(opts, wanted)); got != "s recreated" {
				t.Errorf("it was %s", got)
			}
			now := w.get(old)
			if now == nil || now.GetUID() == live.GetUID() || spec(now, "loadBalancerClass") != "example.com/two" {
				t.Fatalf("afterwards: %v", now)
			}
			if nodePort(now) != nodePort(live) || spec(now, "clusterIP") != spec(live, "clusterIP") || spec(now, "healthCheckNodePort") != spec(live, "healthCheckNodePort") {
				t.Errorf("it has %v, and had %v", now.Object["spec"], live.Object["spec"])
			}
		})
	}
}

// TestApplyRecreatesLater waits for the finalizers of the object that is in the way, also
// of one that carries no label.
func TestApplyRecreatesLater(t *testing.T) {
	for name, labelled := range map[string]bool{"labelled": true, "not labelled": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			old := w.secret("one", ", finalizers: [example.com/hold]")
			if !labelled {
				old.SetLabels(nil)
			}
			w.create(old)
			opts := w.options(func(o *Options) { o.Force = true })
			_, err := w.apply(opts, w.secret("two", ""))
			if _, ok := errors.AsType[*RecreatingError](err); !ok {
				t.Fatalf("got %v, want that it is being recreated", err)
			}
			w.drain()
			w.change(old, func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
			for {
				w.awaitWake(w.unit, "the object that was in the way is gone")
				if r, _ := w.cluster.View.Get(KeyOf(old)); r == nil {
					break
				}
			}
			w.mustApply(opts, w.secret("two", ""))
			if now := w.get(old); now == nil || now.GetUID() == old.GetUID() {
				t.Error("it was not created again")
			}
			w.cluster.View.Unwatch(w.unit, nil)
			if r, seen := w.cluster.View.Get(KeyOf(old)); r == nil || !seen {
				t.Error("the View has lost sight of the new one")
			}
		})
	}
}

func TestApplyOptOuts(t *testing.T) {
	for name, tc := range map[string]struct {
		reason    string
		live      string // annotations of the live object; "-" for none
		labelled  bool
		desired   string
		want      Action
		wantValue string
	}{
		"reconcile disabled":  {"it is left alone", "", true, "reconcile: disabled", Skipped, "old"},
		"ignore":              {"it is not even created", "-", false, "ssa: ignore", Skipped, ""},
		"disabled in cluster": {"who works on the cluster says so", "reconcile: disabled", true, "", Skipped, "old"},
		"ignored in cluster":  {"in either way", "ssa: Ignore", true, "", Skipped, "old"},
		"present":             {"it exists, labelled or not", "", false, "ssa: IfNotPresent", Skipped, "old"},
		"present and ours":    {"it exists", "", true, "ssa: IfNotPresent", Skipped, "old"},
		"not present":         {"it is created", "-", false, "ssa: IfNotPresent", Created, "new"},
		"plain":               {"nobody opts out", "", true, "", Configured, "new"},
		"not ours":            {"it is taken over", "", false, "", Configured, "new"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			annotated := func(v, option string) *unstructured.Unstructured {
				if option != "" {
					option = "kustomize.toolkit.fluxcd.io/" + option
				}
				return w.owned(fmt.Sprintf("kind: ConfigMap\nmetadata: {name: c, annotations: {%s}}\ndata: {k: %s}", option, v))
			}
			if tc.live != "-" {
				live := annotated("old", tc.live)
				if !tc.labelled {
					live.SetLabels(nil)
				}
				w.create(live)
			}
			changes := w.mustApply(w.options(), annotated("new", tc.desired))
			if changes[0].Action != tc.want || value(w.get(w.cm("c", ""))) != tc.wantValue {
				t.Errorf("%s: %s, value %q", tc.reason, actions(changes), value(w.get(w.cm("c", ""))))
			}
			if (changes[0].Why != "") != (tc.want == Skipped) {
				t.Errorf("why: %q", changes[0].Why)
			}
		})
	}
}

func TestApplyTakesOver(t *testing.T) {
	w := newWorld(t)
	last, _ := json.Marshal(map[string]any{"kind": "ConfigMap"})
	live := w.object("kind: ConfigMap\nmetadata: {name: c}\ndata: {k: kubectl, dropped: by git}")
	live.SetAnnotations(map[string]string{corev1.LastAppliedConfigAnnotation: string(last)})
	if err := w.env.Client.Create(t.Context(), live, client.FieldOwner("kubectl-client-side-apply")); err != nil {
		t.Fatal(err)
	}
	opts := w.options()
	w.mustApply(opts, w.cm("c", "git"))
	got := w.get(live)
	if data, _, _ := unstructured.NestedStringMap(got.Object, "data"); data["k"] != "git" || len(data) != 1 || len(got.GetAnnotations()) != 0 {
		t.Errorf("data %v, annotations %v", data, got.GetAnnotations())
	}
	for _, f := range got.GetManagedFields() {
		if f.Manager != testOwner.Field || f.Operation != metav1.ManagedFieldsOperationApply {
			t.Errorf("managed by %s %s", f.Manager, f.Operation)
		}
	}
	w.sent()
	if w.mustApply(opts, w.cm("c", "git")); len(w.sent()) != 0 {
		t.Error("what was taken over is asked for again")
	}
}

// TestApplyOverrides takes back what a manager sets that may set nothing, and leaves what
// others set.
func TestApplyOverrides(t *testing.T) {
	w := newWorld(t)
	opts := w.options(func(o *Options) { o.Overridden = []string{"some"} })
	w.mustApply(opts, w.cm("c", "1"))
	w.change(w.cm("c", ""), func(o *unstructured.Unstructured) { // as "somebody"
		_ = unstructured.SetNestedField(o.Object, "by hand", "data", "extra")
	})
	theirs := w.object("kind: ConfigMap\nmetadata: {name: c}\ndata: {kept: by a sidecar}")
	if err := w.env.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(theirs), client.FieldOwner("injector")); err != nil {
		t.Fatal(err)
	}
	w.cluster.View.Observe(w.get(theirs))
	w.mustApply(opts, w.cm("c", "1"))
	if data, _, _ := unstructured.NestedStringMap(w.get(theirs).Object, "data"); data["extra"] != "" || data["kept"] != "by a sidecar" || data["k"] != "1" {
		t.Errorf("data %v", data)
	}
}

func TestApplyIgnores(t *testing.T) {
	w := newWorld(t)
	opts := w.options(func(o *Options) { o.Ignore = []jsondiff.IgnoreRule{{Paths: []string{"/data/left"}}} })
	object := func(k string) *unstructured.Unstructured {
		return w.owned("kind: ConfigMap\nmetadata: {name: c}\ndata: {left: git, k: v" + k + "}")
	}
	w.mustApply(opts, object("1"))
	w.change(object(""), func(o *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(o.Object, "cluster", "data", "left")
	})
	w.mustApply(opts, object("2"))
	if data, _, _ := unstructured.NestedStringMap(w.get(object("")).Object, "data"); data["left"] != "cluster" || data["k"] != "v2" {
		t.Errorf("data %v", data)
	}
}

func TestDiff(t *testing.T) {
	w := newWorld(t)
	w.create(w.cm("a", "old"))
	opts := w.options()
	changes, err := w.client.Diff(t.Context(), []*unstructured.Unstructured{w.cm("a", "new"), w.cm("b", "new"), named("example.com/Unknown", w.ns, "u")}, opts)
	if err != nil {
		t.Fatal(err)
	}
	if got := actions(changes); got != "a configured, b created, u held" {
		t.Errorf("got %s", got)
	}
	if value(changes[0].Before) != "old" || value(changes[0].After) != "new" {
		t.Errorf("from %q to %q", value(changes[0].Before), value(changes[0].After))
	}
	if value(w.get(w.cm("a", ""))) != "old" || w.get(w.cm("b", "")) != nil {
		t.Error("a diff has written")
	}
	for _, c := range changes {
		if _, ok := c.Planned(); !ok || c.Done {
			t.Errorf("%s: planned %v, done %v", c, ok, c.Done)
		}
	}
}

// TestApplyKinds writes what is in no namespace without one, holds what is not known, and
// waits for neither that nor for what was skipped.
func TestApplyKinds(t *testing.T) {
	w := newWorld(t)
	role := w.owned("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: " + w.ns + "}\nrules: []")
	if err := w.client.Normalise([]*unstructured.Unstructured{role, named("example.com/Unknown", w.ns, "u")}); err != nil {
		t.Fatal(err)
	}
	if role.GetNamespace() != "" {
		t.Errorf("a ClusterRole in namespace %s", role.GetNamespace())
	}
	defer w.remove(role)
	opts := w.options()
	w.mustApply(opts, role)
	if _, ok := opts.Verified[IDOf(role)]; !ok {
		t.Errorf("verified %v", opts.Verified)
	}

	namespace := named("Namespace", "", w.ns)
	namespace.SetAnnotations(map[string]string{testOwner.Group + "/ssa": "IfNotPresent"})
	stages := map[string]*unstructured.Unstructured{
		"skipped": namespace,
		"held":    named("gateway.networking.k8s.io/GatewayClass", "", "g"),
	}
	for name, o := range stages {
		changes := w.mustApply(opts, o)
		if why, err := w.client.Ready(t.Context(), []*unstructured.Unstructured{o}, changes); why != "" || err != nil {
			t.Errorf("%s is waited for: %s %v", name, why, err)
		}
	}
	missing := named("Namespace", "", w.ns+"-missing")
	if why, err := w.client.Ready(t.Context(), []*unstructured.Unstructured{missing}, nil); err != nil || !strings.Contains(why, "does not exist") {
		t.Errorf("an object that is not there is ready: %q %v", why, err)
	}
}
