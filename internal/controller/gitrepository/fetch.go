// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package gitrepository

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/terrace-dev/terrace/internal/artifact"
	"github.com/terrace-dev/terrace/internal/source/git"
	"github.com/terrace-dev/terrace/internal/status"
)

// emptyRepository is the reason for a repository without a commit.
const emptyRepository = "EmptyGitRepository"

// keep collects former artifacts and checks that the present one is there and
// intact. If it is not, the status loses it, so that it is fetched again.
func (c *Controller) keep(ctx context.Context, cy *cycle) (status.Result, error) {
	a := cy.obj.Status.Artifact
	if a == nil {
		conditions.Delete(cy.obj, sourcev1.ArtifactInStorageCondition)
		return status.Next, nil
	}
	if n, err := c.o.Artifacts.Collect(ctx, owner(cy.obj), a); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "collect former artifacts")
	} else if n > 0 {
		ctrl.LoggerFrom(ctx).Info("collected former artifacts", "count", n)
	}
	switch err := c.o.Artifacts.Verify(ctx, a); {
	case err == nil:
		c.o.Artifacts.SetURL(a)
		return status.Next, nil
	case errors.Is(err, artifact.ErrDigest):
		cy.tell(corev1.EventTypeWarning, "ArtifactVerificationFailed", fmt.Sprintf("artifact is not intact: %v", err))
		if err := c.o.Artifacts.Discard(ctx, a); err != nil {
			return status.Next, cy.fail(sourcev1.StorageOperationFailedCondition, sourcev1.ReadOperationFailedReason, err)
		}
	case !errors.Is(err, artifact.ErrNotFound):
		return status.Next, cy.fail(sourcev1.StorageOperationFailedCondition, sourcev1.ReadOperationFailedReason,
			fmt.Errorf("read stored artifact: %w", err))
	}
	cy.obj.Status.Artifact = nil
	conditions.Delete(cy.obj, sourcev1.ArtifactInStorageCondition)
	return status.Next, nil
}

// include finds the artifacts of the included repositories.
func (c *Controller) include(ctx context.Context, cy *cycle) (status.Result, error) {
	for _, in := range cy.obj.Spec.Include {
		name := in.GitRepositoryRef.Name
		dep := &sourcev1.GitRepository{}
		err := c.o.Client.Get(ctx, types.NamespacedName{Namespace: cy.obj.Namespace, Name: name}, dep)
		var reason, message string
		switch {
		case err != nil:
			reason, message = "NotFound", fmt.Sprintf("read included repository '%s': %v", name, err)
		case dep.Status.Artifact == nil:
			reason, message = "NoArtifact", fmt.Sprintf("included repository '%s' has no artifact yet", name)
		default:
			cy.includes = append(cy.includes, dep.Status.Artifact)
			continue
		}
		cy.mark(sourcev1.IncludeUnavailableCondition, reason, message)
		return status.Wait(reason, message, includeRecheck), nil
	}
	conditions.Delete(cy.obj, sourcev1.IncludeUnavailableCondition)
	return status.Next, nil
}

// fetch asks the repository for the reference, and for the content if that is
// not what the artifact holds.
func (c *Controller) fetch(ctx context.Context, cy *cycle) (status.Result, error) {
	obj := cy.obj
	u, message := c.parseURL(obj.Spec.URL)
	if message != "" {
		return cy.stall(sourcev1.FetchFailedCondition, sourcev1.URLInvalidReason, message), nil
	}
	request := git.Request{
		URL: obj.Spec.URL, Ref: gitReference(obj.Spec.Reference), Submodules: obj.Spec.RecurseSubmodules,
		Sparse: obj.Spec.SparseCheckout, AllowLocal: c.o.AllowLocal,
	}
	if obj.Status.Artifact != nil && !cy.configChanged() {
		request.Known = obj.Status.Artifact.Revision
	}
	ctx, cancel := context.WithTimeout(ctx, timeout(obj))
	defer cancel()
	if u != nil {
		res, err := c.authenticate(ctx, cy, *u, &request)
		if err != nil || !res.IsNext() {
			return res, err
		}
	}
	found, err := git.Fetch(ctx, request, cy.dir)
	if err != nil {
		reason := sourcev1.GitOperationFailedReason
		if errors.Is(err, git.ErrEmpty) {
			reason = emptyRepository
		}
		return status.Next, cy.fail(sourcev1.FetchFailedCondition, reason, err)
	}
	conditions.Delete(obj, sourcev1.FetchFailedCondition)
	cy.checkout = found
	return status.Next, nil
}

// parseURL returns the URL of a remote repository, nil for a local one, or what
// is wrong with it.
func (c *Controller) parseURL(location string) (*url.URL, string) {
	if _, local := git.Local(location); local {
		if !c.o.AllowLocal {
			return nil, fmt.Sprintf("url '%s' is local, and this controller does not read local repositories (--allow-local-sources)", location)
		}
		return nil, ""
	}
	u, err := url.Parse(location)
	if err != nil {
		// The parser's message repeats the URL, which may hold a password.
		return nil, "url cannot be parsed"
	}
	switch u.Scheme {
	case "http", "https", "ssh":
		return u, ""
	default:
		return nil, fmt.Sprintf("url '%s' has the scheme '%s'; http, https and ssh are supported", git.Redact(location), u.Scheme)
	}
}

func gitReference(ref *sourcev1.GitRepositoryRef) git.Reference {
	if ref == nil {
		return git.Reference{}
	}
	return git.Reference{Branch: ref.Branch, Tag: ref.Tag, SemVer: ref.SemVer, Name: ref.Name, Commit: ref.Commit}
}

// configChanged reports whether the artifact would have to be made anew although
// the commit is the same: what it is made of, or what must be verified, changed.
func (cy *cycle) configChanged() bool {
	spec, seen := &cy.obj.Spec, &cy.obj.Status
	if !ptr.Equal(spec.Ignore, seen.ObservedIgnore) ||
		spec.RecurseSubmodules != seen.ObservedRecurseSubmodules ||
		!slices.Equal(spec.SparseCheckout, seen.ObservedSparseCheckout) ||
		!slices.Equal(spec.Include, seen.ObservedInclude) {
		return true
	}
	return cy.mustVerify() || !slices.EqualFunc(cy.includes, seen.IncludedArtifacts, sameContent)
}

func sameContent(a, b *meta.Artifact) bool {
	return a != nil && b != nil && a.Revision == b.Revision && a.Digest == b.Digest
}

// mustVerify reports whether the object asks for more than was verified.
func (cy *cycle) mustVerify() bool {
	v := cy.obj.Spec.Verification
	if v == nil {
		return false
	}
	seen := cy.obj.Status.SourceVerificationMode
	return seen == nil || *seen != v.GetMode() && *seen != sourcev1.ModeGitTagAndHEAD
}
