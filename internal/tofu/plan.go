// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import (
	"context"
	"fmt"
)

// PlanOptions are the choices of plan; the zero value plans and keeps nothing.
type PlanOptions struct {
	// Out is the file that takes the plan; empty: none.
	Out string
	// JSONInto is the file that takes the machine-readable stream, while the
	// text for people goes to Session.Output. Only if Tool.JSONInto.
	JSONInto string
	// Destroy plans to remove everything.
	Destroy bool
	// RefreshOnly plans to do nothing but take the present into the state.
	RefreshOnly bool
	// Refresh is nil for the tool's default, which is to refresh.
	Refresh *bool
	// Targets and Replace are resource addresses.
	Targets, Replace []string
	// VarFiles are paths, absolute or relative to Session.Dir.
	VarFiles []string
	// Lock is nil for the tool's default, which is to lock.
	Lock *bool
	// LockTimeout is a duration like "30s"; empty: do not wait.
	LockTimeout string
	// Parallelism bounds the operations at once; 0: the tool's default.
	Parallelism int
}

func (o PlanOptions) args() []string {
	a := args{"plan", "-no-color", "-input=false", "-detailed-exitcode"}
	a.text("-out=", o.Out)
	a.text("-json-into=", o.JSONInto)
	a.flag("-destroy", o.Destroy)
	a.flag("-refresh-only", o.RefreshOnly)
	a.bool("-refresh=", o.Refresh)
	a.each("-target=", o.Targets)
	a.each("-replace=", o.Replace)
	a.each("-var-file=", o.VarFiles)
	a.bool("-lock=", o.Lock)
	a.text("-lock-timeout=", o.LockTimeout)
	a.number("-parallelism=", o.Parallelism)
	return a
}

// planChanged is the exit code of plan -detailed-exitcode when it succeeded and
// there are changes; 0 is none, 1 a failure.
const planChanged = 2

// Plan makes a plan and says whether it would change anything, resources or
// outputs. The error is ErrUnsupported when JSONInto is asked of a tool that
// has it not.
func (s *Session) Plan(ctx context.Context, o PlanOptions) (changed bool, err error) {
	if o.JSONInto != "" && !s.Tool.JSONInto() {
		return false, fmt.Errorf("plan with -json-into on %s: %w", s.Tool, ErrUnsupported)
	}
	res, err := s.run(ctx, command{sub: "plan", args: o.args(), okCodes: []int{planChanged}})
	if err != nil {
		return false, err
	}
	return res.code == planChanged, nil
}
