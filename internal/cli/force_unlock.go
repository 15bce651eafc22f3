// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

func newForceUnlock(a *app) *cobra.Command {
	var id string
	var yes bool
	cmd := &cobra.Command{
		Use:   "force-unlock UNIT",
		Short: "Remove the state lock that is in a unit's way",
		Long: `Remove the lock on a unit's state that somebody else holds: status.lock.pending.
When its holder is still at work, the state can be damaged. Terrace releases the
locks of its own dead runs by itself.`,
		Example: `  terrace force-unlock tf/network
  terrace force-unlock tf/network --lock-id 6f1d2c9a-… --yes`,
		Args:              exactly("UNIT"),
		ValidArgsFunction: a.unitArg([]kind{terraform}),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, o, err := a.target(cmd, args[0], []kind{terraform})
			if err != nil {
				return err
			}
			held := o.text("status", "lock", "pending")
			switch {
			case held == "":
				return fmt.Errorf("force-unlock %s: no lock is in its way", o)
			case id != "" && id != held:
				return fmt.Errorf("force-unlock %s: the lock in its way is %s, not %s", o, held, id)
			}
			if !yes {
				question := fmt.Sprintf("Remove lock %s of %s? Its holder must not be at work any more.", held, o)
				if err := a.confirm(cmd, question, "give --yes"); err != nil {
					return err
				}
			}
			unlock := merged(
				map[string]any{"spec": map[string]any{"tfstate": map[string]any{
					"forceUnlock": infra.ForceUnlockYes, "lockIdentifier": held,
				}}},
				annotations(map[string]any{infra.ReconcileRequestAnnotation: a.env.Now().UTC().Format(time.RFC3339Nano)}))
			if _, err := c.patch(cmd.Context(), o, unlock, false); err != nil {
				return err
			}
			fmt.Fprintf(a.env.Stdout, "requested the removal of lock %s of %s\n", held, o)
			return nil
		},
	}
	cmd.Flags().StringVar(&id, "lock-id", "", "remove this lock and no other")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}
