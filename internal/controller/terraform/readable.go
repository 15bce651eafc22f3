// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

// Plans that other tools read are kept in Secrets and ConfigMaps by the names, labels
// and encoding of the Terraform Controller. They are views: what is applied is the
// plan in the blob store.

const (
	planKey = "tfplan"
	// planChunk is the most that one Secret holds, in bytes.
	planChunk = 1 << 20
)

// publish writes the views of a plan that the object and the process ask for.
func (c *Controller) publish(ctx context.Context, tf *infra.Terraform, id string, plan, planJSON []byte, text string) error {
	if c.opts.PlanSecrets {
		packed, err := pack(plan)
		if err != nil {
			return err
		}
		if err := c.publishSecrets(ctx, tf, planObjectName(tf, ""), tf.Name, id, plan, packed); err != nil {
			return err
		}
	}
	switch tf.Spec.StoreReadablePlan {
	case infra.ReadablePlanJSON:
		packed, err := pack(planJSON)
		if err != nil {
			return err
		}
		return c.publishSecrets(ctx, tf, planObjectName(tf, ".json"), tf.Name+".json", id, planJSON, packed)
	case infra.ReadablePlanHuman:
		return c.publishText(ctx, tf, id, text)
	}
	return nil
}

func planObjectName(tf *infra.Terraform, suffix string) string {
	return "tfplan-" + tf.WorkspaceName() + "-" + tf.Name + suffix
}

func pack(content []byte) ([]byte, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(content); err != nil {
		return nil, fmt.Errorf("compress plan: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compress plan: %w", err)
	}
	return b.Bytes(), nil
}

func chunks(b []byte) [][]byte {
	var out [][]byte
	for len(b) > planChunk {
		out = append(out, b[:planChunk])
		b = b[planChunk:]
	}
	return append(out, b)
}

func (c *Controller) publishSecrets(ctx context.Context, tf *infra.Terraform, name, labelled, id string, plain, packed []byte) error {
	parts := chunks(packed)
	keep := map[string]bool{}
	for i, part := range parts {
		meta := c.planMeta(tf, name, labelled, id)
		meta.Annotations[infra.PlanEncodingAnnotation] = "gzip"
		hashed := plain
		if len(parts) > 1 {
			meta.Name += "-" + strconv.Itoa(i)
			meta.Annotations[infra.PlanChunkAnnotation] = strconv.Itoa(i)
			hashed = part
		}
		meta.Annotations[infra.PlanHashAnnotation] = bareSum(hashed)
		keep[meta.Name] = true
		secret := &corev1.Secret{ObjectMeta: meta, Type: corev1.SecretTypeOpaque, Data: map[string][]byte{planKey: part}}
		if err := c.put(ctx, secret); err != nil {
			return fmt.Errorf("write plan Secret %s/%s: %w", tf.Namespace, meta.Name, err)
		}
	}
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	return c.removeOthers(ctx, &list, tf, labelled, keep)
}

func (c *Controller) publishText(ctx context.Context, tf *infra.Terraform, id, text string) error {
	name := planObjectName(tf, "")
	parts := chunks([]byte(text))
	keep := map[string]bool{}
	for i, part := range parts {
		meta := c.planMeta(tf, name, tf.Name, id)
		if len(parts) > 1 {
			meta.Name += "-" + strconv.Itoa(i)
			meta.Annotations[infra.PlanChunkAnnotation] = strconv.Itoa(i)
		}
		meta.Annotations[infra.PlanHashAnnotation] = bareSum(part)
		keep[meta.Name] = true
		if err := c.put(ctx, &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{planKey: string(part)}}); err != nil {
			return fmt.Errorf("write plan ConfigMap %s/%s: %w", tf.Namespace, meta.Name, err)
		}
	}
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
	return c.removeOthers(ctx, &list, tf, tf.Name, keep)
}

func bareSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (c *Controller) planMeta(tf *infra.Terraform, name, labelled, id string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: tf.Namespace,
		Name:      name,
		Labels:    planLabels(tf, labelled),
		Annotations: map[string]string{
			infra.PlanSavedAnnotation:         id,
			infra.PlanFullNameAnnotation:      labelled,
			infra.PlanFullWorkspaceAnnotation: tf.WorkspaceName(),
		},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: infra.GroupVersion.String(), Kind: infra.TerraformKind, Name: tf.Name, UID: tf.UID,
		}},
	}
}

func planLabels(tf *infra.Terraform, labelled string) map[string]string {
	return map[string]string{
		infra.PlanNameLabel:      labelValue(labelled),
		infra.PlanWorkspaceLabel: labelValue(tf.WorkspaceName()),
	}
}

// labelValue cuts a value that a label cannot hold and ends it with a hash, so that
// two long names that begin alike stay apart.
func labelValue(s string) string {
	if len(s) <= validation.LabelValueMaxLength {
		return s
	}
	tail := "-" + bareSum([]byte(s))[:16]
	return s[:validation.LabelValueMaxLength-len(tail)] + tail
}

// put creates obj, or makes the existing one equal to it.
func (c *Controller) put(ctx context.Context, obj client.Object) error {
	err := c.opts.Client.Create(ctx, obj, client.FieldOwner(infra.FieldManager))
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	return c.opts.Client.Update(ctx, obj, client.FieldOwner(infra.FieldManager))
}

// removeOthers deletes what an earlier, longer plan left: parts that the present one
// does not have.
func (c *Controller) removeOthers(ctx context.Context, list *metav1.PartialObjectMetadataList, tf *infra.Terraform, labelled string, keep map[string]bool) error {
	err := c.opts.Metadata.List(ctx, list, client.InNamespace(tf.Namespace), client.MatchingLabels(planLabels(tf, labelled)))
	if err != nil {
		return fmt.Errorf("list stored plans: %w", err)
	}
	for i := range list.Items {
		if o := &list.Items[i]; !keep[o.Name] && o.Annotations[infra.PlanFullNameAnnotation] == labelled {
			if err := c.opts.Client.Delete(ctx, o); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("remove stored plan %s/%s: %w", tf.Namespace, o.Name, err)
			}
		}
	}
	return nil
}

// removeReadable deletes every view of the unit's plans.
func (c *Controller) removeReadable(ctx context.Context, tf *infra.Terraform) error {
	for _, kind := range []string{"SecretList", "ConfigMapList"} {
		for _, labelled := range []string{tf.Name, tf.Name + ".json"} {
			var list metav1.PartialObjectMetadataList
			list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
			if err := c.removeOthers(ctx, &list, tf, labelled, nil); err != nil {
				return err
			}
		}
	}
	return nil
}
