// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package policy reconciles Policy objects: it compiles their rules, from the object or
// from what a source fetched, tells in the status whether they can be used, and hands
// them to whoever is about to apply a plan.
//
// It evaluates nothing. The rules of evaluation are internal/policy's, content comes
// from internal/reference and internal/artifact, and the plans are the other controllers'
// affair, which see this package as an internal/policy Set.
package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/dependency"
	"github.com/terrace-dev/terrace/internal/policy"
	"github.com/terrace-dev/terrace/internal/reference"
	"github.com/terrace-dev/terrace/internal/status"
)

// statusManager owns the status of Policies.
const statusManager = "terrace-policies"

// maxMessage bounds the message of a condition, in bytes; the API server takes 32,768.
const maxMessage = 8 << 10

// Trees makes the content of an artifact available as a directory; see artifact.Store.
type Trees interface {
	Tree(ctx context.Context, a *meta.Artifact) (dir string, release func(), err error)
}

// Options are what a Controller is made of. Every field without a stated default is required.
type Options struct {
	// Client reads from the watch cache and writes to the API server.
	Client client.Client
	// Artifacts holds the content of sources.
	Artifacts Trees
	// Namespace is Terrace's own. Its policies are for the units of all namespaces. If it is
	// empty, no policy is.
	Namespace string
	// Concurrent is the number of objects reconciled at a time, 2 if zero.
	Concurrent int
}

// Controller reconciles Policy objects. It is a policy.Set, also before it is registered.
type Controller struct {
	opts   Options
	writer *status.Writer[*v1alpha1.Policy]
	users  dependency.Units

	mu       sync.Mutex
	compiled map[types.NamespacedName]*entry
}

var _ policy.Set = (*Controller)(nil)

// entry is what is remembered of an object: the outcome of compiling one content of it.
type entry struct {
	mu     sync.Mutex // held while it is compiled, so that it is once
	key    key
	policy *policy.Policy
}

// key is a content of a policy.
type key struct {
	uid        types.UID
	generation int64
	digest     string // of the source's artifact
}

func (k key) String() string { return fmt.Sprintf("%s/%d/%s", k.uid, k.generation, k.digest) }

// New returns a Controller.
func New(o Options) *Controller {
	if o.Concurrent <= 0 {
		o.Concurrent = 2
	}
	return &Controller{
		opts:     o,
		writer:   status.NewWriter[*v1alpha1.Policy](o.Client, statusManager),
		users:    dependency.NewUnits(o.Client, &v1alpha1.PolicyList{}),
		compiled: map[types.NamespacedName]*entry{},
	}
}

// Reconcile compiles one policy and writes whether it can be used.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var cached v1alpha1.Policy
	if err := c.opts.Client.Get(ctx, req.NamespacedName, &cached); err != nil {
		if apierrors.IsNotFound(err) {
			c.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	obj := c.writer.Newest(&cached)
	base := obj.DeepCopy()
	p, art, err := c.load(ctx, obj)
	condition := metav1.Condition{Type: meta.ReadyCondition, ObservedGeneration: obj.Generation}
	var again error
	switch {
	case err != nil:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, v1alpha1.ReasonSourceNotReady, err.Error()
		if !errors.Is(err, errAwaited) {
			again = err // nothing wakes the policy when this is over
		}
	case p.Err() != nil:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, v1alpha1.ReasonInvalid, p.Err().Error()
	default:
		condition.Status, condition.Reason = metav1.ConditionTrue, v1alpha1.ReasonCompiled
		condition.Message = strings.Join(append([]string{"The policy is in use"}, p.Notes()...), "; ")
	}
	if err == nil {
		obj.Status.Revision = ""
		if art != nil {
			obj.Status.Revision = art.Revision
		}
	}
	if len(condition.Message) > maxMessage {
		condition.Message = strings.ToValidUTF8(condition.Message[:maxMessage-len("…")], "") + "…"
	}
	apimeta.SetStatusCondition(&obj.Status.Conditions, condition)
	status.KeepTimes(base.Status.Conditions, obj.Status.Conditions)
	obj.Status.ObservedGeneration = obj.Generation
	if _, err := c.writer.Patch(ctx, base, obj); err != nil {
		return status.RetryConflict(err)
	}
	return ctrl.Result{}, again
}

// For returns the policies of the unit's namespace and of Terrace's own that are for the
// unit. One that has not been compiled is compiled now; one that cannot be is broken.
func (c *Controller) For(ctx context.Context, unit policy.Unit) ([]*policy.Policy, error) {
	namespaces := []string{unit.Namespace}
	if c.opts.Namespace != "" && c.opts.Namespace != unit.Namespace {
		namespaces = append(namespaces, c.opts.Namespace)
	}
	var out []*policy.Policy
	for _, ns := range namespaces {
		var list v1alpha1.PolicyList
		if err := c.opts.Client.List(ctx, &list, client.InNamespace(ns)); err != nil {
			return nil, fmt.Errorf("list the policies of namespace %s: %w", ns, err)
		}
		for i := range list.Items {
			obj := &list.Items[i]
			chosen, err := selects(obj, unit)
			if !chosen {
				continue
			}
			var p *policy.Policy
			if err == nil {
				p, _, err = c.load(ctx, obj)
			} else {
				p, err = broken(obj, key{uid: obj.UID, generation: obj.Generation}.String(), err), nil
			}
			if ctx.Err() != nil {
				return nil, fmt.Errorf("compile policy %s/%s: %w", ns, obj.Name, context.Cause(ctx))
			}
			if err != nil {
				p = broken(obj, "", err)
			}
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *policy.Policy) int { return cmp.Compare(a.Name(), b.Name()) })
	return out, nil
}

// selects tells whether a policy is for a unit. One whose selector cannot be understood
// is for every unit of its kinds, and broken.
func selects(obj *v1alpha1.Policy, unit policy.Unit) (bool, error) {
	if len(obj.Spec.Kinds) > 0 && !slices.Contains(obj.Spec.Kinds, unit.Kind) {
		return false, nil
	}
	if obj.Spec.Selector == nil {
		return true, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(obj.Spec.Selector)
	if err != nil {
		return true, fmt.Errorf("spec.selector: %w", err)
	}
	return selector.Matches(labels.Set(unit.Labels)), nil
}

func broken(obj *v1alpha1.Policy, version string, err error) *policy.Policy {
	return policy.Broken(nameOf(obj), version, obj.Spec.Enforcement, err)
}

func nameOf(obj *v1alpha1.Policy) string { return obj.Namespace + "/" + obj.Name }

// errAwaited is part of the errors about which a watch will tell.
var errAwaited = errors.New("waiting for the source")

// load returns the compiled policy, which is a broken one if its rules have a mistake. An
// error means that the rules are not there. It is remembered for as long as neither the
// object nor its source changes.
func (c *Controller) load(ctx context.Context, obj *v1alpha1.Policy) (*policy.Policy, *meta.Artifact, error) {
	k := key{uid: obj.UID, generation: obj.Generation}
	art, err := c.artifact(ctx, obj)
	if err != nil {
		return nil, nil, err
	}
	if art != nil {
		k.digest = art.Digest
	}
	e := c.entry(client.ObjectKeyFromObject(obj))
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.policy != nil && e.key == k {
		return e.policy, art, nil
	}
	src := policy.Source{Name: nameOf(obj), Version: k.String(), Enforcement: obj.Spec.Enforcement, Packages: obj.Spec.Packages, CEL: obj.Spec.CEL}
	if _, err := metav1.LabelSelectorAsSelector(obj.Spec.Selector); err != nil {
		e.key, e.policy = k, broken(obj, k.String(), fmt.Errorf("spec.selector: %w", err))
		return e.policy, art, nil
	}
	switch {
	case art != nil:
		files, err := c.read(ctx, obj, art)
		if errors.Is(err, errContent) {
			e.key, e.policy = k, broken(obj, k.String(), err)
			return e.policy, art, nil
		} else if err != nil {
			return nil, nil, err
		}
		src.Modules, src.Data = files.Modules, files.Data
	case obj.Spec.Rego != "":
		src.Modules = map[string]string{"spec.rego": obj.Spec.Rego}
	}
	p, err := policy.Compile(ctx, src)
	if ctx.Err() != nil {
		return nil, nil, fmt.Errorf("compile: %w", context.Cause(ctx))
	}
	if errors.Is(err, policy.ErrBusy) {
		return nil, nil, err
	}
	if err != nil {
		p = broken(obj, k.String(), err)
	}
	e.key, e.policy = k, p
	return p, art, nil
}

// artifact returns what the policy's source fetched, nil if it has no source.
func (c *Controller) artifact(ctx context.Context, obj *v1alpha1.Policy) (*meta.Artifact, error) {
	src := obj.Spec.Source
	if src == nil {
		return nil, nil
	}
	art, err := reference.Artifact(ctx, c.opts.Client, src.Kind, types.NamespacedName{Namespace: obj.Namespace, Name: src.Name},
		sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind, sourcev1.BucketKind, sourcev1.ExternalArtifactKind)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%w: %s %s/%s does not exist", errAwaited, src.Kind, obj.Namespace, src.Name)
	case errors.Is(err, reference.ErrUnknownSource):
		return nil, fmt.Errorf("%w: spec.source: %w", errAwaited, err)
	case err != nil:
		return nil, fmt.Errorf("look up %s %s/%s: %w", src.Kind, obj.Namespace, src.Name, err)
	case art == nil:
		return nil, fmt.Errorf("%w: %s %s/%s has no artifact yet", errAwaited, src.Kind, obj.Namespace, src.Name)
	}
	return art, nil
}

// errContent is part of the errors about what an artifact holds: only another one mends them.
var errContent = errors.New("read the source")

// read returns the files of the policy's path.
func (c *Controller) read(ctx context.Context, obj *v1alpha1.Policy, art *meta.Artifact) (policy.Files, error) {
	dir, release, err := c.opts.Artifacts.Tree(ctx, art)
	if err != nil {
		return policy.Files{}, fmt.Errorf("fetch artifact %s: %w", art.Revision, err)
	}
	defer release()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return policy.Files{}, fmt.Errorf("open artifact %s: %w", art.Revision, err)
	}
	defer root.Close()
	// Below the root nothing leads out, neither dots nor links.
	below, err := root.OpenRoot(filepath.FromSlash(path.Clean(strings.TrimPrefix(obj.Spec.Source.Path, "/"))))
	if err != nil {
		return policy.Files{}, fmt.Errorf("%w: spec.source.path %q: %w", errContent, obj.Spec.Source.Path, cause(err))
	}
	defer below.Close()
	files, err := policy.ReadFiles(below.FS())
	if err != nil {
		return policy.Files{}, fmt.Errorf("%w: %w", errContent, err)
	}
	return files, nil
}

// cause leaves the place on this machine out of an error about a file.
func cause(err error) error {
	var at *os.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

func (c *Controller) entry(name types.NamespacedName) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.compiled[name]
	if !ok {
		e = &entry{}
		c.compiled[name] = e
	}
	return e
}

// forget drops what is remembered of an object that is gone.
func (c *Controller) forget(name types.NamespacedName) {
	c.mu.Lock()
	e, ok := c.compiled[name]
	delete(c.compiled, name)
	c.mu.Unlock()
	if ok {
		e.mu.Lock()
		defer e.mu.Unlock()
		c.writer.Forget(e.key.uid)
	}
}
