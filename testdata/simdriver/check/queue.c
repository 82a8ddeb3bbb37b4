#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#define DEPTH 1024
#define TRIES 100

static CUfunction function(const char *name)
{
	CUmodule module;
	CUfunction f;

	FINE(cuModuleLoadData(&module, spin_ptx));
	FINE(cuModuleGetFunction(&f, module, name));
	return f;
}

static double elapsed(CUevent from, CUevent to)
{
	float ms;

	FINE(cuEventSynchronize(to));
	FINE(cuEventElapsedTime(&ms, from, to));
	return (double)ms;
}

static CUevent recorded(CUstream s)
{
	CUevent e;

	FINE(cuEventCreate(&e, 0));
	FINE(cuEventRecord(e, s));
	return e;
}

static bool near(double ms, double wanted)
{
	return ms > wanted - 0.001 && ms < wanted + 0.001;
}

/*
 * Whether all that was launched since is behind a slow kernel, at the end of which the event is. If not, the machine was too slow,
 * and it is done again: not more than TRIES times.
 */
static bool queued_behind(CUevent slow_end)
{
	return cuEventQuery(slow_end) == CUDA_ERROR_NOT_READY;
}

/* A kernel of 100 us and 1 us for each block: the times between events behind each other are those of the kernels, exactly. */
static void check_blocks(void)
{
	CUfunction slow = function("slow"), blocks = function("blocks");
	CUevent a, b, c, slow_end;
	int tries = 0;

	do {
		CHECK(tries++ < TRIES);
		FINE(cuLaunchKernel(slow, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
		a = recorded(NULL);
		FINE(cuLaunchKernel(blocks, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
		b = recorded(NULL);
		FINE(cuLaunchKernel(blocks, 10, 10, 9, 32, 1, 1, 0, NULL, NULL, NULL));
		c = recorded(NULL);
	} while (!queued_behind(a));
	CHECK(near(elapsed(a, b), 0.101));
	CHECK(near(elapsed(b, c), 1.0));
	CHECK(near(elapsed(a, c), 1.101));
	tries = 0;
	do { /* an event of the list of those that wait, recorded again, and one destroyed in it */
		CHECK(tries++ < TRIES);
		FINE(cuEventDestroy_v2(b));
		FINE(cuEventRecord(a, NULL));
		FINE(cuLaunchKernel(slow, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
		slow_end = recorded(NULL);
		b = recorded(NULL);
		FINE(cuEventRecord(c, NULL));
		FINE(cuEventRecord(a, NULL));
	} while (!queued_behind(slow_end));
	FINE(cuEventDestroy_v2(b));
	CHECK(near(elapsed(a, c), 0));
}

static CUcontext context;
static CUstream crowded;
static CUfunction slow_one;
static atomic_uint launched;

static void *launch_many(void *unused)
{
	(void)unused;
	FINE(cuCtxSetCurrent(context));
	for (int i = 0; i < DEPTH + 1; i++) {
		FINE(cuLaunchKernel(slow_one, 1, 1, 1, 1, 1, 1, 0, crowded, NULL, NULL));
		atomic_fetch_add(&launched, 1);
	}
	return NULL;
}

/* The launch after as many as a stream holds waits until there is room; other streams have room of their own. */
static void check_depth(void)
{
	struct timespec moment = {.tv_nsec = 20000000};
	CUfunction second = function("second");
	CUstream other;
	pthread_t thread;

	slow_one = function("quick");
	FINE(cuStreamCreate(&crowded, CU_STREAM_NON_BLOCKING));
	FINE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	FINE(cuLaunchKernel(second, 1, 1, 1, 1, 1, 1, 0, crowded, NULL, NULL)); /* holds all others up */
	CHECK(!pthread_create(&thread, NULL, launch_many, NULL));
	while (atomic_load(&launched) < DEPTH - 1 && cuStreamQuery(crowded) == CUDA_ERROR_NOT_READY)
		sched_yield();
	nanosleep(&moment, NULL);
	FINE(cuLaunchKernel(slow_one, 1, 1, 1, 1, 1, 1, 0, other, NULL, NULL));
	if (cuStreamQuery(other) == CUDA_ERROR_NOT_READY) /* else this machine was too slow to see it */
		CHECK(atomic_load(&launched) == DEPTH - 1);
	CHECK(!pthread_join(thread, NULL));
	FINE(cuStreamSynchronize(crowded));
	FINE(cuStreamQuery(other)); /* launched before the last of those */
	FINE(cuStreamDestroy_v2(crowded));
	FINE(cuStreamDestroy_v2(other));
}

static void *launch_and_wait(void *unused)
{
	CUevent begin, end;
	CUstream s;

	(void)unused;
	FINE(cuCtxSetCurrent(context));
	FINE(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	FINE(cuEventCreate(&begin, 0));
	FINE(cuEventCreate(&end, 0));
	for (int i = 0; i < 50; i++) {
		FINE(cuEventRecord(begin, s));
		FINE(cuLaunchKernel(slow_one, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
		FINE(cuEventRecord(end, s));
		if (i % 3)
			FINE(cuStreamSynchronize(s));
		CHECK(elapsed(begin, end) > 0.0099);
	}
	FINE(cuEventDestroy_v2(begin));
	FINE(cuEventDestroy_v2(end));
	FINE(cuStreamDestroy_v2(s));
	return NULL;
}

static void check_threads_launch(void)
{
	pthread_t threads[4];

	slow_one = function("quick");
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&threads[i], NULL, launch_and_wait, NULL));
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(threads[i], NULL));
	FINE(cuCtxSynchronize());
}

void check_queue(void)
{
	context = start();
	check_blocks();
	check_depth();
	check_threads_launch();
}

void check_legacy(void)
{
	CUfunction f;
	CUstream s;
	CUevent a, b, c;
	double value = 1;
	int tries = 0;

	start();
	f = function("blocks");
	FINE(cuStreamCreate(&s, 0));
	GIVES(cuFuncSetBlockShape(f, 0, 1, 1), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuFuncSetBlockShape(f, 64, 64, 1), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuFuncSetBlockShape((CUfunction)0x9990, 1, 1, 1), CUDA_ERROR_INVALID_HANDLE);
	FINE(cuFuncSetBlockShape(f, 64, 2, 1));
	FINE(cuFuncSetSharedSize(f, 1024));
	GIVES(cuParamSetSize(f, 4097), CUDA_ERROR_INVALID_VALUE);
	FINE(cuParamSetSize(f, 24));
	FINE(cuParamSeti(f, 0, 1));
	FINE(cuParamSetf(f, 4, 1));
	FINE(cuParamSetv(f, 8, &value, sizeof(value)));
	GIVES(cuParamSetv(f, -1, &value, sizeof(value)), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuParamSetv(f, 0, NULL, sizeof(value)), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuLaunchGrid(f, 0, 1), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuLaunch((CUfunction)0x9990), CUDA_ERROR_INVALID_HANDLE);
	do {
		CHECK(tries++ < TRIES);
		FINE(cuLaunchKernel(function("slow"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
		a = recorded(NULL);
		FINE(cuLaunch(f));
		FINE(cuLaunchGrid(f, 10, 10));
		b = recorded(NULL);
		FINE(cuLaunchGridAsync(f, 30, 30, s));
		c = recorded(s);
	} while (!queued_behind(a));
	CHECK(near(elapsed(a, b), 0.301));
	CHECK(near(elapsed(b, c), 1.0));
}

/* Needs two devices. */
void check_devices_together(void)
{
	CUDA_LAUNCH_PARAMS list[2] = {0};
	CUcontext ctx[2];
	CUevent begin[2], end[2];

	FINE(cuInit(0));
	for (int i = 0; i < 2; i++) {
		FINE(cuDevicePrimaryCtxRetain(&ctx[i], i));
		FINE(cuCtxSetCurrent(ctx[i]));
		list[i] = (CUDA_LAUNCH_PARAMS){.function = function("slow"), .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
					       .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
		GIVES(cuLaunchCooperativeKernelMultiDevice(&list[i], 1, 0), CUDA_ERROR_INVALID_HANDLE); /* no stream */
		FINE(cuStreamCreate(&list[i].hStream, 0));
		begin[i] = recorded(list[i].hStream);
	}
	GIVES(cuLaunchCooperativeKernelMultiDevice(list, 3, 0), CUDA_ERROR_INVALID_VALUE);
	FINE(cuLaunchCooperativeKernelMultiDevice(list, 2, 0));
	for (int i = 0; i < 2; i++) {
		FINE(cuCtxSetCurrent(ctx[i]));
		end[i] = recorded(list[i].hStream);
		CHECK(elapsed(begin[i], end[i]) >= 20);
	}
	/* An event of another device. */
	FINE(cuLaunchKernel(list[1].function, 1, 1, 1, 1, 1, 1, 0, list[1].hStream, NULL, NULL));
	FINE(cuEventRecord(end[1], list[1].hStream));
	FINE(cuCtxSetCurrent(ctx[0]));
	FINE(cuStreamWaitEvent(list[0].hStream, end[1], 0));
	FINE(cuEventRecord(end[0], list[0].hStream));
	CHECK(elapsed(end[1], end[0]) >= 0);
	list[1].hStream = list[0].hStream;
	GIVES(cuLaunchCooperativeKernelMultiDevice(list, 2, 0), CUDA_ERROR_INVALID_DEVICE);
}
