// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
)

func newStateMigrate(a *app) *cobra.Command {
	var to string
	var yes bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "migrate UNIT",
		Short: "Move a unit's state between a Secret and the state service",
		Long: `Move the state of a Terraform unit from its Secret to the state service, or back with
--to kubernetes. The unit moves it at its next plan, which is made at once: serial,
lineage and resources are compared, and the plan shows whether anything changed by
it. What was there before stays, marked as moved.`,
		Example: `  terrace state migrate tf/network
  terrace state migrate tf/network --to kubernetes --yes`,
		Args:              exactly("UNIT"),
		ValidArgsFunction: a.unitArg([]kind{terraform}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if to != v1alpha1.StateInService && to != v1alpha1.StateInSecret {
				return usagef(cmd, "--to %s: use %s or %s", to, v1alpha1.StateInService, v1alpha1.StateInSecret)
			}
			c, o, err := a.target(cmd, args[0], []kind{terraform})
			if err != nil {
				return err
			}
			if !yes {
				if err := a.confirm(cmd, fmt.Sprintf("Move the state of %s to %s?", o, to), "give --yes"); err != nil {
					return err
				}
			}
			ctx := cmd.Context()
			token := a.env.Now().UTC().Format(time.RFC3339Nano)
			asked := annotations(map[string]any{v1alpha1.StateBackendAnnotation: to, infra.ReconcileRequestAnnotation: token})
			if _, err := c.patch(ctx, o, asked, false); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			doing := "move the state of " + o.String()
			last, err := c.until(ctx, o, func(o object) (bool, error) {
				ready, _ := o.condition("Ready")
				if o.text("status", "lastHandledReconcileAt") != token || ready.Reason == infra.ReasonProgressing {
					return false, nil
				}
				if ready.Status == metav1.ConditionFalse {
					return false, errors.New(ready.Message)
				}
				return true, nil
			})
			ready, _ := last.condition("Ready")
			if err != nil {
				return waitError(doing, ready, timeout, err)
			}
			fmt.Fprintf(a.env.Stdout, "moved the state of %s to %s: %s\n", o, to, ready.Message)
			return nil
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&to, "to", v1alpha1.StateInService, "terrace (the state service) or kubernetes (a Secret)")
	fs.BoolVarP(&yes, "yes", "y", false, "do not ask")
	fs.DurationVar(&timeout, "timeout", defaultTimeout, "longest time to wait")
	return cmd
}
