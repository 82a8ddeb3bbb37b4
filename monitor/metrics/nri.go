package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// RegisterBarrier registers the metric of the barrier: gpuslice-runtime in front of NVIDIA's
// container runtime keeps GPUs closed while the agent does not run.
func RegisterBarrier(registry prometheus.Registerer, installed bool) {
	promauto.With(registry).NewGauge(prometheus.GaugeOpts{
		Name: "gpuslice_barrier",
		Help: "1 if gpuslice-runtime was in front of NVIDIA's container runtime when the agent's container was created, otherwise 0. Only if NVIDIA's runtime gives the agent its GPUs.",
	}).Set(boolean(installed))
}

// NRI counts the requests of the container runtime.
type NRI struct {
	requests *prometheus.HistogramVec
	refusals *prometheus.CounterVec
}

// NewNRI registers the counters. Each known event and reason starts at 0, so that
// Prometheus sees the first increase.
func NewNRI(registry prometheus.Registerer, events, reasons []string) *NRI {
	register := promauto.With(registry)
	n := &NRI{
		requests: register.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gpuslice_nri_request_duration_seconds",
			Help: "Time to answer a request of the container runtime.",
			// 50 µs to 3.3 s: the runtime waits 2 s at most.
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 17),
		}, []string{"event"}),
		refusals: register.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuslice_refusals_total",
			Help: "Refused containers by reason.",
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

// Handled counts an answered request.
func (n *NRI) Handled(event string, took time.Duration) {
	n.requests.WithLabelValues(event).Observe(took.Seconds())
}

func (n *NRI) Refused(reason string) { n.refusals.WithLabelValues(reason).Inc() }
