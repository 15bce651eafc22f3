// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Writer writes the status of one kind. It remembers the newest version of each
// object that it wrote, because a watch cache may still hold an older one when the
// next reconcile starts, and deciding on that would run work twice.
type Writer[T client.Object] struct {
	client client.Client
	owner  client.FieldOwner

	mu     sync.Mutex
	latest map[types.UID]T
	// sending are the objects whose answer is on its way; one that is forgotten meanwhile
	// is gone, and must not be remembered for ever.
	sending map[types.UID]bool
}

// NewWriter returns a Writer whose patches carry the field owner's name.
func NewWriter[T client.Object](c client.Client, owner string) *Writer[T] {
	return &Writer[T]{client: c, owner: client.FieldOwner(owner), latest: map[types.UID]T{}, sending: map[types.UID]bool{}}
}

// Newest returns obj, or the version that this Writer wrote when obj is older. An object
// whose last finalizer it took off has no later version: its own is then returned until
// the object is forgotten, so that a deletion is not carried out twice. The result is a
// copy that the caller may change.
func (w *Writer[T]) Newest(obj T) T {
	w.mu.Lock()
	defer w.mu.Unlock()
	own, ok := w.latest[obj.GetUID()]
	if !ok {
		return obj.DeepCopyObject().(T)
	}
	same := obj.GetResourceVersion() == own.GetResourceVersion()
	if older(obj.GetResourceVersion(), own.GetResourceVersion()) || same && !own.GetDeletionTimestamp().IsZero() {
		return own.DeepCopyObject().(T)
	}
	delete(w.latest, obj.GetUID())
	return obj.DeepCopyObject().(T)
}

// Forget drops what is remembered of an object that is gone, also what the answer to a
// write will bring.
func (w *Writer[T]) Forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.latest, uid)
	delete(w.sending, uid)
}

// Patch writes the differences between base and obj to the status subresource, if
// there are any; obj then holds what the API server answered. wrote tells whether a
// request was made. An object that is gone is not an error.
//
// The patch carries the resourceVersion: a status that was decided on an older spec
// must not land on a newer one. The caller returns the conflict and is called again.
func (w *Writer[T]) Patch(ctx context.Context, base, obj T) (wrote bool, err error) {
	return w.patch(ctx, base, obj, func(p client.Patch) error {
		return w.client.Status().Patch(ctx, obj, p, w.owner)
	})
}

// PatchMeta writes the differences in metadata (finalizers, annotations).
func (w *Writer[T]) PatchMeta(ctx context.Context, base, obj T) (wrote bool, err error) {
	return w.patch(ctx, base, obj, func(p client.Patch) error {
		return w.client.Patch(ctx, obj, p, w.owner)
	})
}

func (w *Writer[T]) patch(_ context.Context, base, obj T, send func(client.Patch) error) (bool, error) {
	plain, err := client.MergeFrom(base).Data(obj)
	if err != nil {
		return false, fmt.Errorf("compare status of %s: %w", client.ObjectKeyFromObject(obj), err)
	}
	if bytes.Equal(plain, []byte("{}")) {
		return false, nil
	}
	uid := obj.GetUID()
	w.mu.Lock()
	w.sending[uid] = true
	w.mu.Unlock()
	err = send(client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.sending[uid]
	delete(w.sending, uid)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return true, fmt.Errorf("write status of %s: %w", client.ObjectKeyFromObject(obj), err)
	case known:
		w.latest[uid] = obj.DeepCopyObject().(T)
	}
	return true, nil
}

// older compares resourceVersions, which etcd hands out in rising order.
func older(a, b string) bool {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	return errA == nil && errB == nil && x < y
}
