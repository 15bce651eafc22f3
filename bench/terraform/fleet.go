// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/bench/rig"
)

// The namespace of Terrace's units, and that of the raw CLI's states.
const (
	fleetNamespace = "bench"
	rawNamespace   = "bench-raw"
)

// module is what every unit is: one resource and one output, no provider.
func module(name string, revision int) string {
	return fmt.Sprintf(`resource "terraform_data" "x" {
  input = "%s-%d"
}

output "o" {
  value = terraform_data.x.output
}
`, name, revision)
}

// fleet is the repository, the objects, and what is seen of them.
type fleet struct {
	client.WithWatch
	repository rig.Repository
	names      []string
	seen       *rig.Followed[*infra.Terraform] // set by follow
}

// newFleet makes the repository, with a directory for each unit.
func newFleet(ctx context.Context, r *rig.Rig, units int) (*fleet, error) {
	f := &fleet{WithWatch: r, repository: rig.Repository{
		Dir: filepath.Join(r.Dir, "repo"), Source: client.ObjectKey{Namespace: fleetNamespace, Name: "repo"},
	}}
	for i := range units {
		name := fmt.Sprintf("u%04d", i)
		f.names = append(f.names, name)
		if err := f.repository.Write(filepath.Join(name, "main.tf"), module(name, 0)); err != nil {
			return nil, err
		}
	}
	if err := f.repository.Write("README.md", "# Bench\n"); err != nil {
		return nil, err
	}
	if err := f.repository.Init(ctx); err != nil {
		return nil, err
	}
	for _, name := range []string{fleetNamespace, rawNamespace} {
		if err := f.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return nil, fmt.Errorf("create namespace %s: %w", name, err)
		}
	}
	return f, nil
}

// createObjects makes the source and the units.
func (f *fleet) createObjects(ctx context.Context) error {
	if err := f.repository.CreateSource(ctx, f); err != nil {
		return err
	}
	for _, name := range f.names {
		tf := &infra.Terraform{
			ObjectMeta: metav1.ObjectMeta{Namespace: fleetNamespace, Name: name},
			Spec: infra.TerraformSpec{
				Interval:             metav1.Duration{Duration: 10 * time.Hour},
				Path:                 "./" + name,
				SourceRef:            infra.CrossNamespaceSourceReference{Kind: infra.SourceKindGitRepository, Name: "repo"},
				ApprovePlan:          infra.ApprovePlanAuto,
				WriteOutputsToSecret: &infra.WriteOutputsToSecretSpec{Name: name + "-outputs"},
			},
		}
		if err := f.Create(ctx, tf); err != nil {
			return fmt.Errorf("create Terraform %s: %w", name, err)
		}
	}
	return nil
}

// setInterval changes the interval of every unit.
func (f *fleet) setInterval(ctx context.Context, interval string) error {
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"interval":%q}}`, interval))
	for _, name := range f.names {
		if err := f.Patch(ctx, &infra.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: fleetNamespace, Name: name}}, patch); err != nil {
			return fmt.Errorf("set the interval of %s: %w", name, err)
		}
	}
	return nil
}

// follow watches the units until the fleet is stopped.
func (f *fleet) follow(ctx context.Context) {
	f.seen = rig.Follow(ctx, f, &infra.Terraform{}, &infra.TerraformList{}, fleetNamespace, nil)
}

// until waits for every unit to be as done says.
func (f *fleet) until(ctx context.Context, what string, done func(*infra.Terraform) bool) error {
	return f.seen.Until(ctx, what, f.names, func(tf *infra.Terraform) bool { return tf != nil && done(tf) }, func(tf *infra.Terraform) string {
		if c := apimeta.FindStatusCondition(tf.Status.Conditions, meta.ReadyCondition); c != nil {
			return c.Message
		}
		return "no Ready condition"
	})
}

// planTimes are the times of every unit's last plan.
func (f *fleet) planTimes() map[string]*metav1.Time {
	times := map[string]*metav1.Time{}
	for name, tf := range f.seen.Seen() {
		times[name] = tf.Status.LastPlanAt
	}
	return times
}

// ready tells that the unit's spec was reconciled with success.
func ready(tf *infra.Terraform) bool {
	return tf.Status.ObservedGeneration == tf.Generation && apimeta.IsStatusConditionTrue(tf.Status.Conditions, meta.ReadyCondition)
}
