// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

func newKubectl(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl …",
		Short: "Run kubectl, which is built in",
		Long: `Run the kubectl that is part of this binary, with all of its commands and flags,
against the cluster that the other verbs use. --data-dir is understood here too.`,
		Example: `  terrace kubectl get terraforms -A
  terrace kubectl explain terraform.spec
  terrace kubectl --data-dir .terrace apply --server-side -f units.yaml`,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			rest, err := a.takeDataDir(cmd, args)
			if err != nil {
				return err
			}
			if asksForHelp(rest) {
				return cmd.Help()
			}
			file := ""
			if !names(rest, "--kubeconfig") {
				if file, err = a.kubectlConfig(rest); err != nil {
					return err
				}
			}
			if code := a.env.Kubectl(cmd.Context(), file, rest); code != ExitDone {
				return exitCode(code)
			}
			return nil
		},
	}
}

// takeDataDir takes --data-dir, which kubectl does not know, out of its
// arguments. What follows "--" is left alone.
func (a *app) takeDataDir(cmd *cobra.Command, args []string) ([]string, error) {
	var rest []string
	for i := 0; i < len(args); i++ {
		value, joined := strings.CutPrefix(args[i], "--data-dir=")
		switch {
		case args[i] == "--":
			return append(rest, args[i:]...), nil
		case joined:
			a.flags.dataDir = value
		case args[i] == "--data-dir":
			if i++; i == len(args) {
				return nil, usagef(cmd, "flag needs an argument: --data-dir")
			}
			a.flags.dataDir = args[i]
		default:
			rest = append(rest, args[i])
		}
	}
	return rest, nil
}

// asksForHelp tells a request for the help of this verb; "kubectl get --help"
// is kubectl's own.
func asksForHelp(args []string) bool {
	return len(args) == 1 && (args[0] == "--help" || args[0] == "-h")
}

// names tells whether a flag is among the arguments.
func names(args []string, flag string) bool {
	for _, arg := range args {
		if arg == "--" {
			return false
		}
		if arg == flag || strings.HasPrefix(arg, flag+"=") {
			return true
		}
	}
	return false
}

// kubectlConfig is the kubeconfig to hand to kubectl; empty when kubectl finds
// the same one by itself. Commands that need no cluster work without one.
func (a *app) kubectlConfig(args []string) (string, error) {
	file, err := a.explicitKubeconfig()
	if err != nil || file != "" {
		return file, err
	}
	rules, _, err := a.loadingRules()
	if err != nil {
		return "", nil
	}
	return rules.ExplicitPath, nil
}
