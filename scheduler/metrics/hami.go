package metrics

import (
	"math"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/quota"
)

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
