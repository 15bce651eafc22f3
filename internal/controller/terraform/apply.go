// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	tfjson "github.com/hashicorp/terraform-json"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/approval"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/plan"
	"github.com/terrace-dev/terrace/internal/run"
	"github.com/terrace-dev/terrace/internal/status"
	"github.com/terrace-dev/terrace/internal/tofu"
)

// applied is how an apply or a destroy ended.
type applied struct {
	attempt
	plan       *infra.PlanRecord // that was applied; nil on deletion
	approvedBy string
	counts     string
	destroy    bool
	drift      bool
	onDeletion bool
	outputs    outputs
	inventory  *infra.ResourceInventory
}

// apply is the work of an apply: the stored plan file, or nothing.
func (c *Controller) apply(j *job, rec infra.PlanRecord) doFunc {
	return func(ctx context.Context, r *run.Run) (any, error) {
		a := &applied{attempt: j.attempt, plan: &rec, approvedBy: j.approvedBy, counts: countsOf(&rec), destroy: rec.Destroy, drift: rec.Drift}
		a.revision = rec.Revision
		return a, j.masked(c.runApply(ctx, r, j, rec, a))
	}
}

func (c *Controller) runApply(ctx context.Context, r *run.Run, j *job, rec infra.PlanRecord, a *applied) error {
	// Nothing is printed before what must not be shown is known.
	content, secrets, err := c.planFile(ctx, rec.Blob)
	if err != nil {
		return err
	}
	j.learn(content, nil)
	j.mask.Learn(secrets...)
	s, err := c.openSession(ctx, r, j, true)
	if err != nil {
		return err
	}
	defer s.close()
	if j.tf.Spec.RefreshBeforeApply && (needsValues(j.tf) || rec.Policy != nil) {
		if err := s.stillTrue(ctx, rec); err != nil {
			return err
		}
	}
	file := filepath.Join(s.Tmp, "tfplan")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		return fmt.Errorf("write plan file: %w", err)
	}
	if err := c.stillApproved(ctx, j, rec); err != nil {
		return err
	}
	err = c.recorded(ctx, r, applyEntry(j, rec), func() error {
		err := s.again(ctx, "apply", func() error {
			return s.Apply(ctx, tofu.ApplyOptions{Plan: file, Parallelism: int(j.tf.Spec.Parallelism), LockTimeout: lockTimeout(j.tf)})
		})
		if merr := c.importsApplied(j.unit, err); merr != nil {
			fmt.Fprintf(r.Output(run.Own), "terrace: note that what a killed apply has made is imported: %v\n", merr)
		}
		if err != nil {
			return s.rescue(ctx, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.readBack(ctx, a)
}

// errStale says that the world has changed since the plan was shown, or what it was
// approved by.
var errStale = errors.New("the plan no longer says what would change, or may not be applied any more")

// stillApproved asks again, at the last moment, what was decided before the run was queued:
// meanwhile a window may have shut, a policy have come, an approval have been taken back.
// It looks at the watch cache, and so costs nothing.
func (c *Controller) stillApproved(ctx context.Context, j *job, rec infra.PlanRecord) error {
	var tf infra.Terraform
	if err := c.opts.Client.Get(ctx, client.ObjectKeyFromObject(j.tf), &tf); err != nil {
		return fmt.Errorf("look at the approval again: %w", err)
	}
	_, digest, err := c.policiesOf(ctx, &tf)
	if err != nil {
		return err
	}
	tf.Status.LastPlan = &rec
	if tf.Spec.Suspend || digest != policyDigest(&rec) || !approval.Decide(request(&tf, c.opts.Clock.Now())).Approved {
		return errStale
	}
	return nil
}

// stillTrue looks at the world once more before a plan is applied that waited for
// its approval, if the spec asks for it.
func (s *session) stillTrue(ctx context.Context, rec infra.PlanRecord) error {
	if err := s.lookForMade(ctx); err != nil {
		return err
	}
	if err := s.writeImports(s.missing()); err != nil {
		return err
	}
	opts := planOptions(s.job.tf, s.prepared.Module, s.job.reach)
	opts.Out = filepath.Join(s.Tmp, "refreshed")
	var changed bool
	err := s.again(ctx, "refresh", func() (err error) {
		changed, err = s.Plan(ctx, opts)
		return err
	})
	if err != nil {
		return err
	}
	if !changed {
		return errStale
	}
	_, planJSON, err := s.Show(ctx, opts.Out)
	if err != nil {
		return err
	}
	s.job.learn(nil, planJSON)
	now, err := plan.Parse(planJSON, s.c.planInputs(s.job))
	if err != nil {
		return err
	}
	if now.Digest != rec.Digest {
		return errStale
	}
	return nil
}

// destroyJob is the work of a deletion: everything is destroyed, no approval is
// asked, because deleting an object with destroyResourcesOnDeletion is one.
func (c *Controller) destroyJob(j *job) doFunc {
	return func(ctx context.Context, r *run.Run) (any, error) {
		a := &applied{attempt: j.attempt, destroy: true, onDeletion: true}
		return a, j.masked(c.runDestroy(ctx, r, j, a))
	}
}

func (c *Controller) runDestroy(ctx context.Context, r *run.Run, j *job, a *applied) error {
	s, err := c.openSession(ctx, r, j, true)
	if err != nil {
		return err
	}
	defer s.close()
	if _, err := s.forceUnlock(ctx); err != nil {
		return err
	}
	opts := planOptions(j.tf, s.prepared.Module, j.reach)
	opts.Destroy = true
	if a.recovered, err = s.recoverMade(ctx, opts); err != nil {
		return err
	}
	opts.Out = filepath.Join(s.Tmp, "tfplan")
	var changed bool
	err = s.again(ctx, "plan", func() (err error) {
		changed, err = s.Plan(ctx, opts)
		return err
	})
	if err != nil || !changed {
		return err
	}
	content, err := os.ReadFile(opts.Out)
	if err != nil {
		return fmt.Errorf("read plan file: %w", err)
	}
	j.learn(content, nil)
	s.run.Step("destroy", 0)
	entry := audit.Entry{Actor: audit.Itself, Action: audit.Destroy, Unit: j.unit.String(), Revision: j.revision, Detail: "the object was deleted"}
	return c.recorded(ctx, r, entry, func() error {
		err := s.Apply(ctx, tofu.ApplyOptions{Plan: opts.Out, Parallelism: opts.Parallelism, LockTimeout: opts.LockTimeout})
		if err != nil {
			return s.rescue(ctx, err)
		}
		return nil
	})
}

// rescue looks after the state of an apply that failed: what the tool could not
// write it left in a file, which is written now or, if that fails too, kept for the
// next run.
func (s *session) rescue(ctx context.Context, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pushTimeout)
	defer cancel()
	if err := s.keepErroredState(); err != nil {
		return errors.Join(cause, err)
	}
	if err := s.pushErroredState(ctx); err != nil {
		return errors.Join(cause, err)
	}
	return cause
}

// readBack reads outputs and inventory of what was applied: from the state that the
// tool has just written through the gate, or, where it is elsewhere or encrypted,
// by asking the tool.
func (s *session) readBack(ctx context.Context, a *applied) error {
	defer func() {
		// What the apply made may be sensitive, and be an identifier or in what is said later.
		s.job.mask.Learn(a.outputs.secrets()...)
		if a.inventory != nil {
			for i := range a.inventory.Entries {
				e := &a.inventory.Entries[i]
				e.Identifier = s.job.mask.String(e.Identifier)
			}
		}
	}()
	if s.door != nil {
		if payload, ok := s.door.LastState(); ok {
			if st, ok := parseState(payload); ok {
				a.outputs, a.inventory = st.outputs(), st.inventory()
				return nil
			}
		}
	}
	var err error
	if a.outputs, err = s.Outputs(ctx); err != nil {
		return status.Fail(infra.ReasonOutputFailed, err)
	}
	if s.job.tf.Spec.EnableInventory {
		st, err := s.ShowState(ctx)
		if err != nil {
			return status.Fail(infra.ReasonOutputFailed, err)
		}
		a.inventory = inventoryOf(st)
	}
	return nil
}

// stateFile is the part of a state, format 4, that is read here.
type stateFile struct {
	Version int `json:"version"`
	Outputs map[string]struct {
		Value     json.RawMessage `json:"value"`
		Type      json.RawMessage `json:"type"`
		Sensitive bool            `json:"sensitive"`
	} `json:"outputs"`
	Resources []struct {
		Module    string `json:"module"`
		Mode      string `json:"mode"`
		Type      string `json:"type"`
		Name      string `json:"name"`
		Instances []struct {
			Key        json.RawMessage            `json:"index_key"`
			Deposed    string                     `json:"deposed"`
			Attributes map[string]json.RawMessage `json:"attributes"`
		} `json:"instances"`
	} `json:"resources"`
	// EncryptedData is set in a state that OpenTofu encrypted.
	EncryptedData string `json:"encrypted_data"`
}

// parseState reads a state; ok is false when its format is another one or it is encrypted.
func parseState(payload []byte) (*stateFile, bool) {
	var st stateFile
	if json.Unmarshal(payload, &st) != nil || st.Version != 4 || st.EncryptedData != "" {
		return nil, false
	}
	return &st, true
}

func (st *stateFile) outputs() outputs {
	out := outputs{}
	for name, o := range st.Outputs {
		out[name] = tofu.Output{Value: o.Value, Type: o.Type, Sensitive: o.Sensitive}
	}
	return out
}

func (st *stateFile) inventory() *infra.ResourceInventory {
	inv := &infra.ResourceInventory{Entries: []infra.ResourceRef{}}
	for _, r := range st.Resources {
		if r.Mode != string(tfjson.ManagedResourceMode) {
			continue
		}
		for _, i := range r.Instances {
			attributes := map[string]any{}
			for _, key := range []string{"arn", "id"} {
				var v any
				if json.Unmarshal(i.Attributes[key], &v) == nil && v != nil {
					attributes[key] = v
				}
			}
			inv.Entries = append(inv.Entries, infra.ResourceRef{Name: r.Name, Type: r.Type, Identifier: identifier(attributes)})
		}
	}
	return inv
}

func inventoryOf(st *tfjson.State) *infra.ResourceInventory {
	inv := &infra.ResourceInventory{Entries: []infra.ResourceRef{}}
	if st == nil || st.Values == nil {
		return inv
	}
	var walk func(*tfjson.StateModule)
	walk = func(m *tfjson.StateModule) {
		if m == nil {
			return
		}
		for _, r := range m.Resources {
			if r.Mode == tfjson.ManagedResourceMode {
				var marks map[string]any
				_ = json.Unmarshal(r.SensitiveValues, &marks)
				shown := maps.Clone(r.AttributeValues)
				maps.DeleteFunc(shown, func(name string, _ any) bool { return marks[name] == true })
				inv.Entries = append(inv.Entries, infra.ResourceRef{Name: r.Name, Type: r.Type, Identifier: identifier(shown)})
			}
		}
		for _, child := range m.ChildModules {
			walk(child)
		}
	}
	walk(st.Values.RootModule)
	return inv
}

// identifier is the ARN of a resource if it has one, else its id.
func identifier(attributes map[string]any) string {
	for _, key := range []string{"arn", "id"} {
		if v, ok := attributes[key]; ok && v != nil {
			return fmt.Sprint(v)
		}
	}
	return ""
}
