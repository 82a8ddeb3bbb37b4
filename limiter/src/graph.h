/* What launches of graphs take of the GPUs. */
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
	uint32_t taking; /* bit i: of cell i, so much */
	uint64_t taken[VGPU_MAX_DEVICES];
};

CUresult graph_needs(CUgraph graph, struct graph_need *need);

/* Whether this process has any executable graph that takes memory. */
extern _Atomic uint32_t graphs_with_memory;

static inline bool graphs_take_memory(void)
{
	/* Relaxed: who launches a graph has been handed it by who made it. */
	return atomic_load_explicit(&graphs_with_memory, memory_order_relaxed) != 0;
}

/* Around a launch or an upload; stream as the driver's plain functions take it. On an
 * error the driver must not be asked. */
CUresult graph_begin(struct graph_call *call, CUgraphExec exec, CUstream stream);
CUresult graph_end(struct graph_call *call, CUresult result);

/* The same for an upload that is part of an instantiation. */
CUresult graph_begin_upload(struct graph_call *call, const struct graph_need *need, CUstream stream);
void graph_upload_failed(struct graph_call *call, const struct graph_need *need);

/* It was instantiated. False: it can't be written down. */
bool graph_made(CUgraphExec exec, const struct graph_need *need, bool uploaded);

#endif
