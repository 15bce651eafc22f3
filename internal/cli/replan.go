// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

func newReplan(a *app) *cobra.Command {
	var wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "replan UNIT",
		Short: "Drop the pending plan and make a new one",
		Long: `Forget the pending plan of a unit and what it was made from, and plan again. An
approval of the old plan holds for the new one when the content is the same. A
Kustomization keeps no plan that could be dropped: it is compared with the live
objects again.`,
		Example: `  terrace replan tf/network --wait
  terrace replan ks/apps --wait
  terrace show plan tf/network`,
		Args:              exactly("UNIT"),
		ValidArgsFunction: a.unitArg(planned),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, o, err := a.target(cmd, args[0], planned)
			if err != nil {
				return err
			}
			if o.suspended() {
				return hintf(fmt.Errorf("replan %s: it is suspended", o), "%q resumes it", "terrace resume "+argument(o))
			}
			token := a.env.Now().UTC().Format(time.RFC3339Nano)
			if o, err = c.replan(cmd.Context(), o, token); err != nil {
				return err
			}
			fmt.Fprintf(a.env.Stdout, "requested a new plan of %s\n", o)
			if !wait {
				return nil
			}
			_, err = a.awaitSettled(cmd.Context(), c, o, token, timeout)
			return err
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait for the plan")
	cmd.Flags().DurationVar(&timeout, "timeout", defaultTimeout, "longest time to wait")
	return cmd
}

// replan clears what says that the unit is planned, as the Terraform
// Controller's tfctl does, then requests a reconcile.
func (c *cluster) replan(ctx context.Context, o object, token string) (object, error) {
	request := annotations(map[string]any{infra.ReconcileRequestAnnotation: token})
	if o.Kind.Name != terraform.Name {
		return c.patch(ctx, o, request, false)
	}
	for tries := 0; ; tries++ {
		fields, err := unplanned(o)
		if err != nil {
			return o, err
		}
		_, err = c.patch(ctx, o, fields, true, "status")
		if err == nil {
			break
		}
		if !apierrors.IsConflict(err) || tries == 5 {
			return o, err
		}
		if o, err = c.find(ctx, ref{[]kind{o.Kind}, o.GetName()}); err != nil {
			return o, err
		}
	}
	return c.patch(ctx, o, request, false)
}

// unplanned is the status patch that takes a unit's plan away.
func unplanned(o object) (map[string]any, error) {
	tf, err := o.terraform()
	if err != nil {
		return nil, err
	}
	meta.SetStatusCondition(&tf.Status.Conditions, metav1.Condition{
		Type: "Ready", Status: metav1.ConditionFalse, Reason: infra.ReasonReplanRequested,
		Message: "Replan requested", ObservedGeneration: tf.Generation,
	})
	return map[string]any{"status": map[string]any{
		"conditions":            tf.Status.Conditions,
		"plan":                  map[string]any{"pending": nil},
		"lastPlannedRevision":   nil,
		"lastAttemptedRevision": nil,
		"inputDigest":           nil,
	}}, nil
}
