// Package metrics counts what the scheduler's doors decide, for Prometheus.
//
//	gpuslice_scheduler_verb_duration_seconds{door,verb,outcome}  how long a call took
//	gpuslice_scheduler_denials_total{door,reason}                pods that no node could take, by the most frequent reason
//	gpuslice_scheduler_double_bookings_prevented_total{door}     bookings refused, for another was faster
//	gpuslice_scheduler_admission_total{path,outcome,reason}      what the webhook said of pods
//
// and of the engine at the moment of a scrape (Engine): nodes, GPUs, memory, cores,
// slots, pods, reservations, problems, the pods that wait, by reason, and quotas.
//
// Labels of counters have words of ours only, never a name that a user chooses.
package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are a process's counters. It is a prometheus.Collector.
type Metrics struct {
	durations *prometheus.HistogramVec
	denials   *prometheus.CounterVec
	prevented *prometheus.CounterVec
	admitted  *prometheus.CounterVec
}

// New makes them, all at zero.
func New() *Metrics {
	return &Metrics{
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gpuslice_scheduler_verb_duration_seconds",
			Help: "How long a call of a door took, by its verb and whether it failed.",
			// 50 µs to 13 s: from a verdict out of the cache to a bind at a slow API server.
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 19),
		}, []string{"door", "verb", "outcome"}),
		denials: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuslice_scheduler_denials_total",
			Help: "Pods that no node could take, by the reason that most nodes gave.",
		}, []string{"door", "reason"}),
		prevented: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuslice_scheduler_double_bookings_prevented_total",
			Help: "Bookings of GPUs that were refused, for another pod was faster.",
		}, []string{"door"}),
		admitted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuslice_scheduler_admission_total",
			Help: "Requests that the webhook has answered, by path, outcome and reason.",
		}, []string{"path", "outcome", "reason"}),
	}
}

func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.durations, m.denials, m.prevented, m.admitted}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(to)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(to)
	}
}

// Took tells of a call that began at a time and has ended now.
func (m *Metrics) Took(door, verb string, began time.Time, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "error"
	}
	m.durations.WithLabelValues(door, verb, outcome).Observe(time.Since(began).Seconds())
}

// Denied tells of a pod that no node could take.
func (m *Metrics) Denied(door, reason string) { m.denials.WithLabelValues(door, reason).Inc() }

// Prevented tells of a booking that came too late.
func (m *Metrics) Prevented(door string) { m.prevented.WithLabelValues(door).Inc() }

// Reviewed tells of an answer of the webhook.
func (m *Metrics) Reviewed(path, outcome, reason string, took time.Duration) {
	m.admitted.WithLabelValues(path, outcome, reason).Inc()
	m.durations.WithLabelValues("webhook", strings.TrimPrefix(path, "/"), outcome).Observe(took.Seconds())
}
