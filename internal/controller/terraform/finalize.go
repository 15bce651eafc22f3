// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/artifact"
	"github.com/terrace-dev/terrace/internal/dependency"
	references "github.com/terrace-dev/terrace/internal/reference"
	"github.com/terrace-dev/terrace/internal/run"
	"github.com/terrace-dev/terrace/internal/state"
	"github.com/terrace-dev/terrace/internal/state/store"
	"github.com/terrace-dev/terrace/internal/status"
	"github.com/terrace-dev/terrace/internal/tofu/workdir"
)

// finalize is the story of a deletion: nothing depends on the unit any more, its
// run has ended, its resources are destroyed if the spec asks for it, what was kept
// for it is removed, and the finalizer goes. It happens once; finalizers of others
// are waited for in silence.
func (c *Controller) finalize(ctx context.Context, cy *cycle) (ctrl.Result, error) {
	tf := cy.tf
	if !controllerutil.ContainsFinalizer(tf, infra.Finalizer) {
		return ctrl.Result{}, nil
	}
	c.refuseImport(cy)
	c.closeGlass(unitOf(tf)) // nobody works by hand on what is being taken away
	res, err := status.Run(ctx, cy, c.awaitDependants, c.awaitRun, c.destroy)
	if err != nil || !res.IsNext() {
		switch {
		case err != nil:
			notReady(tf, status.ReasonOf(err, infra.ReasonReconciliationFailed), err.Error())
		case res.Reason != "":
			notReady(tf, res.Reason, res.Message)
		}
		return c.commit(ctx, cy, res.After, err)
	}
	return c.release(ctx, cy)
}

// awaitDependants blocks the deletion while other units depend on this one. Who
// depends on what is read from the specs, so that nothing is left behind when a
// dependant goes without a word.
func (c *Controller) awaitDependants(ctx context.Context, cy *cycle) (status.Result, error) {
	tf := cy.tf
	var list infra.TerraformList
	key := dependency.Key(infra.TerraformKind, tf.Namespace, tf.Name)
	if err := c.opts.Client.List(ctx, &list, client.MatchingFields{dependency.ByDependency: key}); err != nil {
		return status.Result{}, fmt.Errorf("list dependants: %w", err)
	}
	var names []string
	leaving := true // all that depend on it are being deleted too
	for i := range list.Items {
		d := &list.Items[i]
		if d.Namespace != tf.Namespace && !c.opts.AllowCrossNamespaceRefs {
			continue // it may not depend on this one, and so may not hold it up
		}
		if d.UID != tf.UID {
			names = append(names, d.Namespace+"/"+d.Name)
			leaving = leaving && !d.DeletionTimestamp.IsZero()
		}
	}
	apps, err := c.leavingKustomizations(ctx, key)
	if err != nil {
		return status.Result{}, err
	}
	names = append(names, apps...)
	if len(names) == 0 {
		return status.Next, nil
	}
	if leaving {
		// In a circle each would wait for another, and there is no order to keep.
		if cycle, err := c.dependencyCycle(ctx, tf); err != nil || cycle != "" {
			return status.Next, err
		}
	}
	slices.Sort(names)
	return status.Wait(infra.ReasonDeletionBlockedByDependants,
		"deletion waits for "+strings.Join(names, ", ")+", which depend on it", 0), nil
}

// leavingKustomizations names Kustomizations that depend on a unit and are being
// deleted too: what stands on something goes before it. Others do not hold the
// deletion up, because Flux's never do.
func (c *Controller) leavingKustomizations(ctx context.Context, key string) ([]string, error) {
	var list kustomizev1.KustomizationList
	if err := c.opts.Client.List(ctx, &list, client.MatchingFields{dependency.ByDependency: key}); err != nil {
		return nil, fmt.Errorf("list dependants: %w", err)
	}
	var names []string
	for i := range list.Items {
		if ks := &list.Items[i]; !ks.DeletionTimestamp.IsZero() {
			names = append(names, fmt.Sprintf("%s/%s/%s", kustomizev1.KustomizationKind, ks.Namespace, ks.Name))
		}
	}
	return names, nil
}

// awaitRun lets an apply end, cancels a plan, and reads how a destroy ended.
func (c *Controller) awaitRun(ctx context.Context, cy *cycle) (status.Result, error) {
	tf := cy.tf
	u := unitOf(tf)
	c.cancelIfAsked(cy)
	st, ok := c.opts.Runs.Get(u)
	if !ok {
		return status.Next, nil
	}
	if st.Phase != run.Done {
		if st.Kind == run.Plan || st.Kind == run.Drift {
			c.opts.Runs.Cancel(u, "the object is being deleted")
		}
		progress(tf, infra.MessageDeleting)
		return status.Wait("", "", 0), nil
	}
	var cancelled *run.CancelledError
	if errors.As(st.Err, &cancelled) && cancelled.Shutdown {
		return status.Wait("", "", 0), nil // the next process starts this again
	}
	cy.done = st.ID
	err := c.recordLast(ctx, cy, st)
	if err == nil {
		err = c.keepRun(ctx, cy, st)
	}
	if err != nil {
		unrecord(cy)
		return status.Result{}, err
	}
	return status.Next, nil
}

// recordLast records how the last run of a unit that is being deleted ended.
func (c *Controller) recordLast(ctx context.Context, cy *cycle, st run.State) error {
	tf := cy.tf
	var intr *run.InterruptedError
	if errors.As(st.Err, &intr) {
		tf.Status.RunningID = ""
		return c.settleInterruption(ctx, intr.Interruption)
	}
	if g, ok := st.Result.(*glass); ok && g.session != nil {
		g.session.close()
	}
	if i, ok := st.Result.(*imported); ok {
		_, err := c.recordImport(ctx, cy, i, st)
		return err
	}
	a, isApply := st.Result.(*applied)
	if !isApply {
		return nil
	}
	if !a.onDeletion {
		_, err := c.recordApply(ctx, cy, a, st.Err)
		return err
	}
	tellRecovered(cy, a.recovered)
	tf.Status.RunningID = ""
	if st.Err != nil {
		now := metav1.NewTime(c.opts.Clock.Now())
		tf.Status.LastPlanAt = &now
		c.failed(cy, status.ReasonOf(st.Err, infra.ReasonDestroyFailed), stateTakenAway(st.Err))
		return nil
	}
	tf.Status.ReconciliationFailures = 0
	tf.Status.LastAppliedRevision = ""
	tf.Status.Plan.LastApplied = destroyedMark
	cy.event(corev1.EventTypeNormal, infra.ReasonDestroySucceed, "Destroy applied successfully: "+a.revision)
	return nil
}

// stateTakenAway adds the way out to the error of a destroy in a namespace that is
// being deleted: the state goes with its other Secrets, and no lock can be made there.
func stateTakenAway(err error) error {
	// The tool wraps lines.
	if !strings.Contains(strings.Join(strings.Fields(err.Error()), " "), "because it is being terminated") {
		return err
	}
	return fmt.Errorf("%w; the namespace is being deleted and takes the state along: destroy what is left by hand, then set destroyResourcesOnDeletion: false", err)
}

// destroyedMark in status.plan.lastApplied tells the rest of the deletion that nothing
// is left to destroy. It is not written: the object goes with the same reconcile, and
// what is killed before that destroys again, which then finds nothing.
const destroyedMark = "destroyed"

// destroy removes the unit's resources if the spec asks for it. It needs no source,
// Secret or dependency: the last good artifact and inputs were kept for this.
func (c *Controller) destroy(ctx context.Context, cy *cycle) (status.Result, error) {
	tf := cy.tf
	if !tf.Spec.DestroyResourcesOnDeletion || tf.Spec.Suspend || tf.Status.Plan.LastApplied == destroyedMark || neverApplied(tf) {
		return status.Next, nil
	}
	if wait := c.destroyDelay(tf); wait > 0 {
		return status.Wait("", "", wait), nil
	}
	art, err := c.lastGoodArtifact(ctx, tf)
	if err != nil {
		return status.Result{}, err
	}
	if art == nil {
		return status.Wait(infra.ReasonArtifactFailed,
			"destroy resources: neither the source nor a kept artifact is there; bring the source back, or set destroyResourcesOnDeletion: false", tf.GetRetryInterval()), nil
	}
	cy.artifact = art
	if res, err := c.open(ctx, cy); err != nil || !res.IsNext() {
		return res, err
	}
	if nothing, err := c.nothingWritten(ctx, cy); err != nil || nothing {
		return status.Next, err
	}
	in, err := c.lastGoodInputs(ctx, cy)
	if err != nil {
		return status.Result{}, err
	}
	if at, ok := tf.Annotations[infra.ReconcileRequestAnnotation]; ok {
		tf.Status.LastHandledReconcileAt = at
	}
	tf.Status.RunningID = "destroy-" + string(tf.UID)
	mark(tf, infra.ConditionApply, metav1.ConditionUnknown, infra.ReasonProgressing, infra.MessageApplyStarted)
	progress(tf, infra.MessageDeleting)
	// Written before the destroy begins, for the same reason as before an apply.
	if _, err := c.commit(ctx, cy, 0, nil); err != nil {
		return status.Result{}, err
	}
	if cy.base.Status.RunningID == "" {
		return status.Wait("", "", 0), nil
	}
	j := c.newJob(cy, in)
	c.start(cy, j, run.Destroy, fmt.Sprintf("destroy-%s-%d", tf.UID, tf.Status.ReconciliationFailures), c.destroyJob(j))
	return status.Wait("", "", 0), nil
}

// neverApplied tells that no apply can have begun, because no plan ever succeeded: a
// unit whose source, inputs or configuration were never in order has nothing to
// destroy, and what is wrong with them must not keep the object.
func neverApplied(tf *infra.Terraform) bool {
	return tf.Status.Artifact == nil && tf.Status.LastAppliedRevision == "" && tf.Status.RunningID == "" &&
		apimeta.FindStatusCondition(tf.Status.Conditions, infra.ConditionApply) == nil
}

// nothingWritten tells that a unit was planned at most: no run began that could have made
// anything, and its state, where Terrace chose the place of it, holds nothing either, as that
// of an earlier object of the name could. In a namespace that is being deleted a destroy
// could not even take the lock.
func (c *Controller) nothingWritten(ctx context.Context, cy *cycle) (bool, error) {
	tf := cy.tf
	st := &tf.Status
	if c.hasMade(unitOf(tf)) {
		return false, nil // an apply was killed, and what the status said of it was taken back
	}
	if st.LastAppliedRevision != "" || st.RunningID != "" || st.LastImport != nil || apimeta.FindStatusCondition(st.Conditions, infra.ConditionApply) != nil {
		return false, nil
	}
	if tf.Spec.BackendConfig != nil || tf.Spec.Cloud != nil || cy.reach.Backend != nil {
		return false, nil
	}
	if kept, err := stateIn(c.unitDir(unitOf(tf))); err != nil || kept != "" {
		return false, err
	}
	served, err := c.servesState(ctx, &job{tf: tf})
	if err != nil {
		return false, err
	}
	if served {
		s, err := c.opts.States.Store.Get(ctx, store.Key{Namespace: tf.Namespace, Name: tf.Name})
		if errors.Is(err, store.ErrNoState) {
			return true, nil
		}
		return err == nil && s.Status.Resources == 0 && !s.Status.Encrypted, err
	}
	scope := state.Scope{Namespace: tf.Namespace, Suffix: tf.Name, Workspace: tf.WorkspaceName()}
	var secret corev1.Secret
	if err := c.opts.Reader.Get(ctx, client.ObjectKey{Namespace: scope.Namespace, Name: scope.SecretName()}, &secret); err != nil {
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}
	payload, err := state.Uncompress(secret.Data["tfstate"])
	if err != nil {
		return false, nil // in several parts, or of a form that the tool has to read
	}
	sum, err := state.Summarize(payload)
	return err == nil && sum.Resources == 0 && !sum.Encrypted, nil
}

// destroyDelay is how long a destroy that failed, or that a person cancelled, is not
// tried again unless somebody asks. What was cancelled before the deletion does not
// hold it up: the deletion is a generation of its own.
func (c *Controller) destroyDelay(tf *infra.Terraform) time.Duration {
	st := &tf.Status
	switch r := readyCondition(tf); {
	case st.LastPlanAt == nil || reconcileRequested(tf):
		return 0
	case r != nil && r.Reason == infra.ReasonCancelled && r.ObservedGeneration == tf.Generation:
		return tf.GetInterval() - c.opts.Clock.Since(st.LastPlanAt.Time)
	case st.ReconciliationFailures > 0:
		return tf.RetryDelay(st.ReconciliationFailures-1) - c.opts.Clock.Since(st.LastPlanAt.Time)
	default:
		return 0
	}
}

// lastGoodArtifact is the source's artifact if it is there, else the kept one, nil
// if there is neither.
func (c *Controller) lastGoodArtifact(ctx context.Context, tf *infra.Terraform) (*meta.Artifact, error) {
	if tf.Status.Artifact != nil {
		_, release, err := c.opts.Artifacts.Tree(ctx, tf.Status.Artifact)
		if err == nil {
			release()
			return tf.Status.Artifact, nil
		}
	}
	ns := tf.Spec.SourceRef.Namespace
	if ns == "" {
		ns = tf.Namespace
	}
	art, err := c.sourceArtifact(ctx, tf.Spec.SourceRef.Kind, types.NamespacedName{Namespace: ns, Name: tf.Spec.SourceRef.Name})
	if client.IgnoreNotFound(err) != nil && !errors.Is(err, references.ErrUnknownSource) {
		return nil, err
	}
	return art, nil
}

// lastGoodInputs are the inputs as they are now, or, where some of them are gone,
// as they were when the unit was last planned.
func (c *Controller) lastGoodInputs(ctx context.Context, cy *cycle) (*inputs, error) {
	in, err := c.load(ctx, cy)
	if err == nil {
		return in, nil
	}
	kept, keptErr := c.unsealInputs(ctx, cy.tf.Status.InputsBlob)
	if keptErr != nil {
		return nil, err
	}
	return kept, nil
}

// release removes what was kept for the unit and lets the object go.
func (c *Controller) release(ctx context.Context, cy *cycle) (ctrl.Result, error) {
	tf := cy.tf
	u := unitOf(tf)
	if o := tf.Status.Outputs; o != nil && o.SecretName != "" {
		if err := c.removeOutputs(ctx, tf, o.SecretName); err != nil {
			return ctrl.Result{}, err
		}
	}
	if err := c.removeReadable(ctx, tf); err != nil {
		return ctrl.Result{}, err
	}
	if cy.done != "" {
		c.opts.Runs.Forget(u, cy.done)
	}
	if err := c.opts.Runs.Remove(u); err != nil {
		return ctrl.Result{}, err
	}
	if err := c.removeDir(cy); err != nil {
		return ctrl.Result{}, err
	}
	c.tell(cy)
	base := tf.DeepCopy()
	tf.Finalizers = slices.DeleteFunc(tf.Finalizers, func(f string) bool {
		return f == infra.Finalizer || strings.HasPrefix(f, infra.DependencyFinalizerPrefix)
	})
	if _, err := c.writer.PatchMeta(ctx, base, tf); err != nil {
		return status.RetryConflict(err)
	}
	// Only now that the object is gone may go what its deletion could have needed again.
	if err := c.opts.Artifacts.Unpin(ctx, pinOf(tf)); err != nil {
		return ctrl.Result{}, err
	}
	for _, d := range blobsOf(&tf.Status) {
		if err := c.opts.Blobs.Delete(ctx, digest.Digest(d)); err != nil {
			return ctrl.Result{}, fmt.Errorf("remove stored plan: %w", err)
		}
	}
	c.memory.forget(u)
	return ctrl.Result{}, nil
}

// removeDir removes the unit's working directory, unless a state is in it: of a
// disabled backend, or one that could not be written. A state is never deleted with
// the object that made it; one in a Secret stays as well.
func (c *Controller) removeDir(cy *cycle) error {
	dir := c.unitDir(unitOf(cy.tf))
	kept, err := stateIn(dir)
	if err != nil {
		return fmt.Errorf("remove working directory: %w", err)
	}
	if kept != "" {
		cy.event(corev1.EventTypeWarning, infra.ReasonReconciliationFailed, "The object is gone; its state is a local file and stays: "+kept)
		return nil
	}
	if err := workdir.RemoveDir(dir); err != nil {
		return fmt.Errorf("remove working directory: %w", err)
	}
	return nil
}

// stateIn returns the path of a state in a unit's directory that is nowhere else, empty if
// there is none.
func stateIn(dir string) (kept string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch name := d.Name(); {
		case d.IsDir() && path == filepath.Join(dir, workdir.DataName):
			return fs.SkipDir // init's own record of the backend has the same name
		case name == "terraform.tfstate" && hasResources(path), name == workdir.ErroredState:
			kept = path
			return fs.SkipAll
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return kept, err
}

// hasResources tells that a state file is not empty; one that cannot be read may not be.
func hasResources(path string) bool {
	content, err := os.ReadFile(path)
	if err != nil {
		return true
	}
	st, ok := parseState(content)
	return !ok || len(st.Resources) > 0
}

func pinOf(tf *infra.Terraform) artifact.Owner {
	return artifact.Owner{Kind: infra.TerraformKind, Namespace: tf.Namespace, Name: tf.Name}
}

// blobsOf are the digests of the blobs that a status refers to.
func blobsOf(st *infra.TerraformStatus) []string {
	var out []string
	add := func(d string) {
		if d != "" {
			out = append(out, d)
		}
	}
	if st.LastPlan != nil {
		add(st.LastPlan.Blob)
	}
	if st.Outputs != nil {
		add(st.Outputs.Digest)
	}
	add(st.InputsBlob)
	return out
}
