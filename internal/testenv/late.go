// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// LateWatch is a client whose metadata come from a watch that has not seen the last changes.
type LateWatch struct {
	client.Client
	Seen *metav1.PartialObjectMetadata // what it has seen of every object; nil for all there is
}

// Get returns what was seen of metadata, and everything else as it is.
func (c *LateWatch) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if m, ok := o.(*metav1.PartialObjectMetadata); ok && c.Seen != nil {
		c.Seen.DeepCopyInto(m)
		return nil
	}
	return c.Client.Get(ctx, key, o, opts...)
}
