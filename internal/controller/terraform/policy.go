// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/plan"
	"github.com/terrace-dev/terrace/internal/policy"
)

// policiesOf are the policies that a unit's plans have to keep, and the digest of them,
// empty when there are none.
func (c *Controller) policiesOf(ctx context.Context, tf *infra.Terraform) ([]*policy.Policy, string, error) {
	set, err := c.opts.Policies.For(ctx, policy.Unit{Kind: infra.TerraformKind, Namespace: tf.Namespace, Name: tf.Name, Labels: tf.Labels})
	if err != nil {
		return nil, "", fmt.Errorf("find the policies: %w", err)
	}
	if len(set) == 0 {
		return nil, "", nil
	}
	// Labels choose policies, and rules look at them.
	return set, bareSum([]byte(policy.Digest(set) + labels.Set(tf.Labels).String())), nil
}

// judge evaluates the unit's policies over a plan: what becomes of it, for its record, and
// what they say, for the plan as it is shown. Both are nil for a unit without policies.
func (j *job) judge(ctx context.Context, planJSON []byte) (*infra.PolicyVerdict, []plan.PolicyResult, error) {
	if len(j.policies) == 0 {
		return nil, nil, nil
	}
	summary, err := policy.Check(ctx, j.policies, policy.Input{
		Unit: policy.Unit{Kind: infra.TerraformKind, Namespace: j.tf.Namespace, Name: j.tf.Name, Labels: j.tf.Labels},
		Plan: planJSON, Mask: j.mask,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("evaluate the policies: %w", err)
	}
	return &infra.PolicyVerdict{
		Digest: j.policyDigest, Denied: policy.Sentence(summary.Denied),
		NeedsApproval: policy.Sentence(summary.NeedsApproval), Warnings: policy.Sentence(summary.Warnings),
	}, summary.Results(), nil
}

// policyDigest is that of the policies that a plan was judged by.
func policyDigest(rec *infra.PlanRecord) string {
	if rec == nil || rec.Policy == nil {
		return ""
	}
	return rec.Policy.Digest
}
