// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	terrace "github.com/terrace-dev/terrace/api/v1alpha1"
)

// defaultTimeout is how long --wait waits, as with the flux command.
const defaultTimeout = 5 * time.Minute

// outcome is how far an object has come with a requested reconcile.
type outcome string

const (
	working  outcome = "working"
	done     outcome = "done"
	waiting  outcome = "waiting for an approval"
	failed   outcome = "failed"
	noAnswer outcome = "not begun"
)

// settled tells how far the object has come with the reconcile requested as
// token. Besides Ready it looks at lastHandledReconcileAt, since a condition
// may still be the one from before; and at the generation, since Ready may be
// of an older spec.
func settled(o object, token string) outcome {
	if o.text("status", "lastHandledReconcileAt") != token {
		return noAnswer
	}
	ready, _ := o.condition("Ready")
	reconciling, _ := o.condition("Reconciling")
	stalled, _ := o.condition("Stalled")
	observed, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
	switch {
	case stalled.Status == metav1.ConditionTrue:
		return failed
	case ready.Status == metav1.ConditionUnknown && ready.Reason == infra.ReasonPlannedWithChanges,
		ready.Status != metav1.ConditionTrue && ready.Reason == terrace.ReasonPlanWaiting:
		return waiting
	// An attempt that failed and is going to be repeated is over.
	case reconciling.Status == metav1.ConditionTrue && reconciling.Reason != meta.ProgressingWithRetryReason:
		return working
	case ready.Status == metav1.ConditionTrue && observed == o.GetGeneration():
		return done
	case ready.Status == metav1.ConditionFalse && ready.Reason == infra.ReasonDependencyNotReady:
		return working
	case ready.Status == metav1.ConditionFalse:
		return failed
	}
	return working
}

// awaitSettled waits until the object has done what token requested, and
// prints how it ended.
func (a *app) awaitSettled(ctx context.Context, c *cluster, o object, token string, timeout time.Duration) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var end outcome
	last, err := c.until(ctx, o, func(o object) (bool, error) {
		end = settled(o, token)
		return end == done || end == waiting || end == failed, nil
	})
	ready, _ := last.condition("Ready")
	if err != nil {
		return end, waitError("reconcile "+o.String(), ready, timeout, err)
	}
	text, _, _ := strings.Cut(ready.Message, "\n")
	if end == failed {
		return end, fmt.Errorf("reconcile %s: %s: %s", o, ready.Reason, text)
	}
	fmt.Fprintf(a.env.Stdout, "%s: %s\n", last, text)
	return end, nil
}

// waitError says what the object was at when the wait for it ended early.
func waitError(doing string, ready metav1.Condition, timeout time.Duration, err error) error {
	text, _, _ := strings.Cut(ready.Message, "\n")
	if errors.Is(err, context.DeadlineExceeded) {
		return hintf(fmt.Errorf("%s: not done after %s: %s", doing, timeout, text), "it goes on; --timeout waits longer")
	}
	return fmt.Errorf("%s: %w", doing, err)
}
