// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
)

// syncTimeout bounds the wait for the first list of a kind.
const syncTimeout = 15 * time.Second

// Key names an object in the version in which it is watched.
type Key struct {
	Kind            schema.GroupVersionKind
	Namespace, Name string
}

// KeyOf returns the Key of an object.
func KeyOf(o *unstructured.Unstructured) Key {
	return Key{o.GroupVersionKind(), o.GetNamespace(), o.GetName()}
}

// ID is the key without its version.
func (k Key) ID() ID {
	return ID{GroupKind: k.Kind.GroupKind(), Namespace: k.Namespace, Name: k.Name}
}

// Record is what the View knows of a live object.
type Record struct {
	UID             types.UID
	ResourceVersion string
	// Unit is whom the owner labels name.
	Unit types.NamespacedName
	// Content is the digest of the object without its status; see contentDigest.
	Content string
	Health  Health
	// status is the digest of its status, which a unit's own expressions may read.
	status string
	// Deleting tells that the object waits for its finalizers.
	Deleting bool

	raw []byte // the object as JSON, without managedFields
}

// Object returns a copy of the live object, without its managedFields.
func (r *Record) Object() *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	// It was encoded from an object.
	_ = utiljson.Unmarshal(r.raw, &o.Object) // whole numbers stay such
	return o
}

// View watches labelled objects, kind by kind, and single objects that somebody asks
// for. It is filled by watches and by the answers to writes, whichever is newer.
type View struct {
	dynamic  dynamic.Interface
	metadata metadata.Interface
	owner    Owner
	mapping  func(schema.GroupVersionKind) (*apimeta.RESTMapping, error)
	wake     func(types.NamespacedName)
	ctx      context.Context
	cancel   context.CancelFunc

	mu      sync.Mutex
	kinds   map[schema.GroupVersionKind]*stream
	singles map[Key]*single
	records map[Key]*Record
	held    map[types.NamespacedName]bool // wait for a kind that is not served
	crds    bool                          // whether CRDs are watched for them
}

// stream is one watch.
type stream struct {
	synced chan struct{} // closed when the first list is in, or will not come
	once   sync.Once
	failed error // why the objects cannot be watched, nil once a list is in
	stop   context.CancelFunc
}

func (s *stream) done() { s.once.Do(func() { close(s.synced) }) }

// single is the watch of one object that need not be labelled.
type single struct {
	*stream
	units map[types.NamespacedName]bool
}

func newView(dyn dynamic.Interface, meta metadata.Interface, owner Owner, mapping func(schema.GroupVersionKind) (*apimeta.RESTMapping, error), wake func(types.NamespacedName)) *View {
	ctx, cancel := context.WithCancel(context.Background())
	return &View{
		dynamic: dyn, metadata: meta, owner: owner, mapping: mapping, wake: wake, ctx: ctx, cancel: cancel,
		kinds: map[schema.GroupVersionKind]*stream{}, singles: map[Key]*single{}, records: map[Key]*Record{},
		held: map[types.NamespacedName]bool{},
	}
}

func (v *View) close() { v.cancel() }

// Ensure makes sure that the labelled objects of some kinds are watched, and waits
// for the first list of each. A kind may be named more than once. Kinds that are not
// served, or that may not be listed, are passed over: Lookup reads their objects one by one.
func (v *View) Ensure(ctx context.Context, kinds ...schema.GroupVersionKind) error {
	var streams []*stream
	seen := map[schema.GroupVersionKind]bool{}
	for _, gvk := range kinds {
		if seen[gvk] {
			continue
		}
		seen[gvk] = true
		s, err := v.stream(gvk)
		if err != nil {
			if _, unknown := asUnknown(err); unknown {
				continue
			}
			return err
		}
		streams = append(streams, s)
	}
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	for _, s := range streams {
		select {
		case <-s.synced:
		case <-ctx.Done():
			return fmt.Errorf("wait for the first list of watched objects: %w", ctx.Err())
		}
	}
	return nil
}

func (v *View) stream(gvk schema.GroupVersionKind) (*stream, error) {
	v.mu.Lock()
	s, ok := v.kinds[gvk]
	v.mu.Unlock()
	if ok {
		return s, nil
	}
	m, err := v.mapping(gvk) // may ask the API server, for which nobody else should wait
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if s, ok := v.kinds[gvk]; ok {
		return s, nil
	}
	s = v.start(v.dynamic.Resource(m.Resource), metav1.ListOptions{LabelSelector: v.owner.Group + "/name"}, &kindStore{v, gvk}, func(*stream) []types.NamespacedName {
		delete(v.kinds, gvk)
		return v.dropLocked(func(k Key) bool { return k.Kind == gvk && v.singles[k] == nil })
	})
	v.kinds[gvk] = s
	return s, nil
}

// listWatcher is what a watch reads from.
type listWatcher interface {
	List(context.Context, metav1.ListOptions) (*unstructured.UnstructuredList, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// start begins a watch. gone is called, with the lock held, when the kind is not
// served any more and the watch has ended; it returns whom to wake.
func (v *View) start(from listWatcher, scope metav1.ListOptions, store cache.ReflectorStore, gone func(*stream) []types.NamespacedName) *stream {
	ctx, stop := context.WithCancel(v.ctx)
	s := &stream{synced: make(chan struct{}), stop: stop}
	scoped := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector, o.FieldSelector = scope.LabelSelector, scope.FieldSelector
		return o
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return from.List(ctx, scoped(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return from.Watch(ctx, scoped(o))
		},
	}
	pause := retryWatch
	listed := func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		s.failed, pause = nil, retryWatch
	}
	r := cache.NewReflectorWithOptions(lw, &unstructured.Unstructured{}, &syncedStore{store, listed, s.done}, cache.ReflectorOptions{Name: "terrace"})
	go func() {
		for ctx.Err() == nil {
			err := r.ListAndWatchWithContext(ctx)
			var woken []types.NamespacedName
			v.mu.Lock()
			s.failed = err
			ended := apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)
			if ended {
				woken = gone(s)
			}
			wait := pause
			pause = min(2*pause, retryWatchMax)
			v.mu.Unlock()
			if err != nil {
				s.done()
			}
			v.wakeAll(woken)
			if ended {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(wait): // an API server that is away answers to nothing else
			}
		}
	}()
	return s
}

// retryWatch is the pause before a watch that failed is begun again. It doubles, up to
// retryWatchMax, while no list comes in: a kind that may not be listed stays so.
const (
	retryWatch    = time.Second
	retryWatchMax = 32 * time.Second
)

// syncedStore tells when a list is here, before anybody is woken by it, and when it is
// in the store.
type syncedStore struct {
	cache.ReflectorStore
	listed, synced func()
}

func (s *syncedStore) Replace(items []any, version string) error {
	s.listed()
	err := s.ReflectorStore.Replace(items, version)
	s.synced()
	return err
}

// kindStore puts the objects of one kind into the View.
type kindStore struct {
	view *View
	kind schema.GroupVersionKind
}

func (s *kindStore) Add(o any) error { return s.Update(o) }
func (s *kindStore) Resync() error   { return nil }
func (s *kindStore) Update(o any) error {
	s.view.put(s.kind, o.(*unstructured.Unstructured))
	return nil
}
func (s *kindStore) Delete(o any) error {
	u := o.(*unstructured.Unstructured)
	key := Key{s.kind, u.GetNamespace(), u.GetName()}
	s.view.mu.Lock()
	single := s.view.singles[key] != nil
	s.view.mu.Unlock()
	if single {
		return nil // it may only have lost its label; the watch of its own tells
	}
	s.view.remove(key, u.GetResourceVersion())
	return nil
}

// Replace takes a whole list; what is not in it is gone, unless it was written after
// the list was made.
func (s *kindStore) Replace(items []any, version string) error {
	there := map[Key]bool{}
	for _, item := range items {
		u := item.(*unstructured.Unstructured)
		there[Key{s.kind, u.GetNamespace(), u.GetName()}] = true
		s.view.put(s.kind, u)
	}
	s.view.mu.Lock()
	woken := s.view.dropLocked(func(k Key) bool {
		return k.Kind == s.kind && !there[k] && s.view.singles[k] == nil && !newer(s.view.records[k].ResourceVersion, version)
	})
	s.view.mu.Unlock()
	s.view.wakeAll(woken)
	return nil
}

// Observe takes in the answer to a write. It is what the watch will show a moment
// later, and must not look like somebody else's change then.
func (v *View) Observe(o *unstructured.Unstructured) *Record {
	return v.put(o.GroupVersionKind(), o)
}

func (v *View) put(gvk schema.GroupVersionKind, o *unstructured.Unstructured) *Record {
	now := newRecord(v.owner, o)
	key := Key{gvk, o.GetNamespace(), o.GetName()}
	v.mu.Lock()
	old := v.records[key]
	if old != nil && !newer(now.ResourceVersion, old.ResourceVersion) {
		v.mu.Unlock()
		return old
	}
	v.records[key] = now
	var woken []types.NamespacedName
	if old == nil || old.Content != now.Content || old.status != now.status || old.Deleting != now.Deleting || old.Unit != now.Unit {
		woken = append(woken, v.interested(key, now)...)
		if old != nil && old.Unit != now.Unit {
			woken = append(woken, old.Unit)
		}
	}
	v.mu.Unlock()
	v.wakeAll(woken)
	return now
}

func newRecord(owner Owner, o *unstructured.Unstructured) *Record {
	// managedFields are the larger part of many objects, and nobody asks for them.
	bare := maps.Clone(o.Object)
	if meta, ok := bare["metadata"].(map[string]any); ok {
		meta = maps.Clone(meta)
		delete(meta, "managedFields")
		bare["metadata"] = meta
	}
	raw, _ := json.Marshal(bare) // it was decoded from JSON
	return &Record{
		UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(), Unit: owner.UnitOf(o.GetLabels()),
		Content: contentDigest(o), Health: health(o), status: jsonDigest(o.Object["status"]), Deleting: o.GetDeletionTimestamp() != nil, raw: raw,
	}
}

// interested lists whom a change of an object concerns.
func (v *View) interested(key Key, r *Record) []types.NamespacedName {
	units := []types.NamespacedName{r.Unit}
	if s := v.singles[key]; s != nil {
		for u := range s.units {
			units = append(units, u)
		}
	}
	return units
}

func (v *View) remove(key Key, version string) {
	v.mu.Lock()
	r := v.records[key]
	if r == nil || newer(r.ResourceVersion, version) {
		v.mu.Unlock()
		return
	}
	woken := v.interested(key, r)
	delete(v.records, key)
	v.mu.Unlock()
	v.wakeAll(woken)
}

// dropLocked removes records and returns whom that concerns.
func (v *View) dropLocked(which func(Key) bool) (woken []types.NamespacedName) {
	for k, r := range v.records {
		if which(k) {
			woken = append(woken, v.interested(k, r)...)
			delete(v.records, k)
		}
	}
	return woken
}

func (v *View) wakeAll(units []types.NamespacedName) {
	for _, u := range units {
		if u.Name != "" {
			v.wake(u)
		}
	}
}

// Get returns what is known of an object, nil if it does not exist or is not
// labelled. seen is false when its kind is not watched, so that nothing is known.
func (v *View) Get(key Key) (r *Record, seen bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if s := v.singles[key]; s != nil {
		return v.records[key], s.failed == nil
	}
	s := v.kinds[key.Kind]
	return v.records[key], s != nil && s.failed == nil
}

// Lookup is Get, and reads the object from the API server where Get sees nothing.
func (v *View) Lookup(ctx context.Context, k *Client, key Key) (*Record, error) {
	if r, seen := v.Get(key); seen {
		return r, nil
	}
	o, err := k.Get(ctx, key.Kind, key.Namespace, key.Name)
	if err != nil || o == nil {
		return nil, err
	}
	return newRecord(v.owner, o), nil
}

// Watch keeps an eye on one object, labelled or not, for a unit.
func (v *View) Watch(ctx context.Context, unit types.NamespacedName, key Key) error {
	m, err := v.mapping(key.Kind)
	if err != nil {
		return err
	}
	v.mu.Lock()
	s := v.singles[key]
	if s == nil {
		var from dynamic.ResourceInterface = v.dynamic.Resource(m.Resource)
		if m.Scope.Name() == apimeta.RESTScopeNameNamespace {
			from = v.dynamic.Resource(m.Resource).Namespace(key.Namespace)
		}
		scope := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", key.Name).String()}
		s = &single{units: map[types.NamespacedName]bool{}}
		s.stream = v.start(from, scope, &singleStore{v, key}, func(ended *stream) (woken []types.NamespacedName) {
			if one := v.singles[key]; one != nil && one.stream == ended {
				woken = v.dropLocked(func(k Key) bool { return k == key })
				delete(v.singles, key)
			}
			return woken
		})
		v.singles[key] = s
	}
	s.units[unit] = true
	v.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	select {
	case <-s.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", Subject(key.ID()), ctx.Err())
	}
}

// Unwatch ends a unit's interest in single objects but those to keep.
func (v *View) Unwatch(unit types.NamespacedName, keep map[Key]bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for key, s := range v.singles {
		if keep[key] || !s.units[unit] {
			continue
		}
		delete(s.units, unit)
		if len(s.units) == 0 {
			s.stop()
			delete(v.singles, key)
			if r := v.records[key]; r != nil && (r.Unit.Name == "" || v.kinds[key.Kind] == nil) {
				delete(v.records, key)
			}
		}
	}
}

// singleStore puts one watched object into the View.
type singleStore struct {
	view *View
	key  Key
}

func (s *singleStore) Add(o any) error { return s.Update(o) }
func (s *singleStore) Resync() error   { return nil }
func (s *singleStore) Update(o any) error {
	s.view.put(s.key.Kind, o.(*unstructured.Unstructured))
	return nil
}
func (s *singleStore) Delete(o any) error {
	s.view.remove(s.key, o.(*unstructured.Unstructured).GetResourceVersion())
	return nil
}

func (s *singleStore) Replace(items []any, version string) error {
	for _, item := range items {
		s.view.put(s.key.Kind, item.(*unstructured.Unstructured))
	}
	if len(items) == 0 {
		s.view.remove(s.key, version)
	}
	return nil
}

// AwaitKinds wakes a unit when the set of served kinds may have grown, because it has
// objects of a kind that is not served; and ends that when waiting is false.
func (v *View) AwaitKinds(unit types.NamespacedName, waiting bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !waiting {
		delete(v.held, unit)
		return
	}
	if !v.held[unit] {
		v.held[unit] = true
		v.wakeHeldLater()
	}
	if v.crds {
		return
	}
	v.crds = true
	// Only that a CRD has changed is of interest, not what it says: it can be long.
	crds := v.metadata.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return crds.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return crds.Watch(ctx, o)
		},
	}
	r := cache.NewReflectorWithOptions(lw, &metav1.PartialObjectMetadata{}, &crdStore{v}, cache.ReflectorOptions{Name: "terrace"})
	go r.RunWithContext(v.ctx)
}

// crdStore wakes who waits for a kind.
type crdStore struct{ view *View }

func (s *crdStore) Add(any) error               { return s.changed() }
func (s *crdStore) Update(any) error            { return s.changed() }
func (s *crdStore) Delete(any) error            { return nil }
func (s *crdStore) Replace([]any, string) error { return s.changed() }
func (s *crdStore) Resync() error               { return nil }

func (s *crdStore) changed() error {
	s.view.wakeHeld()
	s.view.wakeHeldLater()
	return nil
}

// wakeHeld wakes every unit that waits for a kind.
func (v *View) wakeHeld() {
	v.mu.Lock()
	var units []types.NamespacedName
	for u := range v.held {
		units = append(units, u)
	}
	v.mu.Unlock()
	v.wakeAll(units)
}

// wakeHeldLater wakes them again: an API server serves a kind a moment after its CRD
// says so, and tells nobody.
func (v *View) wakeHeldLater() {
	for _, after := range []time.Duration{300 * time.Millisecond, time.Second, 4 * time.Second, 15 * time.Second} {
		time.AfterFunc(after, v.wakeHeld)
	}
}

// Owned lists the keys of the records that are in a namespace, or are labelled for a
// unit, as which says.
func (v *View) Owned(which func(Key, *Record) bool) []Key {
	v.mu.Lock()
	defer v.mu.Unlock()
	var keys []Key
	for k, r := range v.records {
		if which(k, r) {
			keys = append(keys, k)
		}
	}
	return keys
}

// newer compares resourceVersions, which etcd hands out in rising order.
func newer(a, b string) bool {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	return errA != nil || errB != nil || x > y
}
