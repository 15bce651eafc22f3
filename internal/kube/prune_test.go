// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

func TestPrune(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		live   func(*world, *unstructured.Unstructured) // nil: there is none
		want   Action
		stays  bool
	}{
		"own":  {"it is this unit's", func(*world, *unstructured.Unstructured) {}, Deleted, false},
		"gone": {"somebody has deleted it", nil, Deleted, false},
		"other": {"it is another's by now", func(w *world, o *unstructured.Unstructured) {
			testOwner.Label(o, types.NamespacedName{Namespace: w.ns, Name: "other"})
		}, Skipped, true},
		"kept": {"it opts out", func(_ *world, o *unstructured.Unstructured) { annotate(o, "prune", "Disabled") }, Skipped, true},
		"left": {"it is left alone altogether", func(_ *world, o *unstructured.Unstructured) { annotate(o, "reconcile", "disabled") }, Skipped, true},
		// As in Flux, a label that is taken away is an opt-out too.
		"unlabelled": {"nothing says that it is this unit's", func(_ *world, o *unstructured.Unstructured) { o.SetLabels(nil) }, Deleted, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			o := w.cm("c", "1")
			if tc.live != nil {
				tc.live(w, o)
				w.create(o)
			}
			changes, err := w.client.Prune(t.Context(), w.unit, []Key{KeyOf(o)})
			if err != nil || len(changes) != 1 || changes[0].Action != tc.want {
				t.Fatalf("%s: %s %v", tc.reason, actions(changes), err)
			}
			if (w.get(o) != nil) != tc.stays {
				t.Errorf("%s: it is there: %v", tc.reason, w.get(o) != nil)
			}
		})
	}
}

func annotate(o *unstructured.Unstructured, key, value string) {
	o.SetAnnotations(map[string]string{testOwner.Group + "/" + key: value})
}

// TestPruneKinds deletes objects also when the version of their kind has gone, counts
// them as gone with their kind, and not when the API server cannot tell.
func TestPruneKinds(t *testing.T) {
	w := newWorld(t)
	deployment := w.owned("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}")
	w.create(deployment)
	old := KeyOf(deployment)
	old.Kind.Version = "v1beta2"
	changes, err := w.client.Prune(t.Context(), w.unit, []Key{old})
	if err != nil || actions(changes) != "d deleted" || changes[0].Key != old || w.get(deployment) != nil {
		t.Errorf("a version that is not served: %s %v; it is there: %v", actions(changes), err, w.get(deployment) != nil)
	}
	away := Key{Kind: schema.GroupVersionKind{Group: "away." + w.ns, Version: "v1", Kind: "Thing"}, Namespace: w.ns, Name: "x"}
	cm := w.create(w.cm("c", "1"))
	w.refusing(func(r *http.Request) (int, metav1.StatusReason) {
		if strings.HasPrefix(r.URL.Path, "/apis/away.") {
			return http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable
		}
		return 0, ""
	})
	changes, err = w.client.Prune(t.Context(), w.unit, []Key{away, KeyOf(cm)})
	if err == nil || actions(changes) != "c deleted" {
		t.Errorf("a group that does not answer: %s %v", actions(changes), err)
	}
	w.refusing(nil)
	if changes, err = w.client.Prune(t.Context(), w.unit, []Key{away}); err != nil || actions(changes) != "x deleted" {
		t.Errorf("a kind that is gone: %s %v", actions(changes), err)
	}
}

func TestPruneGoesOn(t *testing.T) {
	w := newWorld(t)
	a, b := w.create(w.cm("a", "1")), w.create(w.cm("b", "1"))
	w.refusing(func(r *http.Request) (int, metav1.StatusReason) {
		if r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/b") {
			return http.StatusForbidden, metav1.StatusReasonForbidden
		}
		return 0, ""
	})
	changes, err := w.client.Prune(t.Context(), w.unit, []Key{KeyOf(a), KeyOf(b)})
	if err == nil || !strings.Contains(err.Error(), "ConfigMap/"+w.ns+"/b delete failed") || actions(changes) != "a deleted" {
		t.Errorf("%s, %v", actions(changes), err)
	}
}
