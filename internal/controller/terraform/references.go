// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	references "github.com/terrace-dev/terrace/internal/reference"
	"github.com/terrace-dev/terrace/internal/status"
)

const (
	kindSecret    = references.Secret
	kindConfigMap = references.ConfigMap
)

// The words of package reference, as this package uses them.
type (
	reference = references.Reference
	data      = references.Data
)

// use is one place of a spec that reads a reference.
type use struct {
	reference
	field    string // for the message
	optional bool
	reason   string // the Ready reason when it is missing
	// keys are those of the content that are read; none for all.
	keys []string
}

// key names what is read of the reference.
func (u use) key() string { return fmt.Sprintf("%s %q", u.reference, u.keys) }

// uses lists every Secret and ConfigMap that a unit reads, sorted, each place once.
func uses(tf *infra.Terraform) []use {
	ns := tf.Namespace
	var out []use
	add := func(kind, namespace, name, field string, optional bool, reason string, keys ...string) {
		if name != "" {
			out = append(out, use{reference{Kind: kind, Namespace: namespace, Name: name}, field, optional, reason, keys})
		}
	}
	for _, v := range tf.Spec.VarsFrom {
		var keys []string
		for _, entry := range v.VarsKeys {
			key, _, _ := strings.Cut(entry, ":") // the rest is the variable's name
			keys = append(keys, key)
		}
		add(v.Kind, ns, v.Name, "varsFrom", v.Optional, infra.ReasonVarsGenerationFailed, keys...)
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
	add(kindSecret, ns, decryptionSecret(tf).Name, decryptionField, false, infra.ReasonNewFailed)
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

func addSource(add func(kind, namespace, name, field string, optional bool, reason string, keys ...string), ns string, s *corev1.EnvVarSource, field, reason string) {
	if s == nil {
		return
	}
	if r := s.SecretKeyRef; r != nil {
		add(kindSecret, ns, r.Name, field, isTrue(r.Optional), reason, r.Key)
	}
	if r := s.ConfigMapKeyRef; r != nil {
		add(kindConfigMap, ns, r.Name, field, isTrue(r.Optional), reason, r.Key)
	}
}

func isTrue(b *bool) bool { return b != nil && *b }

func (c *Controller) exists(ctx context.Context, ref reference) (bool, error) {
	m, err := c.refs.Metadata(ctx, ref)
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
		d, err := c.refs.Digest(ctx, u.reference, cy.fetched, u.keys...)
		if err != nil {
			return status.Result{}, err
		}
		if d == "" && !u.optional {
			return status.Wait(u.reason, fmt.Sprintf("read %s for %s: it does not exist", u.reference, u.field), 0), nil
		}
		digests[u.key()] = d
	}
	global, err := c.globalDigest(ctx, cy)
	if err != nil {
		return status.Result{}, err
	}
	if global != "" {
		digests["--sops-age-secret"] = global
	}
	cy.digests, cy.inputDigest = digests, c.inputDigest(tf, cy.reach.digest, digests)
	return status.Next, nil
}
