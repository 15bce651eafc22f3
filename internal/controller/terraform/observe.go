// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/mask"
	"github.com/terrace-dev/terrace/internal/run"
)

// observe keeps what is applied as it shall be, whatever the changing phases wait
// for: the output Secret, and the health checks.
func (c *Controller) observe(ctx context.Context, cy *cycle) (time.Duration, error) {
	if err := c.writeOutputs(ctx, cy); err != nil {
		return 0, err
	}
	return c.checkHealth(ctx, cy)
}

// checkHealth runs the health checks of an applied unit until they pass, and again
// after each apply. They run beside the reconcile, which reads their result later.
func (c *Controller) checkHealth(ctx context.Context, cy *cycle) (time.Duration, error) {
	tf := cy.tf
	if len(tf.Spec.HealthChecks) == 0 {
		unmark(tf, infra.ConditionHealthCheck)
		if readyReason(tf) == infra.ReasonHealthChecksFailed {
			unmark(tf, infra.ConditionReady)
			c.rederive(cy)
		}
		return 0, nil
	}
	if tf.Status.LastAppliedRevision == "" || tf.Spec.Destroy || tf.Status.RunningID != "" || !(isReady(tf) || readyReason(tf) == infra.ReasonHealthChecksFailed) {
		return 0, nil
	}
	want := healthDigest(tf)
	u := unitOf(tf)
	var last *healthResult
	begin := false
	c.memory.with(u, func(m *unitMemory) {
		if m.health.last != nil && m.health.last.what == want {
			last = m.health.last
		}
		passed := healthPassed(tf, want)
		due := last == nil && !passed || last != nil && last.err != nil && c.opts.Clock.Since(last.at) >= tf.GetRetryInterval()
		if due && !m.health.running {
			m.health.running, begin = true, true
		}
	})
	if begin {
		out, err := c.loadOutputs(ctx, tf)
		if err != nil {
			out = outputs{}
		}
		go c.runHealthChecks(u, tf.Spec.HealthChecks, out, tf.Status.InputsBlob, want)
	}
	if last == nil {
		if !healthPassed(tf, want) && isReady(tf) {
			progress(tf, "Health checks are running")
		}
		return 0, nil
	}
	if last.err != nil {
		message := cut(last.err.Error())
		if r := readyCondition(tf); r == nil || r.Reason != infra.ReasonHealthChecksFailed || r.Message != message {
			cy.event(corev1.EventTypeWarning, infra.ReasonHealthChecksFailed, message)
		}
		mark(tf, infra.ConditionHealthCheck, metav1.ConditionFalse, infra.ReasonHealthChecksFailed, message)
		notReady(tf, infra.ReasonHealthChecksFailed, message)
		return max(tf.GetRetryInterval()-c.opts.Clock.Since(last.at), time.Millisecond), nil
	}
	mark(tf, infra.ConditionHealthCheck, metav1.ConditionTrue, infra.ReasonHealthChecksSucceed, healthMessage(want))
	if !isReady(tf) {
		unmark(tf, infra.ConditionReady)
		c.rederive(cy)
	}
	return 0, nil
}

// healthDigest names what was checked: another apply or another check asks anew.
func healthDigest(tf *infra.Terraform) string {
	h := sha256.New()
	_ = json.NewEncoder(h).Encode(tf.Spec.HealthChecks)
	fmt.Fprint(h, tf.Status.Plan.LastApplied, tf.Status.LastAppliedRevision)
	// The same plan can be applied again, when it repairs the same drift.
	if a := apimeta.FindStatusCondition(tf.Status.Conditions, infra.ConditionApply); a != nil {
		fmt.Fprint(h, a.LastTransitionTime.Unix())
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
}

func healthMessage(what string) string { return "Health checks succeeded (" + what + ")" }

// healthPassed tells that the status already says so: a restart checks nothing again.
func healthPassed(tf *infra.Terraform, what string) bool {
	for _, cond := range tf.Status.Conditions {
		if cond.Type == infra.ConditionHealthCheck {
			return cond.Status == metav1.ConditionTrue && cond.Message == healthMessage(what)
		}
	}
	return false
}

func (c *Controller) runHealthChecks(u run.Unit, checks []infra.HealthCheck, out outputs, inputsBlob, what string) {
	err := checkAll(context.Background(), checks, out)
	if err != nil {
		err = errors.New(mask.New(c.healthSecrets(inputsBlob, out)...).String(err.Error()))
	}
	c.memory.with(u, func(m *unitMemory) {
		m.health.running = false
		m.health.last = &healthResult{what: what, err: err, at: c.opts.Clock.Now()}
	})
	c.Wake(u)
}

// healthSecrets are what the error of a health check must not show: an address can be made
// of outputs, and an output that is not marked be made of what the unit was given.
func (c *Controller) healthSecrets(inputsBlob string, out outputs) [][]byte {
	var secrets [][]byte
	if in, err := c.unsealInputs(context.Background(), inputsBlob); err == nil {
		secrets = in.Secrets
	}
	return append(secrets, out.secrets()...)
}

func checkAll(ctx context.Context, checks []infra.HealthCheck, out outputs) error {
	values := map[string]any{}
	for name, o := range out {
		var v any
		if json.Unmarshal(o.Value, &v) == nil {
			values[name] = v
		}
	}
	for _, check := range checks {
		if err := checkOne(ctx, check, values); err != nil {
			return fmt.Errorf("health check %q: %w", check.Name, err)
		}
	}
	return nil
}

func checkOne(ctx context.Context, check infra.HealthCheck, values map[string]any) error {
	ctx, cancel := context.WithTimeout(ctx, check.GetTimeout())
	defer cancel()
	switch check.Type {
	case infra.HealthCheckTCP:
		address, err := renderText(check.Address, values)
		if err != nil {
			return fmt.Errorf("render address: %w", err)
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	case infra.HealthCheckHTTP:
		url, err := renderText(check.URL, values)
		if err != nil {
			return fmt.Errorf("render url: %w", err)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := healthClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode < 200 || resp.StatusCode > 399 {
			return fmt.Errorf("GET %s: status %s", url, resp.Status)
		}
		return nil
	default:
		return fmt.Errorf("unknown type %q: tcp or http", check.Type)
	}
}

// healthClient answers with the first response: a redirect is a healthy answer.
var healthClient = &http.Client{
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport:     &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment},
}
