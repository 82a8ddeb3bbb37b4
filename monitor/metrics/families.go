package metrics

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/oci"
)

type Family struct {
	Name, Help string
	// Counter: it is a counter, otherwise a gauge.
	Counter bool
	// Labels are sorted.
	Labels []string
}

// Families returns the metrics of a node's GPUs and containers, with the legacy names.
func Families(legacy ...Legacy) (all []Family) {
	for _, f := range familiesWith(legacy) {
		all = append(all, f.Family)
	}
	return all
}

type family struct {
	Family
	labels []label
	rows   func(*reading) []row
	value  func(*row) (value float64, known bool)
}

type row struct {
	gpu       *view.GPU
	telemetry *nvidia.Telemetry // empty without telemetry
	container *view.Container
	share     *view.Share
	index     int    // of the share in its container
	word      string // a label of the node, or a sum's
	number    float64
}

type label struct {
	name  string
	value func(*reading, *row) string
}

func group(labels []label, rows func(*reading) []row, families ...family) []family {
	labels = slices.SortedFunc(slices.Values(labels), func(a, b label) int { return strings.Compare(a.name, b.name) })
	for i := range families {
		f := &families[i]
		f.labels, f.rows = labels, rows
		for _, l := range labels {
			f.Labels = append(f.Labels, l.name)
		}
	}
	return families
}

const bytesPerMiB = 1 << 20

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func gauge(name, help string, value func(*row) (float64, bool)) family {
	return family{Family: Family{Name: name, Help: help}, value: value}
}

func known(name, help string, value func(*row) float64) family {
	return gauge(name, help, func(r *row) (float64, bool) { return value(r), true })
}

func counter(name, help string, value func(*row) float64) family {
	f := known(name, help, value)
	f.Counter = true
	return f
}

// optional returns a number in another unit; nil: unknown.
func optional[N int | uint32 | uint64 | float64](number *N, unit float64) (float64, bool) {
	if number == nil {
		return 0, false
	}
	return float64(*number) / unit, true
}

var gpuFamilies = group(gpuLabels, (*reading).gpus,
	known("gpuslice_gpu_memory_total_bytes", "GPU memory, from NVML.", func(r *row) float64 { return float64(r.gpu.MemoryMiB) * bytesPerMiB }),
	gauge("gpuslice_gpu_memory_used_bytes", "GPU memory in use by all processes, from NVML.", func(r *row) (float64, bool) { return optional(r.telemetry.MemoryUsedBytes, 1) }),
	known("gpuslice_gpu_memory_grantable_bytes", "GPU memory that can be granted: the GPU's memory times --device-memory-scaling; 0 if the GPU is not offered.", func(r *row) float64 { return float64(r.gpu.GrantableMiB) * bytesPerMiB }),
	known("gpuslice_gpu_memory_granted_bytes", "GPU memory granted to containers.", func(r *row) float64 { return float64(r.gpu.GrantedMemoryMiB) * bytesPerMiB }),
	gauge("gpuslice_gpu_utilization_ratio", "Part of the time during which a kernel was running, 0 to 1, from NVML.", func(r *row) (float64, bool) { return optional(r.telemetry.UtilizationPercent, 100) }),
	gauge("gpuslice_gpu_temperature_celsius", "GPU temperature.", func(r *row) (float64, bool) { return optional(r.telemetry.TemperatureCelsius, 1) }),
	gauge("gpuslice_gpu_power_watts", "GPU power draw.", func(r *row) (float64, bool) { return optional(r.telemetry.PowerMilliwatts, 1000) }),
	known("gpuslice_gpu_healthy", "1 if the GPU is healthy; 0 after a critical XID, while it cannot be read, or while NVML hangs.", func(r *row) float64 { return boolean(r.gpu.Healthy) }),
	known("gpuslice_gpu_containers", "Containers with a share of the GPU.", func(r *row) float64 { return float64(r.gpu.GrantedContainers) }),
	known("gpuslice_gpu_containers_limit", "Maximum number of containers with a share of the GPU (--device-split-count).", func(r *row) float64 { return float64(r.gpu.GrantableReplicas) }),
	known("gpuslice_gpu_cores_granted_ratio", "Compute time granted to containers; 1 is the whole GPU.", func(r *row) float64 { return float64(r.gpu.GrantedCores) / 100 }),
	known("gpuslice_gpu_cores_grantable_ratio", "Compute time that can be granted (--device-cores-scaling); 1 is the whole GPU.", func(r *row) float64 { return float64(r.gpu.GrantableCores) / 100 }),
)

var sourceFamily = group(append(slices.Clone(gpuLabels), wordLabel("source")), bySource,
	known("gpuslice_gpu_core_use_source", "1: where gpuslice_container_core_used_ratio comes from: a function of NVML, or limiter; absent until a container has used the GPU.", func(*row) float64 { return 1 }),
)

func bySource(r *reading) (all []row) {
	for _, gpu := range r.gpus() {
		if gpu.gpu.ComputeSource != "" {
			gpu.word = string(gpu.gpu.ComputeSource)
			all = append(all, gpu)
		}
	}
	return all
}

var shareFamilies = group(shareLabels, (*reading).shares,
	known("gpuslice_container_memory_used_bytes", "GPU memory in use by the container, as its limiter counts it, CUDA contexts included.", func(r *row) float64 { return float64(r.share.UsedBytes) }),
	known("gpuslice_container_memory_limit_bytes", "GPU memory limit of the container.", func(r *row) float64 { return float64(r.share.MemoryMiB) * bytesPerMiB }),
	known("gpuslice_container_memory_residue_bytes", "GPU memory of the container that the driver counts and its limiter does not; it is subtracted from the limit.", func(r *row) float64 { return float64(r.share.ResidueBytes) }),
	known("gpuslice_container_core_limit_ratio", "Compute time granted to the container, 0 to 1; 1 if it is not limited.", func(r *row) float64 { return float64(cmp.Or(r.share.CorePercent, 100)) / 100 }),
	gauge("gpuslice_container_core_used_ratio", "Compute time used by the container in the last seconds, 0 to 1, from NVML or else by its limiter (gpuslice_gpu_core_use_source); absent in MIG mode.", func(r *row) (float64, bool) { return optional(r.share.CoreUsedPercent, 100) }),
	counter("gpuslice_container_compute_seconds_total", "Time in which the container had work on the GPU, by its limiter.", func(r *row) float64 { return float64(r.share.ComputeNanoseconds) * nanosecond }),
	counter("gpuslice_container_throttled_seconds_total", "Time that launches of the container waited for its share.", func(r *row) float64 { return float64(r.share.ThrottledNanoseconds) * nanosecond }),
	counter("gpuslice_container_launches_total", "Launches of the container, by its limiter.", func(r *row) float64 { return float64(r.share.Launches) }),
	gauge("gpuslice_container_last_launch_timestamp_seconds", "Time of the container's last work on the GPU; absent before the first.", func(r *row) (float64, bool) {
		return float64(r.share.LastLaunch.UnixMilli()) / 1000, !r.share.LastLaunch.IsZero()
	}),
	gauge("gpuslice_container_holds_gpu_since_timestamp_seconds", "Time since which a kernel of the container holds the GPU beyond its share while other containers wait; absent if none does.", func(r *row) (float64, bool) {
		return float64(r.share.HoldsSince.UnixMilli()) / 1000, !r.share.HoldsSince.IsZero()
	}),
	known("gpuslice_container_processes", "Processes of the container that use memory of the GPU.", func(r *row) float64 { return float64(r.share.Processes) }),
	counter("gpuslice_container_refused_allocations_total", "Allocations of the container that exceeded its limit.", func(r *row) float64 { return float64(r.share.RefusedAllocations) }),
	gauge("gpuslice_container_usage_file_damaged", "1 if the container damaged its usage file; absent if the file has another version.", func(r *row) (float64, bool) {
		return boolean(r.container.UsageProblem != ""), !r.container.UsageUnknown
	}),
)

var claimFamily = group([]label{
	nodeLabel,
	{"container_id", func(_ *reading, r *row) string { return r.container.ContainerID }},
	{"resourceclaim_uid", func(_ *reading, r *row) string { uid, _, _ := strings.Cut(r.word, "."); return uid }},
	{"request", func(_ *reading, r *row) string { _, request, _ := strings.Cut(r.word, "."); return request }},
}, byResourceClaim,
	known("gpuslice_resourceclaim_containers", "Containers that have the request of the ResourceClaim, with one share in common: that of container_id.", (*row).sum),
)

func byResourceClaim(r *reading) (all []row) {
	for _, c := range r.active() {
		for _, request := range c.ResourceClaims {
			all = append(all, row{container: c, word: request, number: float64(len(c.Members))})
		}
	}
	return all
}

const nanosecond = 1 / float64(time.Second)

// enforcements are those that are always counted. An entry that cannot be read has none of them.
var enforcements = []oci.Enforcement{oci.EnforcePreload, oci.EnforceLibrary, oci.EnforceBoth, oci.EnforceNone}

func nodeFamily(name, help string, value func(*reading) float64) []family {
	return group(nil, func(r *reading) []row { return []row{{number: value(r)}} }, known(name, help, (*row).sum))
}

func (r *row) sum() float64 { return r.number }

var families = slices.Concat(
	nodeFamily("gpuslice_claims", "Containers with an active claim in the ledger.", func(r *reading) float64 { return float64(len(r.active())) }),
	nodeFamily("gpuslice_orphans", "Active claims of containers that are gone; normally 0.", func(r *reading) float64 { return float64(r.orphans) }),
	nodeFamily("gpuslice_nri_connected", "1 if the agent is connected to the container runtime and synchronized.", func(r *reading) float64 { return boolean(r.connected) }),
	group([]label{wordLabel("enforcement")}, byEnforcement, known("gpuslice_containers", "Containers with an active claim, by how their limits are enforced.", (*row).sum)),
	claimFamily,
	gpuFamilies,
	sourceFamily,
	shareFamilies,
)

var (
	nodeLabel = label{"node", func(of *reading, _ *row) string { return of.node.Name }}
	gpuLabels = []label{
		{"index", func(_ *reading, r *row) string { return strconv.Itoa(r.gpu.Index) }},
		{"model", func(_ *reading, r *row) string { return r.gpu.Model }},
		nodeLabel,
		{"uuid", func(_ *reading, r *row) string { return r.gpu.UUID }},
	}
	shareLabels = []label{
		// An entry that cannot be read has no name.
		{"container", func(_ *reading, r *row) string { return cmp.Or(r.container.Name, r.container.ContainerID) }},
		{"container_id", func(_ *reading, r *row) string { return r.container.ContainerID }},
		{"namespace", func(_ *reading, r *row) string {
			namespace, _, _ := strings.Cut(r.container.Pod, "/")
			return namespace
		}},
		nodeLabel,
		{"pod", func(_ *reading, r *row) string { _, pod, _ := strings.Cut(r.container.Pod, "/"); return pod }},
		{"uuid", func(_ *reading, r *row) string { return r.share.UUID }},
	}
)

func wordLabel(name string) label {
	return label{name, func(_ *reading, r *row) string { return r.word }}
}

func (r *reading) gpus() (all []row) {
	for i := range r.node.GPUs {
		all = append(all, gpuRow(&r.node.GPUs[i]))
	}
	return all
}

func gpuRow(gpu *view.GPU) row {
	return row{gpu: gpu, telemetry: cmp.Or(gpu.Telemetry, &nvidia.Telemetry{})}
}

func (r *reading) shares() (all []row) {
	for i := range r.node.Containers {
		c := &r.node.Containers[i]
		for j := range c.Shares {
			all = append(all, row{container: c, share: &c.Shares[j], index: j})
		}
	}
	return all
}

func byEnforcement(r *reading) (all []row) {
	for _, e := range enforcements {
		all = append(all, row{word: string(e)})
	}
	for _, c := range r.active() {
		i := slices.IndexFunc(all, func(known row) bool { return known.word == c.Enforcement })
		if i < 0 {
			i, all = len(all), append(all, row{word: c.Enforcement})
		}
		all[i].number++
	}
	return all
}
