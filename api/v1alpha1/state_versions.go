// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

const (
	// plainVersions is how many versions a status has with their fields.
	plainVersions = 10
	// maxPacked bounds what packed versions may unpack to, in bytes of JSON: an object
	// of the API is smaller in any case.
	maxPacked = 4 << 20
)

// All are the versions that are kept, newest first. The error says that the packed ones
// are damaged; then those that are not packed are returned with it.
func (s *StateStatus) All() ([]StateVersion, error) {
	older, err := unpackVersions(s.Packed)
	if err != nil {
		return s.Versions, fmt.Errorf("status.packed: %w", err)
	}
	return append(slices.Clip(s.Versions), older...), nil
}

// Keep makes these the versions that are kept, newest first.
func (s *StateStatus) Keep(versions []StateVersion) error {
	n := min(len(versions), plainVersions)
	packed, err := packVersions(versions[n:])
	if err != nil {
		return err
	}
	s.Versions, s.Packed, s.Kept = slices.Clip(versions[:n]), packed, len(versions)
	return nil
}

// packVersions gives nothing for no versions.
func packVersions(versions []StateVersion) ([]byte, error) {
	if len(versions) == 0 {
		return nil, nil
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if err := errors.Join(json.NewEncoder(w).Encode(versions), w.Close()); err != nil {
		return nil, fmt.Errorf("pack versions: %w", err)
	}
	return packed.Bytes(), nil
}

func unpackVersions(packed []byte) ([]StateVersion, error) {
	if len(packed) == 0 {
		return nil, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(r, maxPacked+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxPacked {
		return nil, fmt.Errorf("unpacks to more than %d bytes", maxPacked)
	}
	var versions []StateVersion
	if err := json.Unmarshal(text, &versions); err != nil {
		return nil, err
	}
	return versions, nil
}
