// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	ids "github.com/fluxcd/cli-utils/pkg/object"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/terrace-dev/terrace/internal/kube"
	"github.com/terrace-dev/terrace/internal/plan"
)

// applier is who applies what Kustomizations say. A dry run in its name shows what an
// apply would take away, too.
var applier = kube.Kustomizations

// comparison compares a unit's objects with those of a cluster.
type comparison struct {
	cluster   *cluster
	mapper    *kindMapper
	unit      *kustomizev1.Kustomization
	decrypted map[string]bool
	masked    string // why values were masked instead of decrypted

	mu      sync.Mutex
	skipped []skip
}

// compare asks the API server what an apply would make of each object, and finds what
// it would prune: what applied names, as inventory ids with a version, and objects
// lack. An object that fails leaves the others compared; all errors are returned.
func (c *comparison) compare(ctx context.Context, objects []*unstructured.Unstructured, applied []string) ([]plan.ObjectChange, error) {
	rules, err := c.ignoreRules()
	if err != nil {
		return nil, err
	}
	wanted := map[ids.ObjMetadata]bool{}
	for _, o := range objects {
		if mapping, err := c.mapper.RESTMapping(o.GroupVersionKind().GroupKind(), o.GroupVersionKind().Version); err == nil && mapping.Scope.Name() != meta.RESTScopeNameNamespace {
			o.SetNamespace("") // a transformer may have given it one
		}
		wanted[ids.UnstructuredToObjMetadata(o)] = true
		// As it is applied: the labels say whose it is.
		applier.Label(o, types.NamespacedName{Namespace: c.unit.Namespace, Name: c.unit.Name})
	}
	results := make([]*plan.ObjectChange, len(objects)+len(applied))
	failures := make([]error, len(results))
	var group errgroup.Group
	group.SetLimit(readers)
	for i, o := range objects {
		group.Go(func() error {
			results[i], failures[i] = c.one(ctx, o, objects, rules)
			return nil
		})
	}
	for i, entry := range applied {
		id, version, _ := strings.Cut(entry, " ")
		at := len(objects) + i
		parsed, err := ids.ParseObjMetadata(id)
		if err != nil {
			failures[at] = fmt.Errorf("read inventory: %w", err)
			continue
		}
		if !wanted[parsed] {
			group.Go(func() error {
				results[at], failures[at] = c.stale(ctx, parsed, version)
				return nil
			})
		}
	}
	_ = group.Wait()
	var changes []plan.ObjectChange
	for _, r := range results {
		if r != nil {
			changes = append(changes, *r)
		}
	}
	return changes, errors.Join(failures...)
}

func (c *comparison) skip(what, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.skipped = append(c.skipped, skip{what, why})
}

// one compares one object; no change and no error means that it is left alone.
func (c *comparison) one(ctx context.Context, o *unstructured.Unstructured, all []*unstructured.Unstructured, rules jsondiff.CompiledIgnoreRules) (*plan.ObjectChange, error) {
	failed := func(err error) (*plan.ObjectChange, error) {
		return nil, fmt.Errorf("diff %s: %w", subject(o), c.cluster.explain("dry run", err))
	}
	change := &plan.ObjectChange{Action: plan.ActionCreate, After: o.Object, Sensitive: c.decrypted[subject(o)]}
	switch {
	case applier.Left(o):
		c.skip(subject(o), "it opts out")
		return nil, nil
	case hasMasked(o):
		c.skip(subject(o), "it is encrypted, and "+c.masked)
		return nil, nil
	}
	gvk := o.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if meta.IsNoMatchError(err) {
		change.Held = heldBecause(gvk, all)
		return change, nil
	}
	if err != nil {
		return failed(err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace && o.GetNamespace() == "" {
		return failed(errors.New("it has no namespace: set metadata.namespace, or spec.targetNamespace of the Kustomization"))
	}
	resource := c.cluster.resource(mapping, o.GetNamespace())
	live, err := resource.Get(ctx, o.GetName(), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return failed(err)
	}
	if err == nil {
		if owned(live, c.unit.Namespace, c.unit.Name) && applier.Left(live) || applier.OnlyIfAbsent(o) {
			c.skip(subject(o), "it opts out")
			return nil, nil
		}
		change.Action, change.Before = plan.ActionUpdate, live.Object
	}
	dry, err := dryRun(ctx, resource, o)
	if err != nil {
		return c.refused(o, live, change, err)
	}
	change.After = dry.Object
	if change.Before != nil && forget(rules, o, change) {
		return nil, nil
	}
	return change, nil
}

// refused is what follows from the API server's refusal of a dry run: an object that
// has to wait for its namespace, one that is recreated, or an error.
func (c *comparison) refused(o, live *unstructured.Unstructured, change *plan.ObjectChange, err error) (*plan.ObjectChange, error) {
	failed := fmt.Errorf("diff %s: %w", subject(o), c.cluster.explain("dry run", err))
	switch {
	case change.Before == nil && missingNamespace(err):
		change.Reason = "its namespace does not exist yet"
		return change, nil
	case change.Before == nil || !kube.IsImmutable(err):
		return nil, failed // what else is invalid is not made valid by recreating the object
	case c.unit.Spec.Force, applier.Forced(o), applier.Forced(live):
		change.Action, change.Reason = plan.ActionReplace, err.Error()
		return change, nil
	}
	return nil, hintf(failed, "spec.force, or the annotation %s/force: enabled of the object, has it deleted and created again", applier.Group)
}

// dryRun is what the API server would make of an object.
func dryRun(ctx context.Context, resource dynamic.ResourceInterface, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	force := true
	return resource.Patch(ctx, o.GetName(), types.ApplyPatchType, data, metav1.PatchOptions{
		FieldManager: applier.Field, Force: &force, DryRun: []string{metav1.DryRunAll},
	})
}

// heldBecause says why an object of a kind that is not served has to wait.
func heldBecause(gvk schema.GroupVersionKind, all []*unstructured.Unstructured) string {
	for _, o := range all {
		group, _, _ := unstructured.NestedString(o.Object, "spec", "group")
		kind, _, _ := unstructured.NestedString(o.Object, "spec", "names", "kind")
		if o.GetKind() == "CustomResourceDefinition" && group == gvk.Group && kind == gvk.Kind {
			return "its kind is new too; it can be checked once " + o.GetName() + " is established"
		}
	}
	return fmt.Sprintf("the cluster does not know kind %s of %s; it waits for its CustomResourceDefinition", gvk.Kind, gvk.GroupVersion())
}

// missingNamespace tells whether an object could not be tried because its namespace
// does not exist.
func missingNamespace(err error) bool {
	var status apierrors.APIStatus
	return apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces"
}

// stale finds what happens to an object that the unit applied and does not hold any more.
func (c *comparison) stale(ctx context.Context, id ids.ObjMetadata, version string) (*plan.ObjectChange, error) {
	l := live{id: id}
	if err := c.cluster.look(ctx, c.mapper, version, &l); err != nil {
		return nil, err
	}
	name := strings.TrimPrefix(id.Namespace+"/"+id.Name, "/")
	switch {
	case l.object == nil && l.health == metav1.ConditionUnknown:
		c.skip(id.GroupKind.Kind+" "+name, l.why)
		return nil, nil
	case l.object == nil || l.object.GetDeletionTimestamp() != nil || !owned(l.object, c.unit.Namespace, c.unit.Name):
		return nil, nil // gone, or another unit's by now
	case !c.unit.Spec.Prune, applier.Kept(l.object):
		return &plan.ObjectChange{Action: plan.ActionForget, Before: l.object.Object, Reason: "it is not pruned"}, nil
	}
	return &plan.ObjectChange{Action: plan.ActionDelete, Before: l.object.Object}, nil
}

// ignoreRules compiles spec.ignore.
func (c *comparison) ignoreRules() (jsondiff.CompiledIgnoreRules, error) {
	compiled, err := jsondiff.CompileIgnoreRules(kube.IgnoreRules(c.unit.Spec.Ignore))
	if err != nil {
		return nil, fmt.Errorf("read spec.ignore: %w", err)
	}
	return compiled, nil
}

// forget takes the fields that spec.ignore names out of both sides of a change, and
// tells whether that is all of it.
func forget(rules jsondiff.CompiledIgnoreRules, o *unstructured.Unstructured, change *plan.ObjectChange) bool {
	for selector, paths := range rules {
		if !selector.MatchUnstructured(o) {
			continue
		}
		for _, p := range paths {
			if p == jsondiff.IgnorePathRoot {
				return true
			}
			steps := strings.Split(strings.TrimPrefix(p, "/"), "/")
			for i, s := range steps {
				steps[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(s)
			}
			remove(change.Before, steps)
			remove(change.After, steps)
		}
	}
	return false
}

// remove deletes the field that the steps of a JSON pointer lead to, if it is there.
func remove(v any, steps []string) {
	for len(steps) > 1 {
		switch at := v.(type) {
		case map[string]any:
			v = at[steps[0]]
		case []any:
			i, err := strconv.Atoi(steps[0])
			if err != nil || i < 0 || i >= len(at) {
				return
			}
			v = at[i]
		default:
			return
		}
		steps = steps[1:]
	}
	switch at := v.(type) {
	case map[string]any:
		delete(at, steps[0])
	case []any:
		// An element keeps its place, so that those after it are compared with their own.
		if i, err := strconv.Atoi(steps[0]); err == nil && i >= 0 && i < len(at) {
			at[i] = nil
		}
	}
}

// clusterOf connects by the content of a kubeconfig that a Secret holds. What it names
// of this machine (files, programs) is refused: whoever wrote the Secret would
// otherwise read files and start programs as the user.
func clusterOf(kubeconfig []byte, userAgent string) (*cluster, error) {
	if len(kubeconfig) == 0 {
		return nil, errors.New("it has no kubeconfig under the key value or value.yaml")
	}
	raw, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, errors.New("it is not a kubeconfig")
	}
	for _, u := range raw.AuthInfos {
		if u.Exec != nil || u.AuthProvider != nil || u.TokenFile != "" || u.ClientCertificate != "" || u.ClientKey != "" {
			return nil, errors.New("its user has credentials by a program or a file; only those within the kubeconfig are used")
		}
	}
	for _, k := range raw.Clusters {
		if k.CertificateAuthority != "" {
			return nil, errors.New("its certificate authority is a file; only certificate-authority-data is used")
		}
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*raw, nil).ClientConfig()
	if err != nil {
		return nil, errors.New("it has no usable context")
	}
	cfg.QPS, cfg.UserAgent = -1, userAgent
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return &cluster{config: cfg, client: client, namespace: "default"}, nil
}
