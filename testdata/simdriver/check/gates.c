/* The same as in pending.c, with several functions of the host that return one by one. */
#define _GNU_SOURCE
#include "check.h"

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

void check_gates(void)
{
	start();
	last_record();
}
