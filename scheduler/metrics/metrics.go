// Package metrics exports the scheduler's decisions and state to Prometheus: New counts calls,
// Engine exports an engine's state at each scrape, HAMi exports it by HAMi's metric names.
// Label values of counters are words of this program, never names that users choose.
package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the counters of a process. It is a prometheus.Collector.
type Metrics struct {
	durations *prometheus.HistogramVec
	denials   *prometheus.CounterVec
	conflicts *prometheus.CounterVec
	reviews   *prometheus.CounterVec
}

// New returns counters at zero.
func New() *Metrics {
	return &Metrics{
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gpuslice_scheduler_verb_duration_seconds",
			Help: "Request latency by component, verb and outcome.",
			// 50 µs to 13 s: from a cached verdict to a bind at a slow API server.
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 19),
		}, []string{"component", "verb", "outcome"}),
		denials: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuslice_scheduler_denials_total",
			Help: "Scheduling attempts of pods that fit on no node, by the most frequent reason among the nodes.",
		}, []string{"component", "reason"}),
		conflicts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuslice_scheduler_reservation_conflicts_total",
			Help: "GPU reservations that were rejected because another pod had taken the GPU.",
		}, []string{"component"}),
		reviews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuslice_scheduler_admission_total",
			Help: "Admission reviews by path, outcome and reason.",
		}, []string{"path", "outcome", "reason"}),
	}
}

func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.durations, m.denials, m.conflicts, m.reviews}
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

// Observe counts a call that ended now.
func (m *Metrics) Observe(component, verb string, began time.Time, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "error"
	}
	m.durations.WithLabelValues(component, verb, outcome).Observe(time.Since(began).Seconds())
}

// Denied counts a pod that fits on no node.
func (m *Metrics) Denied(component, reason string) {
	m.denials.WithLabelValues(component, reason).Inc()
}

// Conflict counts a reservation that another pod prevented.
func (m *Metrics) Conflict(component string) { m.conflicts.WithLabelValues(component).Inc() }

// Reviewed counts an answer of the webhook.
func (m *Metrics) Reviewed(path, outcome, reason string, took time.Duration) {
	m.reviews.WithLabelValues(path, outcome, reason).Inc()
	m.durations.WithLabelValues("webhook", strings.TrimPrefix(path, "/"), outcome).Observe(took.Seconds())
}
