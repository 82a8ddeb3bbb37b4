/* What takes device memory in a way that the ledger does not follow yet, and is
 * therefore refused, honestly: CUDA_ERROR_NOT_SUPPORTED and one line on stderr.
 *
 *   cuMemAllocAsync, FromPoolAsync  a pool reserves more than its pointers, and keeps it
 *   cuGraphAddMemAllocNode, AddNode memory belongs to the graph's executions
 *
 * Programs that ask first are told that the card can't (cuDeviceGetAttribute:
 * memory pools) and use cuMemAlloc. */
#include "device.h"
#include "hooks.h"
#include "say.h"

static CUresult refuse(const char *name)
{
	static _Atomic unsigned once;

	say(&once, "%s is not supported inside a memory limit; use cuMemAlloc (cudaMalloc)", name);
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemAllocAsync(CUdeviceptr *ptr, size_t size, CUstream stream)
{
	(void)ptr, (void)size, (void)stream;
	return refuse("cuMemAllocAsync");
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *ptr, size_t size, CUstream stream)
{
	(void)ptr, (void)size, (void)stream;
	return refuse("cuMemAllocAsync");
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream)
{
	(void)ptr, (void)size, (void)pool, (void)stream;
	return refuse("cuMemAllocFromPoolAsync");
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream)
{
	(void)ptr, (void)size, (void)pool, (void)stream;
	return refuse("cuMemAllocFromPoolAsync");
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count, void *params)
{
	(void)node, (void)graph, (void)deps, (void)count, (void)params;
	return refuse("cuGraphAddMemAllocNode");
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count,
                        CUgraphNodeParams *params)
{
	if (params && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		return refuse("cuGraphAddNode of a memory node");
	return REAL(cuGraphAddNode)(node, graph, deps, count, params);
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, const void *edges, size_t count,
                           CUgraphNodeParams *params)
{
	if (params && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		return refuse("cuGraphAddNode of a memory node");
	return REAL(cuGraphAddNode_v2)(node, graph, deps, edges, count, params);
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice dev)
{
	CUresult result = REAL(cuDeviceGetAttribute)(value, attribute, dev);

	if (result == CUDA_SUCCESS && value &&
	    attribute == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)
		*value = 0;
	return result;
}
