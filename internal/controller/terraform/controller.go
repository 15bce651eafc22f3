// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package terraform reconciles Terraform objects: it plans what a root module from
// a source would change, waits for an approval where one is asked for, applies
// exactly what was shown, writes outputs, and looks for drift.
//
// It holds no engine: processes are internal/tofu's, their queue and journal
// internal/run's, content internal/artifact's and internal/blob's. It meets other
// controllers only through API objects. What it knows of the past is in the
// object's status, so that a restart decides the same and runs nothing twice.
package terraform

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/go-logr/logr"
	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/artifact"
	"github.com/terrace-dev/terrace/internal/attribution"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/blob"
	"github.com/terrace-dev/terrace/internal/dependency"
	"github.com/terrace-dev/terrace/internal/policy"
	references "github.com/terrace-dev/terrace/internal/reference"
	"github.com/terrace-dev/terrace/internal/run"
	"github.com/terrace-dev/terrace/internal/run/isolation"
	"github.com/terrace-dev/terrace/internal/state/gate"
	"github.com/terrace-dev/terrace/internal/status"
	"github.com/terrace-dev/terrace/internal/tofu"
	"github.com/terrace-dev/terrace/internal/tofu/provider"
	"github.com/terrace-dev/terrace/internal/tofu/workdir"
)

// Options are what a Controller is made of. Every field without a stated default is required.
type Options struct {
	// Client reads from the watch cache and writes to the API server.
	Client client.Client
	// Metadata reads the metadata of Secrets and ConfigMaps from the watch cache.
	Metadata client.Reader
	// Reader reads the content of Secrets and ConfigMaps past the cache.
	Reader client.Reader
	// Recorder tells what happened, as events.
	Recorder record.EventRecorder
	// Artifacts holds the content of sources.
	Artifacts *artifact.Store
	// Blobs holds plans, inputs and outputs, encrypted, and nothing else.
	Blobs *blob.Store
	// Runs executes plans and applies.
	Runs *run.Executor
	// Policies are what plans have to keep.
	Policies policy.Set
	// Namespace is Terrace's own: a policy there is for the units of all namespaces.
	Namespace string
	// Ledger records who let what happen, and Suspensions who suspends and resumes.
	Ledger      *audit.Ledger
	Suspensions *attribution.Suspensions
	// History keeps a record of runs.
	History History
	// Gate lets a run reach its own state Secret and nothing else.
	Gate *gate.Gate
	// States is the state service; nil when there is none, and states are in Secrets.
	States *States
	// Tool is the tofu or terraform that runs.
	Tool *tofu.Tool
	// Clock defaults to the real one.
	Clock clock.PassiveClock
	// Dir is where units have their working directories and the digest key lies; made with mode 0700.
	Dir string
	// PluginCache is the directory of providers that all runs share.
	PluginCache string
	// CLIConfig is the path of an operator's CLI configuration, used by units that bring none; may be empty.
	CLIConfig string
	// Isolation is what the processes of every run may do, beside what is in the unit's own
	// directory.
	Isolation isolation.Profile
	// AllowedProviders are patterns of the providers that runs may use; none allows all.
	AllowedProviders []string
	// SOPSAgeSecret is "namespace/name" of a Secret with age keys for every unit; may be empty.
	SOPSAgeSecret string
	// RunTimeout bounds one run, one hour if zero.
	RunTimeout time.Duration
	// Grace is what a run has between SIGINT and SIGKILL, one minute if zero.
	Grace time.Duration
	// Concurrent is the number of objects reconciled at a time, 4 if zero.
	Concurrent int

	// SeesAll tells that the cache holds the units of every namespace, so that a stored plan
	// that none of them names is left over.
	SeesAll bool
	// AllowCrossNamespaceRefs lets an object refer to sources, dependencies and Secrets of other namespaces.
	AllowCrossNamespaceRefs bool
	// AllowBreakTheGlass lets spec.breakTheGlass stop a unit for work by hand.
	AllowBreakTheGlass bool
	// PlanSecrets also writes plans to Secrets by the names of the Terraform Controller.
	PlanSecrets bool
}

// Controller reconciles Terraform objects.
type Controller struct {
	opts   Options
	writer *status.Writer[*infra.Terraform]
	refs   *references.Reader
	key    []byte // keys every digest that is shown

	reaches         *cache[reachKey, *reached]
	hasher          *workdir.Hasher
	cliConfigDigest string
	allowed         provider.List
	wake            chan event.GenericEvent
	started         atomic.Int64 // plans, so that each has an id of its own
	units           dependency.Units
	objects         *dependency.Objects // set by Register
	memory          *memory
	madeLock        sync.Mutex // of the files of what killed applies have made
}

// New returns a Controller. It reads or makes the key of digests in Options.Dir.
func New(o Options) (*Controller, error) {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.RunTimeout <= 0 {
		o.RunTimeout = time.Hour
	}
	if o.Grace <= 0 {
		o.Grace = time.Minute
	}
	if o.Concurrent <= 0 {
		o.Concurrent = 4
	}
	key, err := o.Blobs.Key("digests")
	if err != nil {
		return nil, err
	}
	cliConfig, err := fileDigest(o.CLIConfig)
	if err != nil {
		return nil, fmt.Errorf("read CLI configuration: %w", err)
	}
	c := &Controller{
		opts:            o,
		writer:          status.NewWriter[*infra.Terraform](o.Client, infra.FieldManager),
		refs:            references.NewReader(o.Metadata, o.Reader, key),
		key:             key,
		reaches:         newCache[reachKey, *reached](4096),
		hasher:          workdir.NewHasher(200_000),
		cliConfigDigest: cliConfig,
		wake:            make(chan event.GenericEvent, 1024),
		memory:          newMemory(),
		units:           dependency.NewUnits(o.Client, &infra.TerraformList{}),
	}
	if c.allowed, err = provider.ParseList(c.registry(), o.AllowedProviders); err != nil {
		return nil, fmt.Errorf("read the providers that are allowed: %w", err)
	}
	return c, nil
}

// cycle is what the phases of one reconcile share.
type cycle struct {
	tf   *infra.Terraform
	base *infra.Terraform // as it was read

	artifact    *meta.Artifact
	dir         string // the artifact's tree, read-only
	release     func()
	reach       *reached
	digests     map[string]string // of what the unit refers to, by use.key; nil until it is resolved
	fetched     data
	inputDigest string

	// done is the run whose result this reconcile records; it is forgotten once
	// the record is written.
	done string
	// newOutputs tells that a run has read outputs that are not in the Secret yet.
	newOutputs bool
	// orphans tells that the events tell of what cannot be imported.
	orphans bool
	events  []pendingEvent
}

type pendingEvent struct{ kind, reason, message string }

// event is told after the status is written, so that nothing is told twice.
func (cy *cycle) event(kind, reason, message string) {
	cy.events = append(cy.events, pendingEvent{kind, reason, message})
}

// Reconcile brings one object forward by as much as can be done without waiting.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var cached infra.Terraform
	if err := c.opts.Client.Get(ctx, req.NamespacedName, &cached); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	tf := c.writer.Newest(&cached)
	cy := &cycle{tf: tf, base: tf.DeepCopy(), fetched: data{}, release: func() {}}
	defer func() { cy.release() }()

	if !tf.DeletionTimestamp.IsZero() {
		return c.finalize(ctx, cy)
	}
	if tf.Spec.Suspend {
		return c.rest(ctx, cy)
	}
	// The finalizer is on the object before anything outside can exist because of it:
	// without it, a deletion in between would leave resources that nobody knows.
	if controllerutil.AddFinalizer(tf, infra.Finalizer) {
		if _, err := c.writer.PatchMeta(ctx, cy.base, tf); err != nil {
			return status.RetryConflict(err)
		}
		cy.base = tf.DeepCopy()
	}
	if err := c.settleSuspension(ctx, tf); err != nil {
		return ctrl.Result{}, err
	}
	c.begin(cy)
	res, err := status.Run(ctx, cy, c.settle, c.breakGlass, c.fetch, c.depend, c.resolve, c.proceed)
	return c.end(ctx, cy, res, err)
}

// rest is the reconcile of a unit that is suspended: nothing but that is written of it.
func (c *Controller) rest(ctx context.Context, cy *cycle) (ctrl.Result, error) {
	c.refuseImport(cy) // kept until it is resumed, it would surprise people then
	if err := c.settleSuspension(ctx, cy.tf); err != nil {
		return ctrl.Result{}, err
	}
	return c.commit(ctx, cy, 0, nil)
}

// settleSuspension records that the unit was suspended or resumed, if it was.
func (c *Controller) settleSuspension(ctx context.Context, tf *infra.Terraform) error {
	return c.opts.Suspensions.Settle(ctx, attribution.Suspendable{
		Object: tf, Kind: unitKind, Suspended: tf.Spec.Suspend,
		Conditions: &tf.Status.Conditions, ObservedGeneration: tf.Status.ObservedGeneration,
	})
}

// unitKind is how the API server names what is reconciled here.
var unitKind = infra.GroupVersion.WithKind(infra.TerraformKind)

// begin starts the count of failures anew when a person changed the object.
func (c *Controller) begin(cy *cycle) {
	tf := cy.tf
	if tf.Status.ObservedGeneration != tf.Generation {
		beginAnew(tf)
	}
	tf.Status.UnusedFields = unusedFields(tf)
}

// beginAnew forgets the failures that the object had before it, or its source, was
// changed. Its inputs may be the same as those of the attempt that failed, but no
// plan of them has succeeded, so they are tried again and not taken for done.
func beginAnew(tf *infra.Terraform) {
	if tf.Status.ReconciliationFailures > 0 {
		tf.Status.ReconciliationFailures = 0
		tf.Status.InputDigest = ""
	}
}

// end observes what is applied, whatever the changing phases wait for, and writes
// the status: once if something changed, else not at all.
func (c *Controller) end(ctx context.Context, cy *cycle, res status.Result, err error) (ctrl.Result, error) {
	tf := cy.tf
	requeue := res.After
	switch {
	case err != nil:
		if apierrors.IsConflict(err) {
			return status.RetryConflict(err)
		}
		if errors.Is(err, references.ErrChanged) {
			// What was recorded of a run is in the ledger already, and is not recorded twice.
			return c.commit(ctx, cy, status.Again.RequeueAfter, nil)
		}
		broken(cy, err)
	case res.IsStalled():
		if r := readyCondition(tf); r == nil || r.Reason != res.Reason || r.Message != cut(res.Message) {
			cy.event(corev1.EventTypeWarning, res.Reason, res.Message)
		}
		stalled(tf, res.Reason, res.Message)
	case res.Reason != "":
		notReady(tf, res.Reason, res.Message)
	}
	if at, ok := tf.Annotations[infra.ReconcileRequestAnnotation]; ok && (err != nil || res.Reason != "") {
		// A request is answered also when the answer is that nothing can be done.
		tf.Status.LastHandledReconcileAt = at
	}
	if again, obsErr := c.observe(ctx, cy); obsErr != nil && err == nil {
		err = obsErr
		broken(cy, err)
	} else {
		requeue = status.Sooner(requeue, again)
	}
	if err == nil {
		tf.Status.ObservedGeneration = tf.Generation
	}
	return c.commit(ctx, cy, requeue, err)
}

// broken says that the reconcile itself failed. It is tried again until it works, and
// told of once.
func broken(cy *cycle, err error) {
	reason, message := status.ReasonOf(err, infra.ReasonReconciliationFailed), err.Error()
	if r := readyCondition(cy.base); r == nil || r.Reason != reason || r.Message != cut(message) {
		cy.event(corev1.EventTypeWarning, reason, cut(message))
	}
	notReady(cy.tf, reason, message)
}

// commit writes the status and then does what must only follow the write.
func (c *Controller) commit(ctx context.Context, cy *cycle, requeue time.Duration, cause error) (ctrl.Result, error) {
	status.KeepTimes(cy.base.Status.Conditions, cy.tf.Status.Conditions)
	if _, err := c.writer.Patch(ctx, cy.base, cy.tf); err != nil {
		return status.RetryConflict(err)
	}
	before := cy.base
	cy.base = cy.tf.DeepCopy()
	if cy.done != "" {
		c.opts.Runs.Forget(unitOf(cy.tf), cy.done)
		cy.done = ""
	}
	c.tell(cy)
	if cy.orphans {
		cy.orphans = false
		if err := c.forgetOrphans(unitOf(cy.tf)); err != nil {
			return ctrl.Result{}, fmt.Errorf("forget what was told of: %w", err)
		}
	}
	if err := c.dropBlobs(ctx, before, cy.base); err != nil {
		return ctrl.Result{}, err
	}
	if cause != nil {
		return ctrl.Result{}, cause
	}
	return ctrl.Result{RequeueAfter: requeue}, nil
}

func (c *Controller) tell(cy *cycle) {
	for _, e := range cy.events {
		annotations := map[string]string{}
		if cy.artifact != nil {
			annotations[infra.GroupVersion.Group+"/"+eventv1.MetaRevisionKey] = cy.artifact.Revision
		}
		c.opts.Recorder.AnnotatedEventf(cy.tf, annotations, e.kind, e.reason, "%s", e.message)
	}
	cy.events = nil
}

// Wake makes the controller look at a unit; the executor calls it when a run moves.
func (c *Controller) Wake(u run.Unit) {
	if u.Kind != infra.TerraformKind {
		return
	}
	c.wake <- event.GenericEvent{Object: &infra.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: u.Namespace, Name: u.Name}}}
}

func unitOf(tf *infra.Terraform) run.Unit {
	return run.Unit{Kind: infra.TerraformKind, Namespace: tf.Namespace, Name: tf.Name}
}

// dropBlobs deletes what the status referred to and does not any more.
func (c *Controller) dropBlobs(ctx context.Context, before, after *infra.Terraform) error {
	keep := blobsOf(&after.Status)
	for _, d := range blobsOf(&before.Status) {
		if slices.Contains(keep, d) {
			continue
		}
		if err := c.opts.Blobs.Delete(ctx, digest.Digest(d)); err != nil {
			return fmt.Errorf("remove stored plan: %w", err)
		}
	}
	return nil
}

// log returns the logger of a reconcile.
func log(ctx context.Context) logr.Logger { return logf.FromContext(ctx) }
