package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/quota"
)

// Engine collects, at each scrape, what an engine knows.
func Engine(e *engine.Engine) prometheus.Collector { return engineCollector{e} }

type engineCollector struct{ engine *engine.Engine }

var (
	nodes        = engineDesc("nodes", "Nodes that have registered GPUs.")
	gpus         = engineDesc("gpus", "GPUs that are registered.")
	pods         = engineDesc("pods", "Pods that hold a part of a GPU, reservations included.")
	reservations = engineDesc("reservations", "Pods whose GPUs are reserved and that are not bound yet.")
	problems     = engineDesc("problems", "Annotations that can't be read or are not believed, and GPUs of which more is taken than there is: see /debug/state.")
	bookings     = prometheus.NewDesc("gpuslice_scheduler_bookings_total",
		"Bookings by their end: made, repeated (asked for again), refused (no room on the newest state: a double booking that was not made), expired (never bound).",
		[]string{"end"}, nil)
	pending = prometheus.NewDesc("gpuslice_scheduler_pending_pods",
		"Pods that ask for GPUs and are on no node, by the reason that most nodes give as the GPUs are now; Fits: a node has room; Reserved: being bound.",
		[]string{"reason"}, nil)
	fragmented = engineDesc("fragmented_pods", "Of the pending pods, those that wait for memory that is free, but not on one GPU.")
	gpuUse     = prometheus.NewDesc("gpuslice_scheduler_gpu_booked_ratio",
		"Part of a GPU that is booked, 0 to 1, by what of it.", []string{"node", "uuid", "of"}, nil)
	quotaMemory, quotaMemoryLimit = quotaDesc("memory_used_bytes", "GPU memory that is booked for the pods of a namespace with a ResourceQuota of it."),
		quotaDesc("memory_limit_bytes", "GPU memory that a namespace may have by its ResourceQuotas.")
	quotaCores, quotaCoresLimit = quotaDesc("cores_used_ratio", "Compute time that is booked for the pods of a namespace with a ResourceQuota of it; 1 is a GPU."),
		quotaDesc("cores_limit_ratio", "Compute time that a namespace may have by its ResourceQuotas; 1 is a GPU.")
)

func engineDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("gpuslice_scheduler_"+name, help, nil, nil)
}

func quotaDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("gpuslice_scheduler_quota_"+name, help, []string{"namespace"}, nil)
}

func (engineCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{nodes, gpus, pods, reservations, problems, bookings, pending, fragmented, gpuUse, quotaMemory, quotaMemoryLimit, quotaCores, quotaCoresLimit} {
		to <- d
	}
}

func (c engineCollector) Collect(to chan<- prometheus.Metric) {
	s := c.engine.Stats()
	gauge := func(d *prometheus.Desc, value int) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value))
	}
	gauge(nodes, s.Nodes)
	gauge(gpus, s.GPUs)
	gauge(pods, s.Pods)
	gauge(reservations, s.Reservations)
	gauge(problems, s.Problems)
	for end, count := range map[string]uint64{"made": s.Reserved, "repeated": s.Repeated, "refused": s.Refused, "expired": s.Expired} {
		to <- prometheus.MustNewConstMetric(bookings, prometheus.CounterValue, float64(count), end)
	}
	waiting := c.engine.PendingCounts()
	for reason, count := range waiting.ByReason {
		to <- prometheus.MustNewConstMetric(pending, prometheus.GaugeValue, float64(count), reason)
	}
	gauge(fragmented, waiting.Fragmented)
	for _, a := range c.engine.Quotas() {
		of := func(used, limit *prometheus.Desc, unit float64, took, may int64) {
			if may != quota.Unlimited {
				to <- prometheus.MustNewConstMetric(used, prometheus.GaugeValue, float64(took)*unit, a.Namespace())
				to <- prometheus.MustNewConstMetric(limit, prometheus.GaugeValue, float64(may)*unit, a.Namespace())
			}
		}
		of(quotaMemory, quotaMemoryLimit, bytesPerMiB, a.Used().MemoryMiB, a.Limits().MemoryMiB)
		of(quotaCores, quotaCoresLimit, 1./100, a.Used().Cores, a.Limits().Cores)
	}
	c.engine.Snapshot().GPUs(func(node string, gpu *scheduler.GPU, used scheduler.Use) {
		of := func(what string, used, total float64) {
			if total > 0 {
				to <- prometheus.MustNewConstMetric(gpuUse, prometheus.GaugeValue, used/total, node, gpu.UUID, what)
			}
		}
		of("memory", float64(used.MemoryMiB), float64(gpu.MemoryMiB))
		of("cores", float64(used.Cores), float64(gpu.Cores))
		of("slots", float64(used.Slots), float64(gpu.Slots))
	})
}
