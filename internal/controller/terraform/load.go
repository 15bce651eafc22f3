// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/blob"
	"github.com/terrace-dev/terrace/internal/mask"
	"github.com/terrace-dev/terrace/internal/status"
	"github.com/terrace-dev/terrace/internal/tofu/workdir"
)

// inputs are what a run is given besides the files of its artifact: read from the
// API server in one go, before the run is queued. They are also what is kept,
// encrypted, for a deletion that comes when the objects they were read from are gone.
type inputs struct {
	// Vars are the input variables, varsFrom already over vars.
	Vars map[string]json.RawMessage `json:"vars,omitempty"`
	// Values is spec.values before its templates are rendered.
	Values json.RawMessage `json:"values,omitempty"`
	// Templates are the Secrets of readInputsFromSecrets.
	Templates []workdir.Input `json:"templates,omitempty"`
	// Env is the environment that the spec gives to the run.
	Env map[string]string `json:"env,omitempty"`
	// BackendConfig are the keys and values of backendConfigsFrom, in its order.
	BackendConfig []map[string][]byte `json:"backendConfig,omitempty"`
	// CLIConfig is the content of the .tfrc of cliConfigSecretRef.
	CLIConfig []byte `json:"cliConfig,omitempty"`
	// Files are the file mappings with their content.
	Files []workdir.Mapping `json:"files,omitempty"`
	// Decrypted are SOPS files of the artifact, by their names in it, as the run finds them.
	Decrypted map[string][]byte `json:"decrypted,omitempty"`
	// Secrets are the values to be masked in every text.
	Secrets [][]byte `json:"secrets,omitempty"`
}

// load reads the inputs of a unit; what resolve has fetched already is not asked for
// again. The error carries the reason for the Ready condition.
func (c *Controller) load(ctx context.Context, cy *cycle) (*inputs, error) {
	tf := cy.tf
	l := loader{tf: tf, data: cy.fetched, in: &inputs{Vars: map[string]json.RawMessage{}, Env: map[string]string{}}}
	given := map[reference]bool{} // to the run; the keys of SOPS files are not
	for _, u := range uses(tf) {
		given[u.reference] = given[u.reference] || u.field != decryptionField
		content, err := c.content(ctx, cy, u)
		if err != nil {
			return nil, err
		}
		if content == nil && !u.optional {
			return nil, status.Failf(u.reason, "read %s for %s: it does not exist", u.reference, u.field)
		}
	}
	for _, step := range []struct {
		reason string
		do     func() error
	}{
		{infra.ReasonVarsGenerationFailed, l.vars},
		{infra.ReasonVarsGenerationFailed, l.templates},
		{infra.ReasonInitFailed, l.backend},
		{infra.ReasonNewFailed, l.cliConfig},
		{infra.ReasonNewFailed, l.files},
		{infra.ReasonNewFailed, l.env},
	} {
		if err := step.do(); err != nil {
			return nil, status.Fail(step.reason, err)
		}
	}
	if err := c.decrypt(ctx, cy, l.in); err != nil {
		return nil, err
	}
	for ref, content := range l.data {
		if ref.Kind == kindSecret && given[ref] {
			for _, k := range slices.Sorted(maps.Keys(content)) {
				l.in.Secrets = append(l.in.Secrets, content[k])
			}
		}
	}
	if cloud := tf.Spec.Cloud; cloud != nil && cloud.Token != "" {
		l.in.Secrets = append(l.in.Secrets, []byte(cloud.Token))
	}
	return l.in, nil
}

// content reads what a unit refers to: that which its inputs were resolved of, or what is there
// where they were not. It is in cy.fetched then; nil does not exist.
func (c *Controller) content(ctx context.Context, cy *cycle, u use) (map[string][]byte, error) {
	if digest, ok := cy.digests[u.key()]; ok {
		return c.refs.Content(ctx, u.reference, digest, cy.fetched, u.keys...)
	}
	return c.fetchOnce(ctx, cy, u.reference)
}

// fetchOnce reads what is there of a reference, once in a cycle; nil does not exist.
func (c *Controller) fetchOnce(ctx context.Context, cy *cycle, ref reference) (map[string][]byte, error) {
	if known, ok := cy.fetched[ref]; ok {
		return known, nil
	}
	content, _, _, err := c.refs.Fetch(ctx, ref)
	if content != nil {
		cy.fetched[ref] = content
	}
	return content, err
}

// mask returns what hides the inputs' secrets in texts.
func (in *inputs) mask() *mask.Masker { return mask.New(in.Secrets...) }

type loader struct {
	tf   *infra.Terraform
	data data
	in   *inputs
}

func (l *loader) get(kind, name string) (map[string][]byte, bool) {
	d, ok := l.data[reference{Kind: kind, Namespace: l.tf.Namespace, Name: name}]
	return d, ok
}

// vars sets spec.vars and then, over them, spec.varsFrom in order.
func (l *loader) vars() error {
	for _, v := range l.tf.Spec.Vars {
		switch {
		case v.ValueFrom != nil:
			value, ok, err := l.from(v.ValueFrom, "vars["+v.Name+"].valueFrom")
			if err != nil {
				return err
			}
			if ok {
				l.in.Vars[v.Name] = jsonString(value)
			}
		case v.Value != nil:
			l.in.Vars[v.Name] = v.Value.Raw
		default:
			l.in.Vars[v.Name] = json.RawMessage("null")
		}
	}
	for _, v := range l.tf.Spec.VarsFrom {
		content, ok := l.get(v.Kind, v.Name)
		if !ok {
			continue // optional, or load would have failed
		}
		if len(v.VarsKeys) == 0 {
			for k, value := range content {
				l.in.Vars[k] = jsonString(value)
			}
		}
		for _, entry := range v.VarsKeys {
			key, name, renamed := strings.Cut(entry, ":")
			if !renamed {
				name = key
			}
			value, ok := content[key]
			if !ok && v.Optional {
				continue // the module's own default holds
			}
			if !ok {
				return missingKey(v.Kind, l.tf.Namespace, v.Name, key, "varsFrom", content)
			}
			l.in.Vars[name] = jsonString(value)
		}
	}
	return nil
}

func jsonString(b []byte) json.RawMessage {
	out, err := json.Marshal(string(b))
	if err != nil { // a string always encodes
		return json.RawMessage("null")
	}
	return out
}

func missingKey(kind, namespace, name, key, field string, content map[string][]byte) error {
	have := strings.Join(slices.Sorted(maps.Keys(content)), ", ")
	if have == "" {
		have = "none"
	}
	return fmt.Errorf("read key %q of %s %s/%s for %s: no such key; it has: %s", key, kind, namespace, name, field, have)
}

// from resolves a valueFrom; ok is false when it is optional and not there.
func (l *loader) from(s *corev1.EnvVarSource, field string) (value []byte, ok bool, err error) {
	var kind, name, key string
	var optional bool
	switch {
	case s.SecretKeyRef != nil:
		kind, name, key, optional = kindSecret, s.SecretKeyRef.Name, s.SecretKeyRef.Key, isTrue(s.SecretKeyRef.Optional)
	case s.ConfigMapKeyRef != nil:
		kind, name, key, optional = kindConfigMap, s.ConfigMapKeyRef.Name, s.ConfigMapKeyRef.Key, isTrue(s.ConfigMapKeyRef.Optional)
	default:
		return nil, false, fmt.Errorf("resolve %s: only secretKeyRef and configMapKeyRef can be resolved outside a pod", field)
	}
	content, found := l.get(kind, name)
	if !found {
		return nil, false, nil
	}
	value, ok = content[key]
	if !ok && !optional {
		return nil, false, missingKey(kind, l.tf.Namespace, name, key, field, content)
	}
	return value, ok, nil
}

func (l *loader) templates() error {
	if l.tf.Spec.Values != nil {
		l.in.Values = l.tf.Spec.Values.Raw
	}
	for _, r := range l.tf.Spec.ReadInputsFromSecrets {
		content, _ := l.get(kindSecret, r.Name)
		l.in.Templates = append(l.in.Templates, workdir.Input{As: r.As, Data: content})
	}
	return nil
}

func (l *loader) backend() error {
	for _, b := range l.tf.Spec.BackendConfigsFrom {
		content, ok := l.get(b.Kind, b.Name)
		if !ok {
			continue
		}
		keys := b.Keys
		if len(keys) == 0 {
			keys = slices.Sorted(maps.Keys(content))
		}
		part := map[string][]byte{}
		for _, key := range keys {
			value, ok := content[key]
			if !ok && b.Optional {
				continue
			}
			if !ok {
				return missingKey(b.Kind, l.tf.Namespace, b.Name, key, "backendConfigsFrom", content)
			}
			part[key] = value
		}
		l.in.BackendConfig = append(l.in.BackendConfig, part)
	}
	return nil
}

func (l *loader) cliConfig() error {
	r := l.tf.Spec.CliConfigSecretRef
	if r == nil {
		return nil
	}
	ns := r.Namespace
	if ns == "" {
		ns = l.tf.Namespace
	}
	content := l.data[reference{Kind: kindSecret, Namespace: ns, Name: r.Name}]
	config, err := workdir.CLIConfig(content)
	if err != nil {
		return fmt.Errorf("read Secret %s/%s for cliConfigSecretRef: %w", ns, r.Name, err)
	}
	l.in.CLIConfig = config
	return nil
}

func (l *loader) files() error {
	for _, m := range l.tf.Spec.FileMappings {
		content, _ := l.get(kindSecret, m.SecretRef.Name)
		value, ok := content[m.SecretRef.Key]
		if !ok {
			return missingKey(kindSecret, l.tf.Namespace, m.SecretRef.Name, m.SecretRef.Key, "fileMappings", content)
		}
		l.in.Files = append(l.in.Files, workdir.Mapping{Location: m.Location, Path: m.Path, Content: value})
	}
	return nil
}

// env follows a pod's rules: envFrom first, in order, then env over it.
func (l *loader) env() error {
	spec := l.tf.Spec.RunnerPodTemplate.Spec
	for _, e := range spec.EnvFrom {
		var content map[string][]byte
		switch {
		case e.SecretRef != nil:
			content, _ = l.get(kindSecret, e.SecretRef.Name)
		case e.ConfigMapRef != nil:
			content, _ = l.get(kindConfigMap, e.ConfigMapRef.Name)
		}
		for k, v := range content {
			l.in.Env[e.Prefix+k] = string(v)
		}
	}
	for _, e := range spec.Env {
		if e.ValueFrom == nil {
			l.in.Env[e.Name] = e.Value
			continue
		}
		value, ok, err := l.from(e.ValueFrom, "runnerPodTemplate.spec.env["+e.Name+"].valueFrom")
		if err != nil {
			return err
		}
		if ok {
			l.in.Env[e.Name] = string(value)
		}
	}
	return nil
}

// sealInputs keeps inputs for a later deletion.
func (c *Controller) sealInputs(ctx context.Context, in *inputs) (string, error) {
	return c.sealJSON(ctx, "inputs", in)
}

func (c *Controller) unsealInputs(ctx context.Context, d string) (*inputs, error) {
	var in inputs
	if err := c.unsealJSON(ctx, "kept inputs", d, &in); err != nil {
		return nil, err
	}
	return &in, nil
}

// sealJSON stores a value encrypted and returns the digest by which unsealJSON finds it.
func (c *Controller) sealJSON(ctx context.Context, what string, v any) (string, error) {
	content, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("encode %s: %w", what, err)
	}
	d, _, err := c.opts.Blobs.Seal(ctx, bytes.NewReader(content))
	if err != nil {
		return "", fmt.Errorf("store %s: %w", what, err)
	}
	return d.String(), nil
}

// unsealJSON reads back a value. The error is blob.ErrNotFound when it is not stored.
func (c *Controller) unsealJSON(ctx context.Context, what, d string, v any) error {
	if d == "" {
		return blob.ErrNotFound
	}
	r, err := c.opts.Blobs.Unseal(ctx, digest.Digest(d))
	if err != nil {
		return err
	}
	defer r.Close()
	content, err := io.ReadAll(r)
	if err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	if err := json.Unmarshal(content, v); err != nil {
		return fmt.Errorf("decode %s: %w", what, err)
	}
	return nil
}

// unusedFields are the fields about the runner pod that a run in a process has no
// use for. They are kept, and named in the status.
func unusedFields(tf *infra.Terraform) []string {
	var out []string
	add := func(set bool, field string) {
		if set {
			out = append(out, "spec."+field)
		}
	}
	add(tf.Spec.ServiceAccountName != "" && tf.Spec.ServiceAccountName != "tf-runner", "serviceAccountName")
	t := tf.Spec.RunnerPodTemplate
	add(len(t.Metadata.Labels) > 0, "runnerPodTemplate.metadata.labels")
	add(len(t.Metadata.Annotations) > 0, "runnerPodTemplate.metadata.annotations")
	add(t.Spec.Image != "", "runnerPodTemplate.spec.image")
	add(t.Spec.ImagePullPolicy != "", "runnerPodTemplate.spec.imagePullPolicy")
	add(len(t.Spec.NodeSelector) > 0, "runnerPodTemplate.spec.nodeSelector")
	add(t.Spec.Affinity != nil, "runnerPodTemplate.spec.affinity")
	add(len(t.Spec.Tolerations) > 0, "runnerPodTemplate.spec.tolerations")
	add(len(t.Spec.VolumeMounts) > 0, "runnerPodTemplate.spec.volumeMounts")
	add(len(t.Spec.Volumes) > 0, "runnerPodTemplate.spec.volumes")
	add(len(t.Spec.InitContainers) > 0, "runnerPodTemplate.spec.initContainers")
	add(len(t.Spec.HostAliases) > 0, "runnerPodTemplate.spec.hostAliases")
	add(t.Spec.PriorityClassName != "", "runnerPodTemplate.spec.priorityClassName")
	add(t.Spec.SecurityContext != nil, "runnerPodTemplate.spec.securityContext")
	add(t.Spec.Resources != nil, "runnerPodTemplate.spec.resources")
	return out
}
