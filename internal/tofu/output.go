// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import (
	"context"
	"encoding/json"
	"fmt"
)

// Output is one output value of the state.
type Output struct {
	// Value is the value and Type its type as the tool prints them: JSON, with
	// the indentation that it has there.
	Value json.RawMessage `json:"value"`
	Type  json.RawMessage `json:"type"`
	// Sensitive outputs must not be shown.
	Sensitive bool `json:"sensitive"`
}

func outputArgs() []string { return []string{"output", "-no-color", "-json"} }

// Outputs reads all outputs, by name; empty when there are none.
func (s *Session) Outputs(ctx context.Context) (map[string]Output, error) {
	res, err := s.run(ctx, command{sub: "output", args: outputArgs(), capture: true})
	if err != nil {
		return nil, err
	}
	outputs := map[string]Output{}
	if err := json.Unmarshal(res.stdout, &outputs); err != nil {
		// Not the text of the error: it may quote a value.
		return nil, fmt.Errorf("decode the outputs: %d bytes that are not the JSON that was expected", len(res.stdout))
	}
	return outputs, nil
}
