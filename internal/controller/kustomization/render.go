// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/ssa/normalize"
	"github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/terrace-dev/terrace/internal/kube"
	"github.com/terrace-dev/terrace/internal/mask"
	"github.com/terrace-dev/terrace/internal/reference"
	"github.com/terrace-dev/terrace/internal/render/kustomize"
	"github.com/terrace-dev/terrace/internal/render/sops"
	"github.com/terrace-dev/terrace/internal/status"
)

// build is what a path of an artifact says, ready to be applied.
type build struct {
	objects []*unstructured.Unstructured // labelled and normalised
	digest  string
	secrets []string // values that must not be shown, from Secrets and SOPS
}

// look finds out whether this artifact says something else to this unit, and builds
// it if so. It comes before the wait for dependencies, so that other units know what
// this one claims; what is wrong with the build is told after it, as in Flux.
func (c *Controller) look(ctx context.Context, cy *cycle) (_ status.Result, err error) {
	defer func() {
		if !errors.Is(err, reference.ErrChanged) { // else it looks again at once
			c.claims.looked(cy.name, sourceOf(cy.ks), cy.artifact.Revision, cy.ks.Generation, c.Wake)
		}
	}()
	vars, fetched, err := c.digestReferences(ctx, cy.ks)
	if err != nil {
		cy.buildErr = err
		return status.Next, nil
	}
	cy.references = vars
	if cy.target, err = clusterName(cy.ks, vars); err != nil {
		cy.buildErr = err
		return status.Next, nil
	}
	m := cy.mem
	if key := treeKey(cy.ks); m.treeKey != key {
		m.treeKey, m.reads, m.artifact = key, nil, ""
	}
	if m.reads != nil && m.artifact != cy.artifact.Digest {
		tree, err := m.reads.Digest(cy.dir)
		if err != nil {
			return status.Result{}, fmt.Errorf("read artifact %s: %w", cy.artifact.Revision, err)
		}
		if tree != m.tree {
			m.reads = nil // it reads something else now
		} else {
			m.artifact = cy.artifact.Digest
		}
	}
	// What is fetched from other hosts can change without a commit.
	stale := m.reads != nil && len(m.reads.Remote()) > 0 && (cy.requested || !c.opts.Clock.Now().Before(m.due))
	if m.reads != nil && m.built != nil && !stale && c.inputDigest(cy.ks, m.tree, vars) == m.inputs {
		cy.inputs = m.inputs
		return status.Next, nil
	}
	return status.Next, c.render(ctx, cy, vars, fetched)
}

// render builds, and remembers what the build read and made.
func (c *Controller) render(ctx context.Context, cy *cycle, vars map[string]string, fetched reference.Data) error {
	m := cy.mem
	in, secrets, err := c.buildInput(ctx, cy, vars, fetched)
	if errors.Is(err, reference.ErrChanged) {
		return err
	}
	if err != nil {
		cy.buildErr = err
		return nil
	}
	out, buildErr := kustomize.Build(ctx, in)
	if r, ok := in.Decrypt.(*sops.Recorder); ok {
		secrets = append(secrets, r.Secrets()...)
	}
	m.artifact, m.reads, m.built = cy.artifact.Digest, out.Reads, nil
	if m.tree, err = out.Reads.Digest(cy.dir); err != nil {
		return fmt.Errorf("read artifact %s: %w", cy.artifact.Revision, err)
	}
	m.inputs = c.inputDigest(cy.ks, m.tree, vars)
	cy.inputs = m.inputs
	if buildErr == nil {
		buildErr = normalize.UnstructuredList(out.Objects)
	}
	if buildErr != nil {
		cy.buildErr = status.Fail(buildReason(buildErr), hide(secrets, buildErr))
		c.claims.claim(cy.name, cy.target, nil)
		return nil
	}
	for _, o := range out.Objects {
		owner.Label(o, cy.name)
	}
	cy.build = &build{objects: out.Objects, digest: out.Digest, secrets: secrets}
	m.built = &built{digest: out.Digest, desired: digestsOf(out.Objects), ttlJobs: map[kube.ID]bool{}}
	for _, id := range utils.ExtractJobsWithTTL(out.Objects) {
		m.built.ttlJobs[id] = true
	}
	c.claims.claim(cy.name, cy.target, out.Objects)
	return nil
}

// buildReason is the reason that a failed build has in Flux.
func buildReason(err error) string {
	if errors.Is(err, kustomize.ErrPathNotFound) {
		return meta.ArtifactFailedReason
	}
	return meta.BuildFailedReason
}

// rebuild returns the objects of the inputs that were built before.
func (c *Controller) rebuild(ctx context.Context, cy *cycle) (*build, error) {
	if cy.build != nil {
		return cy.build, nil
	}
	vars, fetched, err := c.digestReferences(ctx, cy.ks)
	if err != nil {
		return nil, err
	}
	if !maps.Equal(vars, cy.references) {
		return nil, fmt.Errorf("build what was looked at: %w", reference.ErrChanged)
	}
	if err := c.render(ctx, cy, vars, fetched); err != nil {
		return nil, err
	}
	if cy.build != nil {
		if err := c.normalise(cy); err != nil {
			return nil, err
		}
	}
	return cy.build, cy.buildErr
}

// normalise writes the objects of a build as the unit's cluster has them.
func (c *Controller) normalise(cy *cycle) error {
	if err := cy.client.Normalise(cy.build.objects); err != nil {
		return err
	}
	c.rekey(cy, cy.build)
	return nil
}

// rekey takes note of objects that turned out to be in no namespace, and of what else
// is not applied as it was built.
func (c *Controller) rekey(cy *cycle, b *build) {
	m, before := cy.mem, slices.Collect(maps.Keys(cy.mem.built.desired))
	m.built.desired = digestsOf(b.objects)
	if wrong := without(before, slices.Collect(maps.Keys(m.built.desired))); len(wrong) > 0 {
		c.letGo(cy, wrong)
		c.claims.claim(cy.name, cy.target, b.objects)
	}
}

// prepare tells what is wrong with the build, and connects to the cluster.
func (c *Controller) prepare(ctx context.Context, cy *cycle) (status.Result, error) {
	cy.ks.Status.LastAttemptedRevision = cy.artifact.Revision
	if cy.buildErr != nil {
		return status.Result{}, cy.buildErr
	}
	cluster, name, k, err := c.targets.of(ctx, cy.ks)
	if err == nil && name != cy.target {
		err = reference.ErrChanged
	}
	if err != nil {
		return status.Result{}, status.Fail(meta.ReconciliationFailedReason, fmt.Errorf("failed to build kube client: %w", err))
	}
	cy.cluster, cy.client = cluster, k
	if cy.build != nil {
		if err := c.normalise(cy); err != nil {
			return status.Result{}, status.Fail(meta.ReconciliationFailedReason, err)
		}
	}
	return status.Next, nil
}

// treeKey is the part of a spec that decides which files of a tree are read.
func treeKey(ks *kustomizev1.Kustomization) string {
	key, _ := json.Marshal([]any{ks.Spec.Path, ks.Spec.Components, ks.Spec.IgnoreMissingComponents, ks.Spec.Decryption})
	return string(key)
}

// inputDigest names all that decides what is applied, and where.
func (c *Controller) inputDigest(ks *kustomizev1.Kustomization, tree string, references map[string]string) string {
	in := struct {
		Format     int
		Tree       string
		Spec       kustomizev1.KustomizationSpec
		References map[string]string
		Account    string
	}{1, tree, appliedSpec(ks.Spec), references, c.account(ks)}
	h := hmac.New(sha256.New, c.key)
	// Every part was decoded from JSON.
	_ = json.NewEncoder(h).Encode(in)
	return hex.EncodeToString(h.Sum(nil))
}

// appliedSpec returns the part of a spec that decides what is applied.
func appliedSpec(s kustomizev1.KustomizationSpec) kustomizev1.KustomizationSpec {
	return kustomizev1.KustomizationSpec{
		CommonMetadata: s.CommonMetadata, Decryption: s.Decryption, KubeConfig: s.KubeConfig, Path: s.Path, PostBuild: s.PostBuild,
		NamePrefix: s.NamePrefix, NameSuffix: s.NameSuffix, Patches: s.Patches, Images: s.Images, TargetNamespace: s.TargetNamespace,
		Force: s.Force, BuildMetadata: s.BuildMetadata, Components: s.Components, IgnoreMissingComponents: s.IgnoreMissingComponents, Ignore: s.Ignore,
	}
}

// uses lists the Secrets and ConfigMaps that a unit reads.
func (c *Controller) uses(ks *kustomizev1.Kustomization) (refs []reference.Reference, optional map[reference.Reference]bool) {
	optional = map[reference.Reference]bool{}
	if p := ks.Spec.PostBuild; p != nil {
		for _, s := range p.SubstituteFrom {
			r := reference.Reference{Kind: s.Kind, Namespace: ks.Namespace, Name: s.Name}
			refs = append(refs, r)
			optional[r] = s.Optional
		}
	}
	if d := ks.Spec.Decryption; d != nil && d.SecretRef != nil {
		refs = append(refs, reference.Reference{Kind: reference.Secret, Namespace: ks.Namespace, Name: d.SecretRef.Name})
	}
	if r, ok := c.globalAge(); ok && ks.Spec.Decryption != nil {
		refs = append(refs, r)
	}
	if ks.Spec.KubeConfig != nil {
		if r, err := kubeConfigOf(ks); err == nil { // else look says so
			refs = append(refs, r)
		}
	}
	return refs, optional
}

// digestReferences names the content of what a unit reads beside its source.
func (c *Controller) digestReferences(ctx context.Context, ks *kustomizev1.Kustomization) (map[string]string, reference.Data, error) {
	refs, optional := c.uses(ks)
	digests, fetched := map[string]string{}, reference.Data{}
	for _, r := range refs {
		d, err := c.refs.Digest(ctx, r, fetched)
		if err != nil {
			return nil, nil, err
		}
		if d == "" && !optional[r] {
			return nil, nil, status.Failf(missingReason(ks, r), "%s '%s' not found: %s", r.Kind, r.Key(), whatFor(ks, r))
		}
		digests[r.String()] = d
	}
	return digests, fetched, nil
}

func missingReason(ks *kustomizev1.Kustomization, r reference.Reference) string {
	if k := ks.Spec.KubeConfig; k != nil && (k.SecretRef != nil && k.SecretRef.Name == r.Name || k.ConfigMapRef != nil && k.ConfigMapRef.Name == r.Name) {
		return meta.ReconciliationFailedReason
	}
	return meta.BuildFailedReason
}

func whatFor(ks *kustomizev1.Kustomization, r reference.Reference) string {
	if r.Namespace != ks.Namespace {
		return "--sops-age-secret names it"
	}
	if d := ks.Spec.Decryption; d != nil && d.SecretRef != nil && r.Kind == reference.Secret && d.SecretRef.Name == r.Name {
		return "spec.decryption.secretRef names it"
	}
	if missingReason(ks, r) == meta.ReconciliationFailedReason {
		return "spec.kubeConfig names it"
	}
	return "spec.postBuild.substituteFrom names it; set optional: true there if it may be missing"
}

// buildInput gathers what the build needs beside the tree, and which of it is secret:
// the content that digests name.
func (c *Controller) buildInput(ctx context.Context, cy *cycle, digests map[string]string, fetched reference.Data) (in kustomize.Input, secrets []string, err error) {
	ks := cy.ks
	in = kustomize.Input{
		Dir: cy.dir, Unit: ks, Revision: cy.artifact.Revision, Strict: true,
		RemoteBases: c.opts.AllowRemoteBases, Key: c.key,
	}
	content := func(r reference.Reference) (map[string][]byte, error) {
		return c.refs.Content(ctx, r, digests[r.String()], fetched)
	}
	if p := ks.Spec.PostBuild; p != nil {
		in.Variables = map[string]string{}
		for _, s := range p.SubstituteFrom {
			data, err := content(reference.Reference{Kind: s.Kind, Namespace: ks.Namespace, Name: s.Name})
			if err != nil {
				return in, nil, err
			}
			for k, v := range data {
				in.Variables[k] = string(v)
				if s.Kind == reference.Secret {
					secrets = append(secrets, string(v))
				}
			}
		}
		maps.Copy(in.Variables, p.Substitute)
	}
	decrypt, err := c.decryptor(ctx, cy, content)
	if err != nil {
		return in, nil, err
	}
	if decrypt != nil {
		in.Decrypt = &sops.Recorder{Decryptor: decrypt}
	}
	return in, secrets, nil
}

// hide masks secrets in an error: the API server quotes values that it refuses.
func hide(secrets []string, err error) error {
	if len(secrets) == 0 || err == nil {
		return err
	}
	if masked := masker(secrets).String(err.Error()); masked != err.Error() {
		return status.Fail(status.ReasonOf(err, meta.ReconciliationFailedReason), errors.New(masked))
	}
	return err
}

func masker(secrets []string) *mask.Masker {
	values := make([][]byte, len(secrets))
	for i, s := range secrets {
		values[i] = []byte(s)
	}
	return mask.New(values...)
}

// decryptor returns what decrypts for a unit, nil if it asks for none.
func (c *Controller) decryptor(ctx context.Context, cy *cycle, content func(reference.Reference) (map[string][]byte, error)) (*sops.Decryptor, error) {
	ks, d := cy.ks, cy.ks.Spec.Decryption
	if d == nil {
		return nil, nil
	}
	keys := &sops.Keys{}
	if d.SecretRef != nil {
		r := reference.Reference{Kind: reference.Secret, Namespace: ks.Namespace, Name: d.SecretRef.Name}
		data, err := content(r)
		if err != nil {
			return nil, err
		}
		if keys, err = sops.NewKeys(r.Key().String(), data); err != nil {
			return nil, status.Fail(meta.BuildFailedReason, err)
		}
	}
	if r, ok := c.globalAge(); ok {
		data, err := content(r)
		if err != nil {
			return nil, err
		}
		if keys, err = keys.WithGlobalAge(r.Key().String(), data); err != nil {
			return nil, status.Fail(meta.BuildFailedReason, err)
		}
	}
	identity, err := c.cloudIdentity(ctx, cy)
	if err != nil {
		return nil, err
	}
	// As in Flux, what is not encrypted in such a file may be edited by hand: who can write
	// to the repository could put another object there in any case.
	return sops.New(keys, sops.WithoutMAC(), sops.WithIdentity(identity)), nil
}

// globalAge names the Secret whose keys decrypt for every unit, if there is one.
func (c *Controller) globalAge() (reference.Reference, bool) {
	namespace, name, ok := strings.Cut(c.opts.SOPSAgeSecret, "/")
	return reference.Reference{Kind: reference.Secret, Namespace: namespace, Name: name}, ok
}
