#include "check.h"

#include <string.h>

const char spin_ptx[] = ".version 6.3\n"
			".target sm_75\n"
			"// .entry not_this(\n"
			"// sim-duration-us: 500\n"
			".visible .entry spin(.param .u64 ns) { ret; }\n"
			".visible .entry quick() { ret; }\n"
			"// sim-duration-us: 20000\n"
			".entry slow(\n) { ret; }\n"
			"// sim-duration-us: 100\n"
			"// sim-duration-per-block-ns: 1000\n"
			".entry blocks() { ret; }\n"
			"// sim-duration-us: 1000000\n"
			".entry second() { ret; }\n";

CUcontext start(void)
{
	CUcontext ctx;

	FINE(cuInit(0));
	FINE(cuDevicePrimaryCtxRetain(&ctx, 0));
	FINE(cuCtxSetCurrent(ctx));
	return ctx;
}

struct check {
	const char *name;
	void (*run)(void);
};

/* What the list of checks leaves out: the test has to set things up for them. */
static const struct check unlisted[] = {
	{"waits-forever", check_waits_forever}, {"event-cost", check_event_cost},
	{"streams-small", check_streams_small}, {"streams-large", check_streams_large},
	{"ipc-orphan", check_ipc_orphan}, {"checkpoint-other", check_checkpoint_other}, {"launch-cost", check_launch_cost},
	{"orphan", check_orphan}, {"export-orphan", check_export_orphan}, {"import-holder", check_import_holder}, {"init-only", check_init_only}, {"device-heap", check_device_heap}, {"mig", check_mig}, {"mig-late", check_mig_late}, {"devices-together", check_devices_together},
	{"nvml-pids", check_nvml_pids}, {"nvml-details", check_nvml_details}, {"nvml-utilization", check_nvml_utilization}, {"missed", check_missed}, {"attributes", check_attributes},
};

static const struct check checks[] = {
	{"contents", check_contents}, {"graph-contents", check_graph_contents}, {"sharing", check_sharing},
	{"free-async", check_free_async}, {"graph-reuse", check_graph_reuse}, {"checkpoint", check_checkpoint},
	{"uninitialised", check_uninitialised}, {"devices", check_devices}, {"contexts", check_contexts},
	{"memory", check_memory}, {"pages", check_pages}, {"context-growth", check_context_growth}, {"granularity", check_granularity}, {"copies", check_copies},   {"lookup", check_lookup},
	{"images", check_images}, {"linker", check_linker}, {"libraries", check_libraries}, {"occupancy", check_occupancy}, {"limits", check_limits}, {"host-functions", check_host_functions}, {"pointers", check_pointers}, {"pointer-kinds", check_pointer_kinds}, {"errors", check_errors},
	{"modules", check_modules},		{"time", check_time},	    {"streams", check_streams}, {"pools", check_pools}, {"graphs", check_graphs}, {"capture", check_capture},
	{"overlap", check_overlap}, {"overlap-unequal", check_overlap_unequal}, {"graph-overlap", check_graph_overlap},
	{"data-decides", check_data_decides}, {"never-ends", check_never_ends},
	{"queue", check_queue},			{"legacy", check_legacy},
	{"fork", check_fork},			{"nvml-fork", check_nvml_fork}, {"threads", check_threads},
	{"textures", check_textures}, {"tensor-maps", check_tensor_maps},
	{"stream-attributes", check_stream_attributes}, {"managed", check_managed},
	{"parameters", check_parameters}, {"graph-edges", check_graph_edges}, {"kernel-nodes", check_kernel_nodes}, {"host-nodes", check_host_nodes}, {"graph-dot", check_graph_dot},
	{"user-objects", check_user_objects}, {"user-objects-used", check_user_objects_used},
	{"node-parameters", check_node_parameters},
	{"capture-graph", check_capture_graph},
	{"vmm", check_vmm},			{"arrays", check_arrays},   {"shared", check_shared},
	{"legacy-copies", check_legacy_copies}, {"breadth", check_breadth}, {"pending", check_pending}, {"gates", check_gates}, {"values", check_values}, {"green", check_green}, {"nvml-private", check_nvml_private},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc == 2 && i < sizeof(unlisted) / sizeof(unlisted[0]); i++) {
		if (!strcmp(argv[1], unlisted[i].name)) {
			unlisted[i].run();
			return 0;
		}
	}
	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
		if (argc < 2) {
			puts(checks[i].name);
		} else if (!strcmp(argv[1], checks[i].name)) {
			checks[i].run();
			return 0;
		}
	}
	return argc < 2 ? 0 : 2;
}
