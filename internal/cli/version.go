// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newVersion(a *app) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this binary",
		Long:  `Print the version of this binary, the commit that it was built from, and with what.`,
		Example: `  terrace version
  terrace version -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := a.env.Build
			switch output {
			case "json", "yaml":
				return printValue(a.env.Stdout, output, b)
			case "":
				_, err := fmt.Fprintln(a.env.Stdout, versionLine(b))
				return err
			}
			return usagef(cmd, "-o %s: use json or yaml", output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	return cmd
}

// versionLine is the version in one line, for the verb and for --version.
func versionLine(b Build) string {
	return fmt.Sprintf("terrace %s (commit %s of %s, %s, %s)", b.Version, b.Commit, b.Date, b.GoVersion, b.Platform)
}
