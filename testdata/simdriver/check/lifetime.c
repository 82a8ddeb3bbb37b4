/* When memory ends. */
#include "check.h"

#define MIB ((size_t)1 << 20)

static size_t used(void)
{
	size_t free_bytes, total;

	FINE(cuMemGetInfo_v2(&free_bytes, &total));
	return total - free_bytes;
}

static CUfunction function(const char *name)
{
	CUmodule module;
	CUfunction f;

	FINE(cuModuleLoadData(&module, spin_ptx));
	FINE(cuModuleGetFunction(&f, module, name));
	return f;
}

static void launch(CUfunction f, CUstream s)
{
	FINE(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
}

/* What cuMemAlloc gave is freed in the order of a stream. */
void check_free_async(void)
{
	CUdeviceptr p, managed;
	size_t before;
	CUfunction f;
	CUstream s;

	start();
	f = function("second");
	FINE(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	before = used();
	for (int i = 0; i < 200; i++) {
		FINE(cuMemAlloc_v2(&p, 1024 * MIB));
		FINE(cuMemFreeAsync(p, NULL));
	}
	CHECK(used() == before);
	GIVES(cuMemFreeAsync(p, NULL), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemAlloc_v2(&p, 64 * MIB));
	launch(f, s); /* a second */
	FINE(cuMemFreeAsync(p, s));
	GIVES(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemsetD8_v2(p, 1, 1), CUDA_ERROR_INVALID_VALUE);
	CHECK(used() == before + 64 * MIB || cuStreamQuery(s) == CUDA_SUCCESS); /* else this machine was too slow to see it */
	FINE(cuStreamSynchronize(s));
	CHECK(used() == before);
	FINE(cuMemAllocManaged(&managed, MIB, CU_MEM_ATTACH_GLOBAL));
	GIVES(cuMemFreeAsync(managed, NULL), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemFree_v2(managed));
	FINE(cuStreamDestroy_v2(s));
}

static CUgraphNode add_memory(CUgraph graph, CUgraphNode after, size_t bytes, CUdeviceptr *p)
{
	CUDA_MEM_ALLOC_NODE_PARAMS memory = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytesize = bytes};
	CUgraphNode node;

	FINE(cuGraphAddMemAllocNode(&node, graph, after ? &after : NULL, after ? 1 : 0, &memory));
	*p = memory.dptr;
	return node;
}

static CUgraphNode add_free(CUgraph graph, CUgraphNode after, CUdeviceptr p)
{
	CUgraphNode node;

	FINE(cuGraphAddMemFreeNode(&node, graph, &after, 1, p));
	return node;
}

/* Lifetimes that do not overlap share an address, and the memory at it. */
void check_graph_reuse(void)
{
	CUdeviceptr first, beside, second, third;
	cuuint64_t reserved;
	CUgraphNode last;
	CUgraphExec exec;
	CUgraph graph;

	start();
	FINE(cuGraphCreate(&graph, 0));
	last = add_memory(graph, NULL, 64 * MIB, &first);
	add_memory(graph, NULL, 64 * MIB, &beside);
	CHECK(beside != first);
	last = add_free(graph, last, first);
	last = add_memory(graph, last, 32 * MIB, &second);
	CHECK(second == first);
	last = add_memory(graph, last, 2 * MIB, &third);
	CHECK(third != second && third != beside);
	add_free(graph, last, third);
	FINE(cuGraphInstantiateWithFlags(&exec, graph, 0));
	FINE(cuGraphLaunch(exec, NULL));
	FINE(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_RESERVED_CURRENT, &reserved));
	CHECK(reserved == 130 * MIB);
	FINE(cuMemsetD8_v2(second, 1, 32 * MIB)); /* it and `beside` are left allocated */
	FINE(cuMemFree_v2(second));
	FINE(cuMemFreeAsync(beside, NULL));
	GIVES(cuMemFree_v2(third), CUDA_ERROR_INVALID_VALUE);
	FINE(cuGraphExecDestroy(exec));
	FINE(cuGraphDestroy(graph));
	FINE(cuCtxSynchronize());
	FINE(cuDeviceGraphMemTrim(0));
}
