// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"os"
	"path/filepath"
	"time"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/mask"
	"github.com/terrace-dev/terrace/internal/plan"
	"github.com/terrace-dev/terrace/internal/policy"
	"github.com/terrace-dev/terrace/internal/run"
	"github.com/terrace-dev/terrace/internal/tofu/workdir"
)

// doFunc is the work of a run.
type doFunc = func(ctx context.Context, r *run.Run) (any, error)

// maskedError is an error without the secrets that the run was given: a webhook, a
// template or a provider may have put them into its text.
type maskedError struct {
	text string
	err  error
}

func (e *maskedError) Error() string { return e.text }
func (e *maskedError) Unwrap() error { return e.err }

// masked makes the result of a run fit to be shown.
func (j *job) masked(err error) error {
	if err == nil {
		return nil
	}
	return &maskedError{text: j.mask.String(err.Error()), err: err}
}

// job is everything that a run needs, taken together before it is queued: while it
// waits and runs, the object may change without changing the run.
type job struct {
	attempt
	unit   run.Unit
	tf     *infra.Terraform // as it was when the run was queued; read only
	reach  *workdir.Reach
	config string // digest of the configuration files
	inputs *inputs
	mask   *mask.Masker // learns what the run meets
	drift  bool
	// policies are what a plan has to keep.
	policies     []*policy.Policy
	policyDigest string
	// home is where the state is, of v1alpha1's names, when this run has moved it.
	home string
	// actor is who let the plan be applied, for the ledger, and approvedBy what the Run says of it.
	actor      audit.Actor
	approvedBy string
	// asked is what an import takes into the state.
	asked *infra.ImportRequest
	// readOutputs asks a plan without changes for the outputs, because nothing knows them.
	readOutputs bool
}

func (c *Controller) newJob(cy *cycle, in *inputs) *job {
	// With what this reconcile has recorded so far: after an apply that was interrupted,
	// the plan that follows in the same reconcile has to read the outputs again.
	tf := cy.tf.DeepCopy()
	return &job{
		attempt: attempt{
			revision:    cy.artifact.Revision,
			artifact:    cy.artifact.DeepCopy(),
			inputDigest: cy.inputDigest,
			generation:  tf.Generation,
			requestedAt: tf.Annotations[infra.ReconcileRequestAnnotation],
		},
		unit:        unitOf(tf),
		tf:          tf,
		reach:       cy.reach.Reach,
		config:      cy.reach.config,
		inputs:      in,
		mask:        in.mask(),
		readOutputs: tf.Spec.WriteOutputsToSecret != nil || len(tf.Spec.HealthChecks) > 0,
	}
}

// facts are what whoever finds the run interrupted has to know.
func (j *job) facts() map[string]string {
	return map[string]string{"revision": j.revision, factWorkspace: j.tf.WorkspaceName()}
}

// grace is what the run's processes have between SIGINT and SIGKILL: at least what
// the process gives to every run, more if the spec asks for it.
func (j *job) grace(least time.Duration) time.Duration {
	if s := j.tf.Spec.RunnerTerminationGracePeriodSeconds; s != nil {
		return max(least, time.Duration(*s)*time.Second)
	}
	return least
}

// unitDir is where a unit's working directory is. Its path is the same for all its
// runs, because what init makes refers to it.
func (c *Controller) unitDir(u run.Unit) string {
	return filepath.Join(c.opts.Dir, u.Namespace, u.Name)
}

// fileDigest digests a file, "" for no file.
func fileDigest(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return bareSum(content), nil
}

// learn adds what a plan marks as sensitive to what is masked for the rest of the run, and
// returns it: providers, provisioners, webhooks and policies are given it, and may quote it.
// planJSON may be absent; the plan file may be one that nobody can read.
func (j *job) learn(file, planJSON []byte) [][]byte {
	values := plan.SensitiveInFile(file)
	if planJSON != nil {
		values = append(values, plan.Sensitive(planJSON)...)
	}
	j.mask.Learn(values...)
	return values
}
