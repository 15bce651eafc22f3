// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"context"
	"errors"
	"fmt"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/acl"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/terrace-dev/terrace/internal/artifact"
	"github.com/terrace-dev/terrace/internal/kube"
	"github.com/terrace-dev/terrace/internal/reference"
	"github.com/terrace-dev/terrace/internal/status"
)

// originRevision is the annotation by which an OCI artifact says what it was made from.
const originRevision = "org.opencontainers.image.revision"

// newborn is how long a new unit is silent about a source that is not there. The time
// of its creation is known by the second.
const newborn = 2 * time.Second

// terminal begins the message of an error that only a change of the object mends, as in Flux.
const terminal = "Reconciliation failed terminally due to configuration error: "

// check refuses what no try can make right.
func (c *Controller) check(_ context.Context, cy *cycle) (status.Result, error) {
	if _, err := kube.CompileChecks(cy.ks.Spec.HealthCheckExprs); err != nil {
		return status.Stalled(meta.InvalidCELExpressionReason, terminal+err.Error()), nil
	}
	return status.Next, nil
}

// fetch finds the source's artifact and makes its tree available.
func (c *Controller) fetch(ctx context.Context, cy *cycle) (status.Result, error) {
	ref := cy.ks.Spec.SourceRef
	namespace := sourceNamespace(cy.ks)
	if namespace != cy.ks.Namespace && c.opts.NoCrossNamespaceRefs {
		return status.Stalled(acl.AccessDeniedReason, fmt.Sprintf(
			"can't access '%s', cross-namespace references have been blocked", describe(ref, namespace))), nil
	}
	art, err := c.sourceArtifact(ctx, ref.Kind, types.NamespacedName{Namespace: namespace, Name: ref.Name})
	switch {
	case (apierrors.IsNotFound(err) || err == nil && art == nil) && c.opts.Clock.Since(cy.ks.CreationTimestamp.Time) < newborn:
		// It was probably created with its source, which is being fetched.
		return status.Wait(quiet, "", newborn), nil
	case apierrors.IsNotFound(err):
		return status.Wait(meta.ArtifactFailedReason, fmt.Sprintf("Source '%s' not found", describe(ref, namespace)), 0), nil
	case errors.Is(err, reference.ErrUnknownSource):
		return status.Stalled(meta.ArtifactFailedReason, err.Error()), nil
	case err != nil:
		return status.Result{}, status.Fail(meta.ArtifactFailedReason, err)
	case art == nil:
		return status.Wait(meta.ArtifactFailedReason, fmt.Sprintf("Source artifact not found: '%s' has none yet", describe(ref, namespace)), 0), nil
	}
	dir, release, err := c.opts.Artifacts.Tree(ctx, art)
	if errors.Is(err, artifact.ErrNotFound) {
		return status.Wait(meta.ArtifactFailedReason, fmt.Sprintf("Source is not ready, artifact not found: %v", err), cy.ks.GetRetryInterval()), nil
	}
	if err != nil {
		return status.Result{}, status.Fail(meta.ArtifactFailedReason, fmt.Errorf("fetch artifact %s: %w", art.Revision, err))
	}
	cy.artifact, cy.dir, cy.release, cy.origin = art, dir, release, art.Metadata[originRevision]
	return status.Next, nil
}

func sourceNamespace(ks *kustomizev1.Kustomization) string {
	if ks.Spec.SourceRef.Namespace != "" {
		return ks.Spec.SourceRef.Namespace
	}
	return ks.Namespace
}

// sourceArtifact returns the artifact of a source, nil if it has none yet.
func (c *Controller) sourceArtifact(ctx context.Context, kind string, key types.NamespacedName) (*meta.Artifact, error) {
	return reference.Artifact(ctx, c.opts.Client, kind, key, sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind, sourcev1.BucketKind, sourcev1.ExternalArtifactKind)
}
