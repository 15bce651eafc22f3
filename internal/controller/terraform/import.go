// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/run"
	"github.com/terrace-dev/terrace/internal/status"
	"github.com/terrace-dev/terrace/internal/tofu"
	"github.com/terrace-dev/terrace/internal/tofu/address"
)

// factImport is the fact of a run's journal that it found nothing at the address of this
// request. What is there when the request is carried out again came from it.
const factImport = "import"

// outcomeRefused is the outcome of a request for which nothing was tried.
const outcomeRefused = "refused"

// imported is how an import ended.
type imported struct {
	attempt
	request string // names it
	address string
	id      string // masked
	by      string // who asked
	already bool   // it was in the state
}

// importRequested returns the value of the annotation if it was not answered yet.
func importRequested(tf *infra.Terraform) (value string, ok bool) {
	value = tf.Annotations[infra.ImportAnnotation]
	last := tf.Status.LastImport
	return value, value != "" && (last == nil || last.Request != infra.ImportName(value))
}

// readImport reads a request; the error says why it is refused.
func readImport(tf *infra.Terraform, value string) (infra.ImportRequest, error) {
	req, err := infra.ParseImport(value)
	if err != nil {
		return req, err
	}
	if _, err := address.Parse(req.Address); err != nil {
		req.Address = "" // nothing to be shown
		return req, err
	}
	if err := tofu.CheckImportID(req.ID); err != nil {
		return req, err
	}
	switch {
	case !tf.DeletionTimestamp.IsZero():
		return req, errors.New("the unit is being deleted")
	case tf.Spec.Destroy:
		return req, errors.New("the unit is there to be destroyed: spec.destroy is true")
	case tf.Spec.Suspend:
		return req, errors.New("the unit is suspended: resume it and ask again")
	}
	return req, nil
}

// refuseImport answers a request that cannot be carried out, if there is one. It returns
// false when there is none.
func (c *Controller) refuseImport(cy *cycle) bool {
	value, ok := importRequested(cy.tf)
	if !ok {
		return false
	}
	req, why := readImport(cy.tf, value)
	if why == nil {
		return false
	}
	cy.tf.Status.LastImport = &infra.ImportStatus{
		Request: infra.ImportName(value), Address: req.Address, Outcome: outcomeRefused, Message: bounded(why.Error(), maxRunMessage),
	}
	cy.event(corev1.EventTypeWarning, infra.ReasonImportFailed, "Import refused: "+cut(why.Error()))
	return true
}

// startImport hands an import to the executor. That it begins is written before: a crash in
// the middle may leave another state than the one that was planned.
func (c *Controller) startImport(ctx context.Context, cy *cycle, value string) (status.Result, error) {
	tf := cy.tf
	req, err := readImport(tf, value)
	if err != nil {
		return status.Result{}, err
	}
	in, err := c.load(ctx, cy)
	if err != nil {
		return c.inputsFailed(cy, err)
	}
	name := infra.ImportName(value)
	tf.Status.RunningID = name
	progress(tf, infra.MessageImporting)
	tf.Status.ObservedGeneration = tf.Generation
	if _, err := c.commit(ctx, cy, 0, nil); err != nil {
		return status.Result{}, err
	}
	if cy.base.Status.RunningID != name {
		return status.Wait("", "", 0), nil // the write lost a race; the newer object decides
	}
	j := c.newJob(cy, in)
	j.asked = &req
	j.actor = audit.Actor{Kind: audit.Terrace, Name: infra.ImportAnnotation}
	if who := v1alpha1.Approver(tf.Annotations, name); who != "" {
		j.actor = audit.Actor{Kind: audit.Kubernetes, Name: who}
	}
	if st := c.start(cy, j, run.Import, name, c.importJob(j, name)); st.Phase != run.Done {
		underWay(tf, st)
	}
	return status.Wait("", "", 0), nil
}

// newImported is an import of which nothing is known yet but what was asked for.
func newImported(j *job, name string) *imported {
	return &imported{attempt: j.attempt, request: name, address: j.asked.Address, id: j.mask.String(j.asked.ID), by: j.actor.Name}
}

// importJob is the work of an import: the state is looked at, so that what is there already
// is not asked for twice, and then the tool imports.
func (c *Controller) importJob(j *job, name string) doFunc {
	return func(ctx context.Context, r *run.Run) (any, error) {
		i := newImported(j, name)
		return i, j.masked(c.runImport(ctx, r, j, i))
	}
}

func (c *Controller) runImport(ctx context.Context, r *run.Run, j *job, i *imported) error {
	s, err := c.openSession(ctx, r, j, true)
	if err != nil {
		return err
	}
	defer s.close()
	found, err := s.managed(ctx)
	if err != nil {
		return err
	}
	i.id = j.mask.String(j.asked.ID) // now with what the state knows
	entry := audit.Entry{
		Actor: j.actor, Action: audit.Import, Unit: j.unit.String(), Revision: j.revision, Run: r.ID(),
		Detail: i.address + " as " + i.id,
	}
	if found != nil {
		if *found != j.asked.ID && !c.importBegan(j.unit, r.ID(), i.request) {
			return fmt.Errorf("import %s: the state has an object there already, with id %q: take that out of the state first, or import to another address", i.address, *found)
		}
		i.already = true
		fmt.Fprintf(r.Output(run.Own), "terrace: %s is in the state already\n", i.address)
		entry.Outcome, entry.Detail = audit.Succeeded, entry.Detail+", which the state had already"
		return c.append(ctx, entry)
	}
	if err := r.Record(map[string]string{factImport: i.request}); err != nil {
		return err
	}
	return s.importObject(ctx, j.asked.Address, j.asked.ID, entry)
}

// managed returns the id of what the state has at the address that is asked for, nil if it
// has nothing there, or nobody can tell.
func (s *session) managed(ctx context.Context) (id *string, err error) {
	st, err := s.state(ctx)
	if err != nil {
		return nil, err
	}
	want, err := address.Parse(s.job.asked.Address)
	if err != nil || st == nil {
		return nil, err
	}
	return st.at(want), nil
}

// state reads the state, empty if there is none; nil if it is of a format that is not known.
// What it marks as sensitive is masked from then on.
func (s *session) state(ctx context.Context) (*stateFile, error) {
	var payload []byte
	err := s.again(ctx, "read state", func() (err error) {
		payload, err = s.StatePull(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look at the state: %w", err)
	}
	s.learnState(payload)
	if len(payload) == 0 {
		return &stateFile{}, nil
	}
	st, _ := parseState(payload)
	return st, nil
}

// at returns the id of the object at an address, empty if that is no text; nil if there is
// no object.
func (st *stateFile) at(want address.Address) *string {
	for _, r := range st.Resources {
		if r.Mode != "managed" || r.Type != want.Type || r.Name != want.Name {
			continue
		}
		for _, i := range r.Instances {
			if have, err := address.Of(r.Module, r.Type, r.Name, i.Key); err != nil || have != want || i.Deposed != "" {
				continue
			}
			var id string
			_ = json.Unmarshal(i.Attributes["id"], &id)
			return &id
		}
	}
	return nil
}

// importBegan tells that an earlier run for the same request found nothing at its address,
// and was interrupted after that. Not every id that a provider imports by is the id that the
// object then has, so this is how what it did is known.
func (c *Controller) importBegan(u run.Unit, this, request string) bool {
	records, err := c.opts.Runs.Records(u)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(records, func(r run.Record) bool { return r.Run != this && r.Facts[factImport] == request })
}

// recordImport records an import. However it ended, the state may be another one than the one
// that was planned: the unit plans again, and a plan that waited is dropped.
func (c *Controller) recordImport(ctx context.Context, cy *cycle, i *imported, st run.State) (status.Result, error) {
	tf := cy.tf
	s := &tf.Status
	if st.Run != "" {
		if err := c.keepArtifact(ctx, cy, &i.attempt); err != nil {
			return status.Result{}, err
		}
	}
	s.RunningID = ""
	s.Plan.Pending, s.Plan.IsDestroyPlan, s.Plan.IsDriftDetectionPlan = "", false, false
	s.InputDigest = ""
	s.LastImport = &infra.ImportStatus{Request: i.request, Address: i.address, Outcome: string(run.OutcomeOf(st.Err)), Run: strings.ToLower(st.Run)}
	if st.Err == nil {
		message := "Imported " + i.address
		if i.already {
			message += ", which the state had already"
		}
		cy.event(corev1.EventTypeNormal, infra.ReasonImported, message)
		return status.Next, nil
	}
	message := st.Err.Error()
	var lock *tofu.LockError
	if errors.As(st.Err, &lock) {
		message = lockMessage(lock)
	}
	s.LastImport.Message = bounded(message, maxRunMessage)
	cy.event(corev1.EventTypeWarning, infra.ReasonImportFailed, cut(message))
	return status.Next, nil
}
