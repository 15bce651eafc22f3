// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/opencontainers/go-digest"

	"github.com/terrace-dev/terrace/internal/blob"
)

// A bundle is a stored plan: the tool's plan file, which is what an apply runs, and
// the forms in which people and tools read it. It is sealed, because plans hold
// secrets in plain text.
type bundle struct {
	plan  []byte // the tool's own file
	text  string // as the tool printed it, masked
	value []byte // plan.Plan as JSON, masked
	// secrets are the values that the plan marks as sensitive: whoever applies it, after a
	// restart too, has to mask them.
	secrets [][]byte
}

const (
	bundlePlan    = "tfplan"
	bundleText    = "plan.txt"
	bundleValue   = "plan.json"
	bundleSecrets = "secrets.json"
)

// sealBundle stores a plan and returns the digest by which it is found.
func (c *Controller) sealBundle(ctx context.Context, b *bundle) (string, error) {
	secrets, err := json.Marshal(b.secrets)
	if err != nil {
		return "", fmt.Errorf("store plan: %w", err)
	}
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	for _, f := range []struct {
		name    string
		content []byte
		method  uint16
	}{
		{bundlePlan, b.plan, zip.Store}, // compressed by the tool already
		{bundleText, []byte(b.text), zip.Deflate},
		{bundleValue, b.value, zip.Deflate},
		{bundleSecrets, secrets, zip.Deflate},
	} {
		fw, err := w.CreateHeader(&zip.FileHeader{Name: f.name, Method: f.method})
		if err != nil {
			return "", fmt.Errorf("store plan: %w", err)
		}
		if _, err := fw.Write(f.content); err != nil {
			return "", fmt.Errorf("store plan: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return "", fmt.Errorf("store plan: %w", err)
	}
	d, _, err := c.opts.Blobs.Seal(ctx, &buf)
	if err != nil {
		return "", fmt.Errorf("store plan: %w", err)
	}
	return d.String(), nil
}

// StoredPlan is a plan as it was shown.
type StoredPlan struct {
	// Text is what the tool printed, masked.
	Text string
	// JSON is the encoding of a plan.Plan, masked.
	JSON []byte
}

// ReadPlan returns a stored plan by the digest in status.lastPlan.blob. The error is
// blob.ErrNotFound when it is not stored any more.
func ReadPlan(ctx context.Context, blobs *blob.Store, d string) (*StoredPlan, error) {
	z, err := openBundle(ctx, blobs, d)
	if err != nil {
		return nil, err
	}
	text, err := readEntry(z, bundleText)
	if err != nil {
		return nil, err
	}
	value, err := readEntry(z, bundleValue)
	if err != nil {
		return nil, err
	}
	return &StoredPlan{Text: string(text), JSON: value}, nil
}

func openBundle(ctx context.Context, blobs *blob.Store, d string) (*zip.Reader, error) {
	if d == "" {
		return nil, blob.ErrNotFound
	}
	r, err := blobs.Unseal(ctx, digest.Digest(d))
	if err != nil {
		return nil, fmt.Errorf("read stored plan: %w", err)
	}
	defer r.Close()
	content, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read stored plan: %w", err)
	}
	z, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		return nil, fmt.Errorf("read stored plan: %w", err)
	}
	return z, nil
}

func readEntry(z *zip.Reader, name string) ([]byte, error) {
	f, err := z.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read stored plan: %w", err)
	}
	defer f.Close()
	return io.ReadAll(f)
}

// planFile returns the tool's plan file of a stored plan, and the values that were known to
// be sensitive when it was stored; a plan of an earlier version of Terrace has none.
func (c *Controller) planFile(ctx context.Context, d string) (file []byte, secrets [][]byte, err error) {
	z, err := openBundle(ctx, c.opts.Blobs, d)
	if err != nil {
		return nil, nil, err
	}
	if file, err = readEntry(z, bundlePlan); err != nil {
		return nil, nil, err
	}
	kept, err := readEntry(z, bundleSecrets)
	if errors.Is(err, fs.ErrNotExist) {
		return file, nil, nil
	}
	if err == nil {
		err = json.Unmarshal(kept, &secrets)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read stored plan: %w", err)
	}
	return file, secrets, nil
}
