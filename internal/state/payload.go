// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
)

// MaxPayload bounds an uncompressed state, in bytes. The largest known in the wild
// have some tens of megabytes.
const MaxPayload = 256 << 20

// Uncompress returns the payload that a Secret holds compressed. The error says that
// it is no gzip, or larger than MaxPayload.
func Uncompress(b []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("uncompress state: %w", err)
	}
	out, err := io.ReadAll(io.LimitReader(z, MaxPayload+1))
	if err != nil {
		return nil, fmt.Errorf("uncompress state: %w", err)
	}
	if len(out) > MaxPayload {
		return nil, fmt.Errorf("uncompress state: larger than %d bytes", MaxPayload)
	}
	return out, nil
}

// Summary is what can be told of a state without understanding it.
type Summary struct {
	Serial    uint64
	Lineage   string
	Resources int
	Outputs   int
	Encrypted bool // by OpenTofu: the counts are not known
}

// Empty reports whether the state says nothing of anything: what init creates.
func (s Summary) Empty() bool { return !s.Encrypted && s.Resources == 0 && s.Outputs == 0 }

// Summarize reads an uncompressed payload. The error says that it is no state.
func Summarize(payload []byte) (Summary, error) {
	var p struct {
		Version       int                        `json:"version"`
		Serial        uint64                     `json:"serial"`
		Lineage       string                     `json:"lineage"`
		Resources     []json.RawMessage          `json:"resources"`
		Outputs       map[string]json.RawMessage `json:"outputs"`
		EncryptedData json.RawMessage            `json:"encrypted_data"`
	}
	if err := json.Unmarshal(payload, &p); err != nil {
		return Summary{}, fmt.Errorf("read state: %w", err)
	}
	s := Summary{
		Serial: p.Serial, Lineage: p.Lineage, Resources: len(p.Resources), Outputs: len(p.Outputs),
		Encrypted: len(p.EncryptedData) > 0,
	}
	// Formats before 4 keep resources in modules; nobody writes them any more.
	if p.Version != 4 && !s.Encrypted {
		return Summary{}, fmt.Errorf("read state: format %d, not 4", p.Version)
	}
	return s, nil
}

// WithSerial returns a payload with another serial and everything else as it is. It is
// not for a state that OpenTofu encrypts, which has its serial inside as well. The
// error says that the payload is no JSON object.
func WithSerial(payload []byte, serial int64) ([]byte, error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(payload, &fields); err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	fields["serial"] = json.RawMessage(fmt.Sprint(serial))
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(fields); err != nil {
		return nil, fmt.Errorf("write state: %w", err)
	}
	return b.Bytes(), nil
}
