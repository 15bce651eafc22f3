// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	"github.com/fluxcd/pkg/ssa/utils"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/terrace-dev/terrace/internal/plan"
)

// Action is what happened, or would happen, to an object, in Flux's words.
type Action string

const (
	Created    Action = "created"
	Configured Action = "configured"
	Unchanged  Action = "unchanged"
	Skipped    Action = "skipped"   // it opts out
	Recreated  Action = "recreated" // deleted and created, for a field that cannot change
	Deleted    Action = "deleted"
	Held       Action = "held" // its kind is not served yet
)

// Changes tells whether the action changes the cluster.
func (a Action) Changes() bool {
	return a == Created || a == Configured || a == Recreated || a == Deleted
}

// Change is what happened to one object.
type Change struct {
	Key    Key
	Action Action
	// Before is the live object as it was, nil if there was none or nobody looked.
	Before *unstructured.Unstructured
	// After is the API server's answer, nil if it was not asked.
	After *unstructured.Unstructured
	// Done tells that it has happened, and was not only announced by a dry-run.
	Done bool
	// Why says why it is held or skipped.
	Why string
}

// String is the change as Flux's events have it: "Kind/namespace/name created".
func (c Change) String() string { return Subject(c.Key.ID()) + " " + string(c.Action) }

// Verified remembers, for each object, in which state it was last seen as applied.
// An object that is wanted as it was and lives as it was needs no request.
type Verified map[ID]Pair

// Pair is a state of an object that the API server has confirmed.
type Pair struct {
	// Desired is the DesiredDigest of what was applied.
	Desired string `json:"desired"`
	// Content is the Record.Content that it then had.
	Content string `json:"content"`
}

// Options say how a unit applies.
type Options struct {
	Unit types.NamespacedName
	// Force recreates an object when a field that cannot change has to.
	Force bool
	// Ignore names fields that are left as they are in the cluster.
	Ignore []jsondiff.IgnoreRule
	// Overridden are field managers that may set no field: what they have set is taken
	// back. A name stands for all that begin with it.
	Overridden []string
	// Writing is called before the first write of each stage, and an error keeps the stage
	// from being written; nil is not called.
	Writing func() error
	// Verified is read and written.
	Verified Verified
	// Concurrency bounds the dry-runs at a time; 4 if zero.
	Concurrency int
}

// Stages splits objects into Flux's stages: what others need to exist, classes, the
// kinds of custom, the rest; each in Flux's order. Empty stages are left out.
func Stages(objects []*unstructured.Unstructured, custom map[schema.GroupKind]struct{}) [][]*unstructured.Unstructured {
	var stages [4][]*unstructured.Unstructured
	for _, o := range objects {
		n := 3
		switch {
		case utils.IsClusterDefinition(o):
			n = 0
		case utils.IsClassDefinition(o):
			n = 1
		case utils.IsCustomStage(o, custom):
			n = 2
		}
		stages[n] = append(stages[n], o)
	}
	var out [][]*unstructured.Unstructured
	for _, s := range stages {
		if len(s) > 0 {
			sort.Sort(ssa.SortableUnstructureds(s))
			out = append(out, s)
		}
	}
	return out
}

// RecreatingError says that an object is being deleted to be created again; the View
// wakes its unit when it is gone.
type RecreatingError struct{ ID ID }

func (e *RecreatingError) Error() string {
	return fmt.Sprintf("%s is being deleted, to be created again; waiting for its finalizers", Subject(e.ID))
}

// item is one object on its way through a stage.
type item struct {
	object  *unstructured.Unstructured
	key     Key
	desired string
	live    *Record
	rules   bool // a field of it is left to others
	change  Change
	dry     *unstructured.Unstructured // the answer of the dry-run
	again   bool                       // has to be deleted first
	apply   bool
	// verified tells that the dry-run has found it as it should be.
	verified bool
}

// Apply brings the objects of one stage to the cluster. All of them are tried by a
// dry-run before any is written, but one: that one is written first, so that its
// refusal leaves the stage untouched as well. Objects that are in the confirmed state
// cost no request. The changes are returned also with an error, as far as it came.
// Errors: *ObjectError, *RecreatingError. Objects of unknown kinds are held.
func (k *Client) Apply(ctx context.Context, objects []*unstructured.Unstructured, o Options) ([]Change, error) {
	items, err := k.prepare(ctx, objects, o)
	if err != nil {
		return nil, err
	}
	first := k.exempt(items)
	if err := k.dryRun(ctx, items, first, o); err != nil {
		return changes(items), err
	}
	if o.Writing != nil && slices.ContainsFunc(items, func(it *item) bool { return it.apply && !it.verified }) {
		if err := o.Writing(); err != nil {
			return changes(items), err
		}
	}
	if first != nil {
		if err := k.write(ctx, first, o); err != nil {
			return changes(items), err
		}
	}
	for _, it := range items {
		if it == first || !it.apply {
			continue
		}
		if err := k.write(ctx, it, o); err != nil {
			return changes(items), err
		}
	}
	return changes(items), nil
}

// Diff tells what Apply would do, and writes nothing.
func (k *Client) Diff(ctx context.Context, objects []*unstructured.Unstructured, o Options) ([]Change, error) {
	items, err := k.prepare(ctx, objects, o)
	if err != nil {
		return nil, err
	}
	if err := k.dryRun(ctx, items, nil, o); err != nil {
		return changes(items), err
	}
	for _, it := range items {
		if it.apply && it.change.Before == nil && it.change.Action != Created {
			if it.change.Before, err = k.Get(ctx, it.key.Kind, it.key.Namespace, it.key.Name); err != nil {
				return changes(items), err
			}
		}
	}
	return changes(items), nil
}

func changes(items []*item) []Change {
	var out []Change
	for _, it := range items {
		if it.change.Action != "" {
			out = append(out, it.change)
		}
	}
	return out
}

// prepare looks at each object, with no request but for kinds that are not watched
// and for IfNotPresent, and settles those that need nothing.
func (k *Client) prepare(ctx context.Context, objects []*unstructured.Unstructured, o Options) ([]*item, error) {
	kinds := make([]schema.GroupVersionKind, len(objects))
	for i, obj := range objects {
		kinds[i] = obj.GroupVersionKind()
	}
	if err := k.cluster.View.Ensure(ctx, kinds...); err != nil {
		return nil, err
	}
	rules, err := jsondiff.CompileIgnoreRules(o.Ignore)
	if err != nil {
		return nil, fmt.Errorf("read spec.ignore: %w", err)
	}
	items := make([]*item, 0, len(objects))
	for _, obj := range objects {
		it := &item{object: obj}
		items = append(items, it)
		namespaced, err := k.normalise(obj)
		if unknown, ok := asUnknown(err); ok {
			it.key = KeyOf(obj)
			it.change = Change{Key: it.key, Action: Held, After: obj, Why: unknown.Error()}
			continue
		} else if err != nil {
			return nil, err
		}
		if namespaced && obj.GetNamespace() == "" {
			return nil, &ObjectError{ID: IDOf(obj), Dry: true, Err: fmt.Errorf(
				"the namespace is not specified: set metadata.namespace, or spec.targetNamespace of the Kustomization")}
		}
		it.key, it.desired = KeyOf(obj), DesiredDigest(obj)
		for r := range rules {
			it.rules = it.rules || r.MatchUnstructured(obj)
		}
		if err := k.settle(ctx, it, o); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// Normalise writes objects as Apply applies them, so that their keys and digests are
// those of the cluster: a kustomize transformer gives a namespace also to an object of
// a kind that has none. Objects of unknown kinds are left for later.
func (k *Client) Normalise(objects []*unstructured.Unstructured) error {
	for _, o := range objects {
		_, err := k.normalise(o)
		if _, unknown := asUnknown(err); err != nil && !unknown {
			return err
		}
	}
	return nil
}

func (k *Client) normalise(o *unstructured.Unstructured) (namespaced bool, err error) {
	utils.RemoveCABundleFromCRD(o)
	if namespaced, err = k.cluster.Namespaced(o.GroupVersionKind()); err == nil && !namespaced {
		o.SetNamespace("")
	}
	return namespaced, err
}

// settle decides on what is known without a request.
func (k *Client) settle(ctx context.Context, it *item, o Options) error {
	owner, view := k.cluster.owner, k.cluster.View
	it.change = Change{Key: it.key}
	if owner.Left(it.object) {
		it.change.Action, it.change.Why = Skipped, "it opts out"
		return nil
	}
	live, err := view.Lookup(ctx, k, it.key)
	if err != nil {
		return &ObjectError{ID: it.key.ID(), Dry: true, Err: err}
	}
	it.live = live
	if live != nil && live.Unit.Name != "" && owner.Left(live.Object()) {
		it.change.Action, it.change.Why = Skipped, "it opts out in the cluster"
		return nil
	}
	if owner.OnlyIfAbsent(it.object) {
		there := live != nil
		if !there {
			o, err := k.Get(ctx, it.key.Kind, it.key.Namespace, it.key.Name)
			if err != nil {
				return &ObjectError{ID: it.key.ID(), Dry: true, Err: err}
			}
			there = o != nil
		}
		if there {
			it.change.Action, it.change.Why = Skipped, "it is present"
			return nil
		}
	}
	if pair, ok := o.Verified[it.key.ID()]; ok && live != nil && !live.Deleting && pair == (Pair{it.desired, live.Content}) {
		it.change.Action = Unchanged
		return nil
	}
	it.apply = true
	if live != nil {
		it.change.Before = live.Object()
	}
	return nil
}

// exempt chooses the object that needs no dry-run: one whose live state is known, so
// that an opt-out in the cluster has been seen, if there is one. Objects that Flux's
// applier takes care of are tried by it.
func (k *Client) exempt(items []*item) *item {
	var first *item
	for _, it := range items {
		if !it.apply || it.rules {
			continue
		}
		if it.live != nil {
			return it
		}
		if first == nil {
			first = it
		}
	}
	return first
}

// dryRun asks the API server what it would make of each object.
func (k *Client) dryRun(ctx context.Context, items []*item, except *item, o Options) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(cmp.Or(o.Concurrency, 4))
	var mu sync.Mutex
	var failed []error
	for _, it := range items {
		if !it.apply || it == except {
			continue
		}
		g.Go(func() error {
			err := k.try(ctx, it, o)
			if err == nil {
				return nil
			}
			// All that is wrong with a stage is told at once.
			mu.Lock()
			defer mu.Unlock()
			failed = append(failed, err)
			return nil
		})
	}
	_ = g.Wait()
	for _, it := range items {
		if it.verified { // written here: the map is not for concurrent use
			o.Verified[it.key.ID()] = Pair{it.desired, it.live.Content}
		}
	}
	slices.SortFunc(failed, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if len(failed) > maxErrors {
		more := len(failed) - maxErrors
		failed = append(failed[:maxErrors], fmt.Errorf("and %d more objects", more))
	}
	return errors.Join(failed...)
}

// maxErrors bounds the refused objects that one message names.
const maxErrors = 10

func (k *Client) try(ctx context.Context, it *item, o Options) error {
	answer, err := k.apply(ctx, it.object, true)
	if err != nil {
		return k.refused(it, o, true, err)
	}
	it.dry = answer
	it.change.After = answer
	switch {
	case answer.GetResourceVersion() == "":
		it.change.Action = Created
	case it.live != nil && contentDigest(answer) == it.live.Content && !k.needsCleanup(it, answer, o):
		// What it has is what it should have; from now on that is known.
		it.change.Action, it.apply, it.verified = Unchanged, false, true
	default:
		it.change.Action = Configured
	}
	return nil
}

// refused turns the API server's refusal into what is to be done, nil when the object
// can be recreated or held.
func (k *Client) refused(it *item, o Options, dry bool, err error) error {
	if unknown, ok := asUnknown(err); ok {
		it.change, it.apply = Change{Key: it.key, Action: Held, After: it.object, Why: unknown.Error()}, false
		return nil
	}
	if apierrors.IsMethodNotSupported(err) {
		// The CRD of the kind is being deleted. It may come back, and is waited for.
		it.change, it.apply = Change{Key: it.key, Action: Held, After: it.object, Why: err.Error()}, false
		return nil
	}
	immutable := IsImmutable(err)
	if immutable && k.forced(it, o) {
		it.again = true
		it.change.Action, it.change.After, it.change.Why = Recreated, it.object, err.Error()
		return nil
	}
	return &ObjectError{ID: it.key.ID(), Dry: dry, Immutable: immutable, Err: err}
}

// immutable matches what the API server, webhooks and CEL rules say of a field that
// cannot change. Other refusals must not count: the object would be deleted, and its
// successor be refused as well.
var immutable = regexp.MustCompile(`(?i)immutable|(cannot|can not|may not|must not) (be )?chang|updates to .* for fields other than`)

// IsImmutable tells whether the API server refuses to change a field, so that the object
// would have to be recreated.
func IsImmutable(err error) bool { return immutable.MatchString(err.Error()) }

func (k *Client) forced(it *item, o Options) bool {
	owner := k.cluster.owner
	return o.Force || owner.Forced(it.object) || it.live != nil && owner.Forced(it.live.Object())
}

// write brings one object to the cluster.
func (k *Client) write(ctx context.Context, it *item, o Options) error {
	if it.again {
		return k.recreate(ctx, it, o)
	}
	if it.rules || it.dry != nil && k.needsCleanup(it, it.dry, o) {
		return k.delegate(ctx, it, o)
	}
	answer, err := k.apply(ctx, it.object, false)
	if err != nil {
		if staleVersion(err) {
			return k.delegate(ctx, it, o)
		}
		if err := k.refused(it, o, false, err); err != nil {
			return err
		}
		if it.again {
			return k.recreate(ctx, it, o)
		}
		return nil
	}
	if k.needsCleanup(it, answer, o) {
		return k.delegate(ctx, it, o)
	}
	k.confirm(it, answer, o)
	return nil
}

// confirm takes in the answer to a write.
func (k *Client) confirm(it *item, answer *unstructured.Unstructured, o Options) {
	it.change.After, it.change.Done = answer, true
	switch {
	case it.change.Action == Recreated:
	case it.live != nil && it.live.UID == answer.GetUID() && it.live.ResourceVersion == answer.GetResourceVersion():
		it.change.Action = Unchanged
	case it.live != nil && it.live.UID == answer.GetUID() && contentDigest(answer) == it.live.Content:
		it.change.Action = Unchanged // only the status, or the field managers, differ
	case it.live == nil && (it.dry == nil && onlyManager(answer) || it.dry != nil && it.dry.GetResourceVersion() == ""):
		it.change.Action = Created
	default:
		it.change.Action = Configured
	}
	r := k.cluster.View.Observe(answer)
	o.Verified[it.key.ID()] = Pair{it.desired, r.Content}
}

// onlyManager tells whether nobody else has written an object, which is how a new
// one looks.
func onlyManager(o *unstructured.Unstructured) bool { return len(o.GetManagedFields()) == 1 }

// staleVersion tells of an object that an older version of its CRD has written, which
// blocks an apply until its fields are moved to the new one.
func staleVersion(err error) bool {
	return strings.Contains(err.Error(), "field not declared in schema")
}

// recreate deletes an object and creates it again, at once if nothing holds it.
func (k *Client) recreate(ctx context.Context, it *item, o Options) error {
	if err := k.creatable(ctx, it); err != nil {
		return err
	}
	var uid types.UID
	if it.live != nil {
		uid = it.live.UID
	}
	if err := k.delete(ctx, it.key.Kind, it.key.Namespace, it.key.Name, uid); err != nil {
		return &ObjectError{ID: it.key.ID(), Err: fmt.Errorf("delete it to create it again: %w", err)}
	}
	rest, err := k.Get(ctx, it.key.Kind, it.key.Namespace, it.key.Name)
	if err != nil {
		return &ObjectError{ID: it.key.ID(), Err: err}
	}
	if rest != nil {
		delete(o.Verified, it.key.ID())
		if k.cluster.owner.UnitOf(rest.GetLabels()) != o.Unit {
			// No watch of this unit's objects would show it go.
			if err := k.cluster.View.Watch(ctx, o.Unit, it.key); err != nil {
				return &ObjectError{ID: it.key.ID(), Err: err}
			}
		}
		k.cluster.View.Observe(rest)
		return &RecreatingError{it.key.ID()}
	}
	answer, err := k.apply(ctx, it.object, false)
	if err != nil {
		return &ObjectError{ID: it.key.ID(), Err: err}
	}
	it.change.Action = Recreated
	k.confirm(it, answer, o)
	return nil
}

// creatable asks whether the API server would take the object as a new one, by a
// dry-run under another name: what is deleted first and then refused would be lost.
func (k *Client) creatable(ctx context.Context, it *item) error {
	if it.key.Namespace == "" {
		return nil // names of cluster kinds say what they are, and cannot be made up
	}
	o := it.object.DeepCopy()
	o.SetName(strings.TrimRight(it.key.Name[:min(len(it.key.Name), 40)], "-.") + "-terrace-check")
	if it.key.Kind.GroupKind() == (schema.GroupKind{Kind: "Service"}) {
		if err := k.dropInherited(ctx, it, o); err != nil {
			return err
		}
	}
	_, err := k.apply(ctx, o, true)
	// A quota may have room only when the predecessor is gone.
	forbidden := apierrors.IsForbidden(err) && !strings.Contains(err.Error(), "exceeded quota")
	if forbidden || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		return &ObjectError{ID: it.key.ID(), Dry: true, Err: err}
	}
	return nil
}

// dropInherited takes out of a Service what its predecessor has as long as it is there:
// node ports and addresses, each of which the API server gives to one Service at a time.
func (k *Client) dropInherited(ctx context.Context, it *item, o *unstructured.Unstructured) error {
	var live *unstructured.Unstructured
	if it.live != nil {
		live = it.live.Object()
	} else {
		var err error
		if live, err = k.Get(ctx, it.key.Kind, it.key.Namespace, it.key.Name); err != nil {
			return &ObjectError{ID: it.key.ID(), Dry: true, Err: err}
		}
	}
	if live == nil {
		return nil
	}
	held := map[any]bool{}
	note := func(spec map[string]any) {
		for _, field := range []string{"clusterIP", "healthCheckNodePort"} {
			held[spec[field]] = true
		}
	}
	spec, _, _ := unstructured.NestedMap(live.Object, "spec")
	note(spec)
	eachPort(spec, func(port map[string]any) { held[port["nodePort"]] = true })
	delete(held, nil)
	delete(held, corev1.ClusterIPNone) // many can have none

	wanted, ok := o.Object["spec"].(map[string]any)
	if !ok {
		return nil
	}
	if held[wanted["clusterIP"]] {
		delete(wanted, "clusterIP")
		delete(wanted, "clusterIPs")
	}
	if held[wanted["healthCheckNodePort"]] {
		delete(wanted, "healthCheckNodePort")
	}
	eachPort(wanted, func(port map[string]any) {
		if held[port["nodePort"]] {
			delete(port, "nodePort")
		}
	})
	return nil
}

func eachPort(spec map[string]any, do func(map[string]any)) {
	ports, _ := spec["ports"].([]any)
	for _, p := range ports {
		if port, ok := p.(map[string]any); ok {
			do(port)
		}
	}
}

// Traces that earlier tools leave and that would keep fields alive which Git has
// dropped.
var (
	cleanupAnnotations = []string{corev1.LastAppliedConfigAnnotation, "kustomize.toolkit.fluxcd.io/checksum", "fluxcd.io/sync-checksum"}
	cleanupLabels      = []string{"fluxcd.io/sync-gc-mark"}
)

func (k *Client) cleanup(o Options) ssa.ApplyCleanupOptions {
	update := func(name string) ssa.FieldManager {
		return ssa.FieldManager{Name: name, OperationType: metav1.ManagedFieldsOperationUpdate}
	}
	managers := []ssa.FieldManager{
		{Name: "kubectl", OperationType: metav1.ManagedFieldsOperationApply},
		update("kubectl"), update("before-first-apply"), update(k.cluster.owner.Field),
	}
	for _, name := range o.Overridden {
		managers = append(managers, update(name), ssa.FieldManager{Name: name, OperationType: metav1.ManagedFieldsOperationApply})
	}
	return ssa.ApplyCleanupOptions{
		Annotations: cleanupAnnotations, Labels: cleanupLabels, FieldManagers: managers,
		Exclusions: map[string]string{k.cluster.owner.Group + "/" + keySSA: "Merge"},
	}
}

// needsCleanup tells whether an answer shows traces of earlier tools.
func (k *Client) needsCleanup(it *item, answer *unstructured.Unstructured, o Options) bool {
	owner := k.cluster.owner
	if owner.option(it.object, keySSA) == "merge" || owner.option(answer, keySSA) == "merge" {
		return false
	}
	for _, key := range cleanupAnnotations {
		if _, ok := answer.GetAnnotations()[key]; ok {
			return true
		}
	}
	for _, key := range cleanupLabels {
		if _, ok := answer.GetLabels()[key]; ok {
			return true
		}
	}
	managers := k.cleanup(o).FieldManagers
	return slices.ContainsFunc(answer.GetManagedFields(), func(f metav1.ManagedFieldsEntry) bool {
		return f.Subresource == "" && slices.ContainsFunc(managers, func(m ssa.FieldManager) bool {
			// The library takes every manager whose name begins so, such as kubectl-client-side-apply.
			return m.OperationType == f.Operation && strings.HasPrefix(f.Manager, m.Name) && f.Manager != owner.Field ||
				f.Manager == owner.Field && m.Name == owner.Field && m.OperationType == f.Operation
		})
	})
}

// delegate hands an object to Flux's applier, which costs more requests and knows
// how to leave fields to others and how to take over from earlier tools.
func (k *Client) delegate(ctx context.Context, it *item, o Options) error {
	m, err := k.manager()
	if err != nil {
		return err
	}
	opts := ssa.DefaultApplyOptions()
	opts.Cleanup, opts.DriftIgnoreRules = k.cleanup(o), o.Ignore
	opts.MigrateAPIVersion = true
	entry, err := m.Apply(ctx, it.object.DeepCopy(), opts)
	if err != nil {
		return &ObjectError{ID: it.key.ID(), Immutable: IsImmutable(err), Err: err}
	}
	answer, err := k.Get(ctx, it.key.Kind, it.key.Namespace, it.key.Name)
	if err != nil {
		return &ObjectError{ID: it.key.ID(), Err: err}
	}
	if answer == nil {
		return &ObjectError{ID: it.key.ID(), Err: apierrors.NewNotFound(schema.GroupResource{Group: it.key.Kind.Group, Resource: it.key.Kind.Kind}, it.key.Name)}
	}
	it.change.After, it.change.Done = answer, true
	it.change.Action = Action(entry.Action)
	r := k.cluster.View.Observe(answer)
	o.Verified[it.key.ID()] = Pair{it.desired, r.Content}
	return nil
}

// Ready tells which objects of a stage are not usable yet, "" when all are: CRDs are
// established, namespaces active. Only such stages are waited for, and in them only
// the objects that Apply has not held or skipped.
func (k *Client) Ready(ctx context.Context, stage []*unstructured.Unstructured, changes []Change) (string, error) {
	out := map[Key]bool{}
	for _, ch := range changes {
		out[ch.Key] = ch.Action == Held || ch.Action == Skipped
	}
	for _, o := range stage {
		if !utils.IsClusterDefinition(o) && !utils.IsClassDefinition(o) {
			return "", nil // a stage whose objects need not be usable for the next
		}
		if out[KeyOf(o)] {
			continue
		}
		r, err := k.cluster.View.Lookup(ctx, k, KeyOf(o))
		if err != nil {
			return "", err
		}
		switch {
		case r == nil:
			return Subject(IDOf(o)) + " does not exist yet", nil
		case r.Health.Status == status.InProgressStatus || r.Health.Status == status.TerminatingStatus:
			return fmt.Sprintf("%s is %s: %s", Subject(IDOf(o)), r.Health.Status, r.Health.Message), nil
		case r.Health.Status == status.FailedStatus:
			return "", &ObjectError{ID: IDOf(o), Err: errors.New(r.Health.Message)}
		}
	}
	return "", nil
}

// Planned returns the change as a plan has it; false if it changes nothing.
func (c Change) Planned() (plan.ObjectChange, bool) {
	oc := plan.ObjectChange{Reason: c.Why}
	if c.Before != nil {
		oc.Before = c.Before.Object
	}
	if c.After != nil {
		oc.After = c.After.Object
	}
	switch c.Action {
	case Created:
		oc.Action, oc.Reason = plan.ActionCreate, ""
	case Configured:
		oc.Action, oc.Reason = plan.ActionUpdate, ""
	case Recreated:
		oc.Action = plan.ActionReplace
	case Held:
		oc.Action, oc.Held, oc.Reason = plan.ActionCreate, c.Why, ""
	default:
		return oc, false
	}
	return oc, true
}
