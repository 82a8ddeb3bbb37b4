/* What is in a stream behind a function of the host, or behind a wait for memory. No call of the program waits for these. */
#define _GNU_SOURCE
#include "check.h"

#include <stdatomic.h>
#include <string.h>

static _Atomic unsigned gate, called;

/* Returns when the program opens the gate, which it does after its last call. */
static void wait_for_gate(void *data)
{
	(void)data;
	while (!atomic_load(&gate))
		;
	atomic_fetch_add(&called, 1);
}

static CUfunction find(const char *name)
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

static CUstream new_stream(void)
{
	CUstream s;

	FINE(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	return s;
}

static unsigned value_at(CUdeviceptr p)
{
	unsigned value;

	FINE(cuMemcpyDtoH_v2(&value, p, 4));
	return value;
}

/* Source: docs.nvidia.com/cuda/cuda-driver-api, cuLaunchHostFunc and cuEventRecord. */
static void behind_a_function(void)
{
	CUfunction slow = find("slow"), quick = find("quick");
	CUstream a = new_stream(), b = new_stream();
	CUevent before, after, gone;
	unsigned *source, *copied;
	CUdeviceptr p, freed;
	float ms;

	atomic_store(&gate, 0);
	FINE(cuMemHostAlloc((void **)&source, 4, 0));
	FINE(cuMemHostAlloc((void **)&copied, 4, 0));
	*source = 5;
	FINE(cuMemAlloc_v2(&p, 4096));
	FINE(cuMemAllocAsync(&freed, 4096, a));
	FINE(cuEventCreate(&before, 0));
	FINE(cuEventCreate(&after, 0));
	FINE(cuEventCreate(&gone, 0));
	FINE(cuEventRecord(before, a));
	FINE(cuLaunchHostFunc(a, wait_for_gate, NULL));
	launch(slow, a);
	FINE(cuMemcpyHtoDAsync_v2(p, source, 4, a));
	FINE(cuMemFreeAsync(freed, a));
	FINE(cuEventRecord(after, a));
	FINE(cuEventRecord(gone, a));
	FINE(cuStreamWaitEvent(b, gone, 0));
	FINE(cuEventDestroy_v2(gone));
	launch(quick, b);
	FINE(cuMemcpyDtoHAsync_v2(copied, p, 4, b));
	GIVES(cuStreamQuery(a), CUDA_ERROR_NOT_READY);
	GIVES(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
	GIVES(cuEventQuery(after), CUDA_ERROR_NOT_READY);
	GIVES(cuEventElapsedTime(&ms, before, after), CUDA_ERROR_NOT_READY);
	CHECK(value_at(p) == 0 && atomic_load(&called) == 0);
	atomic_store(&gate, 1);
	FINE(cuEventSynchronize(after));
	FINE(cuEventElapsedTime(&ms, before, after));
	CHECK(ms >= 20 && value_at(p) == 5 && atomic_load(&called) == 1);
	FINE(cuStreamSynchronize(b));
	CHECK(*copied == 5);
	FINE(cuMemFree_v2(p));
	FINE(cuMemFreeHost(source));
	FINE(cuMemFreeHost(copied));
	FINE(cuStreamDestroy_v2(a));
	FINE(cuStreamDestroy_v2(b));
}

/* The legacy stream and blocking ones wait for each other; a stream that is destroyed is done nevertheless. */
static void of_the_legacy_stream(void)
{
	static unsigned one = 1;
	CUstream blocking, other = new_stream();
	CUdeviceptr p;

	atomic_store(&gate, 0);
	FINE(cuMemAlloc_v2(&p, 8));
	FINE(cuMemHostRegister_v2(&one, 4, 0));
	FINE(cuStreamCreate(&blocking, 0));
	FINE(cuLaunchHostFunc(NULL, wait_for_gate, NULL));
	FINE(cuMemcpyHtoDAsync_v2(p, &one, 4, blocking));
	FINE(cuStreamDestroy_v2(blocking));
	FINE(cuMemcpyHtoDAsync_v2(p + 4, &one, 4, other));
	FINE(cuStreamSynchronize(other));
	GIVES(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
	FINE(cuStreamBeginCapture_v2(other, CU_CAPTURE_MODE_RELAXED));
	FINE(cuStreamEndCapture(other, &(CUgraph){NULL}));
	atomic_store(&gate, 1);
	FINE(cuCtxSynchronize());
	CHECK(value_at(p) == 1 && value_at(p + 4) == 1);
	FINE(cuMemHostUnregister(&one));
	FINE(cuMemFree_v2(p));
	FINE(cuStreamDestroy_v2(other));
}

static void waits_of(CUstream s, CUdeviceptr p, CUdeviceptr p64)
{
	FINE(cuStreamWaitValue32_v2(s, p, 0xfffffff0u, CU_STREAM_WAIT_VALUE_GEQ)); /* 2 is later, as numbers wrap around */
	FINE(cuStreamWaitValue32(s, p, 3, CU_STREAM_WAIT_VALUE_AND));
	FINE(cuStreamWaitValue32_v2(s, p, 2, CU_STREAM_WAIT_VALUE_EQ));
	FINE(cuStreamWaitValue32_v2(s, p, 0xf0u, CU_STREAM_WAIT_VALUE_NOR));
	FINE(cuStreamWaitValue64_v2(s, p64, 1ull << 40, CU_STREAM_WAIT_VALUE_GEQ));
}

/* Source: docs.nvidia.com/cuda/cuda-driver-api, stream memory operations. */
static void values(void)
{
	CUstream a = new_stream(), b = new_stream();
	CUfunction slow = find("slow");
	CUevent slow_done, waited;
	CUdeviceptr p;
	_Atomic unsigned *host;
	CUdeviceptr of_host;
	float ms;

	FINE(cuMemAlloc_v2(&p, 64));
	FINE(cuMemHostAlloc((void **)&host, 64, 0));
	FINE(cuMemHostGetDevicePointer_v2(&of_host, (void *)host, 0));
	FINE(cuEventCreate(&slow_done, 0));
	FINE(cuEventCreate(&waited, 0));

	waits_of(a, p, p + 8);
	FINE(cuEventRecord(waited, a));
	GIVES(cuStreamQuery(a), CUDA_ERROR_NOT_READY);
	launch(slow, b);
	FINE(cuEventRecord(slow_done, b));
	FINE(cuStreamWriteValue32_v2(b, p, 2, 0));
	FINE(cuStreamWriteValue64_v2(b, p + 8, 5ull << 40, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER));
	FINE(cuEventSynchronize(waited));
	FINE(cuEventElapsedTime(&ms, slow_done, waited));
	CHECK(ms >= 0);
	FINE(cuStreamSynchronize(b));
	CHECK(value_at(p) == 2 && value_at(p + 12) == 5 << 8);

	atomic_store(host, 0);
	FINE(cuStreamWaitValue32_v2(a, of_host, 7, CU_STREAM_WAIT_VALUE_EQ));
	FINE(cuStreamWriteValue32(a, of_host + 4, 9, 0));
	GIVES(cuStreamQuery(a), CUDA_ERROR_NOT_READY);
	CHECK(atomic_load(host + 1) == 0);
	atomic_store(host, 7);
	FINE(cuStreamSynchronize(a));
	CHECK(atomic_load(host + 1) == 9);
	FINE(cuMemFree_v2(p));
	FINE(cuMemFreeHost((void *)host));
}

static void bad_values(void)
{
	CUstreamBatchMemOpParams many[257] = {{.operation = CU_STREAM_MEM_OP_BARRIER}}, flush = {.operation = CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES};
	CUdeviceptr p, managed;
	int yes = 0;

	FINE(cuDeviceGetAttribute(&yes, 122, 0)); /* CAN_USE_64_BIT_STREAM_MEM_OPS */
	CHECK(yes);
	FINE(cuMemAlloc_v2(&p, 64));
	FINE(cuMemAllocManaged(&managed, 64, CU_MEM_ATTACH_GLOBAL));
	GIVES(cuStreamWriteValue32_v2(NULL, p + 2, 1, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuStreamWriteValue64_v2(NULL, p + 4, 1, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuStreamWriteValue32_v2(NULL, 0, 1, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuStreamWriteValue32_v2(NULL, managed, 1, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuStreamWriteValue32_v2(NULL, p, 1, 2), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuStreamWaitValue32_v2(NULL, p, 1, 4), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuStreamWaitValue32_v2(NULL, p, 1, CU_STREAM_WAIT_VALUE_FLUSH), CUDA_ERROR_NOT_SUPPORTED);
	GIVES(cuStreamBatchMemOp_v2(NULL, 1, &flush, 0), CUDA_ERROR_NOT_SUPPORTED);
	GIVES(cuStreamBatchMemOp_v2(NULL, 1, NULL, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuStreamBatchMemOp_v2(NULL, 257, many, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuStreamBatchMemOp(NULL, 1, many, 1), CUDA_ERROR_INVALID_VALUE);
	FINE(cuStreamBatchMemOp_v2(NULL, 1, many, 0));
	FINE(cuStreamSynchronize(NULL));
	FINE(cuMemFree_v2(p));
	FINE(cuMemFree_v2(managed));
}

/* Captured ones, and nodes that a graph is given. */
static void of_graphs(void)
{
	CUstream a = new_stream(), b = new_stream();
	CUstreamBatchMemOpParams ops[2] = {0};
	CUDA_BATCH_MEM_OP_NODE_PARAMS params = {.count = 2, .paramArray = ops}, got;
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_BATCH_MEM_OP};
	CUgraphNode node, second, both[2];
	CUgraphExec exec;
	CUgraph g, clone;
	CUdeviceptr p;
	size_t count = 1;
	int type;

	FINE(cuMemAlloc_v2(&p, 64));
	ops[0].value.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
	ops[0].value.address = p;
	ops[0].value.value = 1;
	ops[1].value.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
	ops[1].value.address = p + 4;
	ops[1].value.value = 10;

	FINE(cuStreamBeginCapture_v2(a, CU_CAPTURE_MODE_RELAXED));
	FINE(cuStreamBatchMemOp_v2(a, 2, ops, 0));
	FINE(cuStreamEndCapture(a, &g));
	FINE(cuGraphGetNodes(g, &node, &count));
	FINE(cuGraphNodeGetType(node, &type));
	CHECK(type == CU_GRAPH_NODE_BATCH_MEM_OP);
	FINE(cuGraphBatchMemOpNodeGetParams(node, &got));
	CHECK(got.count == 2 && got.paramArray[1].value.value == 10);
	ops[1].value.address = p + 8;
	any.memops = params;
	FINE(cuGraphAddNode(&second, g, &node, 1, &any));
	GIVES(cuGraphAddBatchMemOpNode(&second, g, NULL, 0, NULL), CUDA_ERROR_INVALID_VALUE);
	FINE(cuGraphClone(&clone, g));
	FINE(cuGraphDestroy(g));
	FINE(cuGraphInstantiateWithFlags(&exec, clone, 0));
	FINE(cuGraphLaunch(exec, a));
	GIVES(cuStreamQuery(a), CUDA_ERROR_NOT_READY);
	CHECK(value_at(p + 4) == 0);
	FINE(cuStreamWriteValue32_v2(b, p, 1, 0));
	FINE(cuStreamSynchronize(a));
	CHECK(value_at(p + 4) == 10 && value_at(p + 8) == 10);

	ops[1].value.value = 11;
	count = 2;
	FINE(cuGraphGetNodes(clone, both, &count));
	FINE(cuGraphExecBatchMemOpNodeSetParams(exec, both[1], &params));
	FINE(cuGraphBatchMemOpNodeSetParams(both[1], &params));
	FINE(cuGraphLaunch(exec, a));
	FINE(cuStreamSynchronize(a));
	CHECK(value_at(p + 4) == 10 && value_at(p + 8) == 11);
	FINE(cuGraphDestroy(clone));
	FINE(cuGraphExecDestroy(exec));
	FINE(cuMemFree_v2(p));
}

/* A context goes with what waits in it for ever. */
static void never(void)
{
	CUcontext ctx;
	CUstream s;
	CUevent e;
	CUdeviceptr p;

	FINE(cuCtxCreate_v2(&ctx, 0, 0));
	FINE(cuMemAlloc_v2(&p, 64));
	s = new_stream();
	FINE(cuEventCreate(&e, 0));
	FINE(cuStreamWaitValue32_v2(s, p, 1, CU_STREAM_WAIT_VALUE_EQ));
	launch(find("quick"), s);
	FINE(cuEventRecord(e, s));
	FINE(cuStreamDestroy_v2(s));
	FINE(cuCtxDestroy_v2(ctx));
}

void check_pending(void)
{
	start();
	behind_a_function();
	of_the_legacy_stream();
	never();
}

void check_values(void)
{
	start();
	values();
	bad_values();
	of_graphs();
}
