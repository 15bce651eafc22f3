// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"slices"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

// mark sets a condition; its time moves only when its status does.
func mark(tf *infra.Terraform, kind string, s metav1.ConditionStatus, reason, message string) {
	apimeta.SetStatusCondition(&tf.Status.Conditions, metav1.Condition{
		Type: kind, Status: s, Reason: reason, Message: cut(message), ObservedGeneration: tf.Generation,
	})
}

// cut bounds a condition message.
func cut(message string) string {
	message = strings.ToValidUTF8(strings.TrimSpace(message), "\uFFFD")
	if r := []rune(message); len(r) > infra.MaxConditionMessageLength {
		return string(r[:infra.MaxConditionMessageLength]) + "..."
	}
	return message
}

func unmark(tf *infra.Terraform, kinds ...string) {
	tf.Status.Conditions = slices.DeleteFunc(tf.Status.Conditions, func(c metav1.Condition) bool {
		return slices.Contains(kinds, c.Type)
	})
}

// progress says that work is under way.
func progress(tf *infra.Terraform, message string) {
	mark(tf, infra.ConditionReady, metav1.ConditionUnknown, infra.ReasonProgressing, message)
	mark(tf, infra.ConditionReconciling, metav1.ConditionTrue, infra.ReasonProgressing, infra.MessagePrerequisites)
	unmark(tf, infra.ConditionStalled)
}

// ready says that the object is what its spec asks for.
func ready(tf *infra.Terraform, reason, message string) {
	mark(tf, infra.ConditionReady, metav1.ConditionTrue, reason, message)
	unmark(tf, infra.ConditionReconciling, infra.ConditionStalled)
}

// notReady says that it is not and that nothing is under way.
func notReady(tf *infra.Terraform, reason, message string) {
	mark(tf, infra.ConditionReady, metav1.ConditionFalse, reason, message)
	unmark(tf, infra.ConditionReconciling, infra.ConditionStalled)
}

// stalled says that a person must act.
func stalled(tf *infra.Terraform, reason, message string) {
	mark(tf, infra.ConditionReady, metav1.ConditionFalse, reason, message)
	mark(tf, infra.ConditionStalled, metav1.ConditionTrue, reason, message)
	unmark(tf, infra.ConditionReconciling)
}

// awaiting says that a plan waits for approval. Reconciling goes away: the object
// may wait for days, and a tool that waits for it must not time out on progress
// that nobody makes.
func awaiting(tf *infra.Terraform, message string) {
	mark(tf, infra.ConditionReady, metav1.ConditionUnknown, infra.ReasonPlannedWithChanges, message)
	unmark(tf, infra.ConditionReconciling, infra.ConditionStalled)
}

func readyCondition(tf *infra.Terraform) *metav1.Condition {
	return apimeta.FindStatusCondition(tf.Status.Conditions, infra.ConditionReady)
}

func readyReason(tf *infra.Terraform) string {
	if c := readyCondition(tf); c != nil {
		return c.Reason
	}
	return ""
}

func isReady(tf *infra.Terraform) bool {
	return apimeta.IsStatusConditionTrue(tf.Status.Conditions, infra.ConditionReady)
}
