// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package kube brings objects to a cluster and keeps sight of them: apply, diff,
// prune, health and drift. Objects go in, changes come out.
//
// A Cluster is one API server seen with one identity. Its View watches, kind by
// kind, the objects that carry an owner's labels; so whether an object is as it was
// applied, and how healthy it is, costs no request. Writes go through a Client,
// which may impersonate an account.
//
// The package renders nothing, knows no sources, and decides neither when to apply
// nor what may be pruned: that is its caller's.
package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/fluxcd/cli-utils/pkg/object"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// ID names an object of a cluster, without its version. Its String is the id of
// Flux's inventories: <namespace>_<name>_<group>_<Kind>.
type ID = object.ObjMetadata

// IDOf returns the ID of an object.
func IDOf(o *unstructured.Unstructured) ID { return object.UnstructuredToObjMetadata(o) }

// Owner is who applies: the field manager, and the group of the labels that name
// the unit.
type Owner struct {
	// Field is the field manager of server-side apply.
	Field string
	// Group is the prefix of the labels <group>/name and <group>/namespace, and of the
	// annotations by which an object opts out.
	Group string
}

// Kustomizations is the owner of what Kustomizations apply, by the names that Flux gives it.
var Kustomizations = Owner{Field: "kustomize-controller", Group: kustomizev1.GroupVersion.Group}

// Label adds the labels that say which unit an object belongs to.
func (w Owner) Label(o *unstructured.Unstructured, unit types.NamespacedName) {
	labels := maps.Clone(o.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	labels[w.Group+"/name"], labels[w.Group+"/namespace"] = unit.Name, unit.Namespace
	o.SetLabels(labels)
}

// UnitOf returns the unit that an object's labels name, the zero value if none.
func (w Owner) UnitOf(labels map[string]string) types.NamespacedName {
	return types.NamespacedName{Namespace: labels[w.Group+"/namespace"], Name: labels[w.Group+"/name"]}
}

// Opt-outs: keys after Owner.Group and "/", as a label or an annotation of the
// object in Git or in the cluster. Values are compared without case.
const (
	keySSA       = "ssa"       // Override, Merge, IfNotPresent, Ignore
	keyReconcile = "reconcile" // disabled
	keyPrune     = "prune"     // disabled
	keyForce     = "force"     // enabled
)

// option returns the value of an opt-out, in lower case.
func (w Owner) option(o *unstructured.Unstructured, key string) string {
	if o == nil {
		return ""
	}
	key = w.Group + "/" + key
	if v, ok := o.GetLabels()[key]; ok {
		return strings.ToLower(v)
	}
	return strings.ToLower(o.GetAnnotations()[key])
}

// Left tells whether an object is to be left alone altogether.
func (w Owner) Left(o *unstructured.Unstructured) bool {
	return w.option(o, keyReconcile) == "disabled" || w.option(o, keySSA) == "ignore"
}

// OnlyIfAbsent tells whether an object is applied only where there is none.
func (w Owner) OnlyIfAbsent(o *unstructured.Unstructured) bool {
	return w.option(o, keySSA) == "ifnotpresent"
}

// Kept tells whether a live object is not to be pruned.
func (w Owner) Kept(o *unstructured.Unstructured) bool {
	return w.Left(o) || w.option(o, keyPrune) == "disabled"
}

// Forced tells whether an object may be recreated; nil is one that does not exist.
func (w Owner) Forced(o *unstructured.Unstructured) bool {
	return w.option(o, keyForce) == "enabled"
}

// IgnoreRules are the rules of spec.ignore as the applier takes them.
func IgnoreRules(rules []kustomizev1.IgnoreRule) []jsondiff.IgnoreRule {
	var out []jsondiff.IgnoreRule
	for _, rule := range rules {
		r := jsondiff.IgnoreRule{Paths: rule.Paths}
		if t := rule.Target; t != nil {
			r.Selector = &jsondiff.Selector{
				Group: t.Group, Version: t.Version, Kind: t.Kind, Name: t.Name, Namespace: t.Namespace,
				AnnotationSelector: t.AnnotationSelector, LabelSelector: t.LabelSelector,
			}
		}
		out = append(out, r)
	}
	return out
}

// Subject writes an object as people do: Kind/namespace/name, or Kind/name.
func Subject(id ID) string {
	if id.Namespace == "" {
		return id.GroupKind.Kind + "/" + id.Name
	}
	return id.GroupKind.Kind + "/" + id.Namespace + "/" + id.Name
}

// DesiredDigest names the content of an object as it is to be applied.
func DesiredDigest(o *unstructured.Unstructured) string {
	return jsonDigest(o.Object)
}

// contentDigest names what an object is apart from its status and the metadata that
// the API server keeps. Equal digests: nobody has changed it.
func contentDigest(o *unstructured.Unstructured) string {
	content := make(map[string]any, len(o.Object))
	for k, v := range o.Object {
		if k != "status" && k != "metadata" {
			content[k] = v
		}
	}
	annotations := maps.Clone(o.GetAnnotations())
	// A rollout counts itself here; nobody applies it.
	delete(annotations, "deployment.kubernetes.io/revision")
	if len(annotations) == 0 {
		annotations = nil // an empty one would be another content
	}
	// Finalizers and owners are those of the controllers that work on the object, as in Flux.
	content["metadata"] = []any{o.GetName(), o.GetNamespace(), o.GetUID(), o.GetLabels(), annotations}
	return jsonDigest(content)
}

func jsonDigest(v any) string {
	h := sha256.New()
	// What came out of JSON or YAML can be encoded; maps are in the order of their keys.
	_ = json.NewEncoder(h).Encode(v)
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// UnknownKindError says that the API server does not serve a kind (yet).
type UnknownKindError struct{ Kind schema.GroupVersionKind }

func (e *UnknownKindError) Error() string {
	return fmt.Sprintf("the API server does not know kind %s of %s", e.Kind.Kind, e.Kind.GroupVersion())
}

// ObjectError says what failed for which object.
type ObjectError struct {
	ID ID
	// Dry tells that nothing was written.
	Dry bool
	// Immutable tells that a field cannot be changed and the object has to be recreated.
	Immutable bool
	Err       error
}

// Error names the object, what was tried and the API server's answer.
func (e *ObjectError) Error() string {
	what := "apply failed"
	if e.Dry {
		what = "dry-run failed"
	}
	if reason := string(apierrors.ReasonForError(e.Err)); reason != "" {
		what += " (" + reason + ")"
	}
	text := fmt.Sprintf("%s %s: %v", Subject(e.ID), what, e.Err)
	if e.Immutable {
		text += "; a field that cannot change was changed: set spec.force, or annotate the object with kustomize.toolkit.fluxcd.io/force: enabled, to have it deleted and created again"
	}
	return text
}

// Unwrap returns the API server's answer.
func (e *ObjectError) Unwrap() error { return e.Err }

// ignoreNotFound returns nil for an object that is not there.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func asUnknown(err error) (*UnknownKindError, bool) { return errors.AsType[*UnknownKindError](err) }
