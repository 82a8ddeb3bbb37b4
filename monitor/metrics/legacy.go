package metrics

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// Legacy is a program with metric names and units that are exported too, so that its dashboards
// keep working.
type Legacy string

const (
	HAMi       Legacy = "hami"        // vGPUmonitor: the names of version 2.7, and the former ones
	GPUManager Legacy = "gpu-manager" // tke's gpu-manager
)

var Legacies = []Legacy{HAMi, GPUManager}

func familiesWith(legacy []Legacy) []family {
	all := slices.Clone(families)
	if slices.Contains(legacy, HAMi) {
		all = append(all, hamiFamilies...)
	}
	if slices.Contains(legacy, GPUManager) {
		all = append(all, gpuManagerFamilies...)
	}
	return all
}

// pods returns the containers of pods that have not ended. Of two attempts of one container,
// which have the same labels, it returns the newer.
func (r *reading) pods() []*view.Container {
	position := map[[2]string]int{}
	var all []*view.Container
	for i := range r.node.Containers {
		c := &r.node.Containers[i]
		if c.Pod == "" || c.State == string(ledger.StateReleased) {
			continue
		}
		key := [2]string{c.Pod, c.Name}
		if old, known := position[key]; !known {
			position[key] = len(all)
			all = append(all, c)
		} else if !all[old].CreatedAt.After(c.CreatedAt) {
			all[old] = c
		}
	}
	return all
}

func (r *reading) podShares() (all []row) {
	for _, c := range r.pods() {
		for j := range c.Shares {
			one := gpuRow(r.gpu(c.Shares[j].UUID))
			one.container, one.share, one.index = c, &c.Shares[j], j
			all = append(all, one)
		}
	}
	return all
}

func (r *reading) migShares() []row {
	return slices.DeleteFunc(r.podShares(), func(s row) bool { return s.gpu.MIG == nil })
}

func (r *reading) wholeGPUs() []row {
	return slices.DeleteFunc(r.gpus(), func(c row) bool { return c.gpu.MIGProfile != "" })
}

// gpu returns the GPU of a UUID; one that is gone has index -1.
func (r *reading) gpu(uuid string) *view.GPU {
	for i := range r.node.GPUs {
		if r.node.GPUs[i].UUID == uuid {
			return &r.node.GPUs[i]
		}
	}
	return &view.GPU{UUID: uuid, Index: -1}
}

func alias(name, help, of string, factor float64) family {
	original := families[slices.IndexFunc(families, func(f family) bool { return f.Name == of })]
	return gauge(name, help+" Alias of "+of+".", func(r *row) (float64, bool) {
		value, known := original.value(r)
		return value * factor, known
	})
}

func under(name string, labels []label, old string) label {
	i := slices.IndexFunc(labels, func(l label) bool { return l.name == old })
	return label{name, labels[i].value}
}

func constant(name, value string) label {
	return label{name, func(*reading, *row) string { return value }}
}

func text(name string, value func(*row) string) label {
	return label{name, func(_ *reading, r *row) string { return value(r) }}
}

func indexLabel(name string) label {
	return text(name, func(r *row) string { return strconv.Itoa(r.index) })
}

func bytesLabel(name string, value func(*row) uint64) label {
	return text(name, func(r *row) string { return strconv.FormatUint(value(r), 10) })
}

// buffers is what a share uses beside its contexts. A container can write more contexts than use.
func buffers(r *row) uint64 {
	return r.share.UsedBytes - min(r.share.UsedBytes, r.share.ContextBytes)
}

func contexts(r *row) uint64 { return r.share.ContextBytes }
func residue(r *row) uint64  { return r.share.ResidueBytes }

// perGPU sums what a container uses by GPU, and in total. MIG devices of one GPU are one.
func (r *reading) perGPU() (all []row) {
	for _, c := range r.pods() {
		first := len(all)
		for j := range c.Shares {
			s := &c.Shares[j]
			word := "gpu" + s.UUID // a GPU that is gone
			if gpu := r.gpu(s.UUID); gpu.Index >= 0 {
				word = "gpu" + strconv.Itoa(gpu.Index)
			}
			i := slices.IndexFunc(all[first:], func(known row) bool { return known.word == word })
			if i < 0 {
				i = len(all) - first
				all = append(all, row{container: c, word: word, share: &view.Share{}})
			}
			addUse(all[first+i].share, s)
		}
		total := row{container: c, word: "total", share: &view.Share{}}
		for _, gpu := range all[first:] {
			addUse(total.share, gpu.share)
		}
		all = append(all, total)
	}
	return all
}

// addUse adds a share's use to a sum, which saturates: containers can write any number.
func addUse(sum, s *view.Share) {
	if sum.UsedBytes += s.UsedBytes; sum.UsedBytes < s.UsedBytes {
		sum.UsedBytes = math.MaxUint64
	}
	if s.CoreUsedPercent != nil {
		percents := *s.CoreUsedPercent
		if sum.CoreUsedPercent != nil {
			percents += *sum.CoreUsedPercent
		}
		sum.CoreUsedPercent = &percents
	}
}

func (r *reading) granted() (all []row) {
	for _, c := range r.pods() {
		total := row{container: c, word: "total", share: &view.Share{}}
		for j := range c.Shares {
			total.share.MemoryMiB += c.Shares[j].MemoryMiB
			total.number += cmp.Or(float64(c.Shares[j].CorePercent), percent) / percent
		}
		all = append(all, total)
	}
	return all
}

const (
	percent         = 100 // of 1
	mebibytePerByte = 1.0 / bytesPerMiB

	gpuMemoryUsed   = "gpuslice_gpu_memory_used_bytes"
	gpuUtilization  = "gpuslice_gpu_utilization_ratio"
	memoryUsed      = "gpuslice_container_memory_used_bytes"
	memoryLimit     = "gpuslice_container_memory_limit_bytes"
	memoryResidue   = "gpuslice_container_memory_residue_bytes"
	coreUsed        = "gpuslice_container_core_used_ratio"
	gpuMemoryHelp   = "GPU memory in use, bytes."
	utilizationHelp = "GPU utilization, 0 to 100."
	usedHelp        = "GPU memory in use by the container, bytes."
	limitHelp       = "GPU memory limit of the container, bytes."
	coreHelp        = "GPU utilization of the container, 0 to 100."
	lastKernelHelp  = "Seconds since the container's last work on the GPU: now minus gpuslice_container_last_launch_timestamp_seconds."
	migHelp         = "MIG device of the container; always 1."
)

// HAMi's labels of GPUs and shares: the present and the former ones.
var (
	hamiZone      = constant("zone", "vGPU")
	hamiGPULabels = []label{
		under("node", gpuLabels, "node"), under("device_index", gpuLabels, "index"), under("device_uuid", gpuLabels, "uuid"), hamiType("device_type"), hamiZone,
	}
	hamiPodLabels = []label{
		under("namespace", shareLabels, "namespace"), under("pod", shareLabels, "pod"), under("container", shareLabels, "container"), indexLabel("vdevice_index"), hamiZone,
	}
	hamiShareLabels = append(slices.Clone(hamiPodLabels), under("device_uuid", shareLabels, "uuid"))
	oldGPULabels    = []label{
		under("nodeid", gpuLabels, "node"), under("deviceidx", gpuLabels, "index"), under("deviceuuid", gpuLabels, "uuid"), hamiType("devicetype"), hamiZone,
	}
	oldPodLabels = []label{
		under("podnamespace", shareLabels, "namespace"), under("podname", shareLabels, "pod"), under("ctrname", shareLabels, "container"), indexLabel("vdeviceid"), hamiZone,
	}
	oldShareLabels  = append(slices.Clone(oldPodLabels), under("deviceuuid", shareLabels, "uuid"))
	oldMemoryLabels = append([]label{
		bytesLabel("context", contexts), bytesLabel("module", residue), bytesLabel("data", buffers), constant("offset", "0"),
	}, oldShareLabels...)
)

func hamiType(name string) label {
	return text(name, func(r *row) string { return "NVIDIA-" + r.gpu.Model })
}

func lastKernel(name string) family {
	return gauge(name, lastKernelHelp, func(r *row) (float64, bool) {
		return max(0, time.Since(r.share.LastLaunch).Seconds()), !r.share.LastLaunch.IsZero()
	})
}

func migInfo(name string) family {
	return known(name, migHelp, func(*row) float64 { return 1 })
}

func migGPU(name string) label {
	return text(name, func(r *row) string { return r.gpu.MIG.GPU })
}

func gpuInstance(name string) label {
	return text(name, func(r *row) string { return strconv.Itoa(r.gpu.MIG.GPUInstance) })
}

var hamiFamilies = slices.Concat(
	group(hamiGPULabels, (*reading).wholeGPUs,
		alias("hami_host_gpu_memory_used_bytes", gpuMemoryHelp, gpuMemoryUsed, 1),
		alias("hami_host_gpu_utilization_ratio", utilizationHelp, gpuUtilization, percent),
		gauge("hami_host_gpu_memory_controller_utilization_ratio", "GPU memory controller utilization, 0 to 100.", func(r *row) (float64, bool) {
			return optional(r.telemetry.MemoryControllerPercent, 1)
		}),
	),
	group(hamiShareLabels, (*reading).podShares,
		alias("hami_vgpu_memory_used_bytes", usedHelp, memoryUsed, 1),
		alias("hami_vgpu_memory_limit_bytes", limitHelp, memoryLimit, 1),
		alias("hami_container_device_memory_bytes", usedHelp, memoryUsed, 1),
		alias("hami_container_device_utilization_ratio", coreHelp, coreUsed, percent),
		lastKernel("hami_container_last_kernel_elapsed_seconds"),
		known("hami_vgpu_memory_context_bytes", "GPU memory of the container's contexts, part of "+memoryUsed+".", func(r *row) float64 { return float64(contexts(r)) }),
		alias("hami_vgpu_memory_module_bytes", "Other GPU memory that the driver counts for the container, such as modules.", memoryResidue, 1),
		known("hami_vgpu_memory_buffer_bytes", "GPU memory of the container without its contexts, part of "+memoryUsed+".", func(r *row) float64 { return float64(buffers(r)) }),
	),
	group(oldGPULabels, (*reading).wholeGPUs,
		alias("HostGPUMemoryUsage", gpuMemoryHelp, gpuMemoryUsed, 1),
		alias("HostCoreUtilization", utilizationHelp, gpuUtilization, percent),
	),
	group(oldShareLabels, (*reading).podShares,
		alias("vGPU_device_memory_usage_in_bytes", usedHelp, memoryUsed, 1),
		alias("vGPU_device_memory_limit_in_bytes", limitHelp, memoryLimit, 1),
		alias("Device_utilization_desc_of_container", coreHelp, coreUsed, percent),
		lastKernel("Device_last_kernel_of_container"),
	),
	group(oldMemoryLabels, (*reading).podShares,
		alias("Device_memory_desc_of_container", "GPU memory in use by the container, bytes; the labels have its parts.", memoryUsed, 1),
	),
	group(append([]label{
		migGPU("device_uuid"), under("mig_uuid", shareLabels, "uuid"), gpuInstance("gpu_instance_id"),
		text("profile", func(r *row) string { return r.gpu.MIGProfile }),
		text("compute_instance_id", func(r *row) string { return strconv.Itoa(r.gpu.MIG.ComputeInstance) }),
	}, hamiPodLabels...), (*reading).migShares, migInfo("hami_mig_device_info")),
	group(append([]label{migGPU("deviceuuid"), gpuInstance("instanceid")}, oldPodLabels...), (*reading).migShares, migInfo("MigInfo")),
)

func managerLabels(by string) []label {
	return []label{
		under("pod_name", shareLabels, "pod"), under("namespace", shareLabels, "namespace"), under("node", shareLabels, "node"),
		under("container_name", shareLabels, "container"), wordLabel(by),
	}
}

var gpuManagerFamilies = slices.Concat(
	group(managerLabels("gpu"), (*reading).perGPU,
		alias("container_gpu_utilization", "GPU utilization of the container, percent of one GPU, per GPU and in total.", coreUsed, percent)),
	group(managerLabels("gpu_memory"), (*reading).perGPU,
		alias("container_gpu_memory_total", "GPU memory in use by the container, MiB, per GPU and in total.", memoryUsed, mebibytePerByte)),
	group(managerLabels("req_of_gpu"), (*reading).granted,
		known("container_request_gpu_utilization", "GPUs granted to the container, 0.5 is half of one; the sum of gpuslice_container_core_limit_ratio.", (*row).sum)),
	group(managerLabels("req_of_gpu_memory"), (*reading).granted,
		alias("container_request_gpu_memory", "GPU memory granted to the container, MiB, of all its GPUs.", memoryLimit, mebibytePerByte)),
)
