// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/graph"
	terrace "github.com/terrace-dev/terrace/internal/status"
)

// depend waits for what the unit depends on: the watch of each dependency wakes its
// dependants.
func (c *Controller) depend(ctx context.Context, cy *cycle) (terrace.Result, error) {
	tf := cy.tf
	for _, ref := range tf.GetDependsOn() {
		key := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
		if key.Namespace == "" {
			key.Namespace = tf.Namespace
		}
		if key.Namespace != tf.Namespace && !c.opts.AllowCrossNamespaceRefs {
			return terrace.Stalled(infra.ReasonAccessDenied, fmt.Sprintf(
				"cannot depend on %s: cross-namespace references are not allowed; start Terrace with --allow-cross-namespace-refs", key)), nil
		}
		why, err := c.terraformNotReady(ctx, cy, key)
		if err != nil {
			return terrace.Result{}, err
		}
		if why == "" {
			continue
		}
		cycle, err := c.dependencyCycle(ctx, tf)
		if err != nil {
			return terrace.Result{}, err
		}
		if cycle != "" {
			return terrace.Stalled(infra.ReasonDependencyCycle, "dependency cycle: "+cycle+"; remove one dependsOn of it"), nil
		}
		return c.dependencyWait(cy, why), nil
	}
	return c.dependOnObjects(ctx, cy)
}

// dependencyWait tells of a wait once: the event repeats only with a new text.
func (c *Controller) dependencyWait(cy *cycle, why string) terrace.Result {
	if r := readyCondition(cy.tf); r == nil || r.Reason != infra.ReasonDependencyNotReady || r.Message != why {
		cy.event(corev1.EventTypeNormal, infra.ReasonDependencyNotReady, why)
	}
	// Some of what is waited for tells nobody: a kind that is not installed yet, an
	// output Secret that is written again. Looking costs no request.
	return terrace.Wait(infra.ReasonDependencyNotReady, why, cy.tf.GetRetryInterval())
}

// terraformNotReady says why a dependency is not ready, "" when it is.
func (c *Controller) terraformNotReady(ctx context.Context, cy *cycle, key types.NamespacedName) (string, error) {
	var dep infra.Terraform
	if err := c.opts.Client.Get(ctx, key, &dep); apierrors.IsNotFound(err) {
		return fmt.Sprintf("dependency '%s' is not ready: it does not exist", key), nil
	} else if err != nil {
		return "", err
	}
	if dep.Status.ObservedGeneration != dep.Generation || !isReady(&dep) {
		return fmt.Sprintf("dependency '%s' is not ready", key), nil
	}
	if sameSource(cy.tf, &dep) && cy.artifact != nil &&
		dep.Status.LastAppliedRevision != cy.artifact.Revision && dep.Status.LastPlannedRevision != cy.artifact.Revision {
		return fmt.Sprintf("dependency '%s' is not updated yet", key), nil
	}
	if w := dep.Spec.WriteOutputsToSecret; w != nil && !dep.Spec.Destroy {
		ref := reference{Kind: kindSecret, Namespace: key.Namespace, Name: w.Name}
		found, err := c.exists(ctx, ref)
		if err != nil {
			return "", err
		}
		if !found {
			// The dependency's status can be here before the watch of Secrets is.
			live, _, _, err := c.refs.fetch(ctx, ref)
			if err != nil {
				return "", err
			}
			found = live != nil
		}
		if !found {
			return fmt.Sprintf("dependency output secret: '%s/%s' of '%s' is not ready yet", key.Namespace, w.Name, key), nil
		}
	}
	return "", nil
}

func sameSource(a, b *infra.Terraform) bool {
	x, y := a.Spec.SourceRef, b.Spec.SourceRef
	if x.Namespace == "" {
		x.Namespace = a.Namespace
	}
	if y.Namespace == "" {
		y.Namespace = b.Namespace
	}
	return x.Kind == y.Kind && x.Name == y.Name && x.Namespace == y.Namespace
}

// dependencyCycle names the cycle that tf is part of, "" if there is none.
func (c *Controller) dependencyCycle(ctx context.Context, tf *infra.Terraform) (string, error) {
	var all infra.TerraformList
	if err := c.opts.Client.List(ctx, &all); err != nil {
		return "", err
	}
	g := graph.New()
	self := node(tf.Namespace, tf.Name)
	for i := range all.Items {
		u := &all.Items[i]
		from := node(u.Namespace, u.Name)
		g.Add(from)
		for _, ref := range u.GetDependsOn() {
			ns := ref.Namespace
			if ns == "" {
				ns = u.Namespace
			}
			g.DependsOn(from, node(ns, ref.Name))
		}
		own, err := graph.ParseDependsOn(u.Annotations[infra.DependsOnAnnotation], u.Namespace)
		if err != nil {
			continue // that unit's own reconcile tells of it
		}
		for _, ref := range own {
			if ref.Kind == infra.TerraformKind {
				g.DependsOn(from, node(ref.Namespace, ref.Name))
			}
		}
	}
	cycle := g.CycleThrough(self)
	if len(cycle) == 0 {
		return "", nil
	}
	var names []string
	for _, n := range append(cycle, cycle[0]) {
		names = append(names, n.Namespace+"/"+n.Name)
	}
	return strings.Join(names, " → "), nil
}

func node(namespace, name string) graph.Node {
	return graph.Node{Kind: infra.TerraformKind, Namespace: namespace, Name: name}
}

// dependOnObjects waits for the objects of any kind that the annotation names.
func (c *Controller) dependOnObjects(ctx context.Context, cy *cycle) (terrace.Result, error) {
	text, ok := cy.tf.Annotations[infra.DependsOnAnnotation]
	if !ok {
		return terrace.Next, nil
	}
	refs, err := graph.ParseDependsOn(text, cy.tf.Namespace)
	if err != nil {
		return terrace.Stalled(infra.ReasonDependencyNotReady, fmt.Sprintf("read annotation %s: %v", infra.DependsOnAnnotation, err)), nil
	}
	for _, ref := range refs {
		if ref.Namespace != cy.tf.Namespace && !c.opts.AllowCrossNamespaceRefs {
			return terrace.Stalled(infra.ReasonAccessDenied, fmt.Sprintf(
				"cannot depend on %s: cross-namespace references are not allowed; start Terrace with --allow-cross-namespace-refs", ref)), nil
		}
		if ref.Kind == infra.TerraformKind {
			why, err := c.terraformNotReady(ctx, cy, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name})
			if err != nil {
				return terrace.Result{}, err
			}
			if why == "" {
				continue
			}
			if cycle, err := c.dependencyCycle(ctx, cy.tf); err != nil {
				return terrace.Result{}, err
			} else if cycle != "" {
				return terrace.Stalled(infra.ReasonDependencyCycle, "dependency cycle: "+cycle+"; remove one dependency of it"), nil
			}
			return c.dependencyWait(cy, why), nil
		}
		why, err := c.objectNotReady(ctx, ref)
		if err != nil {
			return terrace.Result{}, err
		}
		if why != "" {
			return c.dependencyWait(cy, why), nil
		}
	}
	return terrace.Next, nil
}

// cacheTimeout bounds the wait for the cache of a kind that a dependency names.
const cacheTimeout = 5 * time.Second

// objectNotReady says why an object of any kind is not ready, "" when it is. Its
// kind is watched from now on.
func (c *Controller) objectNotReady(ctx context.Context, ref graph.Node) (string, error) {
	gvk, err := c.kindOf(ref)
	if apimeta.IsNoMatchError(err) {
		// Its CRD may be installed later, which no watch of ours tells; time does.
		return fmt.Sprintf("dependency '%s' is not ready: the API server does not know kind %s", ref, ref.Kind), nil
	} else if err != nil {
		return "", err
	}
	if err := c.watchKind(gvk); err != nil {
		return "", err
	}
	obj := &unstructured.Unstructured{}
	obj.SetGroupVersionKind(gvk)
	// The first look at a kind waits for its cache, which never fills when Terrace may not
	// list the kind: that must not hold a worker for ever.
	ctx, cancel := context.WithTimeout(ctx, cacheTimeout)
	defer cancel()
	err = c.opts.Client.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, obj)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("dependency '%s' is not ready: it does not exist", ref), nil
	case apierrors.IsTimeout(err):
		return fmt.Sprintf("dependency '%s' is not ready: objects of kind %s cannot be read yet; Terrace needs to get, list and watch them", ref, ref.Kind), nil
	case err != nil:
		return "", err
	}
	res, err := status.Compute(obj)
	if err != nil {
		return fmt.Sprintf("dependency '%s' is not ready: %v", ref, err), nil
	}
	if res.Status != status.CurrentStatus {
		return fmt.Sprintf("dependency '%s' is not ready: %s", ref, res.Message), nil
	}
	conditions, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	for _, item := range conditions {
		cond, ok := item.(map[string]any)
		if ok && cond["type"] == infra.ConditionReady && cond["status"] != string(metav1.ConditionTrue) {
			return fmt.Sprintf("dependency '%s' is not ready: %v", ref, cond["message"]), nil
		}
	}
	return "", nil
}

// kindOf finds the version and group of a kind that a person wrote without them.
func (c *Controller) kindOf(ref graph.Node) (schema.GroupVersionKind, error) {
	mapper := c.opts.Client.RESTMapper()
	if ref.Group != "" {
		m, err := mapper.RESTMapping(schema.GroupKind{Group: ref.Group, Kind: ref.Kind})
		if err != nil {
			return schema.GroupVersionKind{}, err
		}
		return m.GroupVersionKind, nil
	}
	if group, ok := wellKnownGroups[ref.Kind]; ok {
		if m, err := mapper.RESTMapping(schema.GroupKind{Group: group, Kind: ref.Kind}); err == nil {
			return m.GroupVersionKind, nil
		}
	}
	plural, _ := apimeta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: ref.Kind})
	return mapper.KindFor(schema.GroupVersionResource{Resource: plural.Resource})
}

// wellKnownGroups settle which group a bare kind means where several could.
var wellKnownGroups = map[string]string{
	"GitRepository":            "source.toolkit.fluxcd.io",
	"OCIRepository":            "source.toolkit.fluxcd.io",
	"Bucket":                   "source.toolkit.fluxcd.io",
	"HelmRepository":           "source.toolkit.fluxcd.io",
	"HelmChart":                "source.toolkit.fluxcd.io",
	"ExternalArtifact":         "source.toolkit.fluxcd.io",
	"Kustomization":            "kustomize.toolkit.fluxcd.io",
	"HelmRelease":              "helm.toolkit.fluxcd.io",
	"Deployment":               "apps",
	"StatefulSet":              "apps",
	"DaemonSet":                "apps",
	"Job":                      "batch",
	"CustomResourceDefinition": "apiextensions.k8s.io",
}
