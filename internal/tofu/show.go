// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import (
	"context"
	"fmt"

	tfjson "github.com/hashicorp/terraform-json"
)

func showArgs(file string, asJSON bool) []string {
	a := args{"show", "-no-color"}
	a.flag("-json", asJSON)
	if file != "" {
		a.add(file)
	}
	return a
}

// Show decodes a plan file; the bytes are what the tool printed. Both hold the
// values of sensitive variables and attributes.
func (s *Session) Show(ctx context.Context, file string) (*tfjson.Plan, []byte, error) {
	res, err := s.run(ctx, command{sub: "show", args: showArgs(file, true), capture: true})
	if err != nil {
		return nil, nil, err
	}
	plan := &tfjson.Plan{}
	plan.UseJSONNumber(true) // a float64 would round large integers
	if err := plan.UnmarshalJSON(res.stdout); err != nil {
		return nil, nil, fmt.Errorf("decode plan %s: %w", file, err)
	}
	return plan, res.stdout, nil
}

// ShowText is a plan file as people read it. The tool hides what is marked
// sensitive.
func (s *Session) ShowText(ctx context.Context, file string) (string, error) {
	res, err := s.run(ctx, command{sub: "show", args: showArgs(file, false), capture: true})
	if err != nil {
		return "", err
	}
	return string(res.stdout), nil
}

// ShowState decodes the current state; it is empty, not nil, when there is none.
func (s *Session) ShowState(ctx context.Context) (*tfjson.State, error) {
	res, err := s.run(ctx, command{sub: "show", args: showArgs("", true), capture: true})
	if err != nil {
		return nil, err
	}
	state := &tfjson.State{}
	state.UseJSONNumber(true)
	if err := state.UnmarshalJSON(res.stdout); err != nil {
		return nil, fmt.Errorf("decode the state: %w", err)
	}
	return state, nil
}
