package monitoring

import "fmt"

const (
	gpu       = "{{node}} {{index}}"
	container = "{{namespace}}/{{pod}}/{{container}}"
)

// rows are the whole dashboard.
func rows() []row {
	return []row{
		{"Cluster", 4, []panel{
			stat("Nodes", "none", 0, "Nodes whose agent reports GPUs.", `count(count by (node) (gpuslice_gpu_healthy{node=~"$node"}))`),
			stat("GPUs", "none", 0, "MIG devices count as GPUs.", `count(gpuslice_gpu_healthy{node=~"$node"})`),
			stat("GPUs not healthy", "none", 1, "They get no new containers.", `count(gpuslice_gpu_healthy{node=~"$node"} == 0) or vector(0)`),
			stat("Memory granted", "percentunit", 0, "Of what may be granted.", share("memory_granted_bytes", "memory_grantable_bytes")),
			stat("Memory used", "percentunit", 0, "Of what the GPUs have, by whomever, as NVML says.", share("memory_used_bytes", "memory_total_bytes")),
			stat("Compute granted", "percentunit", 0, "Of what may be granted.", share("cores_granted_ratio", "cores_grantable_ratio")),
			stat("Violations now", "none", 1, "What uses GPUs past its grants.", `sum(gpuslice_violations{node=~"$node"}) or vector(0)`),
			stat("Pods pending", "none", 0, "Pods that ask for GPUs and are on no node.", `sum(max by (reason) (gpuslice_scheduler_pending_pods)) or vector(0)`),
		}},
		{"GPUs", 9, []panel{
			table("GPUs", "What is granted and used of each GPU.", []string{"node", "index", "model", "uuid"},
				column{"Healthy", "bool_yes_no", byGPU("gpuslice_gpu_healthy")},
				column{"Containers", "none", byGPU("gpuslice_gpu_containers")},
				column{"Memory granted", "percentunit", byGPU("gpuslice_gpu_memory_granted_bytes") + " / " + byGPU("gpuslice_gpu_memory_grantable_bytes")},
				column{"Memory used", "percentunit", byGPU("gpuslice_gpu_memory_used_bytes") + " / " + byGPU("gpuslice_gpu_memory_total_bytes")},
				column{"Compute granted", "percentunit", byGPU("gpuslice_gpu_cores_granted_ratio") + " / " + byGPU("gpuslice_gpu_cores_grantable_ratio")},
				column{"Busy", "percentunit", byGPU("gpuslice_gpu_utilization_ratio")},
				column{"Slots", "none", byGPU("gpuslice_gpu_containers_limit")},
			),
		}},
		{"GPUs over time", 8, []panel{
			graph("Memory used", "bytes", "By whomever, as NVML says.", query{`gpuslice_gpu_memory_used_bytes{node=~"$node"}`, gpu}),
			graph("Busy", "percentunit", "Part of the time in which some kernel ran.", query{`gpuslice_gpu_utilization_ratio{node=~"$node"}`, gpu}),
			graph("Temperature", "celsius", "", query{`gpuslice_gpu_temperature_celsius{node=~"$node"}`, gpu}),
			graph("Power", "watt", "", query{`gpuslice_gpu_power_watts{node=~"$node"}`, gpu}),
		}},
		{"Containers", 9, []panel{
			table("Containers", "Over all of a container's GPUs.", []string{"node", "namespace", "pod", "container"},
				column{"Memory", "bytes", byContainer("gpuslice_container_memory_used_bytes")},
				column{"Memory limit", "bytes", byContainer("gpuslice_container_memory_limit_bytes")},
				column{"Held by the driver", "bytes", byContainer("gpuslice_container_memory_residue_bytes")},
				column{"Compute", "percentunit", byContainer("gpuslice_container_core_used_ratio")},
				column{"Compute limit", "percentunit", byContainer("gpuslice_container_core_limit_ratio")},
				column{"Processes", "none", byContainer("gpuslice_container_processes")},
				column{"Idle for", "s", `time() - max by (node, namespace, pod, container) (gpuslice_container_last_launch_timestamp_seconds{node=~"$node", namespace=~"$namespace"})`},
			),
		}},
		{"Containers over time (the 10 with the most)", 8, []panel{
			graph("Memory used of the limit", "percentunit", "", query{top(byContainer("gpuslice_container_memory_used_bytes") + " / " + byContainer("gpuslice_container_memory_limit_bytes")), container}),
			graph("Compute time had", "percentunit", "Of the GPU, as NVML says.", query{top(byContainer("gpuslice_container_core_used_ratio")), container}),
			graph("Compute time charged", "percentunit", "Of the GPU, as the limiter counts it, while a share is enforced.", query{top(rate("gpuslice_container_compute_seconds_total")), container}),
			graph("Waiting for its share", "percentunit", "Part of the time; several processes wait at once.", query{top(rate("gpuslice_container_throttled_seconds_total")), container}),
		}},
		{"Containers' launches and refusals (the 10 with the most)", 7, []panel{
			graph("Launches", "ops", "While a share is enforced.", query{top(rate("gpuslice_container_launches_total")), container}),
			graph("Allocations refused by the limit", "ops", "", query{top(rate("gpuslice_container_refused_allocations_total")), container}),
		}},
		{"Isolation", 7, []panel{
			graph("Violations now", "none", "", query{`sum by (kind) (gpuslice_violations{node=~"$node"})`, "{{kind}}"}),
			graph("Violations found", "none", "In an hour, by what was done about them.",
				query{`sum by (kind, action) (increase(gpuslice_violations_total{node=~"$node"}[1h]))`, "{{kind}}: {{action}}"}),
			graph("Damaged usage files", "none", "Containers that have spoilt the file in which they account for what they use.",
				query{`sum by (node) (gpuslice_container_usage_file_damaged{node=~"$node"})`, "{{node}}"}),
			graph("Orphans", "none", "Claims of containers that are gone.", query{`sum by (node) (gpuslice_orphans{node=~"$node"})`, "{{node}}"}),
		}},
		{"Agents", 7, []panel{
			graph("Connected to the runtime", "bool_yes_no", "Whether the agent is connected to the container runtime.", query{`min by (node) (gpuslice_nri_connected{node=~"$node"})`, "{{node}}"}),
			graph("Containers by how they are limited", "none", "", query{`sum by (enforcement) (gpuslice_containers{node=~"$node"})`, "{{enforcement}}"}),
			graph("Containers refused", "ops", "", query{`sum by (reason) (rate(gpuslice_refusals_total{node=~"$node"}[$__rate_interval]))`, "{{reason}}"}),
			graph("Answers to the runtime, slowest of 100", "s", "The runtime waits for 2 s.",
				query{`max by (event) (node_event:gpuslice_nri_request_duration_seconds:p99_5m{node=~"$node"})`, "{{event}}"}),
		}},
		{"Scheduler", 8, []panel{
			graph("Slowest of 100 calls", "s", "bind and annotate wait for the API server.", query{`component_verb:gpuslice_scheduler_verb_duration_seconds:p99_5m`, "{{component}} {{verb}}"}),
			graph("Calls", "ops", "", query{`sum by (component, verb, outcome) (rate(gpuslice_scheduler_verb_duration_seconds_count[$__rate_interval]))`, "{{component}} {{verb}}: {{outcome}}"}),
			graph("Denials", "ops", "Pods that no node could take, by the reason that most nodes gave; each try counts.",
				query{`sum by (reason) (rate(gpuslice_scheduler_denials_total[$__rate_interval]))`, "{{reason}}"}),
			graph("Pods pending", "none", "By the reason that most nodes give; fragmented: the memory is free, but not on one GPU.",
				query{`max by (reason) (gpuslice_scheduler_pending_pods)`, "{{reason}}"}, query{`max(gpuslice_scheduler_fragmented_pods)`, "fragmented"}),
		}},
		{"Reservations", 7, []panel{
			graph("Reserved part of the GPUs", "percentunit", "By the scheduler, over all registered GPUs.",
				query{`avg by (of) (max by (node, uuid, of) (gpuslice_scheduler_gpu_reserved_ratio{node=~"$node"}))`, "{{of}}"}),
			graph("Reservations", "ops", "refused: another pod had taken the GPU.", query{`sum by (outcome) (rate(gpuslice_scheduler_reservations_total[$__rate_interval]))`, "{{outcome}}"}),
			graph("Webhook", "ops", "", query{`sum by (path, outcome, reason) (rate(gpuslice_scheduler_admission_total[$__rate_interval]))`, "{{path}} {{outcome}} {{reason}}"}),
			graph("Problems", "none", "Annotations that are rejected, and overcommitted GPUs.", query{`max(gpuslice_scheduler_problems)`, "problems"}),
		}},
		{"Quotas", 7, []panel{
			graph("Memory reserved of the namespace's quota", "percentunit", "Of namespaces whose ResourceQuotas limit GPU memory.", query{quota("memory_used_bytes", "memory_limit_bytes"), "{{namespace}}"}),
			graph("Compute time reserved of the namespace's quota", "percentunit", "Of namespaces whose ResourceQuotas limit compute time.", query{quota("cores_used_ratio", "cores_limit_ratio"), "{{namespace}}"}),
		}},
	}
}

// share is a part of all GPUs' sum.
func share(part, of string) string {
	return fmt.Sprintf(`sum(gpuslice_gpu_%s{node=~"$node"}) / sum(gpuslice_gpu_%s{node=~"$node"})`, part, of)
}

// quota is a part of a namespace's quota, as each scheduler tells it.
func quota(part, of string) string {
	return fmt.Sprintf(`max by (namespace) (gpuslice_scheduler_quota_%s{namespace=~"$namespace"} / gpuslice_scheduler_quota_%s{namespace=~"$namespace"})`, part, of)
}

// rate is how fast a container's counter rises, over its GPUs.
func rate(metric string) string {
	return fmt.Sprintf(`sum by (node, namespace, pod, container) (rate(%s{node=~"$node", namespace=~"$namespace"}[$__rate_interval]))`, metric)
}

// top is the ten largest.
func top(expr string) string { return "topk(10, " + expr + ")" }
