/* Nodes that wait for values in memory and write them. */
#include "graph_exec.h"
#include "memop.h"

CUresult cuGraphAddBatchMemOpNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count,
				  const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	ENTER();
	return graph_add_memops(node, graph, deps, count, params);
}

CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	ENTER();
	process_lock();
	if (params && object_is(OBJECT_NODE, node) && node->type == CU_GRAPH_NODE_BATCH_MEM_OP) {
		*params = (CUDA_BATCH_MEM_OP_NODE_PARAMS){node->memops->ctx, node->memops->count, node->memops->op, 0};
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

/* exec NULL: of the node itself, for what is instantiated later. */
static CUresult set(CUgraphExec exec, bool in_exec, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	struct task *task = NULL;
	struct memops *fresh, **at;

	process_lock();
	if (p && object_is(OBJECT_NODE, node) && node->type == CU_GRAPH_NODE_BATCH_MEM_OP) {
		task = in_exec && object_is(OBJECT_EXEC, exec) ? graph_exec_task(exec, node) : NULL;
		r = in_exec && !task ? r : memops_make(&fresh, p->ctx, p->paramArray, p->count, p->flags);
	}
	if (!r) {
		at = task ? &task->memops : &node->memops;
		memops_unuse(*at);
		*at = fresh;
	}
	process_unlock();
	return r;
}

CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	ENTER();
	return set(NULL, false, node, params);
}

CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	ENTER();
	return set(exec, true, node, params);
}
