// Package metrics exports the scheduler's decisions (New) and state (Engine, HAMi) to Prometheus.
// Labels of counters never have values that users choose.
package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type Metrics struct {
	prometheus.Collector
	durations *prometheus.HistogramVec
	denials   *prometheus.CounterVec
	conflicts *prometheus.CounterVec
	reviews   *prometheus.CounterVec
}

// New returns counters at zero.
func New() *Metrics {
	m := &Metrics{
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gpuslice_scheduler_verb_duration_seconds",
			Help: "Request latency by component, verb and outcome.",
			// 50 µs to 13 s
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
	all := prometheus.NewRegistry()
	all.MustRegister(m.durations, m.denials, m.conflicts, m.reviews)
	m.Collector = all
	return m
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

// Reviewed counts an answer of the webhook. reason is empty if the pod was not denied.
func (m *Metrics) Reviewed(path, outcome, reason string, took time.Duration) {
	m.reviews.WithLabelValues(path, outcome, reason).Inc()
	m.durations.WithLabelValues("webhook", strings.TrimPrefix(path, "/"), outcome).Observe(took.Seconds())
}
