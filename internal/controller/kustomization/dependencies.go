// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	celtypes "github.com/google/cel-go/common/types"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/acl"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/cel"
	"github.com/fluxcd/pkg/runtime/conditions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/graph"
	"github.com/terrace-dev/terrace/internal/status"
)

// depend waits for what the unit depends on: the watch of each dependency wakes its
// dependants.
func (c *Controller) depend(ctx context.Context, cy *cycle) (status.Result, error) {
	// Units that are all ready at this moment can be in a circle as well, which the next
	// commit would show. A new spec is where it begins.
	if changed := cy.base.Status.ObservedGeneration != cy.ks.Generation || conditions.IsStalled(cy.base); changed && len(dependencies(cy.ks)) > 0 {
		if res, err := c.circle(ctx, cy); err != nil || !res.IsNext() {
			return res, err
		}
	}
	for _, ref := range cy.ks.Spec.DependsOn {
		key := dependencyKey(cy.ks, ref)
		why, err := c.kustomizationNotReady(ctx, cy, key, ref.ReadyExpr)
		if invalid, ok := errors.AsType[*expressionError](err); ok {
			return status.Stalled(meta.InvalidCELExpressionReason, terminal+invalid.Error()), nil
		}
		if err != nil {
			return status.Result{}, err
		}
		if why != "" {
			return c.dependencyWait(ctx, cy, why)
		}
	}
	return c.dependOnObjects(ctx, cy)
}

func dependencyKey(ks *kustomizev1.Kustomization, ref kustomizev1.DependencyReference) types.NamespacedName {
	key := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	if key.Namespace == "" {
		key.Namespace = ks.Namespace
	}
	return key
}

func (c *Controller) dependencyWait(ctx context.Context, cy *cycle, why string) (status.Result, error) {
	if res, err := c.circle(ctx, cy); err != nil || !res.IsNext() {
		return res, err
	}
	if c.idle(cy) {
		// It has nothing to apply, so nothing of it has to come later; but it takes note of
		// the revision only after its dependencies, since others may wait for all of them.
		return status.Wait(quiet, "", cy.ks.GetRetryInterval()), nil
	}
	// A kind that is not installed yet tells nobody when it is.
	return status.Wait(meta.DependencyNotReadyReason, why, cy.ks.GetRetryInterval()), nil
}

// circle stalls a unit that waits for itself over others.
func (c *Controller) circle(ctx context.Context, cy *cycle) (status.Result, error) {
	cycle, err := c.dependencyCycle(ctx, cy.ks)
	if err != nil || cycle == "" {
		return status.Next, err
	}
	return status.Stalled(v1alpha1.ReasonDependencyCycle, "dependency cycle: "+cycle+"; remove one dependsOn of it"), nil
}

// idle tells whether the unit is Ready and what it should apply is what it has applied.
func (c *Controller) idle(cy *cycle) bool {
	return cy.buildErr == nil && cy.mem.attempt == nil && cy.inputs != "" && cy.inputs == cy.mem.applied &&
		conditions.IsReady(cy.base) && cy.base.Status.ObservedGeneration == cy.ks.Generation && !cy.requested
}

// expressionError is a readyExpr that cannot be evaluated at all.
type expressionError struct{ error }

// kustomizationNotReady says why a Kustomization is not ready, "" when it is.
func (c *Controller) kustomizationNotReady(ctx context.Context, cy *cycle, key types.NamespacedName, expr string) (string, error) {
	var dep kustomizev1.Kustomization
	if err := c.opts.Client.Get(ctx, key, &dep); apierrors.IsNotFound(err) {
		return fmt.Sprintf("dependency '%s' not found", key), nil
	} else if err != nil {
		return "", err
	}
	if expr != "" {
		ready, err := evaluate(ctx, expr, cy.ks, &dep)
		if err != nil {
			return "", err
		}
		if !ready {
			return fmt.Sprintf("dependency '%s' is not ready according to readyExpr eval", key), nil
		}
		return "", nil
	}
	if dep.Status.ObservedGeneration != dep.Generation || !conditions.IsReady(&dep) {
		return fmt.Sprintf("dependency '%s' is not ready", key), nil
	}
	if sourceOf(&dep) == sourceOf(cy.ks) && !cy.artifact.HasRevision(dep.Status.LastAppliedRevision) {
		return fmt.Sprintf("dependency '%s' revision is not up to date", key), nil
	}
	return "", nil
}

func evaluate(ctx context.Context, expr string, self, dep *kustomizev1.Kustomization) (bool, error) {
	compiled, err := cel.NewExpression(expr, cel.WithCompile(), cel.WithOutputType(celtypes.BoolType), cel.WithStructVariables("self", "dep"))
	if err != nil {
		return false, &expressionError{fmt.Errorf("failed to evaluate dependency %s: %w", dep.Name, err)}
	}
	vars := map[string]any{}
	for name, ks := range map[string]*kustomizev1.Kustomization{"self": self, "dep": dep} {
		if vars[name], err = runtime.DefaultUnstructuredConverter.ToUnstructured(ks); err != nil {
			return false, fmt.Errorf("evaluate readyExpr of dependency %s: %w", dep.Name, err)
		}
	}
	ready, err := compiled.EvaluateBoolean(ctx, vars)
	if err != nil {
		return false, fmt.Errorf("evaluate readyExpr of dependency %s: %w", dep.Name, err)
	}
	return ready, nil
}

// dependOnObjects waits for the objects of any kind that the annotation names.
func (c *Controller) dependOnObjects(ctx context.Context, cy *cycle) (status.Result, error) {
	refs, err := graph.ParseDependsOn(cy.ks.Annotations[infra.DependsOnAnnotation], cy.ks.Namespace)
	if err != nil {
		return status.Stalled(meta.DependencyNotReadyReason, fmt.Sprintf("read annotation %s: %v", infra.DependsOnAnnotation, err)), nil
	}
	for _, ref := range refs {
		if ref.Namespace != cy.ks.Namespace && c.opts.NoCrossNamespaceRefs {
			return status.Stalled(acl.AccessDeniedReason, fmt.Sprintf("can't depend on '%s', cross-namespace references have been blocked", ref)), nil
		}
		var why string
		if ref.Kind == kustomizev1.KustomizationKind {
			why, err = c.kustomizationNotReady(ctx, cy, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, "")
		} else {
			why, err = c.objects.NotReady(ctx, ref)
		}
		if err != nil {
			return status.Result{}, err
		}
		if why != "" {
			return c.dependencyWait(ctx, cy, why)
		}
	}
	return status.Next, nil
}

// dependencies are what a unit waits for, in the order of the spec and then of the annotation.
func dependencies(ks *kustomizev1.Kustomization) []graph.Node {
	var nodes []graph.Node
	for _, ref := range ks.Spec.DependsOn {
		key := dependencyKey(ks, ref)
		nodes = append(nodes, node(key))
	}
	// A malformed annotation names nothing; the unit's own reconcile tells of it.
	named, _ := graph.ParseDependsOn(ks.Annotations[infra.DependsOnAnnotation], ks.Namespace)
	for _, n := range named {
		n.Group = "" // written or not, it is the same object
		if !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

func node(key types.NamespacedName) graph.Node {
	return graph.Node{Kind: kustomizev1.KustomizationKind, Namespace: key.Namespace, Name: key.Name}
}

// dependencyCycle names the cycle that a unit is part of, over both kinds of units,
// "" if there is none.
func (c *Controller) dependencyCycle(ctx context.Context, ks *kustomizev1.Kustomization) (string, error) {
	var all kustomizev1.KustomizationList
	if err := c.opts.Client.List(ctx, &all); err != nil {
		return "", err
	}
	g := graph.New()
	for i := range all.Items {
		u := &all.Items[i]
		g.DependsOn(node(types.NamespacedName{Namespace: u.Namespace, Name: u.Name}), dependencies(u)...)
	}
	var units infra.TerraformList
	if err := c.opts.Client.List(ctx, &units); err != nil {
		return "", err
	}
	for i := range units.Items {
		u := &units.Items[i]
		from := graph.Node{Kind: infra.TerraformKind, Namespace: u.Namespace, Name: u.Name}
		for _, ref := range u.GetDependsOn() {
			to := graph.Node{Kind: infra.TerraformKind, Namespace: ref.Namespace, Name: ref.Name}
			if to.Namespace == "" {
				to.Namespace = u.Namespace
			}
			g.DependsOn(from, to)
		}
		named, _ := graph.ParseDependsOn(u.Annotations[infra.DependsOnAnnotation], u.Namespace)
		for _, n := range named {
			n.Group = ""
			g.DependsOn(from, n)
		}
	}
	cycle := g.CycleThrough(node(types.NamespacedName{Namespace: ks.Namespace, Name: ks.Name}))
	if len(cycle) == 0 {
		return "", nil
	}
	var names []string
	for _, n := range append(cycle, cycle[0]) {
		names = append(names, n.String())
	}
	return strings.Join(names, " → "), nil
}
