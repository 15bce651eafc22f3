// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package kustomization reconciles Kustomization objects: it builds what a path of a
// source says, applies it in stages, prunes what it says no more, waits until the
// objects are healthy, and puts back what others change.
//
// It holds no engine: rendering is internal/render's, the cluster internal/kube's,
// content internal/artifact's. A reconcile never waits: what is not there yet wakes
// the unit by a watch. What is remembered between reconciles only saves requests,
// but for the journal, which is written before the first object of a change is.
package kustomization

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/terrace-dev/terrace/internal/artifact"
	"github.com/terrace-dev/terrace/internal/attribution"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/blob"
	"github.com/terrace-dev/terrace/internal/dependency"
	"github.com/terrace-dev/terrace/internal/kube"
	"github.com/terrace-dev/terrace/internal/policy"
	"github.com/terrace-dev/terrace/internal/reference"
	"github.com/terrace-dev/terrace/internal/status"
)

// Names that Flux's tools and manifests know.
const (
	// statusManager owns the status of Kustomizations.
	statusManager = "gotk-kustomize-controller"
	// EventSource is the reporter of the events.
	EventSource = "kustomize-controller"
)

// owner labels and applies.
var owner = kube.Kustomizations

// Options are what a Controller is made of. Every field without a stated default is required.
type Options struct {
	// Client reads from the watch cache and writes to the API server.
	Client client.Client
	// Metadata reads the metadata of Secrets and ConfigMaps from the watch cache.
	Metadata client.Reader
	// Reader reads past the cache.
	Reader client.Reader
	// Recorder tells what happened, as events.
	Recorder record.EventRecorder
	// Artifacts holds the content of sources.
	Artifacts *artifact.Store
	// Blobs has the key of digests that are shown.
	Blobs *blob.Store
	// Policies are what plans have to keep.
	Policies policy.Set
	// Ledger records who let what happen, and Suspensions who suspends and resumes.
	Ledger      *audit.Ledger
	Suspensions *attribution.Suspensions
	// API is how Terrace reaches the API server that it applies to by default.
	API *rest.Config
	// Clock defaults to the real one.
	Clock clock.WithTicker
	// Dir is where the journal lies; made with mode 0700.
	Dir string
	// Namespace is Terrace's own, which is never pruned; may be empty.
	Namespace string
	// Concurrent is the number of objects reconciled at a time, 4 if zero.
	Concurrent int

	// NoCrossNamespaceRefs refuses references into other namespaces.
	NoCrossNamespaceRefs bool
	// DefaultServiceAccount is impersonated for units that name none; may be empty.
	DefaultServiceAccount string
	// AllowRemoteBases lets a kustomization file name a base on another host.
	AllowRemoteBases bool
	// SOPSAgeSecret is "namespace/name" of a Secret with keys for every unit; may be empty.
	SOPSAgeSecret string
	// OverrideManagers are field managers that may set no field of a unit's objects; what
	// they have set is taken back.
	OverrideManagers []string
	// CustomStage are kinds that are applied in a stage of their own before the rest.
	CustomStage map[schema.GroupKind]struct{}
	// PruneLimit is the share of a unit's objects, in percent, that a revision may prune
	// without being asked about, and PruneLimitMin the number that it may prune in any case.
	PruneLimit, PruneLimitMin int
}

// Controller reconciles Kustomization objects.
type Controller struct {
	opts    Options
	writer  *status.Writer[*kustomizev1.Kustomization]
	refs    *reference.Reader
	key     []byte
	targets *targets
	memory  *memory
	claims  *claims
	journal journal
	units   dependency.Units
	objects *dependency.Objects // set by Register
	wakes   wakes
	judged  sync.Map // what policies say of plans: types.NamespacedName → []plan.PolicyResult
}

// New returns a Controller.
func New(o Options) (*Controller, error) {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Concurrent <= 0 {
		o.Concurrent = 4
	}
	key, err := o.Blobs.Key("digests")
	if err != nil {
		return nil, err
	}
	c := &Controller{
		opts:    o,
		writer:  status.NewWriter[*kustomizev1.Kustomization](o.Client, statusManager),
		refs:    reference.NewReader(o.Metadata, o.Reader, key),
		key:     key,
		memory:  newMemory(),
		claims:  newClaims(),
		units:   dependency.NewUnits(o.Client, &kustomizev1.KustomizationList{}),
		journal: journal{filepath.Clean(o.Dir)},
		wakes:   wakes{out: make(chan event.GenericEvent, 1), pending: map[types.NamespacedName]bool{}},
	}
	allowAccounts()
	if c.targets, err = newTargets(c); err != nil {
		return nil, err
	}
	return c, nil
}

// cycle is what the phases of one reconcile share.
type cycle struct {
	ks   *kustomizev1.Kustomization
	base *kustomizev1.Kustomization // as it was read
	name types.NamespacedName
	mem  *unit // locked while the reconcile runs

	artifact *meta.Artifact
	origin   string // the revision that an OCI artifact was made from
	dir      string // the artifact's tree, read-only
	release  func()

	references map[string]string // digests of what the unit refers to, as it was looked at
	inputs     string
	build      *build // nil when nothing had to be built
	buildErr   error

	target  string // names the cluster: "" for Terrace's own, else by the content of the kubeConfig
	cluster *kube.Cluster
	client  *kube.Client

	requested bool // a person asked for a reconcile
	worked    bool // something was applied or pruned
	begun     time.Time
	events    []pendingEvent
}

type pendingEvent struct{ kind, reason, message string }

// event is told after the status is written, so that nothing is told twice.
func (cy *cycle) event(kind, reason, message string) {
	cy.events = append(cy.events, pendingEvent{kind, reason, message})
}

// Reconcile brings one object forward by as much as can be done without waiting.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var cached kustomizev1.Kustomization
	if err := c.opts.Client.Get(ctx, req.NamespacedName, &cached); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	ks := c.writer.Newest(&cached)
	cy := &cycle{ks: ks, base: ks.DeepCopy(), name: req.NamespacedName, release: func() {}, begun: c.opts.Clock.Now()}
	cy.mem = c.memory.lock(req.NamespacedName, ks.UID)
	defer cy.mem.mu.Unlock()
	defer func() { cy.release() }()

	if !ks.DeletionTimestamp.IsZero() {
		return c.finalize(ctx, cy)
	}
	if ks.Spec.Suspend {
		c.conclude(ctx, cy.mem.attempt, audit.Cancelled, "the unit was suspended")
		cy.mem.attempt, cy.mem.approved = nil, nil
		c.claims.withdraw(cy.name)
		return c.rest(ctx, cy)
	}
	if controllerutil.AddFinalizer(ks, kustomizev1.KustomizationFinalizer) {
		if _, err := c.writer.PatchMeta(ctx, cy.base, ks); err != nil {
			return status.RetryConflict(err)
		}
		cy.base = ks.DeepCopy()
	}
	if err := c.settleSuspension(ctx, ks); err != nil {
		return ctrl.Result{}, err
	}
	if at, ok := meta.ReconcileAnnotationValue(ks.GetAnnotations()); ok && at != ks.Status.LastHandledReconcileAt {
		cy.requested = true
		ks.Status.LastHandledReconcileAt = at
	}
	if err := c.restore(cy); err != nil {
		return ctrl.Result{}, err
	}
	res, err := status.Run(ctx, cy, c.check, c.fetch, c.look, c.depend, c.prepare, c.approve, c.apply, c.prune, c.health, c.finish)
	return c.end(ctx, cy, res, err)
}

// rest is the reconcile of a unit that is suspended: nothing but that is written of it.
func (c *Controller) rest(ctx context.Context, cy *cycle) (ctrl.Result, error) {
	if err := c.settleSuspension(ctx, cy.ks); err != nil {
		return ctrl.Result{}, err
	}
	if _, err := c.writer.Patch(ctx, cy.base, cy.ks); err != nil {
		return status.RetryConflict(err)
	}
	return ctrl.Result{}, nil
}

// settleSuspension records that the unit was suspended or resumed, if it was.
func (c *Controller) settleSuspension(ctx context.Context, ks *kustomizev1.Kustomization) error {
	return c.opts.Suspensions.Settle(ctx, attribution.Suspendable{
		Object: ks, Kind: unitKind, Suspended: ks.Spec.Suspend,
		Conditions: &ks.Status.Conditions, ObservedGeneration: ks.Status.ObservedGeneration,
	})
}

// unitKind is how the API server names what is reconciled here.
var unitKind = kustomizev1.GroupVersion.WithKind(kustomizev1.KustomizationKind)

// end writes the status: once if something changed, else not at all.
func (c *Controller) end(ctx context.Context, cy *cycle, res status.Result, err error) (ctrl.Result, error) {
	ks := cy.ks
	requeue := res.After
	switch {
	case err != nil && apierrors.IsConflict(err):
		return status.RetryConflict(err)
	case errors.Is(err, reference.ErrChanged):
		return status.Again, nil
	case err != nil:
		requeue = ks.GetRetryInterval()
		c.failed(cy, status.ReasonOf(err, meta.ReconciliationFailedReason), err.Error())
	case res.IsStalled():
		c.stalled(cy, res.Reason, res.Message)
	case res.Reason == quiet:
		// What there is to write is written with what comes of the wait. The journal has what
		// must not be lost until then.
		cy.base.DeepCopyInto(ks)
		c.tell(cy)
		return ctrl.Result{RequeueAfter: requeue}, nil
	case res.Reason == told:
	case res.Reason == meta.ProgressingReason:
		progress(ks, res.Message)
	case res.Reason != "":
		c.waiting(cy, res.Reason, res.Message)
	default:
		requeue = c.jitter(ks.GetRequeueAfter())
	}
	return c.commit(ctx, cy, requeue)
}

const (
	// quiet is the reason of a wait that nobody need see.
	quiet = "quiet"
	// told is the reason of a wait whose conditions are set already.
	told = "told"
)

// commit writes the status and then does what must only follow the write.
func (c *Controller) commit(ctx context.Context, cy *cycle, requeue time.Duration) (ctrl.Result, error) {
	status.KeepTimes(cy.base.Status.Conditions, cy.ks.Status.Conditions)
	if _, err := c.writer.Patch(ctx, cy.base, cy.ks); err != nil {
		return status.RetryConflict(err)
	}
	if err := c.settleJournal(cy); err != nil {
		return ctrl.Result{}, err
	}
	c.tell(cy)
	return ctrl.Result{RequeueAfter: requeue}, nil
}

func (c *Controller) tell(cy *cycle) {
	for _, e := range cy.events {
		annotations := map[string]string{}
		if cy.artifact != nil {
			annotations[kustomizev1.GroupVersion.Group+"/"+eventv1.MetaRevisionKey] = cy.artifact.Revision
		}
		if cy.origin != "" {
			annotations[kustomizev1.GroupVersion.Group+"/"+eventv1.MetaOriginRevisionKey] = cy.origin
		}
		if e.reason == meta.ReconciliationSucceededReason {
			annotations[kustomizev1.GroupVersion.Group+"/"+eventv1.MetaCommitStatusKey] = eventv1.MetaCommitStatusUpdateValue
		}
		c.opts.Recorder.AnnotatedEventf(cy.ks, annotations, e.kind, e.reason, "%s", cut(e.message, maxEvent))
	}
	cy.events = nil
}

// jitter spreads the times of units that were made together.
func (c *Controller) jitter(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()-0.5)*0.1*float64(d)) //nolint:gosec // spreads work, hides nothing
}

// maxEvent bounds the message of an event, in bytes: the API server takes 1,024.
const maxEvent = 1000

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-3], "") + "…"
}

// failed says that a try has failed and will be repeated.
func (c *Controller) failed(cy *cycle, reason, message string) {
	cy.tellOnce(corev1.EventTypeWarning, reason, message)
	notReady(cy.ks, reason, message)
}

// waiting says that something outside must happen first.
func (c *Controller) waiting(cy *cycle, reason, message string) {
	cy.tellOnce(corev1.EventTypeNormal, reason, message)
	notReady(cy.ks, reason, message)
}

// stalled says that a person must act.
func (c *Controller) stalled(cy *cycle, reason, message string) {
	cy.tellOnce(corev1.EventTypeWarning, reason, message)
	mark(cy.ks, meta.ReadyCondition, metav1.ConditionFalse, reason, message)
	mark(cy.ks, meta.StalledCondition, metav1.ConditionTrue, reason, message)
	conditions.Delete(cy.ks, meta.ReconcilingCondition)
	cy.ks.Status.ObservedGeneration = cy.ks.Generation
}

// tellOnce tells what the Ready condition is going to say, unless it says so already.
func (cy *cycle) tellOnce(kind, reason, message string) {
	r := conditions.Get(cy.base, meta.ReadyCondition)
	if r == nil || r.Reason != reason || r.Message != cut(message, kustomizev1.MaxConditionMessageLength) {
		cy.event(kind, reason, message)
	}
}

// notReady says that the unit is not what its source asks for, and is tried again.
func notReady(ks *kustomizev1.Kustomization, reason, message string) {
	mark(ks, meta.ReadyCondition, metav1.ConditionFalse, reason, message)
	mark(ks, meta.ReconcilingCondition, metav1.ConditionTrue, meta.ProgressingWithRetryReason, message)
	conditions.Delete(ks, meta.StalledCondition)
}

// progress says that work is under way.
func progress(ks *kustomizev1.Kustomization, message string) {
	mark(ks, meta.ReadyCondition, metav1.ConditionUnknown, meta.ProgressingReason, "Reconciliation in progress")
	mark(ks, meta.ReconcilingCondition, metav1.ConditionTrue, meta.ProgressingReason, message)
	conditions.Delete(ks, meta.StalledCondition)
}

func mark(ks *kustomizev1.Kustomization, kind string, s metav1.ConditionStatus, reason, message string) {
	conditions.Set(ks, &metav1.Condition{
		Type: kind, Status: s, Reason: reason, Message: cut(message, kustomizev1.MaxConditionMessageLength), ObservedGeneration: ks.Generation,
	})
}

// log returns the logger of a reconcile.
func log(ctx context.Context) logr.Logger { return logf.FromContext(ctx) }

// keysOf reads an inventory; entries that cannot be read are left out.
func keysOf(inventory *kustomizev1.ResourceInventory) []kube.Key {
	if inventory == nil {
		return nil
	}
	var keys []kube.Key
	for _, e := range inventory.Entries {
		if k, err := parseEntry(e); err == nil {
			keys = append(keys, k)
		}
	}
	return keys
}

// wakes hands units that others wake to the controller's queue. A unit that waits to
// be handed over already is not added again, so that no storm of events fills memory.
type wakes struct {
	out     chan event.GenericEvent
	mu      sync.Mutex
	pending map[types.NamespacedName]bool
	order   []types.NamespacedName
	running bool
}

// add never blocks: it is called from watches.
func (w *wakes) add(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending[name] {
		return
	}
	w.pending[name] = true
	w.order = append(w.order, name)
	if !w.running {
		w.running = true
		go w.hand()
	}
}

func (w *wakes) hand() {
	for {
		w.mu.Lock()
		if len(w.order) == 0 {
			w.running = false
			w.mu.Unlock()
			return
		}
		name := w.order[0]
		w.order = w.order[1:]
		delete(w.pending, name)
		w.mu.Unlock()
		w.out <- event.GenericEvent{Object: &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}}
	}
}

// Wake makes the controller look at a unit.
func (c *Controller) Wake(name types.NamespacedName) { c.wakes.add(name) }

// describe names a source as Flux does.
func describe(ref kustomizev1.CrossNamespaceSourceReference, namespace string) string {
	return fmt.Sprintf("%s/%s/%s", ref.Kind, namespace, ref.Name)
}

// digestsOf are the objects of a build as they are to be applied.
func digestsOf(objects []*unstructured.Unstructured) map[kube.Key]string {
	out := make(map[kube.Key]string, len(objects))
	for _, o := range objects {
		out[kube.KeyOf(o)] = kube.DesiredDigest(o)
	}
	return out
}
