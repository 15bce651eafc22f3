// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
)

// approvedAtAnnotation says when an approval was given; who gave it is in
// v1alpha1.ApprovedByAnnotation.
const approvedAtAnnotation = "terrace.dev/approved-at"

type approveOptions struct {
	plan    string
	yes     bool
	wait    bool
	timeout time.Duration
	server  serverFlags
}

func newApprove(a *app) *cobra.Command {
	var o approveOptions
	cmd := &cobra.Command{
		Use:   "approve UNIT",
		Short: "Approve the plan that waits",
		Long: `Approve the pending plan of a unit, so that exactly this plan is applied.

With --plan the approval is for that plan and no other. Without it the plan is
shown and you are asked. When the pending plan changes meanwhile, nothing is
approved.

A Kustomization waits when its annotation terrace.dev/approve is "manual", and when a
revision would prune more of it than --prune-limit of the server allows; then it is
that revision which is approved.`,
		Example: `  terrace approve tf/network
  terrace approve tf/network --plan plan-main-0123456789 --wait
  terrace approve tf/network --yes
  terrace approve ks/apps`,
		Args:              exactly("UNIT"),
		ValidArgsFunction: a.unitArg(planned),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.approve(cmd, o, args[0])
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.plan, "plan", "", "id of the plan, or the revision, to approve")
	fs.BoolVarP(&o.yes, "yes", "y", false, "approve the pending plan without showing it and asking")
	fs.BoolVar(&o.wait, "wait", false, "wait until it has been applied")
	fs.DurationVar(&o.timeout, "timeout", defaultTimeout, "longest time to wait")
	o.server.add(fs)
	return cmd
}

func (a *app) approve(cmd *cobra.Command, opts approveOptions, word string) error {
	c, o, err := a.target(cmd, word, planned)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	p, err := approvable(o, opts.plan)
	if err != nil {
		return err
	}
	id := p.id
	if opts.plan == "" && !opts.yes {
		if p.prune {
			fmt.Fprintln(a.env.Stdout, p.does)
		} else if a.env.Interactive {
			if err := a.showPlan(ctx, c, o, opts.server, "text"); err != nil {
				return err
			}
		}
		if err := a.confirm(cmd, fmt.Sprintf("Approve %s of %s?", id, o), "name the plan with --plan "+id+", or give --yes"); err != nil {
			return err
		}
	}
	account, who, err := c.whoami(ctx)
	if err != nil {
		return err
	}
	approval := merged(p.fields,
		annotations(map[string]any{
			v1alpha1.ApprovedByAnnotation: v1alpha1.FormatApproval(id, account, who),
			approvedAtAnnotation:          a.env.Now().UTC().Format(time.RFC3339),
		}))
	// The guard makes the write fail when anything about the unit has changed
	// since the plan was shown; then it is looked at again.
	_, err = c.patch(ctx, o, approval, true)
	for tries := 0; apierrors.IsConflict(err) && tries < 5; tries++ {
		if o, err = c.find(ctx, ref{[]kind{o.Kind}, o.GetName()}); err != nil {
			return err
		}
		if p, err = approvable(o, id); err != nil {
			return err
		}
		_, err = c.patch(ctx, o, approval, true)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(a.env.Stdout, "approved %s\n", strings.TrimSuffix(id+" of "+o.String()+": "+p.does, ": "))
	if !opts.wait {
		return nil
	}
	return a.awaitApplied(ctx, c, o, id, opts.timeout)
}

// pending is a plan that can be approved.
type pending struct {
	id   string
	does string // its counts in words; empty when the unit does not say them
	// prune says that it is no plan but a revision that would prune too much; does
	// then says how much.
	prune bool
	// fields of the unit that approve it
	fields map[string]any
}

// approvable checks that the unit waits for an approval, of the plan when one
// is named.
func approvable(o object, plan string) (pending, error) {
	doing := "approve " + o.String()
	check := approvableTerraform
	if o.Kind.Name == kustomization.Name {
		check = approvableKustomization
	}
	p, err := check(o, doing)
	switch {
	case err != nil:
		return pending{}, err
	case p.id == "":
		again := map[string]string{terraform.Name: "replan", kustomization.Name: "reconcile"}[o.Kind.Name]
		return pending{}, hintf(fmt.Errorf("%s: no plan is pending", doing), "%q makes one, %q says how far the unit is",
			"terrace "+again+" "+argument(o), "terrace show "+argument(o))
	case plan != "" && plan != p.id:
		if p.prune {
			return pending{}, fmt.Errorf("%s: the revision that waits is %s, not %s", doing, p.id, plan)
		}
		return pending{}, hintf(fmt.Errorf("%s: the pending plan is %s, not %s", doing, p.id, plan),
			"look at it with %q", "terrace show plan "+argument(o))
	}
	return p, nil
}

func approvableTerraform(o object, doing string) (pending, error) {
	tf, err := o.terraform()
	if err != nil {
		return pending{}, err
	}
	switch {
	case tf.Spec.ApprovePlan == infra.ApprovePlanAuto:
		return pending{}, fmt.Errorf("%s: spec.approvePlan is \"auto\": every plan is applied without an approval", doing)
	case tf.Spec.PlanOnly:
		return pending{}, fmt.Errorf("%s: spec.planOnly is true: nothing is ever applied", doing)
	}
	id := tf.Status.Plan.Pending
	p := pending{id: id, fields: map[string]any{"spec": map[string]any{"approvePlan": id}}}
	if tf.Labels[kustomization.Resource.Group+"/name"] != "" {
		// A Kustomization applies it, and would put spec.approvePlan back at once.
		p.fields = annotations(map[string]any{v1alpha1.ApprovedPlanAnnotation: id})
	}
	if last := tf.Status.LastPlan; last != nil && last.ID == id {
		p.does = sentence(last)
	}
	return p, nil
}

// whoami is the user as the API server knows them, and the account of this machine: an
// embedded control plane knows everybody as its administrator.
func (c *cluster) whoami(ctx context.Context) (account, name string, err error) {
	review := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
	}}
	out, err := c.client.Resource(schema.GroupVersionResource{Group: "authentication.k8s.io", Version: "v1", Resource: "selfsubjectreviews"}).
		Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return "", "", c.explain("ask who you are", err)
	}
	name, _, _ = unstructured.NestedString(out.Object, "status", "userInfo", "username")
	if u, err := user.Current(); err == nil {
		account = u.Username
	}
	return account, name, nil
}

// awaitApplied waits until the plan has been applied, or until the unit says why not.
func (a *app) awaitApplied(ctx context.Context, c *cluster, o object, id string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	doing := "apply " + o.String()
	last, err := c.until(ctx, o, func(o object) (bool, error) {
		if o.Kind.Name == kustomization.Name {
			return appliedKustomization(o)
		}
		ready, _ := o.condition("Ready")
		if o.text("status", "plan", "lastApplied") == id && ready.Status == metav1.ConditionTrue {
			return true, nil
		}
		if ready.Status == metav1.ConditionFalse && ready.ObservedGeneration >= o.GetGeneration() {
			return false, errors.New(ready.Message)
		}
		return false, nil
	})
	ready, _ := last.condition("Ready")
	if err != nil {
		return waitError(doing, ready, timeout, err)
	}
	fmt.Fprintf(a.env.Stdout, "applied %s: %s\n", id, ready.Message)
	return nil
}
