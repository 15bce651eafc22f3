// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package gitrepository reconciles GitRepository objects of Flux's API: it
// watches a reference of a Git repository and publishes the content of its
// commits as artifacts.
//
// The content is fetched by internal/source/git and kept by internal/artifact.
// An object whose reference has not moved costs one request to its Git server
// and nothing at the API server. Changes of local repositories, of the Secrets
// that an object names and of the repositories that it includes wake it; the
// interval is the safety net.
package gitrepository

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/cache"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/terrace-dev/terrace/internal/artifact"
	"github.com/terrace-dev/terrace/internal/attribution"
	"github.com/terrace-dev/terrace/internal/source/git"
	"github.com/terrace-dev/terrace/internal/status"
)

// FieldManager owns the fields that the controller writes, by Flux's name for it.
const FieldManager = "source-controller"

const (
	// defaultTimeout is the API's default for spec.timeout.
	defaultTimeout = time.Minute
	// includeRecheck is how long to wait for an included repository at most; its
	// artifact wakes the object sooner.
	includeRecheck = 30 * time.Second
	minRetry       = 750 * time.Millisecond
	maxRetry       = 15 * time.Minute
	// conflictRetry is the time in which the watch cache catches up.
	conflictRetry = 100 * time.Millisecond
	cachedTokens  = 100
)

// Options are what a Controller is made of. Fields without a stated default are
// required.
type Options struct {
	// Client reads GitRepositories from the watch cache and writes to the API server.
	Client client.Client
	// APIReader reads Secrets past the cache.
	APIReader client.Reader
	// Artifacts keeps what is fetched.
	Artifacts *artifact.Store
	// Recorder tells of new artifacts and of failures.
	Recorder record.EventRecorder
	// Suspensions records who suspends and resumes; nil records nothing.
	Suspensions *attribution.Suspensions
	// Dir is where repositories are fetched to before they are archived. It is
	// made and belongs to the controller: what is in it from before is removed.
	// Empty means the system's temporary directory.
	Dir string
	// AllowLocal accepts repositories of this machine: file:// URLs and paths.
	AllowLocal bool
	// DefaultServiceAccount is who asks a cloud for credentials when an object
	// with provider azure or aws names none; empty means the process itself.
	DefaultServiceAccount string
	// Concurrent is the number of objects reconciled at a time; zero means 4.
	Concurrent int
	// Jitter spreads an interval; nil means by up to 5 percent either way.
	Jitter func(time.Duration) time.Duration
}

// Controller reconciles GitRepository objects.
type Controller struct {
	o       Options
	writer  *status.Writer[*sourcev1.GitRepository]
	watcher *git.Watcher[types.NamespacedName]
	changed chan event.GenericEvent // local repositories
	refs    *references
	tokens  *cache.TokenCache
}

// New returns a controller; Register makes it run.
func New(o Options) (*Controller, error) {
	if o.Client == nil || o.APIReader == nil || o.Artifacts == nil || o.Recorder == nil {
		return nil, errors.New("make GitRepository controller: Client, APIReader, Artifacts and Recorder are required")
	}
	if o.Concurrent <= 0 {
		o.Concurrent = 4
	}
	if o.Jitter == nil {
		o.Jitter = func(d time.Duration) time.Duration {
			return time.Duration(float64(d) * (0.95 + 0.1*rand.Float64()))
		}
	}
	if err := clearDir(o.Dir); err != nil {
		return nil, fmt.Errorf("make GitRepository controller: %w", err)
	}
	tokens, err := cache.NewTokenCache(cachedTokens)
	if err != nil {
		return nil, fmt.Errorf("make GitRepository controller: %w", err)
	}
	c := &Controller{
		o:       o,
		writer:  status.NewWriter[*sourcev1.GitRepository](o.Client, FieldManager),
		changed: make(chan event.GenericEvent),
		refs:    newReferences(),
		tokens:  tokens,
	}
	c.watcher, err = git.NewWatcher(c.localChange)
	if err != nil {
		return nil, fmt.Errorf("make GitRepository controller: %w", err)
	}
	return c, nil
}

// clearDir makes dir, or removes what a process that was killed left in it.
func clearDir(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range left {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// cycle is what the phases of one reconcile share.
type cycle struct {
	obj  *sourcev1.GitRepository
	base *sourcev1.GitRepository // as it was read
	dir  string                  // the repository's files, once fetched

	includes []*meta.Artifact // of spec.include, in its order
	checkout *git.Checkout
	events   []pendingEvent
}

// Reconcile publishes the commit that the object's reference points to. An error
// is tried again with a growing delay; what a person must mend is Stalled.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	read := &sourcev1.GitRepository{}
	if err := c.o.Client.Get(ctx, req.NamespacedName, read); err != nil {
		if apierrors.IsNotFound(err) {
			c.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	cy := &cycle{base: c.writer.Newest(read)}
	cy.obj = cy.base.DeepCopy()
	if !cy.obj.DeletionTimestamp.IsZero() {
		return c.finalize(ctx, cy)
	}
	// Before anything is stored: else a deletion could leave artifacts behind.
	if controllerutil.AddFinalizer(cy.obj, sourcev1.SourceFinalizer) {
		if _, err := c.writer.PatchMeta(ctx, cy.base, cy.obj); err != nil {
			return again(err)
		}
		cy.base = cy.obj.DeepCopy()
	}
	if err := c.settleSuspension(ctx, cy); err != nil {
		return ctrl.Result{}, err
	}
	if cy.obj.Spec.Suspend {
		c.forget(req.NamespacedName)
		return c.rest(ctx, cy)
	}
	c.listen(ctx, cy.obj)
	res, err := c.reconcile(ctx, cy)
	return c.report(ctx, cy, res, err)
}

// settleSuspension records that the object was suspended or resumed, if it was.
func (c *Controller) settleSuspension(ctx context.Context, cy *cycle) error {
	return c.o.Suspensions.Settle(ctx, attribution.Suspendable{
		Object: cy.obj, Kind: sourcev1.GroupVersion.WithKind(sourcev1.GitRepositoryKind), Suspended: cy.obj.Spec.Suspend,
		Conditions: &cy.obj.Status.Conditions, ObservedGeneration: cy.obj.Status.ObservedGeneration,
	})
}

// reconcile runs the phases with a directory to fetch into.
func (c *Controller) reconcile(ctx context.Context, cy *cycle) (status.Result, error) {
	scratch, err := os.MkdirTemp(c.o.Dir, fmt.Sprintf("%s-%s-", cy.obj.Namespace, cy.obj.Name))
	if err != nil {
		return status.Next, cy.fail(sourcev1.StorageOperationFailedCondition, sourcev1.DirCreationFailedReason,
			fmt.Errorf("make a directory to fetch into: %w", err))
	}
	defer os.RemoveAll(scratch)
	cy.dir = filepath.Join(scratch, "content")
	if err := os.Mkdir(cy.dir, 0o700); err != nil {
		return status.Next, cy.fail(sourcev1.StorageOperationFailedCondition, sourcev1.DirCreationFailedReason,
			fmt.Errorf("make a directory to fetch into: %w", err))
	}
	conditions.Delete(cy.obj, sourcev1.StorageOperationFailedCondition)
	return status.Run(ctx, cy, c.keep, c.include, c.fetch, c.verify, c.compose, c.store)
}

// finalize removes the object's artifacts, and then the finalizer.
func (c *Controller) finalize(ctx context.Context, cy *cycle) (ctrl.Result, error) {
	key := client.ObjectKeyFromObject(cy.obj)
	c.forget(key)
	had, err := c.o.Artifacts.Remove(ctx, owner(cy.obj))
	if err != nil {
		return ctrl.Result{}, err
	}
	if had {
		ctrl.LoggerFrom(ctx).Info("removed artifacts of deleted object")
	}
	if controllerutil.RemoveFinalizer(cy.obj, sourcev1.SourceFinalizer) {
		if _, err := c.writer.PatchMeta(ctx, cy.base, cy.obj); err != nil {
			return again(err)
		}
	}
	c.writer.Forget(cy.obj.UID)
	c.tokens.DeleteEventsForObject(sourcev1.GitRepositoryKind, key.Name, key.Namespace, cache.OperationReconcile)
	return ctrl.Result{}, nil
}

// again turns a conflict into a silent further try: the object was changed
// meanwhile, and that it was read too early is nobody's concern.
func again(err error) (ctrl.Result, error) {
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: conflictRetry}, nil
	}
	return ctrl.Result{}, err
}

func owner(obj *sourcev1.GitRepository) artifact.Owner {
	return artifact.Owner{Kind: sourcev1.GitRepositoryKind, Namespace: obj.Namespace, Name: obj.Name}
}

// secret reads a Secret of the object's namespace.
func (c *Controller) secret(ctx context.Context, obj *sourcev1.GitRepository, name string) (*corev1.Secret, error) {
	s := &corev1.Secret{}
	if err := c.o.APIReader.Get(ctx, types.NamespacedName{Namespace: obj.Namespace, Name: name}, s); err != nil {
		return nil, fmt.Errorf("read secret '%s/%s': %w", obj.Namespace, name, err)
	}
	return s, nil
}

// rateLimiter delays the tries after an error.
func rateLimiter() workqueue.TypedRateLimiter[ctrl.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](minRetry, maxRetry)
}
