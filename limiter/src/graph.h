/* The memory that launches of graphs take on the GPUs. */
#ifndef GPUSLICE_GRAPH_H
#define GPUSLICE_GRAPH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api.h"
#include "layout.h"

struct process;

struct graph_need { /* by cell: what the graph's allocation nodes take at most */
	bool any;
	uint64_t bytes[VGPU_MAX_DEVICES];
	CUdevice dev[VGPU_MAX_DEVICES];
};

struct graph_call {
	struct process *process;
	uint32_t taking; /* bit i: taken[i] bytes are charged on cell i */
	uint64_t taken[VGPU_MAX_DEVICES];
};

/* Sums the memory of the allocation nodes of a graph, and of its child graphs, per cell. Returns the driver's
 * error, or CUDA_ERROR_NOT_INITIALIZED if a node needs a GPU that is not granted. */
CUresult graph_needs(CUgraph graph, struct graph_need *need);

/* Whether this process has any executable graph that takes memory. */
extern _Atomic uint32_t graphs_with_memory;

static inline bool graphs_take_memory(void)
{
	/* Relaxed: a thread has the graph's handle only after the graph was made. */
	return atomic_load_explicit(&graphs_with_memory, memory_order_relaxed) != 0;
}

/* Before and after a launch or an upload. stream is as the driver's plain functions take it.
 * graph_begin charges the memory; on its error the driver must not be called. graph_end returns
 * the driver's result. */
CUresult graph_begin(struct graph_call *call, CUgraphExec exec, CUstream stream);
CUresult graph_end(struct graph_call *call, CUresult result);

/* Charges the memory of an upload that is part of an instantiation, before the driver is called; on
 * an error the driver must not be called. graph_upload_failed undoes it after a failed
 * instantiation. graph_end follows in both cases. */
CUresult graph_begin_upload(struct graph_call *call, const struct graph_need *need, CUstream stream);
void graph_upload_failed(struct graph_call *call, const struct graph_need *need);

/* Records an instantiated graph. False: there is no memory for the entry. */
bool graph_made(CUgraphExec exec, const struct graph_need *need, bool uploaded);

#endif
