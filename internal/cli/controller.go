// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"github.com/spf13/cobra"

	"github.com/terrace-dev/terrace/internal/config"
)

func newController(a *app) *cobra.Command {
	c := config.Default(config.Controller)
	var file string
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Run the controllers against an existing cluster",
		Long: `Run the controllers of Terrace against the Kubernetes cluster of a kubeconfig, or
of the pod. "terrace install" adds the kinds and the permissions that they need.

Each flag can also be given as a variable, TERRACE_DATA_DIR for --data-dir, or as
a line of the file that --config names.`,
		Example: `  terrace controller --kubeconfig ~/.kube/config --watch-namespace infra
  terrace controller --leader-election=false --data-dir /var/lib/terrace`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.Load(cmd.Flags(), file, a.env.LookupEnv); err != nil {
				return err
			}
			return a.env.Controller(cmd.Context(), c)
		},
	}
	c.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&file, "config", "", "file of settings, named like the flags")
	return cmd
}
