// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// followed follows objects of a client that knows no API server. Each watch is handed
// to the test, which sends its events.
func followed(t *testing.T, then func(*corev1.ConfigMap), objects ...client.Object) (*Followed[*corev1.ConfigMap], client.Client, <-chan *watch.FakeWatcher) {
	t.Helper()
	watches := make(chan *watch.FakeWatcher)
	c := interceptor.NewClient(fake.NewFakeClient(), interceptor.Funcs{
		Watch: func(ctx context.Context, _ client.WithWatch, _ client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
			var o client.ListOptions
			o.ApplyOptions(opts)
			if o.Raw.SendInitialEvents != nil {
				return nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil) // an API server that knows lists only
			}
			w := watch.NewFake()
			select {
			case watches <- w:
				return w, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	})
	for _, o := range objects {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	f := Follow(t.Context(), c, &corev1.ConfigMap{}, &corev1.ConfigMapList{}, "n", then)
	t.Cleanup(f.Stop)
	return f, c, watches
}

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}, Data: map[string]string{"v": value}}
}

func has(value string) func(*corev1.ConfigMap) bool {
	return func(c *corev1.ConfigMap) bool { return c != nil && c.Data["v"] == value }
}

func gone(c *corev1.ConfigMap) bool { return c == nil }

func value(c *corev1.ConfigMap) string { return c.Data["v"] }

func TestUntilEndsWhenEveryObjectIsDone(t *testing.T) {
	var told []string
	f, _, watches := followed(t, func(c *corev1.ConfigMap) { told = append(told, c.Name+"="+c.Data["v"]) }, configMap("a", "1"))
	w := <-watches
	go func() {
		w.Add(configMap("b", "1"))
		w.Modify(configMap("a", "2"))
		w.Modify(configMap("b", "2"))
	}()
	if err := f.Until(t.Context(), "2", []string{"a", "b"}, has("2"), value); err != nil {
		t.Fatal(err)
	}
	go w.Delete(configMap("a", "2"))
	if err := f.Until(t.Context(), "a to be gone", []string{"a"}, gone, value); err != nil {
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
	f, _, watches := followed(t, nil, configMap("a", "1"), configMap("b", "the wrong one"))
	<-watches // the list is in
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := f.Until(ctx, "the right value", []string{"a", "b"}, has("1"), value)
	if err == nil || !strings.Contains(err.Error(), "wait for the right value: 1 of 2 units are not, such as b: the wrong one") {
		t.Errorf("error is %v: it must say what was waited for, how many are missing, and one of them", err)
	}
}

func TestAWatchThatEndsIsBegunAgain(t *testing.T) {
	f, c, watches := followed(t, nil, configMap("stays", "1"), configMap("goes", "1"))
	w := <-watches
	// It is told by no watch.
	if err := c.Delete(t.Context(), configMap("goes", "")); err != nil {
		t.Fatal(err)
	}
	expired := apierrors.NewResourceExpired("too slow").ErrStatus
	go w.Error(&expired)
	if err := f.Until(t.Context(), "goes to be gone", []string{"goes"}, gone, value); err != nil {
		t.Fatal(err)
	}
	w = <-watches
	go w.Modify(configMap("stays", "2"))
	if err := f.Until(t.Context(), "2", []string{"stays"}, has("2"), value); err != nil {
		t.Fatal(err)
	}
}
