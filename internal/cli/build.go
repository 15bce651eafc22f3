// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/terrace-dev/terrace/internal/render/kustomize"
)

func newBuild(a *app) *cobra.Command {
	var f renderFlags
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "build UNIT",
		Short: "Print the objects that a Kustomization is made of",
		Long: `Build a Kustomization as Terrace does and print its objects as YAML: from what its
source fetched last, from a local directory, or from another revision of the
repository. The variables of spec.postBuild are read from the cluster.

With --dry-run those of ConfigMaps and Secrets are left out, and a variable that
nothing defines is empty. With --dry-run, --path and --kustomization-file no
cluster is needed.

What SOPS encrypted is printed as **SOPS**, and no key is read for it. A name that
kustomize makes of such a file's content is therefore not the one that is applied.`,
		Example: `  terrace build ks/apps
  terrace build ks/apps --path ./apps/production
  terrace build ks/apps --path . --kustomization-file clusters/apps.yaml --dry-run`,
		Args:              exactly("UNIT"),
		ValidArgsFunction: a.unitArg([]kind{kustomization}),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.build(cmd, f, dryRun, args[0])
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "do not read variables from the cluster")
	return cmd
}

func (a *app) build(cmd *cobra.Command, f renderFlags, dryRun bool, word string) error {
	r, err := a.rendered(cmd, word, f, dryRun)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	t, err := r.content(ctx, f)
	if err != nil {
		return err
	}
	defer t.close()
	if dryRun {
		r.cluster = nil
	}
	variables, err := r.variables(ctx)
	if err != nil {
		return err
	}
	var d kustomize.Decryptor
	if r.unit.Spec.Decryption != nil {
		d = masking{}
	}
	out, err := r.build(ctx, t, d, variables, !dryRun)
	if err != nil {
		return err
	}
	for _, o := range out.Objects {
		fmt.Fprintln(a.env.Stdout, "---")
		if err := printValue(a.env.Stdout, "yaml", o.Object); err != nil {
			return err
		}
	}
	if len(out.Objects) == 0 {
		fmt.Fprintf(a.env.Stderr, "%s has no objects\n", r)
	}
	return nil
}
