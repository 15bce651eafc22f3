// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"regexp"
	"strings"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	terrace "github.com/terrace-dev/terrace/api/v1alpha1"
)

// waitingMessage is the beginning of the message of Ready while a plan waits: the
// plan's id and what it does.
var waitingMessage = regexp.MustCompile(`^[Pp]lan (\S+) waits(?:[^:\n]*): *([^;\n]*)`)

// pendingPlan is the id of the plan that waits for an approval, and what it would
// do as far as the object itself says so; both empty when none waits.
func pendingPlan(o object) (id, does string) {
	switch o.Kind.Name {
	case terraform.Name:
		return o.text("status", "plan", "pending"), ""
	case kustomization.Name:
		ready, _ := o.condition("Ready")
		if ready.Reason != terrace.ReasonPlanWaiting {
			return "", ""
		}
		if m := waitingMessage.FindStringSubmatch(ready.Message); m != nil {
			return m[1], strings.TrimSuffix(strings.TrimSpace(m[2]), ".")
		}
	}
	return "", ""
}

// kustomization converts the object into its type.
func (o object) kustomization() (*kustomizev1.Kustomization, error) {
	ks := &kustomizev1.Kustomization{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, ks); err != nil {
		return nil, fmt.Errorf("read %s: %w", o, err)
	}
	return ks, nil
}

// kustomizationFacts are the lines that only a Kustomization has.
func kustomizationFacts(o object) ([]fact, error) {
	ks, err := o.kustomization()
	if err != nil {
		return nil, err
	}
	approval := "auto: every revision is applied"
	if ks.Annotations[terrace.ApproveAnnotation] == terrace.ApproveManual {
		approval = "manual: each plan waits for \"terrace approve\""
		plan := ks.Annotations[terrace.ApprovedPlanAnnotation]
		if by := terrace.Approver(ks.Annotations, plan); by != "" {
			approval = "manual: " + plan + " approved by " + by
		}
	}
	facts := []fact{{"Approval", approval}}
	if id, does := pendingPlan(o); id != "" {
		facts = append(facts, fact{"Plan", strings.TrimSuffix(id+" waits for approval: "+does, ": ")})
	}
	if ks.Status.Inventory != nil {
		facts = append(facts, fact{"Objects", fmt.Sprintf("%d; \"terrace tree ks/%s\" lists them", len(ks.Status.Inventory.Entries), ks.Name)})
	}
	if attempted := ks.Status.LastAttemptedRevision; attempted != "" && attempted != ks.Status.LastAppliedRevision {
		facts = append(facts, fact{"Attempted", attempted})
	}
	if target := remoteTarget(ks); target != "" {
		facts = append(facts, fact{"Cluster", target})
	}
	var needed []string
	for _, d := range ks.Spec.DependsOn {
		ns := d.Namespace
		if ns == "" {
			ns = ks.Namespace
		}
		needed = append(needed, "kustomization/"+ns+"/"+d.Name)
	}
	if more := ks.Annotations[infra.DependsOnAnnotation]; more != "" {
		needed = append(needed, more)
	}
	return append(facts, fact{"Depends on", strings.Join(needed, ", ")}), nil
}

// remoteTarget names the kubeconfig of a unit whose objects are on another
// cluster; it is empty when they are on this one.
func remoteTarget(ks *kustomizev1.Kustomization) string {
	switch k := ks.Spec.KubeConfig; {
	case k == nil:
		return ""
	case k.SecretRef != nil:
		return "another one, by the kubeconfig in secret/" + k.SecretRef.Name
	case k.ConfigMapRef != nil:
		return "another one, by configmap/" + k.ConfigMapRef.Name
	}
	return "another one"
}

// approvableKustomization checks that a Kustomization waits for an approval: of a
// plan, or of a revision that would prune more than the limit.
func approvableKustomization(o object, doing string) (pending, error) {
	ready, _ := o.condition("Ready")
	if ready.Reason == terrace.ReasonPruneLimit {
		revision := o.text("status", "lastAttemptedRevision")
		return pending{id: revision, does: ready.Message, prune: true,
			fields: annotations(map[string]any{terrace.PruneApprovedAnnotation: revision})}, nil
	}
	if o.GetAnnotations()[terrace.ApproveAnnotation] != terrace.ApproveManual {
		return pending{}, hintf(fmt.Errorf("%s: every revision of it is applied without an approval", doing),
			"the annotation %s: %s makes it wait", terrace.ApproveAnnotation, terrace.ApproveManual)
	}
	id, does := pendingPlan(o)
	if id == "" {
		if ready.Reason == terrace.ReasonPlanWaiting {
			return pending{}, fmt.Errorf("%s: its Ready condition names no plan: %q", doing, ready.Message)
		}
	}
	return pending{id: id, does: does, fields: annotations(map[string]any{terrace.ApprovedPlanAnnotation: id})}, nil
}

// appliedKustomization tells whether a Kustomization has been applied since it was
// approved; an error is what it failed with.
func appliedKustomization(o object) (bool, error) {
	ready, _ := o.condition("Ready")
	switch {
	case ready.Status == metav1.ConditionTrue:
		return true, nil
	case ready.Status == metav1.ConditionFalse && ready.Reason != terrace.ReasonPlanWaiting &&
		ready.Reason != infra.ReasonDependencyNotReady && ready.Reason != infra.ReasonProgressing:
		return false, fmt.Errorf("%s: %s", ready.Reason, ready.Message)
	}
	return false, nil
}
