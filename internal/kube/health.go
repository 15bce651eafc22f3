// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/runtime/cel"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Health is how an object does, in the words of kstatus: Current, InProgress,
// Failed, Terminating.
type Health struct {
	Status  status.Status
	Message string
}

// health computes the health of a live object.
func health(o *unstructured.Unstructured) Health {
	gk := o.GroupVersionKind().GroupKind()
	if reconciled(gk) {
		if suspended, _, _ := unstructured.NestedBool(o.Object, "spec", "suspend"); suspended {
			// Nobody works on it until a person resumes it: waiting would be in vain.
			return Health{status.CurrentStatus, "suspended"}
		}
		if conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions"); len(conditions) == 0 {
			// An object that its controller has not looked at yet is no object in order.
			return Health{status.InProgressStatus, "not reconciled yet"}
		}
	}
	res, err := status.Compute(o)
	if err != nil {
		return Health{status.UnknownStatus, err.Error()}
	}
	if gk == (schema.GroupKind{Group: "batch", Kind: "Job"}) && res.Status == status.CurrentStatus && !complete(o) {
		return Health{status.InProgressStatus, res.Message}
	}
	return Health{res.Status, res.Message}
}

// reconciled tells whether a kind is one that sets a Ready condition on each object,
// so that one without is new.
func reconciled(gk schema.GroupKind) bool {
	if gk.Kind == "HelmRepository" || gk.Kind == "Alert" || gk.Kind == "Provider" {
		return false // may have no status
	}
	return strings.HasSuffix(gk.Group, ".toolkit.fluxcd.io") || gk.Group == "infra.contrib.fluxcd.io"
}

// complete tells whether a Job has succeeded; kstatus is content with one that runs.
func complete(o *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		m, ok := c.(map[string]any)
		return ok && m["type"] == "Complete" && m["status"] == "True"
	})
}

// Checks are a unit's own expressions of health, by kind.
type Checks map[schema.GroupKind]*cel.StatusEvaluator

// CompileChecks compiles spec.healthCheckExprs. The version of the kinds does not matter.
func CompileChecks(exprs []kustomize.CustomHealthCheck) (Checks, error) {
	checks := Checks{}
	for i := range exprs {
		gv, err := schema.ParseGroupVersion(exprs[i].APIVersion)
		if err != nil {
			return nil, fmt.Errorf("healthCheckExprs[%d]: apiVersion %q: %w", i, exprs[i].APIVersion, err)
		}
		e, err := cel.NewStatusEvaluator(&exprs[i].HealthCheckExpressions)
		if err != nil {
			return nil, fmt.Errorf("healthCheckExprs[%d]: %w", i, err)
		}
		checks[schema.GroupKind{Group: gv.Group, Kind: exprs[i].Kind}] = e
	}
	return checks, nil
}

// Of returns the health of a live object, by the unit's expressions where it has one
// for the kind. An expression without a kind stands for the whole group.
func (c Checks) Of(ctx context.Context, gk schema.GroupKind, r *Record) Health {
	e, ok := c[gk]
	if !ok {
		e, ok = c[schema.GroupKind{Group: gk.Group}]
	}
	if !ok {
		return r.Health
	}
	res, err := e.Evaluate(ctx, r.Object())
	if err != nil {
		// A field that the expression names is not there yet.
		return Health{status.InProgressStatus, err.Error()}
	}
	return Health{res.Status, res.Message}
}

// maxReasons bounds what Explain tells of one object.
const maxReasons = 3

// Explain says why an object is not healthy, from its Pods and from the events of it
// and them: an image that cannot be pulled, a quota that is full, a probe that fails.
// It returns "" when nothing says why. It costs up to three requests.
func (k *Client) Explain(ctx context.Context, r *Record) string {
	o := r.Object()
	var reasons []string
	add := func(s string) {
		if s = strings.TrimSpace(s); s != "" && !slices.Contains(reasons, s) && len(reasons) < maxReasons {
			reasons = append(reasons, s)
		}
	}
	names := map[string]bool{o.GetName(): true}
	if selector := podSelector(o); selector != nil {
		pods, err := k.list(ctx, corev1.SchemeGroupVersion.WithKind("Pod"), o.GetNamespace(), metav1.ListOptions{LabelSelector: selector.String(), Limit: 50})
		if err == nil {
			for i := range pods {
				var pod corev1.Pod
				if runtime.DefaultUnstructuredConverter.FromUnstructured(pods[i].Object, &pod) == nil {
					names[pod.Name] = true
					for _, reason := range podReasons(&pod) {
						add(reason)
					}
				}
			}
		}
	}
	if len(reasons) == 0 && o.GetNamespace() != "" {
		events, err := k.list(ctx, corev1.SchemeGroupVersion.WithKind("Event"), o.GetNamespace(), metav1.ListOptions{FieldSelector: "type=Warning", Limit: 200})
		if err == nil {
			for i := range events {
				var e corev1.Event
				// A ReplicaSet's name is its Deployment's with a hash behind it.
				if runtime.DefaultUnstructuredConverter.FromUnstructured(events[i].Object, &e) == nil &&
					(names[e.InvolvedObject.Name] || strings.HasPrefix(e.InvolvedObject.Name, o.GetName()+"-")) {
					add(e.Reason + ": " + e.Message)
				}
			}
		}
	}
	return strings.Join(reasons, "; ")
}

func podSelector(o *unstructured.Unstructured) labels.Selector {
	switch o.GroupVersionKind().GroupKind() {
	case schema.GroupKind{Group: "apps", Kind: "Deployment"}, schema.GroupKind{Group: "apps", Kind: "StatefulSet"},
		schema.GroupKind{Group: "apps", Kind: "DaemonSet"}, schema.GroupKind{Group: "apps", Kind: "ReplicaSet"}, schema.GroupKind{Group: "batch", Kind: "Job"}:
	default:
		return nil
	}
	raw, found, err := unstructured.NestedMap(o.Object, "spec", "selector")
	if err != nil || !found {
		return nil
	}
	var s metav1.LabelSelector
	if runtime.DefaultUnstructuredConverter.FromUnstructured(raw, &s) != nil {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(&s)
	if err != nil || selector.Empty() {
		return nil
	}
	return selector
}

// podReasons says what keeps a Pod from being ready.
func podReasons(pod *corev1.Pod) []string {
	var reasons []string
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "" && c.State.Waiting.Reason != "ContainerCreating" && c.State.Waiting.Reason != "PodInitializing":
			reasons = append(reasons, fmt.Sprintf("Pod/%s container %s: %s: %s", pod.Name, c.Name, c.State.Waiting.Reason, c.State.Waiting.Message))
		case c.State.Terminated != nil && c.State.Terminated.ExitCode != 0:
			reasons = append(reasons, fmt.Sprintf("Pod/%s container %s: %s, exit code %d", pod.Name, c.Name, c.State.Terminated.Reason, c.State.Terminated.ExitCode))
		case c.State.Running != nil && !c.Ready:
			reasons = append(reasons, fmt.Sprintf("Pod/%s container %s: runs but is not ready: its readiness probe has not succeeded", pod.Name, c.Name))
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			reasons = append(reasons, fmt.Sprintf("Pod/%s: %s: %s", pod.Name, c.Reason, c.Message))
		}
	}
	return reasons
}
