/* Inside libcuda.so.1: executable graphs. */
#ifndef SIMDRIVER_GRAPH_EXEC_H
#define SIMDRIVER_GRAPH_EXEC_H

#include "graph.h"
#include "transfer.h"

#define GRAPH_PAGE (2ull << 20)

struct live { /* an allocation that its graph does not free */
	struct live *next;
	CUdeviceptr ptr;
	CUgraphExec exec; /* NULL: destroyed */
	CUdevice device;
	uint64_t bytes;
};

struct task { /* what a node does */
	struct task *next;
	uint64_t id;	 /* the node's */
	CUgraphNode node; /* while it is compared with another graph's */
	int type;
	bool off;
	uint64_t before; /* stands for the places of the nodes that it depends on */
	struct load load;
	struct task **after; /* what it depends on */
	size_t after_count;
	struct task *parent; /* it is part of that one's graph */
	struct kept *objects; /* user objects of the graph that it is */
	uint64_t begin, end; /* in the launch that is being planned */
	CUcontext ctx; /* of the kernel's function */
	struct transfer transfer;
	CUDA_HOST_NODE_PARAMS host;
	CUevent event;
	struct memops *memops;
	CUdeviceptr ptr;
	size_t bytes;
};

struct CUgraphExec_st {
	struct use used; /* by its launches */
	unsigned long long flags;
	struct kept *objects; /* user objects of the graph that it is made of */
	uint64_t need[MAX_GPUS]; /* bytes of memory, by device */
	struct live *kept;	  /* what a launch leaves allocated */
	struct live *uses;	  /* all that it allocates */
	struct task *tasks, **last; /* in the order in which they can be done */
};

/* What it does for that node; NULL: it has none of it. Process lock held. */
struct task *graph_exec_task(CUgraphExec exec, CUgraphNode node);

/* Makes it of the graph. last points to tasks. Process lock held. */
CUresult exec_fill(CUgraphExec exec, CUgraph graph);
/* It does what the node is set to. Process lock held. */
void task_set(struct task *task, CUgraphNode node);
/* Process lock held. */
void exec_free(CUgraphExec exec);

/* The memory behind its allocation nodes. Process lock held. */
/* Reserves it. */
CUresult exec_memory_map(CUgraphExec exec, CUstream s);
/* The same for a launch, which frees what the last one left if that is how it was instantiated. */
CUresult exec_memory_prepare(CUgraphExec exec, CUstream s);
/* After a launch; done: it was put into the stream. */
void exec_memory_launched(CUgraphExec exec, CUcontext ctx, CUstream s, bool done);
/* It is destroyed: others can take over what it has. */
void exec_memory_leave(CUgraphExec exec);

#endif
