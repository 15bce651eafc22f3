// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// followed follows a watch whose events the test sends.
func followed(t *testing.T, then ...func(*corev1.ConfigMap)) (*Followed[*corev1.ConfigMap], *watch.FakeWatcher) {
	t.Helper()
	w := watch.NewFake()
	c := interceptor.NewClient(fake.NewFakeClient(), interceptor.Funcs{
		Watch: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
			return w, nil
		},
	})
	f, err := Follow(t.Context(), c, &corev1.ConfigMapList{}, "n", then...)
	if err != nil {
		t.Fatal(err)
	}
	return f, w
}

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}, Data: map[string]string{"v": value}}
}

func has(value string) func(*corev1.ConfigMap) bool {
	return func(c *corev1.ConfigMap) bool { return c != nil && c.Data["v"] == value }
}

func value(c *corev1.ConfigMap) string { return c.Data["v"] }

func TestUntilEndsWhenEveryObjectIsDone(t *testing.T) {
	var told []string
	f, w := followed(t, func(c *corev1.ConfigMap) { told = append(told, c.Name+"="+c.Data["v"]) })
	go func() {
		w.Add(configMap("a", "1"))
		w.Add(configMap("b", "1"))
		w.Modify(configMap("a", "2"))
		w.Modify(configMap("b", "2"))
	}()
	if err := f.Until(t.Context(), "2", []string{"a", "b"}, has("2"), value); err != nil {
		t.Fatal(err)
	}
	go w.Delete(configMap("a", "2"))
	if err := f.Until(t.Context(), "a to be gone", []string{"a"}, func(c *corev1.ConfigMap) bool { return c == nil }, value); err != nil {
		t.Fatal(err)
	}
	if _, there := f.Seen()["a"]; there {
		t.Error("a deleted object is still seen")
	}
	if got := strings.Join(told, " "); got != "a=1 b=1 a=2 b=2" {
		t.Errorf("told of %q: of each object that is shown, in order, and not of one that goes", got)
	}
}

func TestUntilTellsWhatIsMissing(t *testing.T) {
	f, w := followed(t)
	w.Add(configMap("a", "1"))
	w.Add(configMap("b", "the wrong one"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := f.Until(ctx, "the right value", []string{"a", "b"}, has("1"), value)
	if err == nil || !strings.Contains(err.Error(), "wait for the right value: 1 of 2 units are not, such as b") {
		t.Errorf("error is %v: it must say what was waited for, how many are missing, and one of them", err)
	}
}

func TestUntilEndsWithTheWatch(t *testing.T) {
	f, w := followed(t)
	w.Add(configMap("a", "1"))
	w.Stop()
	if err := f.Until(t.Context(), "2", []string{"a"}, has("2"), value); err == nil || !strings.Contains(err.Error(), "the watch ended") {
		t.Errorf("error is %v: nothing can come any more", err)
	}
}
