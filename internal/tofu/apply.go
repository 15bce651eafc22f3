// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import (
	"context"
	"fmt"
)

// ApplyOptions are the choices of apply. With Plan only Parallelism, Lock,
// LockTimeout and JSONInto may be set besides: all else is in the plan.
type ApplyOptions struct {
	// Plan is the plan file that runs. Without it what the options say is
	// planned and applied at once.
	Plan string
	// JSONInto is the file that takes the machine-readable stream, while the
	// text for people goes to Session.Output. Only if Tool.JSONInto.
	JSONInto string
	// Destroy removes everything; without Plan only.
	Destroy bool
	// Refresh is nil for the tool's default, which is to refresh.
	Refresh *bool
	// Targets are resource addresses.
	Targets []string
	// VarFiles are paths, absolute or relative to Session.Dir.
	VarFiles []string
	// Lock is nil for the tool's default, which is to lock.
	Lock *bool
	// LockTimeout is a duration like "30s"; empty: do not wait.
	LockTimeout string
	// Parallelism bounds the operations at once; 0: the tool's default.
	Parallelism int
}

func (o ApplyOptions) args() []string {
	a := args{"apply", "-no-color", "-input=false", "-auto-approve"}
	a.text("-json-into=", o.JSONInto)
	a.flag("-destroy", o.Destroy)
	a.bool("-refresh=", o.Refresh)
	a.each("-target=", o.Targets)
	a.each("-var-file=", o.VarFiles)
	a.bool("-lock=", o.Lock)
	a.text("-lock-timeout=", o.LockTimeout)
	a.number("-parallelism=", o.Parallelism)
	if o.Plan != "" {
		a.add(o.Plan)
	}
	return a
}

// Apply carries out a stored plan, or without one what the options say. After
// an error some of it may have been done; the state says what.
func (s *Session) Apply(ctx context.Context, o ApplyOptions) error {
	if o.JSONInto != "" && !s.Tool.JSONInto() {
		return fmt.Errorf("apply with -json-into on %s: %w", s.Tool, ErrUnsupported)
	}
	_, err := s.run(ctx, command{sub: "apply", args: o.args()})
	return err
}

// Destroy is Apply that removes everything that the state holds, or the
// targets; o.Plan must be empty.
func (s *Session) Destroy(ctx context.Context, o ApplyOptions) error {
	o.Destroy = true
	return s.Apply(ctx, o)
}
