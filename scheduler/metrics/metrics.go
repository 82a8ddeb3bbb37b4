// Package metrics exports the scheduler's decisions (New) and state (Engine, HAMi) to Prometheus.
// Labels of counters never have values that users choose.
package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/quota"
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

// Engine exports an engine's state.
func Engine(e *engine.Engine) prometheus.Collector { return engineCollector{e} }

type engineCollector struct{ engine *engine.Engine }

var (
	nodes        = engineDesc("nodes", "Nodes that have registered GPUs.")
	gpus         = engineDesc("gpus", "Registered GPUs.")
	pods         = engineDesc("pods", "Pods that have GPU shares, reservations included.")
	reservedPods = engineDesc("reserved_pods", "Pods that have reserved GPUs and are not bound yet.")
	problems     = engineDesc("problems", "Annotations that are rejected or cannot be read, and overcommitted GPUs. /debug/state lists them.")
	fragmented   = engineDesc("fragmented_pods", "Pending pods that wait for memory that is free, but not on one GPU.")
	reservations = labelledDesc("reservations_total", "GPU reservations by outcome: created, repeated (the same pod "+
		"again), refused (no GPU left), expired (not bound in time).", "outcome")
	pending = labelledDesc("pending_pods", "Pods that request GPUs and are on no node, by the most frequent "+
		"reason among the nodes. Fits: the pod fits on a node. Reserved: the pod is being bound.", "reason")
	gpuReserved = labelledDesc("gpu_reserved_ratio",
		"Reserved part of a GPU, 0 to 1, by resource: memory, cores or replicas.", "node", "uuid", "of")
	quotaMemory   = quotaDesc("memory_used_bytes", "GPU memory that pods of a namespace with a ResourceQuota for it have reserved.")
	quotaMemoryOf = quotaDesc("memory_limit_bytes", "GPU memory that the ResourceQuotas of a namespace allow.")
	quotaCores    = quotaDesc("cores_used_ratio", "Compute time that pods of a namespace with a ResourceQuota for it "+
		"have reserved. 1 is a GPU.")
	quotaCoresOf = quotaDesc("cores_limit_ratio", "Compute time that the ResourceQuotas of a namespace allow. 1 is a GPU.")
)

func engineDesc(name, help string) *prometheus.Desc { return labelledDesc(name, help) }

func labelledDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("gpuslice_scheduler_"+name, help, labels, nil)
}

func quotaDesc(name, help string) *prometheus.Desc {
	return labelledDesc("quota_"+name, help, "namespace")
}

func (engineCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{nodes, gpus, pods, reservedPods, problems, reservations, pending, fragmented,
		gpuReserved, quotaMemory, quotaMemoryOf, quotaCores, quotaCoresOf} {
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
	gauge(reservedPods, s.Reservations)
	gauge(problems, s.Problems)
	for outcome, count := range map[string]uint64{"created": s.Reserved, "repeated": s.Repeated, "refused": s.Refused, "expired": s.Expired} {
		to <- prometheus.MustNewConstMetric(reservations, prometheus.CounterValue, float64(count), outcome)
	}
	waiting := c.engine.PendingCounts()
	for reason, count := range waiting.ByReason {
		to <- prometheus.MustNewConstMetric(pending, prometheus.GaugeValue, float64(count), reason)
	}
	gauge(fragmented, waiting.Fragmented)
	for _, a := range c.engine.Quotas() {
		of := func(used, limit *prometheus.Desc, unit float64, took, may int64) {
			if may != quota.Unlimited {
				to <- prometheus.MustNewConstMetric(used, prometheus.GaugeValue, float64(took)*unit, a.Namespace)
				to <- prometheus.MustNewConstMetric(limit, prometheus.GaugeValue, float64(may)*unit, a.Namespace)
			}
		}
		of(quotaMemory, quotaMemoryOf, bytesPerMiB, a.Used.MemoryMiB, a.Limits.MemoryMiB)
		of(quotaCores, quotaCoresOf, 1./100, a.Used.Cores, a.Limits.Cores)
	}
	c.engine.Snapshot().GPUs(func(node string, gpu *scheduler.GPU, used scheduler.Use) {
		of := func(what string, used, total float64) {
			if total > 0 {
				to <- prometheus.MustNewConstMetric(gpuReserved, prometheus.GaugeValue, used/total, node, gpu.UUID, what)
			}
		}
		of("memory", float64(used.MemoryMiB), float64(gpu.MemoryMiB))
		of("cores", float64(used.Cores), float64(gpu.Cores))
		of("replicas", float64(used.Replicas), float64(gpu.Replicas))
	})
}
