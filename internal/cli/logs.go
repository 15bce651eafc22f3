// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"net/url"

	"github.com/spf13/cobra"
)

func newLogs(a *app) *cobra.Command {
	var follow bool
	var run string
	var server serverFlags
	cmd := &cobra.Command{
		Use:   "logs UNIT | RUN",
		Short: "Show the output of a unit's run",
		Long: `Show what tofu printed in the latest run of a unit, or in one run of those that
"terrace get runs" lists. Sensitive values are masked, and of a very long log the
middle is left out.`,
		Example: `  terrace logs tf/network -f
  terrace logs run/20261130t120405.000000000z-apply`,
		Args:              exactly("UNIT or RUN"),
		ValidArgsFunction: a.unitArg([]kind{terraform, runs}),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, o, named, err := a.runTarget(cmd, args[0])
			if err != nil {
				return err
			}
			if named != "" {
				if run != "" {
					return usagef(cmd, "--run: %s names a run already", args[0])
				}
				run = named
			}
			s, err := a.server(cmd.Context(), c, server)
			if err != nil {
				return fmt.Errorf("read log of %s: %w", o, err)
			}
			query := url.Values{}
			if run != "" {
				query.Set("run", run)
			}
			if follow {
				query.Set("follow", "true")
			}
			body, err := s.get(cmd.Context(), o, "log", query)
			if errors.Is(err, errNotKept) && run == "" {
				return hintf(fmt.Errorf("read log of %s: it has had no run yet", o), "%q says what it waits for", "terrace show "+argument(o))
			}
			if err != nil {
				return err
			}
			defer body.Close()
			// An interrupt is how following ends: it is no failure.
			if _, err := io.Copy(a.env.Stdout, body); err != nil && cmd.Context().Err() == nil {
				return fmt.Errorf("read log of %s: %w", o, err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what is written, until the run ends")
	cmd.Flags().StringVar(&run, "run", "", "id of the run")
	server.add(cmd.Flags())
	return cmd
}
