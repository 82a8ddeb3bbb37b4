/* The driver's own checks, one topic per function. A failed CHECK prints its place and ends the program with status 1. */
#ifndef SIMDRIVER_CHECK_H
#define SIMDRIVER_CHECK_H

#include "../cuda_api.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                   \
	do {                                                                               \
		if (!(condition)) {                                                        \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			exit(1);                                                           \
		}                                                                          \
	} while (0)

#define GIVES(call, wanted)                                                                       \
	do {                                                                                      \
		CUresult got_ = (call);                                                           \
		if (got_ != (wanted)) {                                                           \
			fprintf(stderr, "%s:%d: %s gives %d, not %s\n", __FILE__, __LINE__, #call, \
				(int)got_, #wanted);                                              \
			exit(1);                                                                  \
		}                                                                                 \
	} while (0)

#define FINE(call) GIVES(call, CUDA_SUCCESS)

/* cuInit and the primary context of device 0. */
CUcontext start(void);
extern const char spin_ptx[]; /* entries spin (500 us) and quick (10 us) */

void check_uninitialised(void);
void check_devices(void);
void check_contexts(void);
void check_memory(void);
void check_copies(void);
void check_sharing(void);
void check_free_async(void);
void check_graph_reuse(void);
void check_checkpoint(void);
void check_checkpoint_other(void);
void check_launch_cost(void);
void check_pages(void);
void check_context_growth(void);
void check_device_heap(void);
void check_import_holder(void);
void check_init_only(void);
void check_granularity(void);
void check_contents(void);
void check_graph_contents(void);
void check_lookup(void);
void check_errors(void);
void check_modules(void);
void check_images(void);
void check_linker(void);
void check_libraries(void);
void check_occupancy(void);
void check_limits(void);
void check_host_functions(void);
void check_pointers(void);
void check_pointer_kinds(void);
void check_time(void);
void check_streams(void);
void check_pools(void);
void check_graphs(void);
void check_capture(void);
void check_queue(void);
void check_overlap(void);
void check_overlap_unequal(void);
void check_graph_overlap(void);
void check_data_decides(void);
void check_never_ends(void);
void check_legacy(void);
void check_devices_together(void);
void check_fork(void);
void check_nvml_fork(void);
void check_threads(void);
void check_vmm(void);
void check_arrays(void);
void check_textures(void);
void check_tensor_maps(void);
void check_stream_attributes(void);
void check_managed(void);
void check_parameters(void);
void check_graph_edges(void);
void check_kernel_nodes(void);
void check_host_nodes(void);
void check_graph_dot(void);
void check_user_objects(void);
void check_user_objects_used(void);
void check_node_parameters(void);
void check_capture_graph(void);
void check_shared(void);
void check_legacy_copies(void);
void check_breadth(void);
void check_pending(void);
void check_gates(void);
void check_values(void);
void check_green(void);
void check_nvml_private(void);
/* Not in the list: */
void check_waits_forever(void);
void check_event_cost(void); /* prints it */
void check_streams_small(void); /* prints whether they began together */
void check_streams_large(void); /* the same */
void check_nvml_pids(void);
void check_nvml_details(void);
void check_nvml_utilization(void);
void check_missed(void);
void check_attributes(void); /* prints those of device 0 */
void check_orphan(void); /* ends by SIGKILL */
void check_export_orphan(void); /* the same */
void check_ipc_orphan(void); /* the same */
void check_mig(void);
void check_mig_late(void);

#endif
