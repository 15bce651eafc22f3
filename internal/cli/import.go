// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/tofu"
	"github.com/terrace-dev/terrace/internal/tofu/address"
)

type importOptions struct {
	noWait  bool
	timeout time.Duration
}

func newImport(a *app) *cobra.Command {
	var o importOptions
	cmd := &cobra.Command{
		Use:   "import UNIT ADDRESS ID",
		Short: "Take an object that exists into the state of a unit",
		Long: `Take an object that exists, and that no state has, into the state of a unit: as
the resource ADDRESS of its module, which must declare it. ID names the object as
its provider does; the provider's documentation says how.

Only the state changes by it. The unit then plans again, so that the plan shows in
what the object differs from what the module says; a plan that waited is dropped.
It is a run like an apply: queued, recorded under your name, and found by
"terrace get runs". An import block in the module does the same by a plan.

It waits until the object is imported, or until the unit says why not.`,
		Example: `  terrace import tf/network aws_vpc.main vpc-0a1b2c3d
  terrace import tf/network 'module.zone["a"].aws_subnet.private[0]' subnet-0a1b2c3d
  terrace import tf/network aws_vpc.main vpc-0a1b2c3d --no-wait`,
		Args: func(cmd *cobra.Command, args []string) error {
			names := []string{"UNIT", "ADDRESS", "ID"}
			if len(args) < len(names) {
				return usagef(cmd, "needs %s", names[len(args)])
			}
			if len(args) > len(names) {
				return usagef(cmd, "%q is too much: quote an address or an id that has spaces", args[len(names)])
			}
			return nil
		},
		ValidArgsFunction: a.unitArg([]kind{terraform}),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.importObject(cmd, o, args[0], infra.ImportRequest{Address: args[1], ID: args[2]})
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&o.noWait, "no-wait", false, "do not wait for the outcome")
	fs.DurationVar(&o.timeout, "timeout", defaultTimeout, "longest time to wait")
	return cmd
}

func (a *app) importObject(cmd *cobra.Command, opts importOptions, word string, req infra.ImportRequest) error {
	if _, err := address.Parse(req.Address); err != nil {
		return usagef(cmd, "%v", err)
	}
	if err := tofu.CheckImportID(req.ID); err != nil {
		return usagef(cmd, "%v", err)
	}
	c, o, err := a.target(cmd, word, []kind{terraform})
	if err != nil {
		return err
	}
	destroy, _, _ := unstructured.NestedBool(o.Object, "spec", "destroy")
	switch {
	case o.GetDeletionTimestamp() != nil:
		return fmt.Errorf("import to %s: it is being deleted", o)
	case destroy:
		return fmt.Errorf("import to %s: it is there to be destroyed: spec.destroy is true", o)
	case o.suspended():
		return hintf(fmt.Errorf("import to %s: it is suspended", o), "%q resumes it", "terrace resume "+argument(o))
	}
	ctx := cmd.Context()
	account, who, err := c.whoami(ctx)
	if err != nil {
		return err
	}
	now := a.env.Now().UTC()
	req.RequestedAt = now.Format(time.RFC3339Nano)
	value := req.String()
	name := infra.ImportName(value)
	if _, err := c.patch(ctx, o, annotations(map[string]any{
		infra.ImportAnnotation:        value,
		v1alpha1.ApprovedByAnnotation: v1alpha1.FormatApproval(name, account, who),
		approvedAtAnnotation:          now.Format(time.RFC3339),
	}), false); err != nil {
		return err
	}
	if opts.noWait {
		fmt.Fprintf(a.env.Stdout, "requested the import of %s to %s\n", req.Address, o)
		return nil
	}
	return a.awaitImported(ctx, c, o, req, name, opts.timeout)
}

// awaitImported waits until the request is answered, and tells meanwhile what the unit is at.
func (a *app) awaitImported(ctx context.Context, c *cluster, o object, req infra.ImportRequest, name string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	doing := "import " + req.Address + " to " + o.String()
	said := ""
	last, err := c.until(ctx, o, func(o object) (bool, error) {
		if o.text("status", "lastImport", "request") == name {
			return true, nil
		}
		if asked := o.GetAnnotations()[infra.ImportAnnotation]; infra.ImportName(asked) != name {
			return false, errors.New("another import was asked for before this one began")
		}
		ready, _ := o.condition("Ready")
		text, _, _ := strings.Cut(ready.Message, "\n")
		if text != said {
			fmt.Fprintf(a.env.Stderr, "%s: %s\n", o, text)
			said = text
		}
		return false, nil
	})
	if err != nil {
		ready, _ := last.condition("Ready")
		return waitError(doing, ready, timeout, err)
	}
	if end := last.text("status", "lastImport", "outcome"); end != "succeeded" {
		err := fmt.Errorf("%s: %s: %s", doing, end, last.text("status", "lastImport", "message"))
		if run := last.text("status", "lastImport", "run"); run != "" {
			return hintf(err, "%q shows its output", "terrace logs run/"+run)
		}
		return err
	}
	fmt.Fprintf(a.env.Stdout, "imported %s to %s as %s; it plans again\n", req.ID, o, req.Address)
	return nil
}
