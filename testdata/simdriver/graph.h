/* Inside libcuda.so.1: graphs. */
#ifndef SIMDRIVER_GRAPH_H
#define SIMDRIVER_GRAPH_H

#include "driver.h"

struct nodes { /* that something depends on */
	size_t count, room;
	CUgraphNode node[];
};

struct CUgraphNode_st {
	CUgraph graph;
	CUgraphNode next; /* in the order in which they were added, which is one that they can run in */
	int type;
	bool leads; /* something depends on it */
	unsigned seen; /* by the walk of that number */
	uint64_t id, copy_of; /* numbers, never given twice; 0: a copy of none */
	CUgraphNode *deps; /* what it depends on */
	size_t dep_count, dep_room;
	size_t place;	 /* among its graph's, when that is instantiated */
	struct task *task; /* the last one of it that was made */
	struct load load;  /* of a kernel */
	CUDA_KERNEL_NODE_PARAMS kernel;
	void **arguments; /* of it, and their values */
	struct kernel_settings *settings; /* NULL: none was set */
	CUDA_HOST_NODE_PARAMS host;
	CUevent event;
	CUgraph child;	 /* graph: its own copy */
	CUdeviceptr ptr; /* memory */
	size_t bytes;
	CUdevice device;
	struct transfer *transfer; /* memcpy, memset */
	struct memops *memops;	   /* batch of memory operations */
};

struct CUgraph_st {
	CUgraphNode first, *last;
	size_t count;
	bool owned; /* by a node */
	struct kept *objects; /* user objects */
};

/* All but graph_add_transfer with the process lock held. */
CUgraph graph_new(void);
void graph_free(CUgraph graph);
CUgraphNode graph_add(CUgraph graph, int type, const CUgraphNode *deps, size_t count);
/* Another number at each call. */
unsigned graph_walk(void);
/* The copy's nodes know which they are copies of; NULL: no memory. */
CUgraph graph_copy(CUgraph graph);
bool node_depends(CUgraphNode node, CUgraphNode on);
/* It is in no list any more. */
void node_free(CUgraphNode node);
CUresult node_check_kernel(const CUDA_KERNEL_NODE_PARAMS *params);
/* Copies what cuGraphKernelNodeSetAttribute set. False: no memory. */
bool node_copy_settings(CUgraphNode to, CUgraphNode from);
/* False: no memory. */
bool node_set_kernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params);
/* What a node copies or fills. False: no memory. */
bool graph_set_transfer(CUgraphNode node, const struct transfer *t);
/* For cuGraphAddNode: one that copies or fills. Takes the lock. */
CUresult graph_add_transfer(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t count, int type, const struct transfer *t);
/* The same of one that waits for values in memory and writes them. */
CUresult graph_add_memops(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t count, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p);
/* Adds references to what another list has; ends a list with its references. False: no memory. */
bool user_objects_keep(struct kept **list, const struct kept *from);
void user_objects_let_go(struct kept *list);
struct use { /* queue NULL: none */
	CUcontext ctx;
	struct queue *queue;
	uint64_t tail;
};
/* The same when that use is over: the queue has come so far, and the host functions of the context are called. */
void user_objects_let_go_after(struct kept *list, struct use last);
/* A node that takes memory of the device from here on, in each execution. */
CUgraphNode graph_add_alloc(CUgraph graph, CUdevice dev, size_t bytes, const CUgraphNode *deps, size_t count);

#endif
