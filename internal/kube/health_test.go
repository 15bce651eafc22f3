// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"strings"
	"testing"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/kustomize"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestHealth(t *testing.T) {
	const (
		deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d, generation: 2}\nspec: {replicas: 1}\n"
		job        = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\n"
		source     = "apiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata: {name: g, generation: 1}\n"
		stack      = "apiVersion: infra.contrib.fluxcd.io/v1alpha2\nkind: Terraform\nmetadata: {name: t, generation: 1}\n"
	)
	for name, tc := range map[string]struct {
		reason, object string
		want           status.Status
	}{
		"configmap":      {"it is there", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}", status.CurrentStatus},
		"custom":         {"a kind that says nothing is there", "apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: c}", status.CurrentStatus},
		"terminating":    {"it is being deleted", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, deletionTimestamp: \"2026-01-01T00:00:00Z\"}", status.TerminatingStatus},
		"new deployment": {"its controller has not seen the change", deployment + "status: {observedGeneration: 1}", status.InProgressStatus},
		"available": {"all replicas are up", deployment +
			"status: {observedGeneration: 2, replicas: 1, updatedReplicas: 1, readyReplicas: 1, availableReplicas: 1, conditions: [{type: Available, status: \"True\"}]}", status.CurrentStatus},
		"stuck": {"its deadline has passed", deployment +
			"status: {observedGeneration: 2, conditions: [{type: Progressing, status: \"False\", reason: ProgressDeadlineExceeded}]}", status.FailedStatus},
		"new job":           {"it has not begun", job, status.InProgressStatus},
		"running job":       {"kstatus is content with that; who waits is not", job + "status: {startTime: \"2026-01-01T00:00:00Z\", active: 1}", status.InProgressStatus},
		"complete job":      {"it has succeeded", job + "status: {startTime: \"2026-01-01T00:00:00Z\", succeeded: 1, conditions: [{type: Complete, status: \"True\"}]}", status.CurrentStatus},
		"failed job":        {"it has failed", job + "status: {startTime: \"2026-01-01T00:00:00Z\", conditions: [{type: Failed, status: \"True\"}]}", status.FailedStatus},
		"new source":        {"its controller has not looked at it", source, status.InProgressStatus},
		"ready source":      {"it has an artifact", source + "status: {observedGeneration: 1, conditions: [{type: Ready, status: \"True\"}]}", status.CurrentStatus},
		"source not ready":  {"it is being fetched", source + "status: {observedGeneration: 1, conditions: [{type: Ready, status: \"False\"}]}", status.InProgressStatus},
		"stalled source":    {"a person must act", source + "status: {observedGeneration: 1, conditions: [{type: Stalled, status: \"True\"}]}", status.FailedStatus},
		"suspended source":  {"nobody works on it", source + "spec: {suspend: true}", status.CurrentStatus},
		"new stack":         {"Terrace's own kind is one like Flux's", stack, status.InProgressStatus},
		"static repository": {"a HelmRepository of an OCI registry has no status", "apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmRepository\nmetadata: {name: h}", status.CurrentStatus},
	} {
		t.Run(name, func(t *testing.T) {
			if got := health(parse(t, tc.object)); got.Status != tc.want {
				t.Errorf("%s: %s (%s), want %s", tc.reason, got.Status, got.Message, tc.want)
			}
		})
	}
}

func TestChecks(t *testing.T) {
	checks, err := CompileChecks([]kustomize.CustomHealthCheck{
		{APIVersion: "example.com/v1", Kind: "Thing", HealthCheckExpressions: kustomize.HealthCheckExpressions{
			Current: "status.phase == 'Done'", Failed: "status.phase == 'Broken'", InProgress: "status.phase == 'Busy'",
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	thing := "apiVersion: example.com/v2\nkind: Thing\nmetadata: {name: t, generation: 3}\n"
	for name, tc := range map[string]struct {
		reason, object string
		want           status.Status
	}{
		"current":   {"the version of the kind does not matter", thing + "status: {phase: Done}", status.CurrentStatus},
		"failed":    {"it says so", thing + "status: {phase: Broken}", status.FailedStatus},
		"busy":      {"it says so", thing + "status: {phase: Busy}", status.InProgressStatus},
		"behind":    {"its controller has not seen the change", thing + "status: {observedGeneration: 2, phase: Done}", status.InProgressStatus},
		"seen":      {"it has", thing + "status: {observedGeneration: 3, phase: Done}", status.CurrentStatus},
		"no status": {"a field that is not there yet is no failure", thing, status.InProgressStatus},
		"other":     {"another kind goes by kstatus", "apiVersion: example.com/v1\nkind: Other\nmetadata: {name: t}", status.CurrentStatus},
	} {
		t.Run(name, func(t *testing.T) {
			o := parse(t, tc.object)
			if got := checks.Of(t.Context(), o.GroupVersionKind().GroupKind(), newRecord(testOwner, o)); got.Status != tc.want {
				t.Errorf("%s: %s (%s), want %s", tc.reason, got.Status, got.Message, tc.want)
			}
		})
	}
	if _, err := CompileChecks([]kustomize.CustomHealthCheck{{APIVersion: "example.com/v1", Kind: "Thing", HealthCheckExpressions: kustomize.HealthCheckExpressions{Current: "1 +"}}}); err == nil || !strings.Contains(err.Error(), "healthCheckExprs[0]") {
		t.Errorf("an expression that is none: %v", err)
	}
	if _, err := CompileChecks([]kustomize.CustomHealthCheck{{APIVersion: "a/b/c", Kind: "Thing"}}); err == nil {
		t.Error("an apiVersion that is none")
	}
}

func TestPodReasons(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, status string
		want           []string
	}{
		"pulls":       {"the image cannot be pulled", "containerStatuses: [{name: c, state: {waiting: {reason: ImagePullBackOff, message: no such image}}}]", []string{"container c: ImagePullBackOff: no such image"}},
		"begins":      {"that is no trouble", "containerStatuses: [{name: c, state: {waiting: {reason: ContainerCreating}}}]", nil},
		"crashed":     {"it has ended", "containerStatuses: [{name: c, state: {terminated: {reason: Error, exitCode: 3}}}]", []string{"container c: Error, exit code 3"}},
		"done":        {"it was to end", "initContainerStatuses: [{name: i, state: {terminated: {reason: Completed, exitCode: 0}}}]", nil},
		"not ready":   {"it runs", "containerStatuses: [{name: c, ready: false, state: {running: {}}}]", []string{"runs but is not ready"}},
		"ready":       {"all is well", "containerStatuses: [{name: c, ready: true, state: {running: {}}}]", nil},
		"unscheduled": {"it has no place", "conditions: [{type: PodScheduled, status: \"False\", reason: Unschedulable, message: no nodes}]", []string{"Unschedulable: no nodes"}},
	} {
		t.Run(name, func(t *testing.T) {
			var pod corev1.Pod
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(parse(t, "metadata: {name: p}\nstatus: {"+tc.status+"}").Object, &pod); err != nil {
				t.Fatal(err)
			}
			got := podReasons(&pod)
			if len(got) != len(tc.want) {
				t.Fatalf("%s: %v", tc.reason, got)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], "Pod/p") || !strings.Contains(got[i], tc.want[i]) {
					t.Errorf("%s: %q, want %q", tc.reason, got[i], tc.want[i])
				}
			}
		})
	}
}

func TestExplain(t *testing.T) {
	w := newWorld(t)
	spec := "selector: {matchLabels: {app: %s}}, template: {metadata: {labels: {app: %s}}, spec: {containers: [{name: c, image: i}]}}"
	deploy := func(name string) *Record {
		s := strings.ReplaceAll(spec, "%s", name)
		return newRecord(testOwner, w.create(w.owned("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: "+name+"}\nspec: {"+s+"}")))
	}
	account := named("ServiceAccount", w.ns, "default")
	_ = w.env.Client.Create(t.Context(), account) // a control plane with all controllers makes it
	pulls := deploy("pulls")
	pod := w.create(w.object("kind: Pod\nmetadata: {name: pulls-1, labels: {app: pulls}}\nspec: {containers: [{name: c, image: i}]}"))
	_ = unstructured.SetNestedSlice(pod.Object, []any{map[string]any{
		"name": "c", "image": "i", "imageID": "", "restartCount": int64(0), "ready": false,
		"state": map[string]any{"waiting": map[string]any{"reason": "ImagePullBackOff", "message": "no such image"}},
	}}, "status", "containerStatuses")
	if err := w.env.Client.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	quota := deploy("quota")
	event := func(kind, name, about, text string) {
		w.create(w.object("kind: Event\nmetadata: {name: " + name + "}\ntype: " + kind + "\nreason: FailedCreate\nmessage: " + text +
			"\ninvolvedObject: {kind: ReplicaSet, name: " + about + ", namespace: " + w.ns + "}"))
	}
	event("Warning", "e1", "quota-5d8f", "exceeded quota")
	event("Warning", "e2", "another", "something else")
	event("Normal", "e3", "quota-5d8f", "all is well")
	silent := deploy("silent")
	for name, tc := range map[string]struct {
		reason string
		record *Record
		want   string
	}{
		"pods":   {"its Pod says why", pulls, "Pod/pulls-1 container c: ImagePullBackOff: no such image"},
		"events": {"there is no Pod, and the event says why", quota, "FailedCreate: exceeded quota"},
		"silent": {"nothing says why", silent, ""},
	} {
		w.sent()
		if got := w.client.Explain(t.Context(), tc.record); got != tc.want {
			t.Errorf("%s: %s: %q, want %q", name, tc.reason, got, tc.want)
		}
	}
}

func TestPodSelector(t *testing.T) {
	for name, tc := range map[string]struct{ reason, object, want string }{
		"statefulset":  {"it has Pods", "apiVersion: apps/v1\nkind: StatefulSet\nspec: {selector: {matchLabels: {a: b}}}", "a=b"},
		"no selector":  {"an empty one would be all Pods", "apiVersion: apps/v1\nkind: Deployment\nspec: {selector: {}}", ""},
		"other kind":   {"a Service selects in another way", "apiVersion: v1\nkind: Service\nspec: {selector: {a: b}}", ""},
		"other format": {"what cannot be read says nothing", "apiVersion: apps/v1\nkind: Deployment\nspec: {selector: {matchLabels: [a]}}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if s := podSelector(parse(t, tc.object)); s != nil {
				got = s.String()
			}
			if got != tc.want {
				t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}
