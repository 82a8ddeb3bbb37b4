#define _GNU_SOURCE
#include "check.h"

#include <time.h>

static CUfunction function(const char *name)
{
	CUmodule module;
	CUfunction f;

	FINE(cuModuleLoadData(&module, spin_ptx));
	FINE(cuModuleGetFunction(&f, module, name));
	return f;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void launch(CUfunction f, CUstream s)
{
	FINE(cuLaunchKernel(f, 4, 4, 1, 32, 32, 1, 0, s, NULL, NULL));
}

static void check_bad_launches(CUfunction f)
{
	void *params[1] = {0}, *extra[1] = {0};
	CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};

	GIVES(cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuLaunchKernel(f, 1, 1, 1, 33, 32, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, params, extra), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, (CUstream)0x9990, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
	GIVES(cuLaunchKernel((CUfunction)0x9990, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
	GIVES(cuLaunchKernelEx(NULL, f, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
	FINE(cuLaunchKernelEx(&config, f, NULL, NULL));
	FINE(cuLaunchCooperativeKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL));
}

/* 20 kernels of 500 us take 10 ms on the GPU, however they are timed; launching them takes next to nothing. */
void check_time(void)
{
	CUevent start_event, stop_event, untimed;
	CUresult event, stream, elapsed;
	CUfunction spin;
	double begin, launched, done;
	float ms;

	start();
	spin = function("spin");
	FINE(cuEventCreate(&start_event, 0));
	FINE(cuEventCreate(&stop_event, 0));
	FINE(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
	FINE(cuEventQuery(stop_event)); /* never recorded: complete */
	GIVES(cuEventElapsedTime(&ms, start_event, stop_event), CUDA_ERROR_INVALID_HANDLE);
	begin = now();
	FINE(cuEventRecord(start_event, NULL));
	for (int i = 0; i < 20; i++)
		launch(spin, NULL);
	FINE(cuEventRecord(stop_event, NULL));
	launched = now();
	event = cuEventQuery(stop_event);
	stream = cuStreamQuery(NULL);
	elapsed = cuEventElapsedTime(&ms, start_event, stop_event);
	if (now() - begin < 0.010) /* else this machine was too slow to see it */
		CHECK(event == CUDA_ERROR_NOT_READY && stream == CUDA_ERROR_NOT_READY && elapsed == CUDA_ERROR_NOT_READY);
	FINE(cuEventSynchronize(stop_event));
	done = now();
	FINE(cuEventQuery(stop_event));
	FINE(cuStreamQuery(NULL));
	FINE(cuEventElapsedTime(&ms, start_event, stop_event));
	CHECK(done - begin >= 0.010);
	CHECK(ms >= 10.0f && (double)ms <= (launched - begin) * 1e3 + 10.1);
	FINE(cuEventRecord(untimed, NULL));
	GIVES(cuEventElapsedTime(&ms, start_event, untimed), CUDA_ERROR_INVALID_HANDLE);
	FINE(cuEventDestroy_v2(untimed));
	GIVES(cuEventDestroy_v2(untimed), CUDA_ERROR_INVALID_HANDLE);
	check_bad_launches(spin);
}

static double at(CUevent from, CUevent event)
{
	float ms;

	FINE(cuEventSynchronize(event));
	FINE(cuEventElapsedTime(&ms, from, event));
	return (double)ms;
}

/* Order between streams, measured by the times of their events. A slow kernel takes 20 ms. */
void check_streams(void)
{
	CUstream blocking, free_running, other;
	CUevent zero, a, b, c;
	CUfunction slow;
	CUcontext ctx, owner;
	unsigned flags;
	int least, greatest;
	bool in_time;
	double begin;

	ctx = start();
	slow = function("slow");
	FINE(cuCtxGetStreamPriorityRange(&least, &greatest));
	CHECK(least == 0 && greatest < 0);
	FINE(cuStreamCreate(&blocking, 0));
	FINE(cuStreamCreateWithPriority(&free_running, CU_STREAM_NON_BLOCKING, greatest));
	FINE(cuStreamCreate(&other, 0));
	FINE(cuStreamGetFlags(free_running, &flags));
	CHECK(flags == CU_STREAM_NON_BLOCKING);
	FINE(cuStreamGetCtx(other, &owner));
	CHECK(owner == ctx);
	FINE(cuEventCreate(&zero, 0));
	FINE(cuEventCreate(&a, 0));
	FINE(cuEventCreate(&b, 0));
	FINE(cuEventCreate(&c, 0));
	begin = now();
	FINE(cuEventRecord(zero, free_running));
	launch(slow, blocking);
	FINE(cuEventRecord(a, NULL)); /* the default stream waits for blocking streams … */
	FINE(cuEventRecord(b, free_running)); /* … a non-blocking one for nothing */
	in_time = now() - begin < 0.019; /* else this machine was too slow to see it */
	FINE(cuStreamWaitEvent(free_running, a, 0)); /* … unless it waits for an event */
	FINE(cuEventRecord(c, free_running));
	CHECK(at(zero, a) >= 20.0 && at(zero, c) >= at(zero, a));
	CHECK(!in_time || at(zero, b) < at(zero, a));
	launch(slow, NULL);
	FINE(cuEventRecord(b, other)); /* blocking streams wait for the default stream */
	CHECK(at(zero, b) >= 40.0);
	launch(slow, CU_STREAM_PER_THREAD);
	FINE(cuStreamSynchronize_ptsz(NULL));
	FINE(cuStreamQuery(CU_STREAM_PER_THREAD));
	launch(slow, free_running);
	FINE(cuStreamDestroy_v2(free_running)); /* its work goes on */
	GIVES(cuStreamDestroy_v2(free_running), CUDA_ERROR_INVALID_HANDLE);
	FINE(cuCtxSynchronize());
	GIVES(cuStreamCreate(&other, 2), CUDA_ERROR_INVALID_VALUE);
}
