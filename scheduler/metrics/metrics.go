// Package metrics exports the scheduler's decisions (New) and state (Engine, HAMi) to Prometheus.
// Labels of counters never have values that users choose.
package metrics

import (
	"math"
	"strconv"
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

// HAMi exports an engine's state under the current and former metric names of HAMi's scheduler, so
// that dashboards for HAMi work. A scrape copies the whole state.
func HAMi(e *engine.Engine) prometheus.Collector { return hamiCollector{e} }

type hamiCollector struct{ engine *engine.Engine }

const (
	hamiZone    = "vGPU"
	bytesPerMiB = 1 << 20
)

type hamiMetric struct{ now, before *prometheus.Desc }

func hamiDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, prometheus.Labels{"zone": hamiZone})
}

// hamiLabels are the current and the former names of labels.
type hamiLabels struct{ now, before []string }

func (l hamiLabels) metric(now, before, help string) hamiMetric {
	return hamiMetric{hamiDesc(now, help, l.now...), hamiDesc(before, help, l.before...)}
}

func hamiNames(now, before string) hamiLabels {
	return hamiLabels{strings.Fields(now), strings.Fields(before)}
}

var (
	hamiGPU = hamiNames("node device_uuid device_index device_type", "nodeid deviceuuid deviceidx devicetype")

	hamiMemoryLimit = hamiGPU.metric("hami_gpu_memory_limit_bytes", "GPUDeviceMemoryLimit",
		"Memory of the GPU that can be allocated.")
	hamiCoreLimit = hamiGPU.metric("hami_gpu_core_limit_ratio", "GPUDeviceCoreLimit", "Compute time of the GPU in percent. "+
		"hami_gpu_core_limit_ratio is always 100, GPUDeviceCoreLimit is what can be allocated.")
	hamiShared = hamiGPU.metric("hami_gpu_shared_count", "GPUDeviceSharedNum", "Containers that have a share of the GPU.")
	hamiCores  = hamiGPU.metric("hami_gpu_core_allocated_ratio", "GPUDeviceCoreAllocated", "Allocated compute time. "+
		"hami_gpu_core_allocated_ratio is percent of what can be allocated, GPUDeviceCoreAllocated is as requested.")
	hamiMemory = hamiNames("node device_uuid device_index device_cores device_type",
		"nodeid deviceuuid deviceidx devicecores devicetype").
		metric("hami_gpu_memory_allocated_bytes", "GPUDeviceMemoryAllocated", "Allocated memory of the GPU in bytes.")
	hamiOverview = hamiNames("node device_uuid device_index device_cores device_memory_limit device_type",
		"nodeid deviceuuid deviceidx devicecores devicememorylimit devicetype").
		metric("hami_node_gpu_overview", "nodeGPUOverview", "Allocated memory of the GPU in bytes.")
	hamiPart = hamiNames("node device_uuid device_index", "nodeid deviceuuid deviceidx").
			metric("hami_node_gpu_memory_allocated_ratio", "nodeGPUMemoryPercentage", "Allocated part of the GPU's memory, 0 to 1.")

	hamiShare = hamiNames("namespace node pod container_index device_uuid", "podnamespace nodename podname containeridx deviceuuid")

	hamiShareMemory = hamiShare.metric("hami_vgpu_memory_allocated_bytes", "vGPUMemoryAllocated",
		"Memory allocated to a container in bytes.")
	hamiShareCores = hamiShare.metric("hami_vgpu_core_allocated_ratio", "vGPUCoreAllocated", "Compute time allocated to a container. "+
		"hami_vgpu_core_allocated_ratio is percent of what can be allocated on the GPU, vGPUCoreAllocated is as requested.")

	// Memory in MiB, cores in percent.
	hamiQuotaUsed = hamiNames("namespace quota_name limit", "quotanamespace quotaName limit").
			metric("hami_resource_quota_used", "QuotaUsed", "Used part of a namespace's quota.")
	hamiQuotaLimit = hamiDesc("hami_resource_quota_limit", "What a namespace may have by its quota.", "namespace", "quota_name")
)

func (hamiCollector) Describe(to chan<- *prometheus.Desc) {
	for _, m := range []hamiMetric{hamiMemoryLimit, hamiCoreLimit, hamiShared, hamiCores, hamiMemory, hamiOverview,
		hamiPart, hamiShareMemory, hamiShareCores, hamiQuotaUsed} {
		to <- m.now
		to <- m.before
	}
	to <- hamiQuotaLimit
}

// send: some current and former metrics differ in their unit.
func (m hamiMetric) send(to chan<- prometheus.Metric, now, before float64, labels ...string) {
	to <- prometheus.MustNewConstMetric(m.now, prometheus.GaugeValue, now, labels...)
	to <- prometheus.MustNewConstMetric(m.before, prometheus.GaugeValue, before, labels...)
}

func (c hamiCollector) Collect(to chan<- prometheus.Metric) {
	c.sendQuotas(to)
	for _, n := range c.engine.State("").Nodes {
		total := map[string]int{}
		for _, gpu := range n.GPUs {
			total[gpu.UUID] = gpu.Cores
			sendHAMiGPU(to, n.Name, gpu)
		}
		for key, share := range hamiShares(n.Pods) {
			namespace, pod, _ := strings.Cut(key.pod, "/")
			labels := []string{namespace, n.Name, pod, strconv.Itoa(key.container), key.uuid}
			memory := float64(share.memoryMiB) * bytesPerMiB
			hamiShareMemory.send(to, memory, memory, labels...)
			hamiShareCores.send(to, percentOf(share.cores, total[key.uuid]), float64(share.cores), labels...)
		}
	}
}

func (c hamiCollector) sendQuotas(to chan<- prometheus.Metric) {
	names := c.engine.Names()
	for _, a := range c.engine.Quotas() {
		of := func(name string, used, limit int64) {
			if limit != quota.Unlimited {
				hamiQuotaUsed.send(to, float64(used), float64(used), a.Namespace, name, strconv.FormatInt(limit, 10))
				to <- prometheus.MustNewConstMetric(hamiQuotaLimit, prometheus.GaugeValue, float64(limit), a.Namespace, name)
			}
		}
		of(names.Memory, a.Used.MemoryMiB, a.Limits.MemoryMiB)
		of(names.Cores, a.Used.Cores, a.Limits.Cores)
	}
}

func sendHAMiGPU(to chan<- prometheus.Metric, node string, gpu engine.GPUState) {
	index, cores := strconv.Itoa(gpu.Index), strconv.Itoa(gpu.Cores)
	limit, used := float64(gpu.MemoryMiB)*bytesPerMiB, float64(gpu.Used.MemoryMiB)*bytesPerMiB
	hamiMemoryLimit.send(to, limit, limit, node, gpu.UUID, index, gpu.Model)
	hamiCoreLimit.send(to, percentOf(gpu.Cores, gpu.Cores), float64(gpu.Cores), node, gpu.UUID, index, gpu.Model)
	hamiShared.send(to, float64(gpu.Used.Replicas), float64(gpu.Used.Replicas), node, gpu.UUID, index, gpu.Model)
	hamiCores.send(to, percentOf(gpu.Used.Cores, gpu.Cores), float64(gpu.Used.Cores), node, gpu.UUID, index, gpu.Model)
	hamiMemory.send(to, used, used, node, gpu.UUID, index, cores, gpu.Model)
	hamiOverview.send(to, used, used, node, gpu.UUID, index, cores, strconv.FormatInt(gpu.MemoryMiB, 10), gpu.Model)
	if limit > 0 {
		hamiPart.send(to, used/limit, used/limit, node, gpu.UUID, index)
	}
}

// percentOf rounds up, like HAMi.
func percentOf(part, of int) float64 {
	if of <= 0 {
		return 0
	}
	return math.Ceil(float64(part) / float64(of) * 100)
}

type hamiKey struct {
	pod       string
	container int
	uuid      string
}

type hamiSum struct {
	memoryMiB int64
	cores     int
}

// hamiShares adds up pods of the same name: HAMi's labels have no UID.
func hamiShares(pods []engine.PodState) map[hamiKey]hamiSum {
	all := map[hamiKey]hamiSum{}
	for _, p := range pods {
		for i, shares := range p.Containers {
			for _, s := range shares {
				key := hamiKey{p.Pod, i, s.UUID}
				sum := all[key]
				sum.memoryMiB += s.MemoryMiB
				sum.cores += s.CorePercent
				all[key] = sum
			}
		}
	}
	return all
}
