// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/plan"
	"github.com/terrace-dev/terrace/internal/run"
	"github.com/terrace-dev/terrace/internal/status"
	"github.com/terrace-dev/terrace/internal/tofu"
	"github.com/terrace-dev/terrace/internal/tofu/workdir"
)

// planned is how a plan or a drift check ended.
type planned struct {
	attempt
	drift    bool
	record   *infra.PlanRecord // nil without changes
	counts   string
	note     string
	outputs  outputs // nil unless they were read
	unlocked string  // the lock that was removed by force
}

// plan is the work of a plan and of a drift check: one plan process, and another
// one only where somebody has to see the values.
func (c *Controller) plan(j *job) doFunc {
	return func(ctx context.Context, r *run.Run) (any, error) {
		p := &planned{attempt: j.attempt, drift: j.drift}
		return p, j.masked(c.runPlan(ctx, r, j, p))
	}
}

func (c *Controller) runPlan(ctx context.Context, r *run.Run, j *job, p *planned) error {
	if err := c.moveState(ctx, r, j); err != nil {
		return err
	}
	s, err := c.openSession(ctx, r, j, false)
	if err != nil {
		return err
	}
	defer s.close()
	p.note = s.note
	if p.unlocked, err = s.forceUnlock(ctx); err != nil {
		return err
	}
	file := filepath.Join(s.Tmp, "tfplan")
	stream := filepath.Join(s.Tmp, "plan.jsonl")
	withValues := needsValues(j.tf) || len(j.policies) > 0 || !c.opts.Tool.JSONInto()
	opts := planOptions(j.tf, s.prepared.Module, j.reach)
	opts.Out = file
	if !withValues {
		opts.JSONInto = stream
	}
	p.recovered, err = s.recoverMade(ctx, opts)
	if len(s.missing()) > 0 {
		j.drift, p.drift = false, false // what the plan imports has not drifted
	}
	if err != nil {
		return err
	}
	var changed bool
	text, err := s.capture.during(func() error {
		return s.again(ctx, "plan", func() (err error) {
			changed, err = s.Plan(ctx, opts)
			return err
		})
	})
	if err != nil {
		return err // the record of the plan gives the reason, which differs for a drift check
	}
	if p.inputsBlob, err = c.keepInputs(ctx, j); err != nil {
		return err
	}
	if !changed {
		if j.readOutputs && (j.tf.Status.Outputs == nil || j.inputDigest != j.tf.Status.InputDigest) && !j.tf.Spec.Destroy {
			if p.outputs, err = s.Outputs(ctx); err != nil {
				return status.Fail(infra.ReasonOutputFailed, err)
			}
		}
		return nil
	}
	return c.storePlan(ctx, s, j, p, file, stream, text, withValues)
}

// needsValues tells that somebody decides on the plan or reads it by value, so that
// its id has to name the values too. A plan that is applied in any case is told by
// addresses and actions, which the plan process has said already.
func needsValues(tf *infra.Terraform) bool {
	if tf.Spec.PlanOnly || needsWebhooks(tf) || tf.Spec.StoreReadablePlan == infra.ReadablePlanJSON {
		return true
	}
	if tf.Annotations[v1alpha1.AutoApproveAnnotation] != "" {
		return true // it may come to an approval
	}
	return tf.Spec.ApprovePlan != infra.ApprovePlanAuto && !tf.Spec.Force
}

func planOptions(tf *infra.Terraform, module string, reach *workdir.Reach) tofu.PlanOptions {
	o := tofu.PlanOptions{
		Destroy:     tf.Spec.Destroy,
		Targets:     tf.Spec.Targets,
		LockTimeout: lockTimeout(tf),
		Parallelism: int(tf.Spec.Parallelism),
	}
	if tf.Spec.Plan != nil {
		o.Lock = tf.Spec.Plan.Lock
	}
	for _, f := range reach.VarFiles {
		// The files are relative to the artifact's root, the module is below it.
		up, err := filepath.Rel(filepath.FromSlash(reach.Path), filepath.FromSlash(f))
		if err != nil {
			up = f
		}
		o.VarFiles = append(o.VarFiles, filepath.Join(module, up))
	}
	return o
}

// keepInputs stores what this plan was given, unless the same is kept already.
func (c *Controller) keepInputs(ctx context.Context, j *job) (string, error) {
	if j.tf.Status.InputsBlob != "" && j.tf.Status.InputDigest == j.inputDigest {
		return "", nil
	}
	return c.sealInputs(ctx, j.inputs)
}

// planInputs is what enters a plan's digest besides what the tool tells of it.
func (c *Controller) planInputs(j *job) plan.Inputs {
	return plan.Inputs{Revision: j.revision, Destroy: j.tf.Spec.Destroy, Targets: j.tf.Spec.Targets, Key: c.key, Salt: j.config}
}

// storePlan makes a plan with changes into a record that can be approved: content
// digest and id, the plan file and its readable forms encrypted in the blob store. The text is
// as the tool printed it.
func (c *Controller) storePlan(ctx context.Context, s *session, j *job, p *planned, file, stream, text string, withValues bool) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read plan file: %w", err)
	}
	secrets := j.learn(raw, nil)
	in := c.planInputs(j)
	var value *plan.Plan
	var planJSON []byte
	if withValues {
		s.run.Step("show", 0)
		if _, planJSON, err = s.Show(ctx, file); err != nil {
			return err
		}
		// Webhooks and policies quote the plan.
		secrets = append(secrets, j.learn(nil, planJSON)...)
		if value, err = plan.Parse(planJSON, in); err != nil {
			return err
		}
	} else {
		content, err := os.ReadFile(stream)
		if err != nil {
			return fmt.Errorf("read plan stream: %w", err)
		}
		in.Salt = bareSum(raw)
		if value, err = plan.FromStream(bytes.NewReader(content), in); err != nil {
			return err
		}
	}
	if err := callWebhooks(ctx, j.tf, planJSON); err != nil {
		return err
	}
	if j.tf.Spec.StoreReadablePlan == infra.ReadablePlanHuman {
		if text, err = s.ShowText(ctx, file); err != nil {
			return err
		}
	}
	verdict, results, err := j.judge(ctx, planJSON)
	if err != nil {
		return err
	}
	if value.Policies = results; len(results) > 0 {
		text = strings.TrimRight(text, "\n") + "\n\n" + plan.PolicyText(results)
	}
	text = j.mask.String(text)
	encoded, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode plan: %w", err)
	}
	digest, err := c.sealBundle(ctx, &bundle{plan: raw, text: text, value: j.mask.Bytes(encoded), secrets: secrets})
	if err != nil {
		return err
	}
	if err := c.publish(ctx, j.tf, value.ID, raw, planJSON, text); err != nil {
		return err
	}
	p.counts = value.Counts.String()
	p.record = &infra.PlanRecord{
		ID: value.ID, Digest: value.Digest, Revision: j.revision, InputDigest: j.inputDigest, Blob: digest,
		Destroy: j.tf.Spec.Destroy, Drift: j.drift,
		Create: value.Counts.Create, Update: value.Counts.Update, Delete: value.Counts.Delete, Replace: value.Counts.Replace,
		Import: value.Counts.Import, Forget: value.Counts.Forget,
		At: metav1.NewTime(c.opts.Clock.Now()), NewRevision: newRevision(&j.tf.Status, j.revision), Policy: verdict,
	}
	if withValues && j.tf.Status.LastPlannedRevision != j.revision {
		// The first plan of a revision is the one that a tool which computes ids from
		// revisions means; a later one of the same revision could differ.
		p.record.RevisionID = plan.RevisionID(j.revision)
	}
	return nil
}

// newRevision tells whether it is a commit that brings a plan about: it is of a revision that
// was not planned before, or only by plans that were not applied.
func newRevision(st *infra.TerraformStatus, revision string) bool {
	if st.LastPlannedRevision != revision {
		return true
	}
	last := st.LastPlan
	return last != nil && last.Revision == revision && last.NewRevision && st.LastAppliedRevision != revision
}

func countsOf(r *infra.PlanRecord) string {
	if r == nil {
		return ""
	}
	return planCounts(r).String()
}

func planCounts(r *infra.PlanRecord) plan.Counts {
	return plan.Counts{Create: r.Create, Update: r.Update, Delete: r.Delete, Replace: r.Replace, Import: r.Import, Forget: r.Forget}
}
