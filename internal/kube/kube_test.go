// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	"github.com/terrace-dev/terrace/internal/testenv"
)

// patience bounds a wait for something that has to come.
const patience = 90 * time.Second

var testOwner = Owner{Field: "kustomize-controller", Group: "kustomize.toolkit.fluxcd.io"}

// world is a cluster as a unit sees it, in a namespace of its own.
type world struct {
	t       *testing.T
	env     *testenv.Env
	ns      string
	unit    types.NamespacedName
	cluster *Cluster
	client  *Client
	woken   chan types.NamespacedName

	mu       sync.Mutex
	requests []string
	refuse   func(r *http.Request) (code int, reason metav1.StatusReason) // 0 lets it pass
}

func newWorld(t *testing.T, change ...func(*rest.Config, string)) *world {
	t.Helper()
	w := &world{t: t, env: testenv.Start(t), woken: make(chan types.NamespacedName, 10000)}
	w.ns = w.env.Namespace(t)
	w.unit = types.NamespacedName{Namespace: w.ns, Name: "unit"}
	config := rest.CopyConfig(w.env.Config)
	for _, c := range change {
		c(config, w.ns)
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return transport{w, next} })
	var err error
	if w.cluster, err = NewCluster(config, testOwner, func(u types.NamespacedName) { w.woken <- u }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.cluster.Close)
	if w.client, err = w.cluster.Client(""); err != nil {
		t.Fatal(err)
	}
	return w
}

type transport struct {
	w    *world
	next http.RoundTripper
}

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	what := testenv.Request(r)
	if r.URL.Query().Get("dryRun") != "" {
		what = "dry " + what
	}
	t.w.mu.Lock()
	t.w.requests = append(t.w.requests, what)
	refuse := t.w.refuse
	t.w.mu.Unlock()
	if refuse != nil {
		if code, reason := refuse(r); code != 0 {
			body, _ := json.Marshal(metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
				Code: int32(code), Reason: reason, Message: "refused by the test",
			})
			return &http.Response{
				StatusCode: code, Status: http.StatusText(code), Request: r, Body: io.NopCloser(bytes.NewReader(body)),
				Header: http.Header{"Content-Type": {"application/json"}}, ProtoMajor: 1, ProtoMinor: 1,
			}, nil
		}
	}
	return t.next.RoundTrip(r)
}

// refusing sets which requests the API server answers with an error.
func (w *world) refusing(refuse func(*http.Request) (int, metav1.StatusReason)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuse = refuse
}

// sent returns the requests about objects since the last call: neither discovery nor
// what keeps the watches.
func (w *world) sent() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, r := range w.requests {
		if !strings.Contains(r, " /") && !strings.HasPrefix(r, "watch ") && !strings.HasPrefix(r, "list ") {
			out = append(out, r)
		}
	}
	w.requests = nil
	slices.Sort(out)
	return out
}

// awaitWake waits until a unit is woken, and returns who was woken before it.
func (w *world) awaitWake(unit types.NamespacedName, why string) (before []types.NamespacedName) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	for {
		select {
		case u := <-w.woken:
			if u == unit {
				return before
			}
			before = append(before, u)
		case <-ctx.Done():
			w.t.Fatalf("%s was not woken: %s", unit, why)
		}
	}
}

// drain forgets the wakes so far. The object of another unit tells when all of them are in.
func (w *world) drain() {
	w.t.Helper()
	if err := w.cluster.View.Ensure(w.t.Context(), configMaps); err != nil {
		w.t.Fatal(err)
	}
	w.marks().touch()
}

type marker struct {
	w    *world
	unit types.NamespacedName
}

func (w *world) marks() marker {
	return marker{w, types.NamespacedName{Namespace: w.ns, Name: "mark"}}
}

// touch changes the marker's ConfigMap, and returns who was woken before that was seen.
func (m marker) touch() []types.NamespacedName {
	m.w.t.Helper()
	o := m.w.object(fmt.Sprintf("kind: ConfigMap\nmetadata: {name: mark}\ndata: {at: %q}", time.Now()))
	testOwner.Label(o, m.unit)
	if err := m.w.env.Client.Apply(m.w.t.Context(), client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("marker"), client.ForceOwnership); err != nil {
		m.w.t.Fatal(err)
	}
	return m.w.awaitWake(m.unit, "the mark was changed")
}

// object reads a manifest, which is in the world's namespace where it names none.
func (w *world) object(manifest string) *unstructured.Unstructured {
	w.t.Helper()
	o := parse(w.t, manifest)
	if o.GetAPIVersion() == "" {
		o.SetAPIVersion("v1")
	}
	if o.GetNamespace() == "" {
		o.SetNamespace(w.ns)
	}
	return o
}

// parse reads a manifest as an API server's answer is read.
func parse(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	text, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(text, &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

// cm is a ConfigMap as the unit wants it.
func (w *world) cm(name, value string) *unstructured.Unstructured {
	return w.owned(fmt.Sprintf("kind: ConfigMap\nmetadata: {name: %s}\ndata: {k: %q}", name, value))
}

func (w *world) owned(manifest string) *unstructured.Unstructured {
	w.t.Helper()
	o := w.object(manifest)
	testOwner.Label(o, w.unit)
	return o
}

// create makes an object as somebody else.
func (w *world) create(o *unstructured.Unstructured) *unstructured.Unstructured {
	w.t.Helper()
	if err := w.env.Client.Create(w.t.Context(), o, client.FieldOwner("somebody")); err != nil {
		w.t.Fatal(err)
	}
	return o
}

// change patches an object as somebody else.
func (w *world) change(o *unstructured.Unstructured, how func(*unstructured.Unstructured)) *unstructured.Unstructured {
	w.t.Helper()
	now := w.get(o)
	if now == nil {
		w.t.Fatalf("%s does not exist", Subject(IDOf(o)))
	}
	base := now.DeepCopy()
	how(now)
	if err := w.env.Client.Patch(w.t.Context(), now, client.MergeFrom(base), client.FieldOwner("somebody")); err != nil {
		w.t.Fatal(err)
	}
	return now
}

func (w *world) remove(o *unstructured.Unstructured) {
	w.t.Helper()
	if err := w.env.Client.Delete(w.t.Context(), o); client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
}

// get reads an object past the View; nil if it does not exist.
func (w *world) get(o *unstructured.Unstructured) *unstructured.Unstructured {
	w.t.Helper()
	now := &unstructured.Unstructured{}
	now.SetGroupVersionKind(o.GroupVersionKind())
	err := w.env.Client.Get(w.t.Context(), client.ObjectKeyFromObject(o), now)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return now
}

func value(o *unstructured.Unstructured) string {
	if o == nil {
		return ""
	}
	v, _, _ := unstructured.NestedString(o.Object, "data", "k")
	return v
}

func (w *world) options(change ...func(*Options)) Options {
	o := Options{Unit: w.unit, Verified: Verified{}}
	for _, c := range change {
		c(&o)
	}
	return o
}

// apply applies copies: Apply may change what it is given.
func (w *world) apply(o Options, objects ...*unstructured.Unstructured) ([]Change, error) {
	var stage []*unstructured.Unstructured
	for _, obj := range objects {
		stage = append(stage, obj.DeepCopy())
	}
	return w.client.Apply(w.t.Context(), stage, o)
}

func (w *world) mustApply(o Options, objects ...*unstructured.Unstructured) []Change {
	w.t.Helper()
	changes, err := w.apply(o, objects...)
	if err != nil {
		w.t.Fatal(err)
	}
	return changes
}

func actions(changes []Change) string {
	var out []string
	for _, c := range changes {
		out = append(out, c.Key.Name+" "+string(c.Action))
	}
	return strings.Join(out, ", ")
}

func named(kind, namespace, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	group, version := "", "v1"
	if g, k, ok := strings.Cut(kind, "/"); ok {
		group, kind = g, k
	}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: version, Kind: kind})
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

func TestStages(t *testing.T) {
	objects := []*unstructured.Unstructured{
		named("ConfigMap", "b", "c"), named("admissionregistration.k8s.io/MutatingWebhookConfiguration", "", "w"), named("storage.k8s.io/StorageClass", "", "s"),
		named("apps/Deployment", "a", "d"), named("Namespace", "", "a"), named("example.com/Custom", "a", "x"), named("ConfigMap", "a", "c"),
		named("apiextensions.k8s.io/CustomResourceDefinition", "", "crd"),
	}
	text := func(stages [][]*unstructured.Unstructured) string {
		var out []string
		for _, s := range stages {
			var names []string
			for _, o := range s {
				names = append(names, Subject(IDOf(o)))
			}
			out = append(out, strings.Join(names, " "))
		}
		return strings.Join(out, " | ")
	}
	for name, tc := range map[string]struct {
		reason string
		custom map[schema.GroupKind]struct{}
		want   string
	}{
		"plain": {"what others need comes first, webhooks last, empty stages not at all", nil,
			"CustomResourceDefinition/crd Namespace/a | StorageClass/s | ConfigMap/a/c ConfigMap/b/c Deployment/a/d Custom/a/x MutatingWebhookConfiguration/w"},
		"custom": {"kinds that the user names have a stage of their own", map[schema.GroupKind]struct{}{{Group: "example.com", Kind: "Custom"}: {}},
			"CustomResourceDefinition/crd Namespace/a | StorageClass/s | Custom/a/x | ConfigMap/a/c ConfigMap/b/c Deployment/a/d MutatingWebhookConfiguration/w"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := text(Stages(slices.Clone(objects), tc.custom)); got != tc.want {
				t.Errorf("%s:\ngot  %s\nwant %s", tc.reason, got, tc.want)
			}
		})
	}
	if got := Stages(nil, nil); len(got) != 0 {
		t.Errorf("stages of nothing: %v", got)
	}
}

func TestKeys(t *testing.T) {
	var keys []Key
	for _, o := range []*unstructured.Unstructured{
		named("Namespace", "", "a"), named("apps/Deployment", "a", "d"), named("ConfigMap", "a", "c2"), named("ConfigMap", "a", "c1"),
		named("apiextensions.k8s.io/CustomResourceDefinition", "", "crd"), named("example.com/Custom", "a", "x"),
	} {
		keys = append(keys, KeyOf(o))
	}
	var got []string
	for _, k := range Keys(keys) {
		got = append(got, Subject(k.ID()))
	}
	if want := []string{"Custom/a/x", "Deployment/a/d", "ConfigMap/a/c2", "ConfigMap/a/c1", "Namespace/a", "CustomResourceDefinition/crd"}; !slices.Equal(got, want) {
		t.Errorf("what was applied last goes first:\ngot  %v\nwant %v", got, want)
	}
}

func TestOptions(t *testing.T) {
	for name, tc := range map[string]struct {
		reason     string
		where      string
		key, value string
		left       bool
	}{
		"annotation": {"an annotation", "annotations", "reconcile", "disabled", true},
		"label":      {"a label does as well", "labels", "reconcile", "disabled", true},
		"case":       {"without case", "annotations", "ssa", "IGNORE", true},
		"other":      {"another value says nothing", "annotations", "reconcile", "enabled", false},
		"merge":      {"another way to apply is no opt-out", "annotations", "ssa", "merge", false},
	} {
		t.Run(name, func(t *testing.T) {
			o := named("ConfigMap", "n", "c")
			_ = unstructured.SetNestedStringMap(o.Object, map[string]string{testOwner.Group + "/" + tc.key: tc.value}, "metadata", tc.where)
			if got := testOwner.Left(o); got != tc.left {
				t.Errorf("%s: left alone %v, want %v", tc.reason, got, tc.left)
			}
		})
	}
	if testOwner.option(nil, keySSA) != "" {
		t.Error("an object that does not exist says something")
	}
}

func TestObjectError(t *testing.T) {
	id := IDOf(named("Secret", "n", "s"))
	cause := apierrors.NewInvalid(schema.GroupKind{Kind: "Secret"}, "s", nil)
	for name, tc := range map[string]struct {
		reason string
		err    *ObjectError
		want   []string
	}{
		"dry":       {"nothing was written", &ObjectError{ID: id, Dry: true, Err: cause}, []string{"Secret/n/s dry-run failed (Invalid)"}},
		"apply":     {"it was tried", &ObjectError{ID: id, Err: cause}, []string{"Secret/n/s apply failed (Invalid)"}},
		"immutable": {"and what to do", &ObjectError{ID: id, Immutable: true, Err: cause}, []string{"spec.force", "force: enabled"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, want := range tc.want {
				if !strings.Contains(tc.err.Error(), want) {
					t.Errorf("%s: %q lacks %q", tc.reason, tc.err, want)
				}
			}
			if !apierrors.IsInvalid(tc.err) {
				t.Error("the API server's answer is lost")
			}
		})
	}
}

// TestNotServed tells a version that is gone from one that could not be asked for.
func TestNotServed(t *testing.T) {
	gone := error(&apimeta.NoResourceMatchError{})
	away := error(apierrors.NewServiceUnavailable("away"))
	version := func(v string) schema.GroupVersion { return schema.GroupVersion{Group: "example.com", Version: v} }
	for name, tc := range map[string]struct {
		reason string
		failed apiutil.ErrResourceDiscoveryFailed
		want   bool
	}{
		"gone":      {"it is not there", apiutil.ErrResourceDiscoveryFailed{version("v1"): gone}, true},
		"not found": {"the API server says so", apiutil.ErrResourceDiscoveryFailed{version("v1"): apierrors.NewNotFound(schema.GroupResource{}, "")}, true},
		"away":      {"what does not answer may be there", apiutil.ErrResourceDiscoveryFailed{version("v1"): away}, false},
		"mixed":     {"one of them may be there", apiutil.ErrResourceDiscoveryFailed{version("v1"): gone, version("v2"): away}, false},
	} {
		if got := notServed(tc.failed); got != tc.want {
			t.Errorf("%s: %s: %v", name, tc.reason, got)
		}
	}
}

// role lets a user do some things in the namespace.
func (w *world) role(user string, rules string) {
	w.t.Helper()
	for _, m := range []string{
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r}\nrules: " + rules,
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: r}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: r}\n" +
			"subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: " + user + "}]",
	} {
		w.create(w.object(m))
	}
}

var configMaps = corev1.SchemeGroupVersion.WithKind("ConfigMap")
