// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/run"
)

// metrics are what Prometheus reads: units by kind, layer and state, runs by kind
// and outcome, the queue, and, from the libraries, reconciles and API requests.
type metrics struct {
	units    client.Reader
	runs     *run.Executor
	duration *prometheus.HistogramVec
	waited   prometheus.Histogram
	registry *prometheus.Registry
}

var (
	unitsDesc   = prometheus.NewDesc("terrace_units", "Units by kind, layer and state.", []string{"kind", "layer", "state"}, nil)
	queuedDesc  = prometheus.NewDesc("terrace_runs_queued", "Runs that wait for a free slot.", nil, nil)
	runningDesc = prometheus.NewDesc("terrace_runs_running", "Runs that execute now.", nil, nil)
	slotsDesc   = prometheus.NewDesc("terrace_run_slots", "Runs that may execute at a time.", nil, nil)
)

func newMetrics(units client.Reader) *metrics {
	m := &metrics{
		units: units,
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "terrace_run_duration_seconds", Help: "Time that runs took, by kind and outcome.",
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600},
		}, []string{"kind", "outcome"}),
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "terrace_run_queue_seconds", Help: "Time that runs waited for a free slot.",
			Buckets: []float64{.01, .1, 1, 10, 60, 300, 1800},
		}),
		registry: prometheus.NewRegistry(),
	}
	m.registry.MustRegister(m.duration, m.waited, m)
	return m
}

func (m *metrics) observe(o run.Observation) {
	m.duration.WithLabelValues(string(o.Kind), string(o.Outcome)).Observe(o.Took.Seconds())
	m.waited.Observe(o.Waited.Seconds())
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- unitsDesc
	ch <- queuedDesc
	ch <- runningDesc
	ch <- slotsDesc
}

// Collect implements prometheus.Collector: units are counted from the watch cache
// when they are asked for, so that nothing has to be kept in step.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	if m.runs != nil {
		stats := m.runs.Stats()
		gauge(queuedDesc, stats.Queued)
		gauge(runningDesc, stats.Running)
		gauge(slotsDesc, stats.Concurrency)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var list infra.TerraformList
	if err := m.units.List(ctx, &list); err != nil {
		return // the cache has not started: there is nothing to count yet
	}
	type key struct{ layer, state string }
	counts := map[key]int{}
	for i := range list.Items {
		tf := &list.Items[i]
		counts[key{tf.Labels[infra.LayerLabel], stateOf(tf)}]++
	}
	for k, n := range counts {
		gauge(unitsDesc, n, infra.TerraformKind, k.layer, k.state)
	}
}

// stateOf is one word for where a unit stands.
func stateOf(tf *infra.Terraform) string {
	if tf.Spec.Suspend {
		return "suspended"
	}
	ready := apimeta.FindStatusCondition(tf.Status.Conditions, infra.ConditionReady)
	switch {
	case apimeta.IsStatusConditionTrue(tf.Status.Conditions, infra.ConditionStalled):
		return "stalled"
	case ready == nil:
		return "new"
	case ready.Status == "True":
		return "ready"
	case ready.Reason == infra.ReasonPlannedWithChanges:
		return "awaiting-approval"
	case ready.Status == "Unknown":
		return "progressing"
	default:
		return "failed"
	}
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(prometheus.Gatherers{m.registry, ctrlmetrics.Registry}, promhttp.HandlerOpts{})
}
