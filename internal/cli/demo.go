// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"github.com/spf13/cobra"

	"github.com/terrace-dev/terrace/internal/demo"
)

func newDemo(a *app) *cobra.Command {
	var o demo.Options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch the whole story on this machine, in a minute or two",
		Long: `Start a control plane of its own, reconcile a small Git repository whose units
depend on each other, and go through plan, approval, change, drift and deletion,
with the commands that a user would type. Nothing outside its directory is touched.`,
		Example: `  terrace demo
  terrace demo --keep --dir /tmp/terrace-demo`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Out, o.Color = a.env.Stdout, a.env.Color
			return demo.Run(cmd.Context(), o)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.Dir, "dir", "", "directory for everything (default: a temporary one)")
	fs.BoolVar(&o.Keep, "keep", false, "leave the directory for a look")
	fs.StringVar(&o.Tofu, "tofu", "", "path of tofu or terraform (default: as with \"terrace up\")")
	fs.StringVar(&o.Mirror, "mirror", "", "directory of providers, laid out as a filesystem mirror (default: their registry)")
	return cmd
}
