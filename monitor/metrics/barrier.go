package metrics

import "github.com/prometheus/client_golang/prometheus"

// NewBarrier returns the metric of the barrier, which keeps a node's GPUs closed while its
// agent is away.
func NewBarrier(there bool) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "gpuslice_barrier",
		Help: "1 if gpuslice-runtime was in front of NVIDIA's container runtime when the agent's container was created, otherwise 0. Only if NVIDIA's runtime gives the agent its GPUs.",
	})
	if there {
		g.Set(1)
	}
	return g
}
