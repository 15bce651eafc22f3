// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
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
