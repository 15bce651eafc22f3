// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/status"
)

const (
	kindSecret    = "Secret"
	kindConfigMap = "ConfigMap"
)

// reference names a Secret or ConfigMap that a spec reads.
type reference struct {
	Kind, Namespace, Name string
}

func (r reference) String() string { return r.Kind + " " + r.Namespace + "/" + r.Name }

func (r reference) key() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
}

// use is one place of a spec that reads a reference.
type use struct {
	reference
	field    string // for the message
	optional bool
	reason   string // the Ready reason when it is missing
}

// uses lists every Secret and ConfigMap that a unit reads, sorted, each place once.
func uses(tf *infra.Terraform) []use {
	ns := tf.Namespace
	var out []use
	add := func(kind, namespace, name, field string, optional bool, reason string) {
		if name != "" {
			out = append(out, use{reference{kind, namespace, name}, field, optional, reason})
		}
	}
	for _, v := range tf.Spec.VarsFrom {
		add(v.Kind, ns, v.Name, "varsFrom", v.Optional, infra.ReasonVarsGenerationFailed)
	}
	for _, v := range tf.Spec.Vars {
		addSource(add, ns, v.ValueFrom, "vars["+v.Name+"].valueFrom", infra.ReasonVarsGenerationFailed)
	}
	for _, r := range tf.Spec.ReadInputsFromSecrets {
		add(kindSecret, ns, r.Name, "readInputsFromSecrets", false, infra.ReasonVarsGenerationFailed)
	}
	for _, b := range tf.Spec.BackendConfigsFrom {
		add(b.Kind, ns, b.Name, "backendConfigsFrom", b.Optional, infra.ReasonInitFailed)
	}
	for _, m := range tf.Spec.FileMappings {
		add(kindSecret, ns, m.SecretRef.Name, "fileMappings", false, infra.ReasonNewFailed)
	}
	if r := tf.Spec.CliConfigSecretRef; r != nil {
		namespace := r.Namespace
		if namespace == "" {
			namespace = ns
		}
		add(kindSecret, namespace, r.Name, "cliConfigSecretRef", false, infra.ReasonNewFailed)
	}
	for _, e := range tf.Spec.RunnerPodTemplate.Spec.Env {
		addSource(add, ns, e.ValueFrom, "runnerPodTemplate.spec.env["+e.Name+"]", infra.ReasonNewFailed)
	}
	for _, e := range tf.Spec.RunnerPodTemplate.Spec.EnvFrom {
		if e.SecretRef != nil {
			add(kindSecret, ns, e.SecretRef.Name, "runnerPodTemplate.spec.envFrom", isTrue(e.SecretRef.Optional), infra.ReasonNewFailed)
		}
		if e.ConfigMapRef != nil {
			add(kindConfigMap, ns, e.ConfigMapRef.Name, "runnerPodTemplate.spec.envFrom", isTrue(e.ConfigMapRef.Optional), infra.ReasonNewFailed)
		}
	}
	slices.SortFunc(out, func(a, b use) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.field, b.field))
	})
	return out
}

func addSource(add func(kind, namespace, name, field string, optional bool, reason string), ns string, s *corev1.EnvVarSource, field, reason string) {
	if s == nil {
		return
	}
	if r := s.SecretKeyRef; r != nil {
		add(kindSecret, ns, r.Name, field, isTrue(r.Optional), reason)
	}
	if r := s.ConfigMapKeyRef; r != nil {
		add(kindConfigMap, ns, r.Name, field, isTrue(r.Optional), reason)
	}
}

func isTrue(b *bool) bool { return b != nil && *b }

// data is the content of the references that a unit reads; a reference that does
// not exist is absent.
type data map[reference]map[string][]byte

// references reads Secrets and ConfigMaps for the controller. It caches no
// content: a watch on metadata alone tells that something changed, and what is
// remembered of the content is a keyed digest by resourceVersion.
type references struct {
	cached   client.Reader // serves PartialObjectMetadata from a watch
	uncached client.Reader
	key      []byte

	digests *cache[types.UID, versionDigest]
}

// knownDigests is how many Secrets and ConfigMaps have their digest remembered; of
// more than that, some are read again.
const knownDigests = 16384

type versionDigest struct{ version, digest string }

func newReferences(cached, uncached client.Reader, key []byte) *references {
	return &references{cached: cached, uncached: uncached, key: key, digests: newCache[types.UID, versionDigest](knownDigests)}
}

// metadata returns the metadata of a reference from the watch, nil if it does not exist.
func (r *references) metadata(ctx context.Context, ref reference) (*metav1.PartialObjectMetadata, error) {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: ref.Kind})
	if err := r.cached.Get(ctx, ref.key(), m); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("look up %s: %w", ref, err)
	}
	return m, nil
}

// digest returns a keyed digest of a reference's content, "" if it does not exist.
// Content that had to be fetched for it is put into fetched, so that a run that
// follows does not ask again.
func (r *references) digest(ctx context.Context, ref reference, fetched data) (string, error) {
	m, err := r.metadata(ctx, ref)
	if err != nil || m == nil {
		return "", err
	}
	if known, ok := r.digests.Get(m.UID); ok && known.version == m.ResourceVersion {
		return known.digest, nil
	}
	content, version, uid, err := r.fetch(ctx, ref)
	if err != nil || content == nil {
		return "", err
	}
	fetched[ref] = content
	d := r.sum(content)
	r.digests.Add(uid, versionDigest{version, d})
	return d, nil
}

// fetch reads a reference from the API server; content is nil if it does not exist.
func (r *references) fetch(ctx context.Context, ref reference) (content map[string][]byte, version string, uid types.UID, err error) {
	content = map[string][]byte{}
	var meta *metav1.ObjectMeta
	switch ref.Kind {
	case kindSecret:
		var s corev1.Secret
		err = r.uncached.Get(ctx, ref.key(), &s)
		maps.Copy(content, s.Data)
		meta = &s.ObjectMeta
	case kindConfigMap:
		var m corev1.ConfigMap
		err = r.uncached.Get(ctx, ref.key(), &m)
		for k, v := range m.Data {
			content[k] = []byte(v)
		}
		maps.Copy(content, m.BinaryData)
		meta = &m.ObjectMeta
	default:
		return nil, "", "", fmt.Errorf("read %s: the kind is neither Secret nor ConfigMap", ref)
	}
	if apierrors.IsNotFound(err) {
		return nil, "", "", nil
	} else if err != nil {
		return nil, "", "", fmt.Errorf("read %s: %w", ref, err)
	}
	return content, meta.ResourceVersion, meta.UID, nil
}

// sum is keyed: what depends on it is written to a status that more people may
// read than the Secret, and short values could be guessed from a plain hash.
func (r *references) sum(content map[string][]byte) string {
	h := hmac.New(sha256.New, r.key)
	for _, k := range slices.Sorted(maps.Keys(content)) {
		fmt.Fprintf(h, "%d:%s%d:", len(k), k, len(content[k]))
		h.Write(content[k])
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (c *Controller) exists(ctx context.Context, ref reference) (bool, error) {
	m, err := c.refs.metadata(ctx, ref)
	return m != nil, err
}

// resolve digests all that the unit reads: the files that its path reaches, the
// data that it refers to, the tool, and the part of the spec that makes a plan
// what it is.
func (c *Controller) resolve(ctx context.Context, cy *cycle) (status.Result, error) {
	tf := cy.tf
	if r := tf.Spec.CliConfigSecretRef; r != nil && r.Namespace != "" && r.Namespace != tf.Namespace && !c.opts.AllowCrossNamespaceRefs {
		return status.Stalled(infra.ReasonAccessDenied, fmt.Sprintf(
			"cannot read cliConfigSecretRef %s/%s: cross-namespace references are not allowed; start Terrace with --allow-cross-namespace-refs", r.Namespace, r.Name)), nil
	}
	digests := map[string]string{}
	for _, u := range uses(tf) {
		d, err := c.refs.digest(ctx, u.reference, cy.fetched)
		if err != nil {
			return status.Result{}, err
		}
		if d == "" && !u.optional {
			return status.Wait(u.reason, fmt.Sprintf("read %s for %s: it does not exist", u.reference, u.field), 0), nil
		}
		digests[u.reference.String()] = d
	}
	cy.inputDigest = c.inputDigest(tf, cy.reach.digest, digests)
	return status.Next, nil
}
