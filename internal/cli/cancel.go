// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

func newCancel(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cancel UNIT | RUN",
		Short: "End the run of a unit that is under way",
		Long: `Ask the run of a unit to end: tofu is interrupted, finishes what it has begun
with one resource, writes the state and releases the lock. When it does not end
within the grace period it is killed.`,
		Example: `  terrace cancel tf/network
  terrace logs tf/network -f`,
		Args:              exactly("UNIT or RUN"),
		ValidArgsFunction: a.unitArg([]kind{terraform}),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, o, named, err := a.runTarget(cmd, args[0])
			if err != nil {
				return err
			}
			if named != "" {
				// A Run is the record of one that has ended.
				return hintf(fmt.Errorf("cancel %s: it has ended", args[0]), "%q ends the run that %s has now", "terrace cancel "+argument(o), o)
			}
			token := a.env.Now().UTC().Format(time.RFC3339Nano)
			if _, err := c.patch(cmd.Context(), o, annotations(map[string]any{infra.CancelAnnotation: token}), false); err != nil {
				return err
			}
			fmt.Fprintf(a.env.Stdout, "requested the end of the run of %s\n", o)
			return nil
		},
	}
	return cmd
}
