/* The same as in pending.c, with several functions of the host that return one by one. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>

typedef _Atomic unsigned gate;

static void wait_for(void *data)
{
	while (!atomic_load((gate *)data))
		;
}

static void put_gate(CUstream s, gate *g)
{
	atomic_store(g, 0);
	FINE(cuLaunchHostFunc(s, wait_for, (void *)g));
}

static CUstream new_stream(void)
{
	CUstream s;

	FINE(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	return s;
}

static CUevent new_event(void)
{
	CUevent e;

	FINE(cuEventCreate(&e, 0));
	return e;
}

static void launch_slow(CUstream s)
{
	CUmodule module;
	CUfunction f;

	FINE(cuModuleLoadData(&module, spin_ptx));
	FINE(cuModuleGetFunction(&f, module, "slow"));
	FINE(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
}

/* Of several records of an event, the last call counts. Source: docs.nvidia.com/cuda/cuda-driver-api, cuEventRecord. */
static void last_record(void)
{
	static gate first, second;
	CUstream a = new_stream(), b = new_stream();
	CUevent e = new_event(), mark = new_event(), gone = new_event();
	CUgraph graph;
	float ms;

	put_gate(a, &first);
	FINE(cuEventRecord(e, a));
	FINE(cuEventRecord(mark, a));
	put_gate(a, &second);
	FINE(cuEventRecord(e, a));
	atomic_store(&first, 1);
	FINE(cuEventSynchronize(mark));
	GIVES(cuEventQuery(e), CUDA_ERROR_NOT_READY);
	atomic_store(&second, 1);
	FINE(cuEventSynchronize(e));

	put_gate(a, &first);
	launch_slow(a);
	FINE(cuEventRecord(e, a));
	FINE(cuEventRecord(gone, a));
	FINE(cuEventRecord(mark, a));
	FINE(cuEventRecord(e, b));
	FINE(cuEventRecord(gone, b));
	FINE(cuEventDestroy_v2(gone));
	FINE(cuEventSynchronize(e));
	atomic_store(&first, 1);
	FINE(cuEventSynchronize(mark));
	FINE(cuEventElapsedTime(&ms, e, mark));
	CHECK(ms >= 20);

	put_gate(a, &first);
	FINE(cuEventRecord(e, a));
	FINE(cuEventRecord(mark, a));
	FINE(cuStreamBeginCapture_v2(b, CU_CAPTURE_MODE_RELAXED));
	FINE(cuEventRecord(e, b));
	atomic_store(&first, 1);
	FINE(cuEventSynchronize(mark));
	GIVES(cuEventQuery(e), CUDA_ERROR_CAPTURED_EVENT);
	GIVES(cuStreamEndCapture(b, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	FINE(cuEventDestroy_v2(e));
	FINE(cuEventDestroy_v2(mark));
	FINE(cuStreamDestroy_v2(a));
	FINE(cuStreamDestroy_v2(b));
}

static void *open_gate(void *g)
{
	atomic_store((gate *)g, 1);
	return NULL;
}

/* A copy between the device and memory that is not pinned waits for the stream. Source: as above, API synchronization behavior. */
static void pageable_copies(void)
{
	static gate g;
	CUstream s = new_stream();
	pthread_t opener;
	unsigned value = 5, *pinned;
	CUdeviceptr p;

	FINE(cuMemAlloc_v2(&p, 4));
	FINE(cuMemHostAlloc((void **)&pinned, 4, 0));
	for (int i = 0; i < 4; i++) {
		put_gate(s, &g);
		CHECK(!pthread_create(&opener, NULL, open_gate, (void *)&g));
		value = 5 + (unsigned)i;
		FINE(i < 2 ? cuMemcpyHtoDAsync_v2(p, &value, 4, s) : cuMemcpyAsync(p, (CUdeviceptr)(uintptr_t)&value, 4, s));
		CHECK(atomic_load(&g) == 1);
		value = 0;
		CHECK(!pthread_join(opener, NULL));
		put_gate(s, &g);
		CHECK(!pthread_create(&opener, NULL, open_gate, (void *)&g));
		FINE(i % 2 ? cuMemcpyDtoHAsync_v2(&value, p, 4, s) : cuMemcpyAsync((CUdeviceptr)(uintptr_t)&value, p, 4, s));
		CHECK(atomic_load(&g) == 1 && value == 5 + (unsigned)i);
		CHECK(!pthread_join(opener, NULL));
	}
	put_gate(s, &g);
	*pinned = 0;
	FINE(cuMemcpyDtoHAsync_v2(pinned, p, 4, s));
	GIVES(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	CHECK(*pinned == 0);
	atomic_store(&g, 1);
	FINE(cuStreamSynchronize(s));
	CHECK(*pinned == 8);
	FINE(cuMemFreeHost(pinned));
	FINE(cuMemFree_v2(p));
	FINE(cuStreamDestroy_v2(s));
}

/* Memory is freed once, though in a stream that has not come so far. */
static void one_free(void)
{
	static gate g;
	CUstream a = new_stream(), b = new_stream();
	CUdeviceptr p, again;

	FINE(cuMemAllocAsync(&p, 4096, a));
	put_gate(a, &g);
	FINE(cuMemFreeAsync(p, a));
	GIVES(cuMemFreeAsync(p, a), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemFreeAsync(p, b), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
	atomic_store(&g, 1);
	FINE(cuStreamSynchronize(a));
	GIVES(cuMemFreeAsync(p, a), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemAllocAsync(&again, 4096, a));
	FINE(cuMemFreeAsync(again, a));
	FINE(cuStreamDestroy_v2(a));
	FINE(cuStreamDestroy_v2(b));
}

static cuuint64_t reserved(void)
{
	cuuint64_t bytes;

	FINE(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_RESERVED_CURRENT, &bytes));
	return bytes;
}

/* A graph has its memory until its launch is done. */
static void graph_memory(void)
{
	static gate g;
	CUstream s = new_stream(), other = new_stream();
	CUgraphExec exec, second;
	cuuint64_t bytes;
	CUgraph graph;
	CUdeviceptr p;

	FINE(cuStreamBeginCapture_v2(s, CU_CAPTURE_MODE_RELAXED));
	FINE(cuMemAllocAsync(&p, 4096, s));
	FINE(cuMemsetD8Async(p, 1, 4096, s));
	FINE(cuMemFreeAsync(p, s));
	FINE(cuStreamEndCapture(s, &graph));
	FINE(cuGraphInstantiateWithFlags(&exec, graph, 0));
	FINE(cuGraphInstantiateWithFlags(&second, graph, 0));
	put_gate(s, &g);
	FINE(cuGraphLaunch(exec, s));
	bytes = reserved();
	FINE(cuDeviceGraphMemTrim(0));
	CHECK(bytes && reserved() == bytes);
	FINE(cuGraphLaunch(second, other));
	CHECK(reserved() == 2 * bytes);
	atomic_store(&g, 1);
	FINE(cuStreamSynchronize(s));
	FINE(cuStreamSynchronize(other));
	FINE(cuDeviceGraphMemTrim(0));
	CHECK(!reserved());
	FINE(cuGraphExecDestroy(exec));
	FINE(cuGraphExecDestroy(second));
	FINE(cuGraphDestroy(graph));
	FINE(cuStreamDestroy_v2(s));
	FINE(cuStreamDestroy_v2(other));
}

void check_gates(void)
{
	start();
	last_record();
	pageable_copies();
	one_free();
	graph_memory();
}
