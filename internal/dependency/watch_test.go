// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package dependency

import (
	"fmt"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

func TestUnitsNeeding(t *testing.T) {
	cm := func(name, needs string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"needs": needs}}}
	}
	c := fake.NewClientBuilder().WithObjects(cm("a", "x"), cm("b", "x"), cm("c", "y")).
		WithIndex(&corev1.ConfigMap{}, ByDependency, func(o client.Object) []string { return []string{Key("Kind", "ns", o.GetLabels()["needs"])} }).Build()
	units := NewUnits(c, &corev1.ConfigMapList{})
	for range 2 { // the pattern is not filled
		if got := units.Needing(t.Context(), ByDependency, Key("Kind", "ns", "x")); fmt.Sprint(got) != "[ns/a ns/b]" {
			t.Errorf("dependants of x: %v", got)
		}
	}
	if got := units.Needing(t.Context(), ByDependency, Key("Kind", "ns", "z")); len(got) != 0 {
		t.Errorf("dependants of z: %v", got)
	}
}

func TestLeft(t *testing.T) {
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer q.ShutDown()
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "o", Annotations: map[string]string{
		infra.DependsOnAnnotation: "Terraform/db, Kustomization/app, Terraform/other/net",
	}}}
	Left("Terraform").Delete(t.Context(), event.DeleteEvent{Object: o}, q)
	if q.Len() != 2 {
		t.Fatalf("%d units are woken, want 2", q.Len())
	}
	for _, want := range []types.NamespacedName{{Namespace: "ns", Name: "db"}, {Namespace: "other", Name: "net"}} {
		if got, _ := q.Get(); got.NamespacedName != want {
			t.Errorf("woken: %s, want %s", got, want)
		}
	}
}

func TestArtifactChanged(t *testing.T) {
	with := func(revision, url string) *sourcev1.GitRepository {
		return &sourcev1.GitRepository{Status: sourcev1.GitRepositoryStatus{Artifact: &meta.Artifact{Revision: revision, URL: url}}}
	}
	for name, tc := range map[string]struct {
		reason   string
		old, now *sourcev1.GitRepository
		want     bool
	}{
		"none":  {"no artifact is no news", &sourcev1.GitRepository{}, &sourcev1.GitRepository{}, false},
		"first": {"the first one is", &sourcev1.GitRepository{}, with("a", "u"), true},
		"lost":  {"and that it is gone", with("a", "u"), &sourcev1.GitRepository{}, true},
		"same":  {"the same is none", with("a", "u"), with("a", "u"), false},
		"next":  {"another revision is", with("a", "u"), with("b", "u"), true},
		"moved": {"and another place", with("a", "u"), with("a", "v"), true},
	} {
		if got := ArtifactChanged.Update(event.UpdateEvent{ObjectOld: tc.old, ObjectNew: tc.now}); got != tc.want {
			t.Errorf("%s: %s: %v", name, tc.reason, got)
		}
	}
}
