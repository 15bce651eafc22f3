// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha2

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func duration(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

func TestRetryDelay(t *testing.T) {
	cases := map[string]struct {
		reason   string
		spec     TerraformSpec
		failures int64
		want     time.Duration
	}{
		"Default":     {"Nothing is set.", TerraformSpec{}, 7, 15 * time.Second},
		"Static":      {"The interval does not grow.", TerraformSpec{RetryInterval: duration(time.Minute)}, 7, time.Minute},
		"First":       {"No failure yet, no growth.", TerraformSpec{RetryStrategy: RetryStrategyExponentialBackoff}, 0, 15 * time.Second},
		"Exponential": {"2 to the power of the failures, times the interval.", TerraformSpec{RetryStrategy: RetryStrategyExponentialBackoff, RetryInterval: duration(time.Second)}, 5, 32 * time.Second},
		"Bound":       {"Never longer than the bound.", TerraformSpec{RetryStrategy: RetryStrategyExponentialBackoff, MaxRetryInterval: duration(time.Minute)}, 5, time.Minute},
		"LowBound":    {"A bound below the interval still is one.", TerraformSpec{RetryStrategy: RetryStrategyExponentialBackoff, MaxRetryInterval: duration(time.Second)}, 0, time.Second},
		"Overflow":    {"Thousands of failures are no shorter wait.", TerraformSpec{RetryStrategy: RetryStrategyExponentialBackoff}, 1 << 40, 24 * time.Hour},
		"Negative":    {"A nonsense interval is the default.", TerraformSpec{RetryInterval: duration(-time.Second)}, 0, 15 * time.Second},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tf := &Terraform{Spec: tc.spec}
			if got := tf.RetryDelay(tc.failures); got != tc.want {
				t.Errorf("%s\ngot %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}

func TestShouldRetry(t *testing.T) {
	retries := func(n int64) *Remediation { return &Remediation{Retries: &n} }
	cases := map[string]struct {
		reason      string
		remediation *Remediation
		failures    int64
		want        bool
	}{
		"None":      {"No bound is set.", nil, 1000, true},
		"Unset":     {"remediation: {} is no bound (C9).", &Remediation{}, 1000, true},
		"ZeroFirst": {"No retry is still one attempt (C9).", retries(0), 0, true},
		"ZeroAfter": {"And no second one.", retries(0), 1, false},
		"Last":      {"Three retries are four attempts.", retries(3), 3, true},
		"Over":      {"Not five.", retries(3), 4, false},
		"Negative":  {"The peer's way to say without bound.", retries(-1), 1000, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.remediation.ShouldRetry(tc.failures); got != tc.want {
				t.Errorf("%s\ngot %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}

func TestDefaultsOfGetters(t *testing.T) {
	tf := &Terraform{}
	if got := tf.WorkspaceName(); got != "default" {
		t.Errorf("workspace = %q", got)
	}
	if got := tf.GetInterval(); got != 10*time.Minute {
		t.Errorf("interval = %v", got)
	}
	if got := (HealthCheck{}).GetTimeout(); got != 20*time.Second {
		t.Errorf("health check timeout = %v", got)
	}
	if !(Webhook{}).IsEnabled() {
		t.Error("a webhook is off by default")
	}
	if got := (CrossNamespaceSourceReference{Kind: "Bucket", Name: "b"}).String(); got != "Bucket/b" {
		t.Errorf("source = %q", got)
	}
}

// TestZeroIsAbsent: what a typed client does not set must not reach the API
// server, which would take it for a wish and not give its default.
func TestZeroIsAbsent(t *testing.T) {
	data, err := json.Marshal(TerraformSpec{SourceRef: CrossNamespaceSourceReference{Kind: "Bucket", Name: "b"}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(`{"sourceRef":{"kind":"Bucket","name":"b"}}`, string(data)); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if data, err = json.Marshal(TerraformStatus{}); err != nil || string(data) != "{}" {
		t.Errorf("status = %s, %v", data, err)
	}
}
