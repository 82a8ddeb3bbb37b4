#include "check.h"

#define MIB ((size_t)1 << 20)

static CUfunction function(const char *name)
{
	CUmodule module;
	CUfunction f;

	FINE(cuModuleLoadData(&module, spin_ptx));
	FINE(cuModuleGetFunction(&f, module, name));
	return f;
}

static cuuint64_t memory(int attribute)
{
	cuuint64_t value;

	FINE(cuDeviceGetGraphMemAttribute(0, attribute, &value));
	return value;
}

/* Allocates, runs a kernel, and frees unless kept. */
static CUgraphExec with_memory(size_t bytes, CUfunction f, CUdeviceptr *kept, unsigned long long flags)
{
	CUDA_MEM_ALLOC_NODE_PARAMS alloc = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytesize = bytes};
	CUDA_KERNEL_NODE_PARAMS kernel = {f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL, NULL};
	CUgraphNode a, k, d;
	CUgraphExec exec;
	CUgraph graph;
	size_t count = 0;
	int type;

	FINE(cuGraphCreate(&graph, 0));
	FINE(cuGraphAddMemAllocNode(&a, graph, NULL, 0, &alloc));
	FINE(cuGraphAddKernelNode_v2(&k, graph, &a, 1, &kernel));
	if (kept)
		*kept = alloc.dptr;
	else
		FINE(cuGraphAddMemFreeNode(&d, graph, &k, 1, alloc.dptr));
	FINE(cuGraphGetNodes(graph, NULL, &count));
	CHECK(count == (kept ? 2 : 3));
	FINE(cuGraphNodeGetType(a, &type));
	CHECK(type == CU_GRAPH_NODE_MEM_ALLOC);
	alloc.bytesize = 0;
	FINE(cuGraphMemAllocNodeGetParams(a, &alloc));
	CHECK(alloc.bytesize == bytes);
	FINE(cuGraphInstantiateWithFlags(&exec, graph, flags));
	FINE(cuGraphDestroy(graph));
	GIVES(cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
	return exec;
}

void check_graphs(void)
{
	CUgraphExec one, two, leaves;
	CUstream a, b;
	CUdeviceptr kept;
	cuuint64_t none = 0;

	start();
	FINE(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
	FINE(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
	one = with_memory(3 * MIB, function("slow"), NULL, 0);
	two = with_memory(8 * MIB, function("slow"), NULL, 0);
	CHECK(memory(CU_GRAPH_MEM_RESERVED_CURRENT) == 0);
	FINE(cuGraphLaunch(one, a));
	CHECK(memory(CU_GRAPH_MEM_RESERVED_CURRENT) == 4 * MIB);
	FINE(cuGraphLaunch(one, b)); /* after itself: in the same memory */
	FINE(cuGraphLaunch(two, b)); /* in the same stream, too */
	CHECK(memory(CU_GRAPH_MEM_RESERVED_CURRENT) == 8 * MIB);
	if (cuStreamQuery(b) == CUDA_ERROR_NOT_READY) { /* else this machine was too slow to see it */
		FINE(cuGraphLaunch(one, a));
		CHECK(memory(CU_GRAPH_MEM_RESERVED_CURRENT) == 12 * MIB);
		FINE(cuDeviceGraphMemTrim(0));
		CHECK(memory(CU_GRAPH_MEM_RESERVED_CURRENT) >= 4 * MIB);
	}
	FINE(cuCtxSynchronize());
	FINE(cuDeviceGraphMemTrim(0));
	CHECK(memory(CU_GRAPH_MEM_RESERVED_CURRENT) == 0);
	FINE(cuGraphUpload(two, a));
	CHECK(memory(CU_GRAPH_MEM_RESERVED_CURRENT) == 8 * MIB);
	FINE(cuGraphExecDestroy(two));
	GIVES(cuGraphExecDestroy(two), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuGraphLaunch(two, a), CUDA_ERROR_INVALID_VALUE);
	leaves = with_memory(2 * MIB, function("quick"), &kept, 0);
	FINE(cuGraphLaunch(leaves, a));
	FINE(cuCtxSynchronize());
	CHECK(memory(CU_GRAPH_MEM_USED_CURRENT) == 2 * MIB);
	GIVES(cuGraphLaunch(leaves, a), CUDA_ERROR_INVALID_VALUE); /* still allocated */
	FINE(cuDeviceGraphMemTrim(0));
	CHECK(memory(CU_GRAPH_MEM_RESERVED_CURRENT) == 2 * MIB);
	FINE(cuMemFreeAsync(kept, a));
	FINE(cuGraphLaunch(leaves, a));
	FINE(cuMemFree_v2(kept));
	leaves = with_memory(2 * MIB, function("quick"), &kept, CU_GRAPH_INSTANTIATE_AUTO_FREE_ON_LAUNCH);
	FINE(cuGraphLaunch(leaves, a));
	FINE(cuGraphLaunch(leaves, a));
	FINE(cuMemFree_v2(kept));
	FINE(cuCtxSynchronize());
	FINE(cuDeviceGraphMemTrim(0));
	CHECK(memory(CU_GRAPH_MEM_RESERVED_CURRENT) == 0 && memory(CU_GRAPH_MEM_RESERVED_HIGH) >= 8 * MIB);
	FINE(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_RESERVED_HIGH, &none));
	CHECK(memory(CU_GRAPH_MEM_RESERVED_HIGH) == 0);
}

static int status_of(CUstream s)
{
	int status;

	FINE(cuStreamIsCapturing(s, &status));
	return status;
}

static void check_illegal(CUstream a, CUstream blocking, CUevent event)
{
	CUgraph graph;
	CUdeviceptr p;
	int mode = CU_CAPTURE_MODE_RELAXED, status;

	FINE(cuStreamBeginCapture_v2(a, CU_CAPTURE_MODE_GLOBAL));
	GIVES(cuStreamBeginCapture_v2(a, CU_CAPTURE_MODE_GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
	GIVES(cuStreamSynchronize(a), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	CHECK(status_of(a) == CU_CAPTURE_INVALIDATED);
	GIVES(cuMemAllocAsync(&p, 1, a), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	GIVES(cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	CHECK(!graph && status_of(a) == CU_CAPTURE_NONE);
	GIVES(cuStreamEndCapture(a, &graph), CUDA_ERROR_ILLEGAL_STATE);

	FINE(cuStreamBeginCapture_v2(a, CU_CAPTURE_MODE_THREAD_LOCAL));
	FINE(cuThreadExchangeStreamCaptureMode(&mode));
	CHECK(mode == CU_CAPTURE_MODE_GLOBAL);
	FINE(cuMemAlloc_v2(&p, 1)); /* a relaxed thread may */
	FINE(cuMemFree_v2(p));
	FINE(cuThreadExchangeStreamCaptureMode(&mode));
	CHECK(status_of(a) == CU_CAPTURE_ACTIVE);
	GIVES(cuMemAlloc_v2(&p, 1), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	GIVES(cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

	FINE(cuStreamBeginCapture_v2(a, CU_CAPTURE_MODE_RELAXED));
	FINE(cuEventRecord(event, a));
	GIVES(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
	GIVES(cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	FINE(cuEventRecord(event, a)); /* and no longer captured */
	FINE(cuEventSynchronize(event));

	FINE(cuStreamBeginCapture_v2(blocking, CU_CAPTURE_MODE_RELAXED));
	GIVES(cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	CHECK(status_of(blocking) == CU_CAPTURE_ACTIVE);
	GIVES(cuMemAllocAsync(&p, 1, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	GIVES(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

	FINE(cuStreamBeginCapture_v2(a, CU_CAPTURE_MODE_RELAXED));
	GIVES(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	GIVES(cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	GIVES(cuStreamBeginCapture_v2(NULL, CU_CAPTURE_MODE_RELAXED), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

void check_capture(void)
{
	CUstream a, b, blocking;
	CUgraph graph, seen;
	CUgraphExec exec;
	CUdeviceptr p;
	CUevent fork_event, join_event;
	const CUgraphNode *deps;
	cuuint64_t id;
	size_t count;
	int status;

	start();
	FINE(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
	FINE(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
	FINE(cuStreamCreate(&blocking, 0));
	FINE(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
	FINE(cuEventCreate(&join_event, CU_EVENT_DISABLE_TIMING));
	FINE(cuStreamBeginCapture_v2(a, CU_CAPTURE_MODE_GLOBAL));
	FINE(cuMemAllocAsync(&p, 4 * MIB, a));
	FINE(cuEventRecord(fork_event, a));
	FINE(cuStreamWaitEvent(b, fork_event, 0));
	FINE(cuLaunchKernel(function("quick"), 1, 1, 1, 1, 1, 1, 0, b, NULL, NULL));
	CHECK(status_of(b) == CU_CAPTURE_ACTIVE);
	FINE(cuEventRecord(join_event, b));
	FINE(cuStreamWaitEvent(a, join_event, 0));
	FINE(cuMemFreeAsync(p, a));
	FINE(cuStreamGetCaptureInfo_v2(a, &status, &id, &seen, &deps, &count));
	CHECK(status == CU_CAPTURE_ACTIVE && id && count == 1);
	GIVES(cuStreamEndCapture(b, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	GIVES(cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	FINE(cuStreamBeginCapture_v2(a, CU_CAPTURE_MODE_GLOBAL));
	FINE(cuMemAllocAsync(&p, 4 * MIB, a));
	FINE(cuEventRecord(fork_event, a));
	FINE(cuStreamWaitEvent(b, fork_event, 0));
	FINE(cuLaunchKernel(function("quick"), 1, 1, 1, 1, 1, 1, 0, b, NULL, NULL));
	GIVES(cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
	FINE(cuStreamBeginCapture_v2(a, CU_CAPTURE_MODE_GLOBAL));
	FINE(cuMemAllocAsync(&p, 4 * MIB, a));
	FINE(cuLaunchKernel(function("quick"), 1, 1, 1, 1, 1, 1, 0, a, NULL, NULL));
	FINE(cuMemFreeAsync(p, a));
	FINE(cuStreamEndCapture(a, &graph));
	FINE(cuGraphGetNodes(graph, NULL, &count));
	CHECK(count == 3 && memory(CU_GRAPH_MEM_RESERVED_CURRENT) == 0);
	FINE(cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0));
	FINE(cuGraphLaunch(exec, a));
	FINE(cuStreamSynchronize(a));
	CHECK(memory(CU_GRAPH_MEM_RESERVED_CURRENT) == 4 * MIB);
	check_illegal(a, blocking, fork_event);
}
