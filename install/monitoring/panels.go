package monitoring

import "fmt"

const (
	gpu       = "{{node}} {{index}}"
	container = "{{namespace}}/{{pod}}/{{container}}"
)

func rows() []row {
	return []row{
		{"Cluster", 4, []panel{
			stat("Nodes", "none", 0, "Nodes with GPUs that the agent reports.", `count(count by (node) (gpuslice_gpu_healthy{node=~"$node"}))`),
			stat("GPUs", "none", 0, "MIG devices count as GPUs.", `count(gpuslice_gpu_healthy{node=~"$node"})`),
			stat("GPUs not healthy", "none", 1, "GPUs that get no new containers.", `count(gpuslice_gpu_healthy{node=~"$node"} == 0) or vector(0)`),
			stat("Memory granted", "percentunit", 0, "Part of the memory that can be granted.", share("memory_granted_bytes", "memory_grantable_bytes")),
			stat("Memory used", "percentunit", 0, "Part of the GPUs' memory, by all processes (NVML).", share("memory_used_bytes", "memory_total_bytes")),
			stat("Compute granted", "percentunit", 0, "Part of the compute time that can be granted.", share("cores_granted_ratio", "cores_grantable_ratio")),
			stat("Violations now", "none", 1, "Processes that use GPUs without a grant or over the limit.", `sum(gpuslice_violations{node=~"$node"}) or vector(0)`),
			stat("Pods pending", "none", 0, "Pods that request GPUs and are not scheduled.", `sum(max by (reason) (gpuslice_scheduler_pending_pods)) or vector(0)`),
		}},
		{"GPUs", 9, []panel{
			table("GPUs", "Granted and used shares of each GPU.", []string{"node", "index", "model", "uuid"},
				column{"Healthy", "bool_yes_no", byGPU("gpuslice_gpu_healthy")},
				column{"Containers", "none", byGPU("gpuslice_gpu_containers")},
				column{"Memory granted", "percentunit", byGPU("gpuslice_gpu_memory_granted_bytes") + " / " + byGPU("gpuslice_gpu_memory_grantable_bytes")},
				column{"Memory used", "percentunit", byGPU("gpuslice_gpu_memory_used_bytes") + " / " + byGPU("gpuslice_gpu_memory_total_bytes")},
				column{"Compute granted", "percentunit", byGPU("gpuslice_gpu_cores_granted_ratio") + " / " + byGPU("gpuslice_gpu_cores_grantable_ratio")},
				column{"Busy", "percentunit", byGPU("gpuslice_gpu_utilization_ratio")},
				column{"Replicas", "none", byGPU("gpuslice_gpu_containers_limit")},
			),
		}},
		{"GPUs over time", 8, []panel{
			graph("Memory used", "bytes", "By all processes (NVML).", query{`gpuslice_gpu_memory_used_bytes{node=~"$node"}`, gpu}),
			graph("Busy", "percentunit", "Part of the time in which a kernel ran.", query{`gpuslice_gpu_utilization_ratio{node=~"$node"}`, gpu}),
			graph("Temperature", "celsius", "", query{`gpuslice_gpu_temperature_celsius{node=~"$node"}`, gpu}),
			graph("Power", "watt", "", query{`gpuslice_gpu_power_watts{node=~"$node"}`, gpu}),
		}},
		{"Containers", 9, []panel{
			table("Containers", "Sums over a container's GPUs.", []string{"node", "namespace", "pod", "container"},
				column{"Memory", "bytes", byContainer("gpuslice_container_memory_used_bytes")},
				column{"Memory limit", "bytes", byContainer("gpuslice_container_memory_limit_bytes")},
				column{"Used by the driver", "bytes", byContainer("gpuslice_container_memory_residue_bytes")},
				column{"Compute", "percentunit", byContainer("gpuslice_container_core_used_ratio")},
				column{"Compute limit", "percentunit", byContainer("gpuslice_container_core_limit_ratio")},
				column{"Processes", "none", byContainer("gpuslice_container_processes")},
				column{"Idle for", "s", `time() - max by (node, namespace, pod, container) (gpuslice_container_last_launch_timestamp_seconds{node=~"$node", namespace=~"$namespace"})`},
			),
		}},
		{"Containers over time (the 10 with the most)", 8, []panel{
			graph("Memory used, part of the limit", "percentunit", "", query{top(byContainer("gpuslice_container_memory_used_bytes") + " / " + byContainer("gpuslice_container_memory_limit_bytes")), container}),
			graph("Compute time used", "percentunit", "Part of the GPU (NVML).", query{top(byContainer("gpuslice_container_core_used_ratio")), container}),
			graph("Compute time charged", "percentunit", "Part of the GPU, as the limiter measures it while it enforces a share.", query{top(rate("gpuslice_container_compute_seconds_total")), container}),
			graph("Throttled", "percentunit", "Part of the time, added over processes.", query{top(rate("gpuslice_container_throttled_seconds_total")), container}),
		}},
		{"Containers' launches and refusals (the 10 with the most)", 7, []panel{
			graph("Launches", "ops", "While the limiter enforces a share.", query{top(rate("gpuslice_container_launches_total")), container}),
			graph("Allocations refused by the limit", "ops", "", query{top(rate("gpuslice_container_refused_allocations_total")), container}),
		}},
		{"Isolation", 7, []panel{
			graph("Violations now", "none", "", query{`sum by (kind) (gpuslice_violations{node=~"$node"})`, "{{kind}}"}),
			graph("Violations found", "none", "In one hour, by action.",
				query{`sum by (kind, action) (increase(gpuslice_violations_total{node=~"$node"}[1h]))`, "{{kind}}: {{action}}"}),
			graph("Damaged usage files", "none", "Containers that damaged their usage file.",
				query{`sum by (node) (gpuslice_container_usage_file_damaged{node=~"$node"})`, "{{node}}"}),
			graph("Orphan claims", "none", "Shares of deleted containers that are not released.", query{`sum by (node) (gpuslice_orphans{node=~"$node"})`, "{{node}}"}),
		}},
		{"Agents", 7, []panel{
			graph("Connected", "bool_yes_no", "Whether the agent is connected to the container runtime.", query{`min by (node) (gpuslice_nri_connected{node=~"$node"})`, "{{node}}"}),
			graph("Containers by enforcement", "none", "", query{`sum by (enforcement) (gpuslice_containers{node=~"$node"})`, "{{enforcement}}"}),
			graph("Containers refused", "ops", "", query{`sum by (reason) (rate(gpuslice_refusals_total{node=~"$node"}[$__rate_interval]))`, "{{reason}}"}),
			graph("Answers to the runtime, 99th percentile", "s", "The runtime waits for 2 s.",
				query{`max by (event) (node_event:gpuslice_nri_request_duration_seconds:p99_5m{node=~"$node"})`, "{{event}}"}),
		}},
		{"Scheduler", 8, []panel{
			graph("Calls, 99th percentile", "s", "bind and annotate call the API server.", query{`component_verb:gpuslice_scheduler_verb_duration_seconds:p99_5m`, "{{component}} {{verb}}"}),
			graph("Calls", "ops", "", query{`sum by (component, verb, outcome) (rate(gpuslice_scheduler_verb_duration_seconds_count[$__rate_interval]))`, "{{component}} {{verb}}: {{outcome}}"}),
			graph("Denials", "ops", "Scheduling attempts without a node, by the most frequent reason.",
				query{`sum by (reason) (rate(gpuslice_scheduler_denials_total[$__rate_interval]))`, "{{reason}}"}),
			graph("Pods pending", "none", "By the most frequent reason. fragmented: the free memory is sufficient, but not on one GPU.",
				query{`max by (reason) (gpuslice_scheduler_pending_pods)`, "{{reason}}"}, query{`max(gpuslice_scheduler_fragmented_pods)`, "fragmented"}),
		}},
		{"Reservations", 7, []panel{
			graph("Reserved part of the GPUs", "percentunit", "Average over all registered GPUs, in the scheduler's state.",
				query{`avg by (of) (max by (node, uuid, of) (gpuslice_scheduler_gpu_reserved_ratio{node=~"$node"}))`, "{{of}}"}),
			graph("Reservations", "ops", "refused: a reservation that another pod made first.", query{`sum by (outcome) (rate(gpuslice_scheduler_reservations_total[$__rate_interval]))`, "{{outcome}}"}),
			graph("Webhook", "ops", "", query{`sum by (path, outcome, reason) (rate(gpuslice_scheduler_admission_total[$__rate_interval]))`, "{{path}} {{outcome}} {{reason}}"}),
			graph("Problems", "none", "Invalid or untrusted annotations, and GPUs with more shares than capacity.", query{`max(gpuslice_scheduler_problems)`, "problems"}),
		}},
		{"Quotas", 7, []panel{
			graph("Memory reserved, part of the quota", "percentunit", "Namespaces with a ResourceQuota of GPU memory.", query{quota("memory_used_bytes", "memory_limit_bytes"), "{{namespace}}"}),
			graph("Compute time reserved, part of the quota", "percentunit", "Namespaces with a ResourceQuota of compute time.", query{quota("cores_used_ratio", "cores_limit_ratio"), "{{namespace}}"}),
		}},
	}
}

func share(part, of string) string {
	return fmt.Sprintf(`sum(gpuslice_gpu_%s{node=~"$node"}) / sum(gpuslice_gpu_%s{node=~"$node"})`, part, of)
}

// quota is a part of a namespace's quota. Each scheduler exports it.
func quota(part, of string) string {
	return fmt.Sprintf(`max by (namespace) (gpuslice_scheduler_quota_%s{namespace=~"$namespace"} / gpuslice_scheduler_quota_%s{namespace=~"$namespace"})`, part, of)
}

// rate is the rate of a container's counter, over its GPUs.
func rate(metric string) string {
	return fmt.Sprintf(`sum by (node, namespace, pod, container) (rate(%s{node=~"$node", namespace=~"$namespace"}[$__rate_interval]))`, metric)
}

func top(expr string) string { return "topk(10, " + expr + ")" }
