// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
		return c.dependencyWait(ctx, cy, why)
	}
	return c.dependOnObjects(ctx, cy)
}

// dependencyWait tells of a wait once: the event repeats only with a new text.
func (c *Controller) dependencyWait(ctx context.Context, cy *cycle, why string) (terrace.Result, error) {
	idle, err := c.idle(ctx, cy)
	if err != nil {
		return terrace.Result{}, err
	}
	if idle {
		// It has nothing to plan, so nothing of it has to come later, and who depends on it
		// must not see it go and come back. It takes note of the revision only after its
		// dependencies, since others may wait for all of them.
		cy.tf.Status.LastAttemptedRevision = cy.base.Status.LastAttemptedRevision
		return terrace.Wait("", "", cy.tf.GetRetryInterval()), nil
	}
	if r := readyCondition(cy.tf); r == nil || r.Reason != infra.ReasonDependencyNotReady || r.Message != why {
		cy.event(corev1.EventTypeNormal, infra.ReasonDependencyNotReady, why)
	}
	// Some of what is waited for tells nobody: a kind that is not installed yet, an
	// output Secret that is written again. Looking costs no request.
	return terrace.Wait(infra.ReasonDependencyNotReady, why, cy.tf.GetRetryInterval()), nil
}

// idle tells whether the unit is Ready and reads what it has read when it was planned last.
func (c *Controller) idle(ctx context.Context, cy *cycle) (bool, error) {
	if !isReady(cy.base) || cy.base.Status.ObservedGeneration != cy.tf.Generation || cy.base.Status.Plan.Pending != "" {
		return false, nil
	}
	if _, asked := cy.tf.Annotations[infra.ReconcileRequestAnnotation]; asked && cy.tf.Annotations[infra.ReconcileRequestAnnotation] != cy.base.Status.LastHandledReconcileAt {
		return false, nil
	}
	res, err := c.resolve(ctx, cy)
	return err == nil && res.IsNext() && cy.inputDigest == cy.base.Status.InputDigest, err
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
			live, _, _, err := c.refs.Fetch(ctx, ref)
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
			return c.dependencyWait(ctx, cy, why)
		}
		why, err := c.objects.NotReady(ctx, ref)
		if err != nil {
			return terrace.Result{}, err
		}
		if why != "" {
			return c.dependencyWait(ctx, cy, why)
		}
	}
	return terrace.Next, nil
}
