// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package gitrepository

import (
	"context"
	"sync"

	"github.com/fluxcd/pkg/runtime/predicates"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/terrace-dev/terrace/internal/source/git"
)

// Register makes mgr run the controller.
func (c *Controller) Register(mgr ctrl.Manager) error {
	if err := mgr.Add(manager.RunnableFunc(c.watcher.Run)); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("gitrepository").
		For(&sourcev1.GitRepository{}, builder.WithPredicates(
			predicate.Or(predicate.GenerationChangedPredicate{}, predicates.ReconcileRequestedPredicate{}))).
		Watches(&sourcev1.GitRepository{}, handler.EnqueueRequestsFromMapFunc(c.includers), builder.WithPredicates(artifactChanged())).
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(c.secretUsers), builder.WithPredicates(secretChanged())).
		WatchesRawSource(source.Channel(c.changed, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.o.Concurrent, RateLimiter: rateLimiter()}).
		Complete(c)
}

// artifactChanged lets updates pass that give a repository another artifact.
func artifactChanged() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, // it has none yet, or it had it before
		DeleteFunc: func(event.DeleteEvent) bool { return true },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*sourcev1.GitRepository)
			after, ok2 := e.ObjectNew.(*sourcev1.GitRepository)
			if !ok || !ok2 || after.Status.Artifact == nil {
				return false
			}
			return !before.Status.Artifact.HasRevision(after.Status.Artifact.Revision) ||
				!before.Status.Artifact.HasDigest(after.Status.Artifact.Digest)
		},
	}
}

// secretChanged leaves out what the first listing shows: all objects are
// reconciled then anyway.
func secretChanged() predicate.Predicate {
	return predicate.And(predicate.ResourceVersionChangedPredicate{}, predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	})
}

func (c *Controller) includers(_ context.Context, o client.Object) []reconcile.Request {
	return c.refs.users(reference{kind: includes, NamespacedName: client.ObjectKeyFromObject(o)})
}

func (c *Controller) secretUsers(_ context.Context, o client.Object) []reconcile.Request {
	return c.refs.users(reference{kind: secrets, NamespacedName: client.ObjectKeyFromObject(o)})
}

// localChange wakes the object whose repository changed. It waits until the
// controller takes it, in a goroutine of the watcher's.
func (c *Controller) localChange(key types.NamespacedName) {
	obj := &sourcev1.GitRepository{}
	obj.Namespace, obj.Name = key.Namespace, key.Name
	c.changed <- event.GenericEvent{Object: obj}
}

// listen makes what the object refers to wake it.
func (c *Controller) listen(ctx context.Context, obj *sourcev1.GitRepository) {
	key := client.ObjectKeyFromObject(obj)
	c.refs.set(key, referencesOf(obj))
	location := obj.Spec.URL
	if _, local := git.Local(location); local && !c.o.AllowLocal {
		location = ""
	}
	if err := c.watcher.Watch(key, location); err != nil {
		// The interval still finds changes, and the fetch says what is wrong.
		ctrl.LoggerFrom(ctx).V(1).Info("cannot watch local repository", "error", err.Error())
	}
}

func (c *Controller) forget(key types.NamespacedName) {
	c.watcher.Forget(key)
	c.refs.set(key, nil)
}

type referenceKind int

const (
	secrets referenceKind = iota
	includes
)

// reference is what a GitRepository reads besides itself.
type reference struct {
	kind referenceKind
	types.NamespacedName
}

func referencesOf(obj *sourcev1.GitRepository) []reference {
	in := func(kind referenceKind, name string) reference {
		return reference{kind, types.NamespacedName{Namespace: obj.Namespace, Name: name}}
	}
	var refs []reference
	if s := obj.Spec.SecretRef; s != nil {
		refs = append(refs, in(secrets, s.Name))
	}
	if s := obj.Spec.ProxySecretRef; s != nil {
		refs = append(refs, in(secrets, s.Name))
	}
	if v := obj.Spec.Verification; v != nil {
		refs = append(refs, in(secrets, v.SecretRef.Name))
	}
	for _, i := range obj.Spec.Include {
		refs = append(refs, in(includes, i.GitRepositoryRef.Name))
	}
	return refs
}

// references finds the users of a reference. It is filled by reconciles, so it
// knows an object from its first one on.
type references struct {
	mu   sync.Mutex
	of   map[types.NamespacedName][]reference
	from map[reference]map[types.NamespacedName]bool
}

func newReferences() *references {
	return &references{of: map[types.NamespacedName][]reference{}, from: map[reference]map[types.NamespacedName]bool{}}
}

// set replaces what user refers to.
func (r *references) set(user types.NamespacedName, refs []reference) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ref := range r.of[user] {
		delete(r.from[ref], user)
		if len(r.from[ref]) == 0 {
			delete(r.from, ref)
		}
	}
	delete(r.of, user)
	if len(refs) == 0 {
		return
	}
	r.of[user] = refs
	for _, ref := range refs {
		if r.from[ref] == nil {
			r.from[ref] = map[types.NamespacedName]bool{}
		}
		r.from[ref][user] = true
	}
}

func (r *references) users(ref reference) []reconcile.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []reconcile.Request
	for user := range r.from[ref] {
		out = append(out, reconcile.Request{NamespacedName: user})
	}
	return out
}
