// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

type reconcileOptions struct {
	withSource, wait, exitCode bool
	timeout                    time.Duration
}

func newReconcile(a *app) *cobra.Command {
	var o reconcileOptions
	cmd := &cobra.Command{
		Use:   "reconcile UNIT",
		Short: "Reconcile a unit or a source now",
		Long: `Ask for a reconcile of a unit or a source now, instead of when its interval or a
change makes it due. A unit whose inputs have not changed is checked for drift.

With --wait it ends when the unit is ready, waits for an approval, or failed.`,
		Example: `  terrace reconcile tf/network --with-source --wait
  terrace reconcile ks/apps --wait --exit-code
  terrace reconcile gitrepository/infra`,
		Args:              exactly("UNIT or SOURCE"),
		ValidArgsFunction: a.unitArg(kinds),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.reconcile(cmd, o, args[0])
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&o.withSource, "with-source", false, "fetch the unit's source first")
	fs.BoolVar(&o.wait, "wait", false, "wait for the outcome")
	fs.BoolVar(&o.exitCode, "exit-code", false, "with --wait: exit with 2 when a plan waits for an approval")
	fs.DurationVar(&o.timeout, "timeout", defaultTimeout, "longest time to wait")
	return cmd
}

func (a *app) reconcile(cmd *cobra.Command, opts reconcileOptions, word string) error {
	c, o, err := a.target(cmd, word, kinds)
	if err != nil {
		return err
	}
	objects := []object{o}
	if opts.withSource {
		src, err := c.sourceObject(cmd, o)
		if err != nil {
			return err
		}
		objects = []object{src, o}
	}
	for _, o := range objects {
		if o.suspended() {
			return hintf(fmt.Errorf("reconcile %s: it is suspended", o), "%q resumes it", "terrace resume "+argument(o))
		}
	}
	var end outcome
	for _, o := range objects {
		token := a.env.Now().UTC().Format(time.RFC3339Nano)
		if _, err := c.patch(cmd.Context(), o, annotations(map[string]any{infra.ReconcileRequestAnnotation: token}), false); err != nil {
			return err
		}
		if !opts.wait {
			fmt.Fprintf(a.env.Stdout, "requested a reconcile of %s\n", o)
			continue
		}
		if end, err = a.awaitSettled(cmd.Context(), c, o, token, opts.timeout); err != nil {
			return err
		}
	}
	if opts.exitCode && end == waiting {
		return exitCode(ExitChanges)
	}
	return nil
}

// argument is how the object is named on a command line: "terraform/network".
func argument(o object) string {
	for _, alias := range o.Kind.Aliases {
		return alias + "/" + o.GetName()
	}
	return o.Kind.Resource.Resource + "/" + o.GetName()
}

// sourceObject returns the source that a unit's spec.sourceRef names.
func (c *cluster) sourceObject(cmd *cobra.Command, o object) (object, error) {
	if o.Kind.Role == source {
		return object{}, usagef(cmd, "--with-source: %s is a source itself", o)
	}
	k, ok := kindOf(o.text("spec", "sourceRef", "kind"))
	if ok && k.Name == "ExternalArtifact" {
		return object{}, usagef(cmd, "--with-source: the source of %s is an ExternalArtifact, which somebody else writes", o)
	}
	if !ok || k.Role != source {
		return object{}, fmt.Errorf("reconcile %s: its source is a %q, which has no reconcile", o, o.text("spec", "sourceRef", "kind"))
	}
	from := *c
	from.namespace = o.GetNamespace()
	if ns := o.text("spec", "sourceRef", "namespace"); ns != "" {
		from.namespace = ns
	}
	return from.find(cmd.Context(), ref{[]kind{k}, o.text("spec", "sourceRef", "name")})
}
