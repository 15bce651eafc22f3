// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/terrace-dev/terrace/api/v1alpha1"
)

func newSuspend(a *app) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "suspend UNIT…",
		Short: "Stop reconciling units or sources",
		Long: `Set spec.suspend, so that nothing about the units is changed until they are
resumed. A run that is under way goes on; "terrace cancel" ends it.

Where a Kustomization applies the unit, it is told to leave it alone until then, or it
would put spec.suspend back to what Git says.

The ledger has who did it ("terrace audit").`,
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
	who := c.voucher(cmd.Context())
	word := map[bool]string{true: "suspended", false: "resumed"}[suspend]
	for _, o := range objects {
		changed, err := c.suspend(cmd.Context(), o, suspend, who)
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

// voucher writes who suspends or resumes an object, in the generation that this makes. A
// user whom the API server does not tell who they are writes nothing: stopping a unit does
// not depend on it.
func (c *cluster) voucher(ctx context.Context) func(suspend bool, o object) string {
	account, user, err := c.whoami(ctx)
	if err != nil {
		return func(bool, object) string { return "" }
	}
	return func(suspend bool, o object) string {
		return v1alpha1.FormatSuspension(suspend, o.GetGeneration()+1, account, user)
	}
}

// suspend writes spec.suspend of an object, and who does it. The write fails if the object is
// another by now, whose generation the name would not be of; then it is looked at again.
func (c *cluster) suspend(ctx context.Context, o object, suspend bool, who func(bool, object) string) (object, error) {
	for tries := 0; ; tries++ {
		fields, guard := suspension(o, suspend), false
		if by := who(suspend, o); by != "" && o.suspended() != suspend && slices.ContainsFunc(recorded, func(k kind) bool { return k.Name == o.Kind.Name }) {
			fields, guard = merged(fields, annotations(map[string]any{v1alpha1.SuspensionByAnnotation: by})), true
		}
		changed, err := c.patch(ctx, o, fields, guard)
		if !apierrors.IsConflict(err) || tries == 5 {
			return changed, err
		}
		if o, err = c.find(ctx, ref{[]kind{o.Kind}, o.GetName()}); err != nil {
			return o, err
		}
	}
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
