// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"github.com/spf13/cobra"
)

func newCompletion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a script that completes verbs, flags and units in a shell",
		Long: `Print the completion script of a shell. The script asks this binary, so that it
also completes the names of the units of the current cluster.`,
		Example: `  source <(terrace completion bash)
  terrace completion fish > ~/.config/fish/completions/terrace.fish`,
		Args:      exactly("bash, zsh, fish or powershell"),
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), a.env.Stdout
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(out)
			}
			return usagef(cmd, "%q is not bash, zsh, fish or powershell", args[0])
		},
	}
}
