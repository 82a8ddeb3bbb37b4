package metrics

import "strconv"

// HAMi's labels: of GPUs and of containers, as they are now, and as they were.
var (
	hamiZone      = constant("zone", "vGPU")
	hamiGPULabels = sorted(
		under("node", gpuLabels, "node"), under("device_index", gpuLabels, "index"), under("device_uuid", gpuLabels, "uuid"), hamiType("device_type"), hamiZone,
	)
	hamiShareLabels = sorted(
		under("namespace", shareLabels, "namespace"), under("pod", shareLabels, "pod"), under("container", shareLabels, "container"),
		place("vdevice_index"), under("device_uuid", shareLabels, "uuid"), hamiZone,
	)
	oldGPULabels = sorted(
		under("nodeid", gpuLabels, "node"), under("deviceidx", gpuLabels, "index"), under("deviceuuid", gpuLabels, "uuid"), hamiType("devicetype"), hamiZone,
	)
	oldShareLabels = sorted(
		under("podnamespace", shareLabels, "namespace"), under("podname", shareLabels, "pod"), under("ctrname", shareLabels, "container"),
		place("vdeviceid"), under("deviceuuid", shareLabels, "uuid"), hamiZone,
	)
	oldMemoryLabels = sorted(append([]label{
		bytesOf("context", contexts), bytesOf("module", residue), bytesOf("data", buffers), constant("offset", "0"),
	}, oldShareLabels...)...)
)

// hamiType is a GPU's model as HAMi writes it.
func hamiType(name string) label {
	return label{name, func(_ *reading, r *row) string { return "NVIDIA-" + r.gpu.Model }}
}

var (
	lastKernel = family{Family{}, func(r *row) (float64, bool) {
		return optional(!r.share.LastLaunch.IsZero(), func() float64 { return max(0, sinceNow(r.share.LastLaunch)) })
	}}
	memoryController = family{Family{}, func(r *row) (float64, bool) {
		return optional(r.gpu.Telemetry != nil && r.gpu.Telemetry.MemoryControllerPercent != nil, func() float64 { return float64(*r.gpu.Telemetry.MemoryControllerPercent) })
	}}
)

// as is a family of its own under a name.
func as(name, help string, f family) family {
	return family{Family{Name: name, Help: help}, f.value}
}

func known(name, help string, value func(*row) float64) family {
	return family{Family{Name: name, Help: help}, func(r *row) (float64, bool) { return value(r), true }}
}

var hamiGroups = []group{
	group{hamiGPULabels, (*reading).wholeGPUs, []family{
		alias("hami_host_gpu_memory_used_bytes", "GPU memory used, bytes.", ours("gpuslice_gpu_memory_used_bytes"), 1),
		alias("hami_host_gpu_utilization_ratio", "GPU utilization, 0 to 100.", ours("gpuslice_gpu_utilization_ratio"), percent),
		as("hami_host_gpu_memory_controller_utilization_ratio", "GPU memory controller utilization, 0 to 100.", memoryController),
	}}.named(),
	group{hamiShareLabels, (*reading).podShares, []family{
		alias("hami_vgpu_memory_used_bytes", "Memory that the container uses, bytes.", ours("gpuslice_container_memory_used_bytes"), 1),
		alias("hami_vgpu_memory_limit_bytes", "Memory that the container may use, bytes.", ours("gpuslice_container_memory_limit_bytes"), 1),
		alias("hami_container_device_memory_bytes", "Memory that the container uses, bytes.", ours("gpuslice_container_memory_used_bytes"), 1),
		alias("hami_container_device_utilization_ratio", "Utilization by the container, 0 to 100.", ours("gpuslice_container_core_used_ratio"), percent),
		as("hami_container_last_kernel_elapsed_seconds", "Seconds since the container was at work last, now less gpuslice_container_last_launch_timestamp_seconds.", lastKernel),
		known("hami_vgpu_memory_context_bytes", "Memory of the container's contexts, a part of gpuslice_container_memory_used_bytes.", func(r *row) float64 { return float64(contexts(r.share)) }),
		alias("hami_vgpu_memory_module_bytes", "Memory that the driver took beside, for modules and else.", ours("gpuslice_container_memory_residue_bytes"), 1),
		known("hami_vgpu_memory_buffer_bytes", "What the container uses beside its contexts, the rest of gpuslice_container_memory_used_bytes.", func(r *row) float64 { return float64(buffers(r.share)) }),
	}}.named(),
	group{oldGPULabels, (*reading).wholeGPUs, []family{
		alias("HostGPUMemoryUsage", "GPU memory used, bytes.", ours("gpuslice_gpu_memory_used_bytes"), 1),
		alias("HostCoreUtilization", "GPU utilization, 0 to 100.", ours("gpuslice_gpu_utilization_ratio"), percent),
	}}.named(),
	group{oldShareLabels, (*reading).podShares, []family{
		alias("vGPU_device_memory_usage_in_bytes", "Memory that the container uses, bytes.", ours("gpuslice_container_memory_used_bytes"), 1),
		alias("vGPU_device_memory_limit_in_bytes", "Memory that the container may use, bytes.", ours("gpuslice_container_memory_limit_bytes"), 1),
		alias("Device_utilization_desc_of_container", "Utilization by the container, 0 to 100.", ours("gpuslice_container_core_used_ratio"), percent),
		as("Device_last_kernel_of_container", "Seconds since the container was at work last, now less gpuslice_container_last_launch_timestamp_seconds.", lastKernel),
	}}.named(),
	group{oldMemoryLabels, (*reading).podShares, []family{
		alias("Device_memory_desc_of_container", "Memory that the container uses, bytes; its parts are in the labels.", ours("gpuslice_container_memory_used_bytes"), 1),
	}}.named(),
	group{sorted(
		under("namespace", shareLabels, "namespace"), under("pod", shareLabels, "pod"), under("container", shareLabels, "container"),
		place("vdevice_index"), ofMIG("device_uuid", func(r *row) string { return r.gpu.MIG.GPU }), under("mig_uuid", shareLabels, "uuid"),
		ofMIG("profile", func(r *row) string { return r.gpu.MIGProfile }), gpuInstance("gpu_instance_id"),
		ofMIG("compute_instance_id", func(r *row) string { return strconv.Itoa(r.gpu.MIG.ComputeInstance) }), hamiZone,
	), (*reading).migShares, []family{info("hami_mig_device_info", "1, for the MIG device that the container has.")}}.named(),
	group{sorted(
		under("podnamespace", shareLabels, "namespace"), under("podname", shareLabels, "pod"), under("ctrname", shareLabels, "container"),
		place("vdeviceid"), ofMIG("deviceuuid", func(r *row) string { return r.gpu.MIG.GPU }), gpuInstance("instanceid"), hamiZone,
	), (*reading).migShares, []family{info("MigInfo", "1, for the MIG device that the container has.")}}.named(),
}

func ofMIG(name string, value func(*row) string) label {
	return label{name, func(_ *reading, r *row) string { return value(r) }}
}

func gpuInstance(name string) label {
	return ofMIG(name, func(r *row) string { return strconv.Itoa(r.gpu.MIG.GPUInstance) })
}

func info(name, help string) family {
	return known(name, help, func(*row) float64 { return 1 })
}

// managerLabels are gpu-manager's, with one whose name says what is counted.
func managerLabels(by string) []label {
	return sorted(
		under("pod_name", shareLabels, "pod"), under("namespace", shareLabels, "namespace"), under("node", shareLabels, "node"), under("container_name", shareLabels, "container"),
		label{by, func(_ *reading, r *row) string { return r.word }},
	)
}

const mebibytesPerByte = 1.0 / bytesPerMiB

var gpuManagerGroups = []group{
	group{managerLabels("gpu"), (*reading).perGPU, []family{
		alias("container_gpu_utilization", "Utilization by the container, percent of a GPU, of each and in all.", ours("gpuslice_container_core_used_ratio"), percent),
	}}.named(),
	group{managerLabels("gpu_memory"), (*reading).perGPU, []family{
		alias("container_gpu_memory_total", "Memory that the container uses, MiB, of each GPU and in all.", ours("gpuslice_container_memory_used_bytes"), mebibytesPerByte),
	}}.named(),
	group{managerLabels("req_of_gpu"), (*reading).requested, []family{
		known("container_request_gpu_utilization", "GPUs that the container is granted, 0.5 is half of one; the sum of gpuslice_container_core_limit_ratio.", func(r *row) float64 { return r.number }),
	}}.named(),
	group{managerLabels("req_of_gpu_memory"), (*reading).requested, []family{
		alias("container_request_gpu_memory", "Memory that the container is granted, MiB, of all its GPUs.", ours("gpuslice_container_memory_limit_bytes"), mebibytesPerByte),
	}}.named(),
}
