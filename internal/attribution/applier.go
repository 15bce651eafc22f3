// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/approval"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/kube"
	"github.com/terrace-dev/terrace/internal/reference"
)

// Finder finds out who is behind a field of an object.
type Finder struct {
	// Reader reads past the cache, which has no managers of fields and may not know yet of the
	// revision that has just been applied.
	Reader client.Reader
}

// approvals are the fields by which a plan is approved.
var approvals = map[string][]string{
	approval.BySpec:       {"spec", "approvePlan"},
	approval.ByAnnotation: {"metadata", "annotations", approval.ByAnnotation},
}

// Plan is a plan that may be applied.
type Plan struct {
	// Object is the unit, of the kind Kind.
	Object client.Object
	Kind   schema.GroupVersionKind
	// ID is the plan's, and By what approved it, of approval's.
	ID, By string
	// Commit is who made the commit that the plan is of; zero if it is not a commit that
	// brought it about, or if nobody knows.
	Commit audit.Actor
}

// Approver is who let a plan be applied: the user whom the API server vouches for; where it
// was approved by a commit, the commit's author; where a rule applies a commit without a
// person's word, the author of that commit; else Terrace, by what approved it. The text says
// how the approval came, if there is more to say.
func (f Finder) Approver(ctx context.Context, p Plan) (who audit.Actor, detail string, err error) {
	who = audit.Approver(p.Object.GetAnnotations(), p.ID, p.By)
	path, person := approvals[p.By]
	switch {
	case who.Kind != audit.Terrace:
		return who, "", nil
	case !person:
		if p.Commit.Name != "" {
			return p.Commit, "", nil
		}
		return who, "", nil
	}
	if by, how, ok, err := f.ByCommit(ctx, p.Object, p.Kind, path...); err != nil || ok {
		return by, how, err
	}
	return who, "", nil
}

// Decided are the entries of what was decided about a plan before it is applied, and who let it
// be applied. The entry names the unit and the plan; denied is what policies say that were
// overridden for it.
func (f Finder) Decided(ctx context.Context, p Plan, e audit.Entry, denied string) ([]audit.Entry, audit.Actor, error) {
	var overrode audit.Actor
	who, detail, err := f.Approver(ctx, p)
	if err != nil {
		return nil, who, fmt.Errorf("find who approved: %w", err)
	}
	if denied != "" {
		if overrode, err = f.Overrider(ctx, p.Object, p.Kind); err != nil {
			return nil, who, fmt.Errorf("find who overrode a policy: %w", err)
		}
	}
	e.Actor, e.Detail = who, detail
	return audit.Decided(e, p.By, denied, overrode), who, nil
}

// ByCommit is who set a field of an object by a commit: the field is as the Kustomization of
// the object set it, and the commit has an author. The text says so. ok is false when another
// hand set the field since, or when nobody knows.
func (f Finder) ByCommit(ctx context.Context, obj client.Object, kind schema.GroupVersionKind, path ...string) (who audit.Actor, detail string, ok bool, err error) {
	if parentOf(obj).Name == "" {
		return who, "", false, nil
	}
	managers, err := f.managers(ctx, obj, kind)
	if err != nil {
		return who, "", false, err
	}
	m := ownerOf(managers, path...)
	if m == nil || m.Manager != kube.Kustomizations.Field {
		return who, "", false, nil
	}
	who, detail, err = f.parent(ctx, obj, kind, m.Time)
	return who, path[len(path)-1] + " is " + detail, err == nil && who.Kind == audit.Git, err
}

// Overrider is who overrode a policy for a plan by a commit; zero if nobody knows.
func (f Finder) Overrider(ctx context.Context, obj client.Object, kind schema.GroupVersionKind) (audit.Actor, error) {
	who, _, ok, err := f.ByCommit(ctx, obj, kind, "metadata", "annotations", v1alpha1.PolicyOverrideAnnotation)
	if !ok {
		return audit.Actor{}, err
	}
	return who, nil
}

// parentOf is the Kustomization that applies an object, by Flux's labels, zero if none does.
func parentOf(obj client.Object) types.NamespacedName {
	labels := obj.GetLabels()
	p := types.NamespacedName{Namespace: labels[kube.Kustomizations.Group+"/namespace"], Name: labels[kube.Kustomizations.Group+"/name"]}
	if p.Namespace == "" || p.Name == "" {
		return types.NamespacedName{}
	}
	return p
}

// parent is who is behind what the Kustomization of an object set at a time: the author of
// the revision that its source has, if it has had that since before, else the Kustomization.
// What a Kustomization says that it has applied does not do: it says so when all is healthy.
// The object has to be in its inventory, because whoever writes the object writes its labels.
func (f Finder) parent(ctx context.Context, obj client.Object, kind schema.GroupVersionKind, at *metav1.Time) (audit.Actor, string, error) {
	name := parentOf(obj)
	unit := kustomizev1.KustomizationKind + "/" + name.String()
	itself, detail := audit.Actor{Kind: audit.Terrace, Name: unit}, "as "+unit+" applies it"
	var ks kustomizev1.Kustomization
	if err := f.Reader.Get(ctx, name, &ks); err != nil {
		return itself, detail, unlessGone(err)
	}
	if !lists(ks.Status.Inventory, obj, kind) {
		return itself, detail, nil
	}
	src := types.NamespacedName{Namespace: ks.Spec.SourceRef.Namespace, Name: ks.Spec.SourceRef.Name}
	if src.Namespace == "" {
		src.Namespace = ks.Namespace
	}
	art, err := reference.Artifact(ctx, f.Reader, ks.Spec.SourceRef.Kind, src,
		sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind, sourcev1.BucketKind, sourcev1.ExternalArtifactKind)
	if err != nil && !errors.Is(err, reference.ErrUnknownSource) {
		return itself, detail, unlessGone(err)
	}
	if art == nil || at.Before(&art.LastUpdateTime) {
		return itself, detail, nil
	}
	detail += " at " + art.Revision
	if who, ok := Commit(art); ok {
		return who, detail, nil
	}
	return itself, detail, nil
}

// lists tells whether an inventory has an object. Flux writes NAMESPACE_NAME_GROUP_KIND.
func lists(inventory *kustomizev1.ResourceInventory, obj client.Object, kind schema.GroupVersionKind) bool {
	id := strings.Join([]string{obj.GetNamespace(), obj.GetName(), kind.Group, kind.Kind}, "_")
	return inventory != nil && slices.ContainsFunc(inventory.Entries, func(e kustomizev1.ResourceRef) bool { return e.ID == id })
}

// unlessGone is an error but for that something is not there, or is not shown to Terrace.
func unlessGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apimeta.IsNoMatchError(err) {
		return nil
	}
	return err
}

// managers are the managers of an object's fields, but for its status.
func (f Finder) managers(ctx context.Context, obj client.Object, gvk schema.GroupVersionKind) ([]metav1.ManagedFieldsEntry, error) {
	var live metav1.PartialObjectMetadata
	live.SetGroupVersionKind(gvk)
	if err := f.Reader.Get(ctx, client.ObjectKeyFromObject(obj), &live); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read who manages the fields of %s %s: %w", gvk.Kind, client.ObjectKeyFromObject(obj), err)
	}
	var out []metav1.ManagedFieldsEntry
	for _, m := range live.ManagedFields {
		if m.Subresource == "" {
			out = append(out, m)
		}
	}
	return out, nil
}

// ownerOf is the manager that set a field last, nil if none owns it.
func ownerOf(managers []metav1.ManagedFieldsEntry, path ...string) *metav1.ManagedFieldsEntry {
	var last *metav1.ManagedFieldsEntry
	for i := range managers {
		m := &managers[i]
		if owns(m, path) && (last == nil || last.Time.Before(m.Time)) {
			last = m
		}
	}
	return last
}

// owns tells whether a manager owns a field. The form is that of Kubernetes' FieldsV1, in
// which a field is named by "f:" and its name.
func owns(m *metav1.ManagedFieldsEntry, path []string) bool {
	var at map[string]json.RawMessage
	if m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &at) != nil {
		return false
	}
	for i, name := range path {
		next, ok := at["f:"+name]
		if !ok {
			return false
		}
		at = nil
		if i < len(path)-1 && json.Unmarshal(next, &at) != nil {
			return false
		}
	}
	return true
}
