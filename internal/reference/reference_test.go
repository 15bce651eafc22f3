// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/terrace-dev/terrace/internal/testenv"
)

// counting counts the reads of content.
type counting struct {
	client.Client
	reads int
}

func (c *counting) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, metadata := o.(*metav1.PartialObjectMetadata); !metadata {
		c.reads++
	}
	return c.Client.Get(ctx, key, o, opts...)
}

func TestDigest(t *testing.T) {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "1"}, Data: map[string][]byte{"a": []byte("1"), "b": []byte("2")}}
	c := &counting{Client: fake.NewClientBuilder().WithObjects(s).Build()}
	r := NewReader(c, c, []byte("key"))
	ref := Reference{Secret, "ns", "s"}
	digest := func(keys ...string) string {
		t.Helper()
		d, err := r.Digest(t.Context(), ref, Data{}, keys...)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	whole, onlyA := digest(), digest("a")
	if whole == "" || whole == onlyA {
		t.Fatalf("digests %q and %q", whole, onlyA)
	}
	if c.reads != 2 {
		t.Errorf("%d reads for two digests", c.reads)
	}
	if digest() != whole || digest("a") != onlyA || c.reads != 2 {
		t.Errorf("an unchanged Secret was read again: %d reads", c.reads)
	}
	var live corev1.Secret
	if err := c.Client.Get(t.Context(), ref.Key(), &live); err != nil {
		t.Fatal(err)
	}
	live.Data["b"] = []byte("3")
	if err := c.Update(t.Context(), &live); err != nil {
		t.Fatal(err)
	}
	if digest() == whole {
		t.Error("a change is not seen")
	}
	if digest("a") != onlyA {
		t.Error("the digest of one key changes with another")
	}
	if d, err := r.Digest(t.Context(), Reference{Secret, "ns", "none"}, Data{}); d != "" || err != nil {
		t.Errorf("a Secret that does not exist: %q, %v", d, err)
	}
	if other := NewReader(c, c, []byte("another")); true {
		if d, _ := other.Digest(t.Context(), ref, Data{}); d == digest() {
			t.Error("the digest does not depend on the key")
		}
	}
}

// Content that is newer than its digest is never taken for that of the digest, and the next
// digest is of it, whether or not the watch has seen it by then.
func TestContentIsThatOfItsDigest(t *testing.T) {
	for _, kind := range []string{Secret, ConfigMap} {
		t.Run(kind, func(t *testing.T) {
			var o client.Object = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "1"}, Data: map[string][]byte{"a": []byte("old"), "b": []byte("1")}}
			change := func(o client.Object) { o.(*corev1.Secret).Data["a"] = []byte("new") }
			if kind == ConfigMap {
				o = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "1"}, Data: map[string]string{"a": "old", "b": "1"}}
				change = func(o client.Object) { o.(*corev1.ConfigMap).Data["a"] = "new" }
			}
			api := fake.NewClientBuilder().WithObjects(o).Build()
			watch := &testenv.LateWatch{Client: api}
			r, ref := NewReader(watch, api, []byte("key")), Reference{kind, "ns", "s"}
			digest := func(fetched Data, keys ...string) string {
				t.Helper()
				d, err := r.Digest(t.Context(), ref, fetched, keys...)
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			content := func(digest string, fetched Data, keys ...string) (string, error) {
				c, err := r.Content(t.Context(), ref, digest, fetched, keys...)
				return string(c["a"]), err
			}
			then := Data{}
			old, onlyB := digest(then), digest(Data{}, "b")
			fresh := Data{}
			if got, err := content(old, fresh); got != "old" || err != nil || fresh[ref] == nil {
				t.Fatalf("content %q, %v, kept %v", got, err, fresh)
			}
			seen, err := r.Metadata(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}
			if err := api.Get(t.Context(), ref.Key(), o); err != nil {
				t.Fatal(err)
			}
			change(o)
			if err := api.Update(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			watch.Seen = seen
			if digest(Data{}) != old {
				t.Fatal("the watch is not behind")
			}
			if got, err := content(old, then); got != "old" || err != nil {
				t.Errorf("what was read for the digest: %q, %v", got, err)
			}
			got, err := content(old, Data{})
			if kind == ConfigMap { // a small one is remembered with its digest
				if got != "old" || err != nil {
					t.Errorf("for the digest before the change there is %q, %v", got, err)
				}
			} else {
				if !errors.Is(err, ErrChanged) {
					t.Errorf("for the digest before the change there is %q, %v", got, err)
				}
				if digest(Data{}) == old {
					t.Error("the digest that was found to be too old is given again")
				}
			}
			if _, err := content(onlyB, Data{}, "b"); err != nil {
				t.Errorf("the key that has not changed: %v", err)
			}
			watch.Seen = nil
			fetched := Data{}
			now := digest(fetched)
			if got, err := content(now, fetched); now == old || got != "new" || err != nil {
				t.Errorf("the digest is %q after %q; content %q, %v", now, old, got, err)
			}
			if got, err := content(old, Data{}); !errors.Is(err, ErrChanged) {
				t.Errorf("for the digest before the change there is %q, %v", got, err)
			}
			if err := api.Delete(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			if _, err := content(now, Data{}); !errors.Is(err, ErrChanged) {
				t.Errorf("what is gone: %v", err)
			}
		})
	}
}
