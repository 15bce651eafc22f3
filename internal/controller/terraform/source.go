// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	references "github.com/terrace-dev/terrace/internal/reference"
	"github.com/terrace-dev/terrace/internal/status"
	"github.com/terrace-dev/terrace/internal/tofu/workdir"
)

// fetch finds the source's artifact and what the unit reads of it. The content
// stays in the store, unpacked once a digest and shared.
func (c *Controller) fetch(ctx context.Context, cy *cycle) (status.Result, error) {
	tf := cy.tf
	ref := tf.Spec.SourceRef
	namespace := ref.Namespace
	if namespace == "" {
		namespace = tf.Namespace
	}
	if namespace != tf.Namespace && !c.opts.AllowCrossNamespaceRefs {
		return status.Stalled(infra.ReasonAccessDenied, fmt.Sprintf(
			"cannot access %s/%s/%s: cross-namespace references are not allowed; put the source into namespace %s or start Terrace with --allow-cross-namespace-refs",
			ref.Kind, namespace, ref.Name, tf.Namespace)), nil
	}

	art, err := c.sourceArtifact(ctx, ref.Kind, types.NamespacedName{Namespace: namespace, Name: ref.Name})
	switch {
	case apierrors.IsNotFound(err):
		return status.Wait(infra.ReasonArtifactFailed, fmt.Sprintf("Source '%s/%s/%s' not found", ref.Kind, namespace, ref.Name), 0), nil
	case errors.Is(err, references.ErrUnknownSource):
		return status.Stalled(infra.ReasonArtifactFailed, err.Error()), nil
	case err != nil:
		return status.Result{}, err
	case art == nil:
		return status.Wait(infra.ReasonArtifactFailed, fmt.Sprintf("Source is not ready, artifact not found: %s/%s/%s", ref.Kind, namespace, ref.Name), 0), nil
	}
	cy.artifact = art
	if art.Revision != tf.Status.LastAttemptedRevision {
		beginAnew(tf)
	}
	tf.Status.LastAttemptedRevision = art.Revision
	return c.open(ctx, cy)
}

// open makes the artifact's tree available to this reconcile and reads what the
// unit's path reaches in it.
func (c *Controller) open(ctx context.Context, cy *cycle) (status.Result, error) {
	dir, release, err := c.opts.Artifacts.Tree(ctx, cy.artifact)
	if err != nil {
		// The store of another controller may be away for a moment; its object
		// wakes us with a new artifact, time wakes us for the same one.
		return status.Wait(infra.ReasonArtifactFailed, fmt.Sprintf("fetch artifact %s: %v", cy.artifact.Revision, err), cy.tf.GetRetryInterval()), nil
	}
	cy.dir, cy.release = dir, release

	reach, err := c.reach(dir, cy.artifact.Digest, cy.tf)
	if err != nil {
		return status.Wait(infra.ReasonArtifactFailed, err.Error(), 0), nil
	}
	cy.reach = reach
	return status.Next, nil
}

// sourceArtifact returns the artifact of a source, nil if it has none yet.
func (c *Controller) sourceArtifact(ctx context.Context, kind string, key types.NamespacedName) (*meta.Artifact, error) {
	return references.Artifact(ctx, c.opts.Client, kind, key, sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind, sourcev1.BucketKind)
}

// reached is what a unit reads of an artifact, with its digest.
type reached struct {
	*workdir.Reach
	digest string
	// config is the digest of the configuration files alone. What a provisioner runs can
	// depend on a local value, which no description of a plan shows.
	config string
	// encrypted are the SOPS files among the files.
	encrypted []string
}

// reachKey names one reading; the same artifact, path and variable files always
// give the same answer, so that an event that is not a commit parses nothing.
type reachKey struct{ artifact, path, varFiles string }

func (c *Controller) reach(dir, artifactDigest string, tf *infra.Terraform) (*reached, error) {
	key := reachKey{artifactDigest, tf.Spec.Path, strings.Join(tf.Spec.TFVarsFiles, "\x00")}
	if r, ok := c.reaches.Get(key); ok {
		return r, nil
	}
	reach, err := workdir.ReachOf(dir, tf.Spec.Path, workdir.Options{
		VarFiles: tf.Spec.TFVarsFiles, TofuFiles: c.opts.Tool.ReadsTofuFiles(),
	})
	if err != nil {
		return nil, err
	}
	digest, err := reach.Digest(dir, c.hasher)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", tf.Spec.Path, err)
	}
	config, err := configDigest(dir, reach)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", tf.Spec.Path, err)
	}
	encrypted, err := encryptedFiles(dir, reach)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", tf.Spec.Path, err)
	}
	r := &reached{Reach: reach, digest: digest, config: config, encrypted: encrypted}
	c.reaches.Add(key, r)
	return r, nil
}

// configDigest digests the configuration files among what a unit reads.
func configDigest(dir string, reach *workdir.Reach) (string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	h := sha256.New()
	for _, name := range reach.Files {
		base := path.Base(name)
		if !slices.Contains([]string{".tf", ".tofu"}, path.Ext(strings.TrimSuffix(base, ".json"))) && base != workdir.TemplateFile {
			continue
		}
		content, err := root.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%d:%s%d:", len(name), name, len(content))
		h.Write(content)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
