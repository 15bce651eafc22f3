// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"time"

	"github.com/spf13/cobra"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

func newResume(a *app) *cobra.Command {
	var all, wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "resume UNIT…",
		Short: "Reconcile suspended units or sources again",
		Long: `Remove spec.suspend. With --wait the units are asked for a reconcile, one after the other, and waited for.
The ledger has who did it ("terrace audit").`,
		Example: `  terrace resume tf/network --wait
  terrace resume --all -n staging`,
		ValidArgsFunction: a.unitsArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			var after func(*cluster, object) error
			if wait {
				after = func(c *cluster, o object) error {
					token := a.env.Now().UTC().Format(time.RFC3339Nano)
					if _, err := c.patch(cmd.Context(), o, annotations(map[string]any{infra.ReconcileRequestAnnotation: token}), false); err != nil {
						return err
					}
					_, err := a.awaitSettled(cmd.Context(), c, o, token, timeout)
					return err
				}
			}
			return a.setSuspended(cmd, args, all, false, after)
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&all, "all", false, "every unit of the namespace")
	fs.BoolVar(&wait, "wait", false, "wait for the outcome")
	fs.DurationVar(&timeout, "timeout", defaultTimeout, "longest time to wait for each")
	return cmd
}
