// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"fmt"
	"time"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

const (
	// collectEvery is how often stored plans are compared with what refers to them.
	collectEvery = 6 * time.Hour
	// collectAge is how old a blob is before it counts as left over: a run stores a plan
	// some time before its record is written.
	collectAge = 2 * time.Hour
)

// collect deletes, from time to time, what a crash left between the storing of a plan
// and the record of it. Everything else is deleted with the record that named it.
func (c *Controller) collect(ctx context.Context) error {
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	for {
		if err := c.collectOnce(ctx); err != nil {
			log(ctx).Error(err, "collect stored plans")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (c *Controller) collectOnce(ctx context.Context) error {
	var list infra.TerraformList
	if err := c.opts.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("list units: %w", err)
	}
	used := map[string]bool{}
	for i := range list.Items {
		for _, d := range blobsOf(&list.Items[i].Status) {
			used[d] = true
		}
	}
	for info, err := range c.opts.Blobs.List(ctx) {
		if err != nil {
			return fmt.Errorf("list stored plans: %w", err)
		}
		if used[info.Digest.String()] || c.opts.Clock.Since(info.Modified) < collectAge {
			continue
		}
		if err := c.opts.Blobs.Delete(ctx, info.Digest); err != nil {
			return fmt.Errorf("remove stored plan %s: %w", info.Digest, err)
		}
	}
	return nil
}
