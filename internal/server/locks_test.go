// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/json"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/config"
)

// The tests here are about state locks, with the Lease that the kubernetes backend
// makes.

// inSecrets keeps new states in Secrets, as the Terraform Controller does.
func inSecrets(c *config.Config) { c.StateBackend = v1alpha1.StateInSecret }

// lock takes the state lock of a unit as a person at another machine would.
func (w *world) lock(suffix, id string) {
	w.t.Helper()
	info, err := json.Marshal(map[string]string{
		"ID": id, "Operation": "OperationTypeApply", "Who": "ada@laptop", "Version": "1.12.6", "Created": "2026-11-30T12:04:05Z",
	})
	must(w.t, err)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.ns, Name: "lock-tfstate-default-" + suffix,
			Labels: map[string]string{
				"tfstate": "true", "tfstateSecretSuffix": suffix, "tfstateWorkspace": "default", "app.kubernetes.io/managed-by": "terraform",
			},
			Annotations: map[string]string{"app.terraform.io/lock-info": string(info)},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &id},
	}
	if err := w.client.Delete(w.ctx(), lease.DeepCopy()); client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
	must(w.t, w.client.Create(w.ctx(), lease))
}

// holder is who holds the state lock of a unit, "" if nobody does.
func (w *world) holder(suffix string) string {
	w.t.Helper()
	var kept v1alpha1.State
	err := w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: suffix}, &kept)
	if client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
	if err == nil && kept.Status.Lock != nil {
		return kept.Status.Lock.ID
	}
	var lease coordinationv1.Lease
	err = w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: "lock-tfstate-default-" + suffix}, &lease)
	if client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// follow records every version of a unit from now on; what it returns looks for one.
func (w *world) follow(name string) func(what string, cond func(*infra.Terraform) bool) {
	w.t.Helper()
	var list infra.TerraformList
	must(w.t, w.client.List(w.ctx(), &list, client.InNamespace(w.ns), named(name)))
	stream, err := w.client.Watch(w.ctx(), &infra.TerraformList{}, client.InNamespace(w.ns), named(name),
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
	must(w.t, err)
	return func(what string, cond func(*infra.Terraform) bool) {
		w.t.Helper()
		defer stream.Stop()
		now := w.terraform(name).ResourceVersion
		for e := range stream.ResultChan() {
			tf, ok := e.Object.(*infra.Terraform)
			if ok && cond(tf) {
				return
			}
			if ok && tf.ResourceVersion == now {
				break
			}
		}
		w.t.Errorf("%s was never %s", name, what)
	}
}

// The lock of a stranger stops a unit until it is gone or somebody says that it may
// be broken; before there is a state, and when there is one.
func TestLockOfAStranger(t *testing.T) {
	const id = "7c7f2c3e-0000-4000-8000-00000000abcd"
	w := newWorld(t, modA(), inSecrets)
	isHeld := func(tf *infra.Terraform) bool {
		return readyOf(tf).Reason == infra.ReasonLockHeld && tf.Status.Lock.Pending == id && tf.Status.ObservedGeneration == tf.Generation
	}
	for _, name := range []string{"none", "named", "auto"} {
		w.lock(name, id)
		w.unit(name, "approvePlan: auto\nretryInterval: 1s")
	}
	for _, name := range []string{"none", "named", "auto"} {
		tf := w.await(name, "locked", isHeld)
		if c := condition(tf, "StateLocked"); c.Status != metav1.ConditionTrue || c.Reason != infra.ReasonLockHeld ||
			!strings.HasPrefix(c.Message, "Terraform Locked with Lock Identifier: "+id) || !strings.Contains(c.Message, "ada@laptop") {
			t.Errorf("%s: StateLocked is %+v", name, c)
		}
	}
	unlock := func(name string, s infra.TFStateSpec) {
		t.Helper()
		w.change(name, func(tf *infra.Terraform) { tf.Spec.TFState = &s })
	}
	isFree := func(tf *infra.Terraform) bool {
		return isReady(tf) && tf.Status.Lock.Pending == "" && condition(tf, "StateLocked").Type == ""
	}
	// Another identifier than the one in the way breaks nothing.
	unlock("named", infra.TFStateSpec{ForceUnlock: infra.ForceUnlockYes, LockIdentifier: "another"})
	w.await("named", "locked still", func(tf *infra.Terraform) bool { return isHeld(tf) && tf.Status.ReconciliationFailures > 0 })
	unlock("named", infra.TFStateSpec{ForceUnlock: infra.ForceUnlockYes, LockIdentifier: id})
	seen := w.follow("auto")
	unlock("auto", infra.TFStateSpec{ForceUnlock: infra.ForceUnlockAuto})
	for _, name := range []string{"named", "auto"} {
		if tf := w.await(name, "free and applied", isFree); tf.Status.Lock.LastApplied != id {
			t.Errorf("%s: the lock that was broken is recorded as %q", name, tf.Status.Lock.LastApplied)
		}
	}
	seen("removing the lock", func(tf *infra.Terraform) bool {
		c := condition(tf, "StateLocked")
		return c.Status == metav1.ConditionFalse && c.Reason == infra.ReasonForceUnlock && strings.Contains(c.Message, id)
	})
	if got := w.holder("none"); got != id {
		t.Errorf("the lock that nobody may break is held by %q", got)
	}
	w.lock("named", id) // now there is a state
	w.change("named", func(tf *infra.Terraform) { tf.Spec.Vars = []infra.Variable{{Name: "v", Value: jsonValue(`"new"`)}} })
	w.await("named", "applied again", func(tf *infra.Terraform) bool { return isFree(tf) && tf.Status.LastPlan.Update == 1 })

	// The stranger is done.
	must(t, w.client.Delete(w.ctx(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "lock-tfstate-default-none"}}))
	w.await("none", "free and applied", isFree)
	for _, name := range []string{"none", "named", "auto"} {
		if got := w.holder(name); got != "" {
			t.Errorf("%s: the lock is left with %q", name, got)
		}
	}
}

// plan.lock: false plans beside somebody who holds the lock; what is applied waits
// for it all the same.
func TestPlanWithoutTheLock(t *testing.T) {
	w := newWorld(t, modA(), inSecrets)
	w.unit("u", "approvePlan: \"\"\nretryInterval: 1s\nplan: {lock: false}")
	w.awaitPending("u") // init has made the workspace: it takes the lock itself while there is no state
	w.lock("u", "held")
	w.change("u", func(tf *infra.Terraform) { tf.Spec.Vars = []infra.Variable{{Name: "v", Value: jsonValue(`"new"`)}} })
	tf := w.await("u", "planned again", func(tf *infra.Terraform) bool {
		return tf.Status.Plan.Pending != "" && tf.Status.ObservedGeneration == tf.Generation && tf.Status.LastPlannedGeneration == tf.Generation
	})
	if w.holder("u") != "held" {
		t.Error("the lock was taken from its holder")
	}
	w.change("u", func(u *infra.Terraform) { u.Spec.ApprovePlan = tf.Status.Plan.Pending })
	w.awaitReason("u", infra.ReasonLockHeld)
	if w.terraform("u").Status.LastAppliedRevision != "" {
		t.Error("it was applied in spite of the lock")
	}
}

// lockTimeout waits for the holder to be done instead of failing.
func TestLockTimeoutWaitsForTheHolder(t *testing.T) {
	w := newWorld(t, modA(), inSecrets)
	w.lock("u", "held")
	w.unit("u", "approvePlan: auto\ntfstate: {lockTimeout: 2m}")
	w.await("u", "under way", func(tf *infra.Terraform) bool { return readyOf(tf).Reason == infra.ReasonProgressing })
	must(t, w.client.Delete(w.ctx(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "lock-tfstate-default-u"}}))
	w.awaitReady("u")
	if got := w.events("u", infra.ReasonLockHeld); len(got) != 0 {
		t.Errorf("events %q", got)
	}
}
