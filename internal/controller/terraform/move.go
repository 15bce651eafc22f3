// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/run"
	"github.com/terrace-dev/terrace/internal/state"
	"github.com/terrace-dev/terrace/internal/state/store"
	"github.com/terrace-dev/terrace/internal/status"
	"github.com/terrace-dev/terrace/internal/tofu"
)

// moveState brings the unit's state to where its annotation wants it, before a plan that then
// shows whether anything changed by it. What was there before stays, marked as moved.
func (c *Controller) moveState(ctx context.Context, r *run.Run, j *job) error {
	want := j.tf.Annotations[v1alpha1.StateBackendAnnotation]
	switch {
	case want == "":
		return nil
	case want != v1alpha1.StateInService && want != v1alpha1.StateInSecret:
		return status.Failf(infra.ReasonInitFailed, "annotation %s: %q is neither %s nor %s", v1alpha1.StateBackendAnnotation, want, v1alpha1.StateInService, v1alpha1.StateInSecret)
	case j.tf.Spec.BackendConfig != nil || j.tf.Spec.Cloud != nil || j.reach.Backend != nil || j.tf.WorkspaceName() != state.DefaultWorkspace:
		return status.Failf(infra.ReasonInitFailed, "annotation %s: the spec or the module says where the state is, and only one that Terrace chose the place of can be moved; take the annotation or the backend back", v1alpha1.StateBackendAnnotation)
	}
	served, err := c.servesState(ctx, j)
	if err != nil {
		return err
	}
	if served == (want == v1alpha1.StateInService) {
		return nil
	}
	r.Step("move state", initTimeout)
	entry := audit.Entry{
		Actor: audit.Itself, Action: "state-migrate", Unit: j.unit.String(), Revision: j.revision,
		Detail: "to " + want + ", as annotation " + v1alpha1.StateBackendAnnotation + " says",
	}
	err = c.recorded(ctx, r, entry, func() error {
		if want == v1alpha1.StateInService {
			return c.moveToService(ctx, r, j)
		}
		return c.moveToSecret(ctx, r, j)
	})
	if err != nil {
		return status.Failf(infra.ReasonInitFailed, "move the state to %s: %w", want, err)
	}
	j.home = want // the watch may not have told of the mark yet
	return nil
}

func (c *Controller) moveToService(ctx context.Context, r *run.Run, j *job) error {
	from := *j
	from.home = v1alpha1.StateInSecret
	s, err := c.openSession(ctx, r, &from, false)
	if err != nil {
		return err
	}
	payload, err := s.StatePull(ctx)
	s.close()
	if err != nil {
		return err
	}
	key := store.Key{Namespace: j.tf.Namespace, Name: j.tf.Name}
	if len(payload) > 0 {
		v, err := c.opts.States.Store.Write(ctx, key, payload, store.WriteOptions{By: j.unit.String(), Run: r.ID(), Operation: "migrate"})
		if err != nil {
			return err
		}
		kept, _, err := c.opts.States.Store.Read(ctx, key, v.Version)
		if err != nil {
			return err
		}
		if err := sameState(payload, kept); err != nil {
			return err
		}
	}
	return c.markSecret(ctx, j, func(s *corev1.Secret) {
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, movedAnnotation, v1alpha1.StateKind+"/"+key.Name)
	})
}

func (c *Controller) moveToSecret(ctx context.Context, r *run.Run, j *job) error {
	key := store.Key{Namespace: j.tf.Namespace, Name: j.tf.Name}
	payload, _, err := c.opts.States.Store.Read(ctx, key, 0)
	if errors.Is(err, store.ErrNoState) {
		return nil // there is nothing yet, and the first run begins there
	}
	if err != nil {
		return err
	}
	to := *j
	to.home = v1alpha1.StateInSecret
	s, err := c.openSession(ctx, r, &to, true)
	if err != nil {
		return err
	}
	defer s.close()
	file := filepath.Join(s.Tmp, "moved.tfstate")
	if err := os.WriteFile(file, payload, 0o600); err != nil {
		return err
	}
	defer os.Remove(file)
	before, err := s.StatePull(ctx)
	if err != nil {
		return err
	}
	// What init has made to begin with is another lineage, of nothing.
	sum, err := state.Summarize(before)
	if err := s.StatePush(ctx, file, tofu.StatePushOptions{Force: err == nil && sum.Empty()}); err != nil {
		return err
	}
	after, err := s.StatePull(ctx)
	if err != nil {
		return err
	}
	if err := sameState(payload, after); err != nil {
		return err
	}
	return c.markSecret(ctx, j, func(s *corev1.Secret) { delete(s.Annotations, movedAnnotation) })
}

// sameState compares what was read at one place with what is at the other now.
func sameState(want, have []byte) error {
	a, err := state.Summarize(want)
	if err != nil {
		return err
	}
	b, err := state.Summarize(have)
	if err != nil {
		return err
	}
	if a.Lineage != b.Lineage || a.Serial > b.Serial || a.Resources != b.Resources {
		return fmt.Errorf("there is now serial %d of lineage %s with %d resources, and not serial %d of %s with %d", b.Serial, b.Lineage, b.Resources, a.Serial, a.Lineage, a.Resources)
	}
	return nil
}

// markSecret changes the metadata of the unit's state Secret, if there is one.
func (c *Controller) markSecret(ctx context.Context, j *job, change func(*corev1.Secret)) error {
	scope := state.Scope{Namespace: j.tf.Namespace, Suffix: j.tf.Name, Workspace: state.DefaultWorkspace}
	var s corev1.Secret
	err := c.opts.Reader.Get(ctx, client.ObjectKey{Namespace: scope.Namespace, Name: scope.SecretName()}, &s)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	base := s.DeepCopy()
	change(&s)
	return c.opts.Client.Patch(ctx, &s, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
}
