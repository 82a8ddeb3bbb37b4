/* Nodes that copy or fill. */
#include "graph_exec.h"

#define PLACE CUgraphNode *node, CUgraph graph, const CUgraphNode *deps

/* ctx: that of the device which does it; any will do. */
static CUresult add_in(CUcontext ctx, PLACE, size_t count, int type, const struct transfer *t)
{
	bool known;

	process_lock();
	known = object_is(OBJECT_CONTEXT, ctx);
	process_unlock();
	return known ? graph_add_transfer(node, graph, deps, count, type, t) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get(CUgraphNode node, int type, struct transfer *t)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	process_lock();
	if (object_is(OBJECT_NODE, node) && node->type == type && node->transfer) {
		*t = *node->transfer;
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

/* exec NULL: of the node itself, for what is instantiated later. */
static CUresult set(CUgraphExec exec, CUgraphNode node, int type, const struct transfer *t)
{
	struct task *task;
	CUresult r;

	process_lock();
	r = object_is(OBJECT_NODE, node) && node->type == type ? transfer_check(t) : CUDA_ERROR_INVALID_VALUE;
	if (!r && exec && !object_is(OBJECT_EXEC, exec))
		r = CUDA_ERROR_INVALID_VALUE;
	task = !r && exec ? graph_exec_task(exec, node) : NULL;
	if (task)
		task->transfer = *t;
	else if (!r && (exec || !graph_set_transfer(node, t)))
		r = CUDA_ERROR_INVALID_VALUE;
	process_unlock();
	return r;
}

CUresult cuGraphAddMemcpyNode(PLACE, size_t count, const CUDA_MEMCPY3D *copy, CUcontext ctx)
{
	struct transfer t;
	CUresult r;

	ENTER();
	r = transfer_of_3d(&t, copy);
	return r ? r : add_in(ctx, node, graph, deps, count, CU_GRAPH_NODE_MEMCPY, &t);
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *copy)
{
	struct transfer t;
	CUresult r;

	ENTER();
	r = copy ? get(node, CU_GRAPH_NODE_MEMCPY, &t) : CUDA_ERROR_INVALID_VALUE;
	if (!r)
		transfer_to_3d(&t, copy);
	return r;
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *copy)
{
	struct transfer t;
	CUresult r;

	ENTER();
	r = transfer_of_3d(&t, copy);
	return r ? r : set(NULL, node, CU_GRAPH_NODE_MEMCPY, &t);
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *copy, CUcontext ctx)
{
	struct transfer t;
	CUresult r;

	(void)ctx;
	ENTER();
	r = exec ? transfer_of_3d(&t, copy) : CUDA_ERROR_INVALID_VALUE;
	return r ? r : set(exec, node, CU_GRAPH_NODE_MEMCPY, &t);
}

CUresult cuGraphAddMemsetNode(PLACE, size_t count, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext ctx)
{
	struct transfer t;
	CUresult r;

	ENTER();
	r = transfer_of_memset(&t, params);
	return r ? r : add_in(ctx, node, graph, deps, count, CU_GRAPH_NODE_MEMSET, &t);
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *params)
{
	struct transfer t;
	CUresult r;

	ENTER();
	r = params ? get(node, CU_GRAPH_NODE_MEMSET, &t) : CUDA_ERROR_INVALID_VALUE;
	if (r)
		return r;
	params->dst = t.to.ptr; /* and not the context, which the first version of the structure has no room for */
	params->pitch = t.to.pitch;
	params->value = t.value;
	params->elementSize = t.element;
	params->width = t.width / t.element;
	params->height = t.height;
	return CUDA_SUCCESS;
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params)
{
	struct transfer t;
	CUresult r;

	ENTER();
	r = transfer_of_memset(&t, params);
	return r ? r : set(NULL, node, CU_GRAPH_NODE_MEMSET, &t);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext ctx)
{
	struct transfer t;
	CUresult r;

	(void)ctx;
	ENTER();
	r = exec ? transfer_of_memset(&t, params) : CUDA_ERROR_INVALID_VALUE;
	return r ? r : set(exec, node, CU_GRAPH_NODE_MEMSET, &t);
}
