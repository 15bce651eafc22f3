// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"github.com/spf13/cobra"

	"github.com/terrace-dev/terrace/internal/config"
)

func newUp(a *app) *cobra.Command {
	c := config.Default(config.Up)
	var file string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a complete control plane on this machine",
		Long: `Start, in one process, a Kubernetes API with its storage and the controllers of
Terrace. It needs no cluster. What is in --data-dir is found again; one process
at a time can use a directory.

DIR/kubeconfig is for kubectl and every other client. An interrupt ends it in
order: runs are interrupted and waited for, then the controllers, the API and its
storage stop. A second one ends it at once, which loses nothing either.

Each flag can also be given as a variable, TERRACE_DATA_DIR for --data-dir, or as
a line of the file that --config names.`,
		Example: `  terrace up
  terrace up -f units/ --data-dir /var/lib/terrace
  terrace up --git https://example.org/infra.git --branch main --path live`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.Load(cmd.Flags(), file, a.env.LookupEnv); err != nil {
				return err
			}
			return a.env.Up(cmd.Context(), c, a.env.Stdout)
		},
	}
	c.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&file, "config", "", "file of settings, named like the flags")
	return cmd
}
