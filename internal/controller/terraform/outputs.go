// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/blob"
	"github.com/terrace-dev/terrace/internal/plan"
	"github.com/terrace-dev/terrace/internal/status"
	"github.com/terrace-dev/terrace/internal/tofu"
)

// outputs are a module's outputs by name.
type outputs map[string]tofu.Output

// secrets are the texts and numbers of the outputs that are marked as sensitive.
func (o outputs) secrets() (values [][]byte) {
	for _, output := range o {
		var v any
		if output.Sensitive && json.Unmarshal(output.Value, &v) == nil {
			values = plan.Leaves(values, v)
		}
	}
	return values
}

// typeSuffix marks the key that holds the type of an output that is not a string.
const typeSuffix = "__type"

// takeOutputs records what a run read: the names in the status, the values
// encrypted in the blob store, from where the Secret is written and repaired.
func (c *Controller) takeOutputs(ctx context.Context, cy *cycle, out outputs) error {
	tf := cy.tf
	tf.Status.AvailableOutputs = slices.Sorted(maps.Keys(out))
	if len(out) > 0 {
		mark(tf, infra.ConditionOutput, metav1.ConditionTrue, infra.ReasonOutputsAvailable, "Outputs available")
	} else {
		unmark(tf, infra.ConditionOutput)
	}
	if tf.Spec.WriteOutputsToSecret == nil && len(tf.Spec.HealthChecks) == 0 {
		return nil
	}
	d, err := c.sealJSON(ctx, "outputs", out)
	if err != nil {
		return err
	}
	name := ""
	if old := tf.Status.Outputs; old != nil {
		name = old.SecretName // what was written stays known until it is removed
	}
	tf.Status.Outputs = &infra.OutputsStatus{SecretName: name, Digest: d}
	cy.newOutputs = true
	return nil
}

// loadOutputs reads back what takeOutputs stored.
func (c *Controller) loadOutputs(ctx context.Context, tf *infra.Terraform) (outputs, error) {
	if tf.Status.Outputs == nil {
		return nil, blob.ErrNotFound
	}
	var out outputs
	if err := c.unsealJSON(ctx, "outputs", tf.Status.Outputs.Digest, &out); err != nil {
		return nil, err
	}
	return out, nil
}

// secretData returns what the output Secret shall hold: strings raw, everything
// else as JSON beside a key that holds its type.
func secretData(w *infra.WriteOutputsToSecretSpec, out outputs) (map[string][]byte, error) {
	content := map[string][]byte{}
	put := func(name, key string) error {
		o, ok := out[name]
		if !ok {
			return fmt.Errorf("write output %q to Secret %s: the module has no such output", name, w.Name)
		}
		var text string
		if string(bytes.TrimSpace(o.Type)) == `"string"` && json.Unmarshal(o.Value, &text) == nil {
			content[key] = []byte(text)
			return nil
		}
		content[key] = o.Value
		content[key+typeSuffix] = o.Type
		return nil
	}
	if len(w.Outputs) == 0 {
		for name := range out {
			if err := put(name, name); err != nil {
				return nil, err
			}
		}
		return content, nil
	}
	for _, entry := range w.Outputs {
		name, key, renamed := strings.Cut(entry, ":")
		if !renamed {
			key = name
		}
		if err := put(name, key); err != nil {
			return nil, err
		}
	}
	return content, nil
}

// writeOutputs makes the output Secret what it shall be: after an apply, after a
// change of writeOutputsToSecret, and after somebody changed or deleted it. A
// Secret that is as it was last seen right costs no request.
func (c *Controller) writeOutputs(ctx context.Context, cy *cycle) error {
	tf := cy.tf
	w := tf.Spec.WriteOutputsToSecret
	if old := tf.Status.Outputs; old != nil && old.SecretName != "" && (w == nil || w.Name != old.SecretName) {
		if err := c.removeOutputs(ctx, tf, old.SecretName); err != nil {
			return err
		}
		old.SecretName, old.Keys = "", nil
		if w == nil {
			tf.Status.Outputs = nil
			if r := readyReason(tf); r == infra.ReasonOutputsWritten {
				ready(tf, infra.ReasonAppliedSucceed, "Applied successfully: "+tf.Status.LastAppliedRevision)
			}
		}
	}
	if w == nil || tf.Status.Outputs == nil || tf.Status.Outputs.Digest == "" {
		return nil
	}
	ref := reference{Kind: kindSecret, Namespace: tf.Namespace, Name: w.Name}
	meta, err := c.refs.Metadata(ctx, ref)
	if err != nil {
		return err
	}
	known := ""
	c.memory.with(unitOf(tf), func(m *unitMemory) { known = m.outputs })
	if meta != nil && known == seenRight(meta.ResourceVersion, tf.Status.Outputs.Digest, w) {
		return nil
	}

	out, err := c.loadOutputs(ctx, tf)
	if errors.Is(err, blob.ErrNotFound) {
		return nil // decide asks for a plan that reads them again
	} else if err != nil {
		return err
	}
	want, err := secretData(w, out)
	if err != nil {
		return status.Fail(infra.ReasonOutputsWritingFailed, err)
	}
	if len(want) == 0 {
		return c.noOutputs(ctx, cy, ref)
	}
	version, wrote, err := c.applyOutputs(ctx, tf, w, ref, want, meta)
	if err != nil {
		return status.Fail(infra.ReasonOutputsWritingFailed, err)
	}
	c.memory.with(unitOf(tf), func(m *unitMemory) { m.outputs = seenRight(version, tf.Status.Outputs.Digest, w) })
	tf.Status.Outputs.SecretName = w.Name
	tf.Status.Outputs.Keys = slices.Sorted(maps.Keys(want))
	if !wrote && !cy.newOutputs {
		return nil
	}
	message := "Outputs written: " + tf.Status.LastPlannedRevision
	mark(tf, infra.ConditionOutput, metav1.ConditionTrue, infra.ReasonOutputsWritten, message)
	if isReady(tf) && cy.newOutputs {
		ready(tf, infra.ReasonOutputsWritten, message)
	}
	if wrote {
		cy.event(corev1.EventTypeNormal, infra.ReasonOutputsWritingFailed, fmt.Sprintf(
			"Outputs written.\n%d output(s): %s", len(out), strings.Join(tf.Status.AvailableOutputs, ", ")))
	}
	return nil
}

// seenRight names a version of the Secret that was found right for outputs and a spec.
func seenRight(version, outputs string, w *infra.WriteOutputsToSecretSpec) string {
	spec, _ := json.Marshal(w) // a struct of strings always encodes
	return version + " " + outputs + " " + string(spec)
}

func sameSecretSpec(m *metav1.PartialObjectMetadata, w *infra.WriteOutputsToSecretSpec) bool {
	has := func(have, want map[string]string) bool {
		for k, v := range want {
			if have[k] != v {
				return false
			}
		}
		return true
	}
	return has(m.Labels, w.Labels) && has(m.Annotations, w.Annotations)
}

// noOutputs serves a module whose outputs are gone, a destroyed one among them.
func (c *Controller) noOutputs(ctx context.Context, cy *cycle, ref reference) error {
	tf := cy.tf
	if tf.Status.Outputs.SecretName != "" {
		if err := c.removeOutputs(ctx, tf, ref.Name); err != nil {
			return err
		}
		tf.Status.Outputs.SecretName, tf.Status.Outputs.Keys = "", nil
	}
	if cy.newOutputs && isReady(tf) {
		ready(tf, infra.ReasonOutputsWritten, "No Outputs written: "+tf.Status.LastPlannedRevision)
	}
	return nil
}

// applyOutputs writes the Secret by server-side apply unless it is right already.
func (c *Controller) applyOutputs(ctx context.Context, tf *infra.Terraform, w *infra.WriteOutputsToSecretSpec, ref reference, want map[string][]byte, meta *metav1.PartialObjectMetadata) (version string, wrote bool, err error) {
	ours := meta == nil || metav1.IsControlledBy(meta, tf)
	if meta != nil {
		var live corev1.Secret
		err := c.opts.Reader.Get(ctx, ref.Key(), &live)
		if err == nil && maps.EqualFunc(live.Data, want, bytes.Equal) && sameSecretSpec(meta, w) && onlyOurLabels(&live, w) {
			return live.ResourceVersion, false, nil
		} else if err != nil && !apierrors.IsNotFound(err) {
			return "", false, err
		}
	}
	secret := applycorev1.Secret(w.Name, tf.Namespace).WithType(corev1.SecretTypeOpaque).WithData(want).
		WithLabels(w.Labels).WithAnnotations(w.Annotations)
	if ours {
		secret.WithOwnerReferences(applymetav1.OwnerReference().
			WithAPIVersion(infra.GroupVersion.String()).WithKind(infra.TerraformKind).
			WithName(tf.Name).WithUID(tf.UID).WithController(true).WithBlockOwnerDeletion(true))
	}
	if err := c.opts.Client.Apply(ctx, secret, client.ForceOwnership, client.FieldOwner(infra.FieldManager)); err != nil {
		return "", false, err
	}
	if secret.ResourceVersion != nil {
		version = *secret.ResourceVersion
	}
	return version, true, nil
}

// onlyOurLabels tells that our field manager owns no label or annotation that the
// spec no longer has.
func onlyOurLabels(live *corev1.Secret, w *infra.WriteOutputsToSecretSpec) bool {
	for _, f := range live.ManagedFields {
		if f.Manager != infra.FieldManager || f.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Meta struct {
				Labels      map[string]any `json:"f:labels"`
				Annotations map[string]any `json:"f:annotations"`
			} `json:"f:metadata"`
		}
		if json.Unmarshal(f.FieldsV1.GetRawBytes(), &fields) != nil {
			return false
		}
		for k := range fields.Meta.Labels {
			if _, ok := w.Labels[strings.TrimPrefix(k, "f:")]; !ok && k != "." {
				return false
			}
		}
		for k := range fields.Meta.Annotations {
			if _, ok := w.Annotations[strings.TrimPrefix(k, "f:")]; !ok && k != "." {
				return false
			}
		}
	}
	return true
}

// removeOutputs deletes an output Secret that this object made. One that was there
// before, and only had its data written, is left as it is.
func (c *Controller) removeOutputs(ctx context.Context, tf *infra.Terraform, name string) error {
	meta, err := c.refs.Metadata(ctx, reference{Kind: kindSecret, Namespace: tf.Namespace, Name: name})
	if err != nil || meta == nil || !metav1.IsControlledBy(meta, tf) {
		return err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: tf.Namespace, Name: name}}
	err = c.opts.Client.Delete(ctx, secret, client.Preconditions{UID: &meta.UID})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete output Secret %s/%s: %w", tf.Namespace, name, err)
	}
	return nil
}
