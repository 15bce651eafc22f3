// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

func newSuspend(a *app) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "suspend UNIT…",
		Short: "Stop reconciling units or sources",
		Long: `Set spec.suspend, so that nothing about the units is changed until they are
resumed. A run that is under way goes on; "terrace cancel" ends it.

Where a Kustomization applies the unit, it is told to leave it alone until then, or it
would put spec.suspend back to what Git says.`,
		Example: `  terrace suspend tf/network tf/cluster
  terrace suspend ks/apps gitrepository/fleet
  terrace suspend --all -n staging`,
		ValidArgsFunction: a.unitsArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.setSuspended(cmd, args, all, true, nil)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "every unit of the namespace")
	return cmd
}

// unitsArg completes any number of units and sources.
func (a *app) unitsArg(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return a.completeNames(cmd, args, word, kinds)
}

// setSuspended writes spec.suspend of the named objects, or of all units, and
// hands each to after. It goes on past a failure and returns all of them.
func (a *app) setSuspended(cmd *cobra.Command, args []string, all, suspend bool, after func(*cluster, object) error) error {
	if all == (len(args) > 0) {
		return usagef(cmd, "needs UNIT or --all, and not both")
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	objects, err := a.named(cmd, c, args, all)
	if err != nil {
		return err
	}
	var errs []error
	word := map[bool]string{true: "suspended", false: "resumed"}[suspend]
	for _, o := range objects {
		changed, err := c.patch(cmd.Context(), o, suspension(o, suspend), false)
		if err == nil {
			fmt.Fprintf(a.env.Stdout, "%s %s\n", word, o)
			if after != nil {
				err = after(c, changed)
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// keptFromParent marks an object that was suspended by hand under a Kustomization.
const keptFromParent = "terrace.dev/suspended-by-hand"

// suspension is what suspends an object, or resumes it.
func suspension(o object, suspend bool) map[string]any {
	reconcile := kustomization.Resource.Group + "/reconcile"
	// Resuming removes the field, as it is in most manifests: no trace is left.
	fields := map[string]any{"spec": map[string]any{"suspend": nil}}
	if suspend {
		fields = map[string]any{"spec": map[string]any{"suspend": true}}
	}
	switch {
	case suspend && o.GetLabels()[kustomization.Resource.Group+"/name"] != "" && o.GetAnnotations()[reconcile] == "":
		return merged(fields, annotations(map[string]any{reconcile: "disabled", keptFromParent: "true"}))
	case !suspend && o.GetAnnotations()[keptFromParent] != "":
		return merged(fields, annotations(map[string]any{reconcile: nil, keptFromParent: nil}))
	}
	return fields
}

// named finds the objects that the arguments name, or all units of the namespace.
func (a *app) named(cmd *cobra.Command, c *cluster, args []string, all bool) ([]object, error) {
	if all {
		found, _, err := c.list(cmd.Context(), selection{Kinds: ofRole(unit), Namespace: c.namespace})
		if err == nil && len(found) == 0 {
			fmt.Fprintf(a.env.Stderr, "no units found in namespace %s\n", c.namespace)
		}
		return found, err
	}
	var objects []object
	for _, word := range args {
		r, err := parseRef(word, kinds)
		if err != nil {
			return nil, usagef(cmd, "%v", err)
		}
		o, err := c.find(cmd.Context(), r)
		if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	return objects, nil
}
