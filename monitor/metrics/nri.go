package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// NRI counts what the plugin tells of. It is a prometheus.Collector.
type NRI struct {
	requests *prometheus.HistogramVec
	refusals *prometheus.CounterVec
}

// NewNRI makes the counters, at zero for each event and reason that is known before: a
// rise from nothing to one would be missed.
func NewNRI(events, reasons []string) *NRI {
	n := &NRI{
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gpuslice_nri_request_duration_seconds",
			Help: "How long the answer to a request of the container runtime took.",
			// 50 µs to 3.3 s: containers wait for it, and the runtime for 2 s at most.
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 17),
		}, []string{"event"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuslice_refusals_total",
			Help: "Containers that were refused, by reason.",
		}, []string{"reason"}),
	}
	for _, event := range events {
		n.requests.WithLabelValues(event)
	}
	for _, reason := range reasons {
		n.refusals.WithLabelValues(reason)
	}
	return n
}

// Handled tells of a request that was answered.
func (n *NRI) Handled(event string, took time.Duration) {
	n.requests.WithLabelValues(event).Observe(took.Seconds())
}

// Refused tells of a container that was refused.
func (n *NRI) Refused(reason string) { n.refusals.WithLabelValues(reason).Inc() }

// Describe implements prometheus.Collector.
func (n *NRI) Describe(to chan<- *prometheus.Desc) {
	n.requests.Describe(to)
	n.refusals.Describe(to)
}

// Collect implements prometheus.Collector.
func (n *NRI) Collect(to chan<- prometheus.Metric) {
	n.requests.Collect(to)
	n.refusals.Collect(to)
}
