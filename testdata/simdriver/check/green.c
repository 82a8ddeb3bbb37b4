/* Green contexts: some of the multiprocessors. An H200 has 132. */
#include "check.h"

#include <stdatomic.h>

static const char ptx[] = ".version 6.3\n.target sm_50\n"
			  "// sim-duration-us: 20000\n.visible .entry slow() { ret; }\n"
			  "// sim-duration-us: 300000\n.visible .entry hold() { ret; }\n";

static void rules(void)
{
	CUdevResource all, groups[20], rest;
	CUdevResourceDesc desc;
	CUgreenCtx green;
	unsigned n = 20;

	FINE(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
	CHECK(all.type == CU_DEV_RESOURCE_TYPE_SM && all.sm.smCount == 132);
	GIVES(cuDeviceGetDevResource(0, &all, 2), CUDA_ERROR_INVALID_RESOURCE_TYPE);
	GIVES(cuDeviceGetDevResource(9, &all, 1), CUDA_ERROR_INVALID_DEVICE);
	FINE(cuDevSmResourceSplitByCount(NULL, &n, &all, NULL, 0, 10)); /* how many there would be: of 16, the next multiple of 8 */
	CHECK(n == 8);
	n = 20;
	FINE(cuDevSmResourceSplitByCount(groups, &n, &all, &rest, 0, 1));
	CHECK(n == 16 && groups[15].sm.smCount == 8 && rest.sm.smCount == 4);
	GIVES(cuDevSmResourceSplitByCount(groups, &n, &groups[0], NULL, 0, 8), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION); /* of a split */
	GIVES(cuDevSmResourceSplitByCount(groups, &n, &all, NULL, 0, 133), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
	n = 1;
	FINE(cuDevSmResourceSplitByCount(groups, &n, &all, &rest, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, 3));
	CHECK(n == 1 && groups[0].sm.smCount == 4 && rest.sm.smCount == 128);
	FINE(cuDevResourceGenerateDesc(&desc, groups, 1));
	GIVES(cuGreenCtxCreate(&green, desc, 0, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuGreenCtxCreate(&green, NULL, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuGreenCtxCreate(&green, desc, 1, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_ERROR_INVALID_DEVICE);
	n = 3;
	FINE(cuDevSmResourceSplitByCount(groups, &n, &all, &rest, 0, 32));
	groups[1] = groups[2]; /* several of one split, also the rest, but each once */
	groups[2] = rest;
	FINE(cuDevResourceGenerateDesc(&desc, groups, 3));
	FINE(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
	FINE(cuGreenCtxGetDevResource(green, &all, CU_DEV_RESOURCE_TYPE_SM));
	CHECK(all.sm.smCount == 32 + 32 + 36);
	FINE(cuGreenCtxDestroy(green));
	groups[2] = groups[0];
	GIVES(cuDevResourceGenerateDesc(&desc, groups, 3), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
	n = 1;
	FINE(cuDevSmResourceSplitByCount(&groups[2], &n, &all, NULL, 0, 8)); /* what a green context has can be split */
	GIVES(cuDevResourceGenerateDesc(&desc, groups, 3), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
	rest.type = 0;
	GIVES(cuDevResourceGenerateDesc(&desc, &rest, 1), CUDA_ERROR_INVALID_RESOURCE_TYPE);
	GIVES(cuGreenCtxDestroy(NULL), CUDA_ERROR_INVALID_CONTEXT);
}

/* A kernel of 20 ms in each: when both are done. Launched behind one that is long enough for this machine, so that they begin together. */
static double took(CUmodule module, unsigned blocks, CUstream a, CUstream b)
{
	CUfunction slow, hold;
	CUevent begin, ends[2];
	float ms[2];

	FINE(cuModuleGetFunction(&slow, module, "slow"));
	FINE(cuModuleGetFunction(&hold, module, "hold"));
	FINE(cuEventCreate(&begin, 0));
	FINE(cuEventCreate(&ends[0], 0));
	FINE(cuEventCreate(&ends[1], 0));
	do {
		FINE(cuLaunchKernel(hold, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
		FINE(cuEventRecord(begin, NULL));
		FINE(cuStreamWaitEvent(a, begin, 0));
		FINE(cuStreamWaitEvent(b, begin, 0));
		FINE(cuLaunchKernel(slow, blocks, 1, 1, 1, 1, 1, 0, a, NULL, NULL));
		FINE(cuEventRecord(ends[0], a));
		FINE(cuLaunchKernel(slow, blocks, 1, 1, 1, 1, 1, 0, b, NULL, NULL));
		FINE(cuEventRecord(ends[1], b));
	} while (cuEventQuery(begin) != CUDA_ERROR_NOT_READY);
	for (int i = 0; i < 2; i++) {
		FINE(cuEventSynchronize(ends[i]));
		FINE(cuEventElapsedTime(&ms[i], begin, ends[i]));
	}
	return (double)(ms[0] > ms[1] ? ms[0] : ms[1]);
}

/* The simulator counts multiprocessors in 128 parts of the GPU. */
static bool near(double ms, double wanted)
{
	return ms > wanted * 0.98 && ms < wanted * 1.02;
}

static void wait_for(void *open)
{
	while (!atomic_load((_Atomic bool *)open))
		;
}

/* What is deferred in the legacy stream is the green context's that was current. */
static void deferred(CUmodule module, CUcontext green)
{
	static _Atomic bool open;
	CUevent begin, end;
	CUfunction slow;
	CUcontext was;
	float ms;

	FINE(cuModuleGetFunction(&slow, module, "slow"));
	FINE(cuEventCreate(&begin, 0));
	FINE(cuEventCreate(&end, 0));
	FINE(cuCtxPushCurrent_v2(green));
	FINE(cuLaunchHostFunc(NULL, wait_for, (void *)&open));
	FINE(cuEventRecord(begin, NULL));
	FINE(cuLaunchKernel(slow, 132, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	FINE(cuEventRecord(end, NULL));
	FINE(cuCtxPopCurrent_v2(&was));
	atomic_store(&open, true);
	FINE(cuEventSynchronize(end));
	FINE(cuEventElapsedTime(&ms, begin, end));
	/* All of the GPU would take 20 ms. Longer: this machine stopped between the record and the launch. */
	CHECK(ms > 20 * 132 / 64. * 0.98);
}

/* What is in one, and nothing else. A destroyed one leaves its streams, which can only be destroyed. */
static void events_and_end(CUfunction slow, CUgreenCtx green[2], CUstream a, CUstream c)
{
	CUevent e, other;
	CUcontext ctx;
	CUgraph g;

	FINE(cuCtxFromGreenCtx(&ctx, green[0]));
	FINE(cuEventCreate(&e, 0));
	FINE(cuEventCreate(&other, 0));
	FINE(cuLaunchKernel(slow, 1, 1, 1, 1, 1, 1, 0, a, NULL, NULL));
	FINE(cuCtxRecordEvent(ctx, e)); /* as cuGreenCtxRecordEvent */
	FINE(cuGreenCtxRecordEvent(green[1], other));
	FINE(cuEventQuery(other));
	GIVES(cuEventQuery(e), CUDA_ERROR_NOT_READY);
	FINE(cuGreenCtxWaitEvent(green[1], e));
	FINE(cuEventRecord(other, c));
	FINE(cuEventSynchronize(other));
	FINE(cuEventQuery(e));
	FINE(cuStreamBeginCapture_v2(a, CU_CAPTURE_MODE_RELAXED));
	FINE(cuGreenCtxRecordEvent(green[1], other));
	GIVES(cuGreenCtxRecordEvent(green[0], e), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	GIVES(cuStreamEndCapture(a, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	GIVES(cuGreenCtxWaitEvent(green[1], NULL), CUDA_ERROR_INVALID_HANDLE);

	FINE(cuGreenCtxDestroy(green[0]));
	GIVES(cuGreenCtxDestroy(green[0]), CUDA_ERROR_INVALID_CONTEXT);
	GIVES(cuGreenCtxRecordEvent(green[0], e), CUDA_ERROR_INVALID_CONTEXT);
	GIVES(cuCtxPushCurrent_v2(ctx), CUDA_ERROR_INVALID_CONTEXT);
	GIVES(cuStreamSynchronize(a), CUDA_ERROR_STREAM_DETACHED);
	GIVES(cuLaunchKernel(slow, 1, 1, 1, 1, 1, 1, 0, a, NULL, NULL), CUDA_ERROR_STREAM_DETACHED);
	FINE(cuStreamDestroy_v2(a));
	FINE(cuDevicePrimaryCtxReset_v2(0)); /* with green[1] */
	GIVES(cuGreenCtxDestroy(green[1]), CUDA_ERROR_INVALID_CONTEXT);
	FINE(cuDevicePrimaryCtxRelease_v2(0)); /* that of start */
	GIVES(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
}

/* Source: docs.nvidia.com/cuda/cuda-driver-api, green contexts. */
void check_green(void)
{
	CUcontext primary = start(), ctx, of_stream;
	CUdevResource all, groups[2], has;
	CUdevResourceDesc desc[2];
	CUgreenCtx green[2], found;
	CUstream a, b, c;
	CUmodule module;
	CUfunction slow;
	CUdeviceptr p;
	unsigned n = 2;

	rules();
	FINE(cuModuleLoadData(&module, ptx));
	FINE(cuModuleGetFunction(&slow, module, "slow"));
	FINE(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
	FINE(cuDevSmResourceSplitByCount(groups, &n, &all, NULL, 0, 64));
	CHECK(n == 2);
	for (int i = 0; i < 2; i++) {
		FINE(cuDevResourceGenerateDesc(&desc[i], &groups[i], 1));
		FINE(cuGreenCtxCreate(&green[i], desc[i], 0, CU_GREEN_CTX_DEFAULT_STREAM));
	}
	FINE(cuGreenCtxGetDevResource(green[1], &has, CU_DEV_RESOURCE_TYPE_SM));
	CHECK(has.sm.smCount == 64);
	GIVES(cuGreenCtxStreamCreate(&a, green[0], 0, 0), CUDA_ERROR_INVALID_VALUE);
	FINE(cuGreenCtxStreamCreate(&a, green[0], CU_STREAM_NON_BLOCKING, 0));
	FINE(cuGreenCtxStreamCreate(&b, green[0], CU_STREAM_NON_BLOCKING, 0));
	FINE(cuGreenCtxStreamCreate(&c, green[1], CU_STREAM_NON_BLOCKING, 0));

	CHECK(near(took(module, 32, a, b), 20));  /* together they have room */
	CHECK(near(took(module, 132, a, c), 20 * 132 / 64.)); /* on 64 of 132, and both at the same time */
	CHECK(near(took(module, 132, a, b), 2 * 20 * 132 / 64.)); /* one after the other, in the same context */

	FINE(cuCtxFromGreenCtx(&ctx, green[0]));
	FINE(cuStreamGetCtx(a, &of_stream));
	CHECK(of_stream == ctx);
	FINE(cuStreamGetCtx_v2(a, &of_stream, &found));
	CHECK(of_stream == primary && found == green[0]);
	FINE(cuCtxPushCurrent_v2(ctx));
	FINE(cuCtxGetDevResource(ctx, &has, CU_DEV_RESOURCE_TYPE_SM));
	CHECK(has.sm.smCount == 64);
	FINE(cuMemAlloc_v2(&p, 1 << 20));
	FINE(cuStreamGetCtx_v2(NULL, &of_stream, &found));
	CHECK(of_stream == primary && found == green[0]);
	GIVES(cuCtxDestroy_v2(ctx), CUDA_ERROR_INVALID_CONTEXT);
	FINE(cuCtxPopCurrent_v2(&of_stream));
	CHECK(of_stream == ctx);
	FINE(cuMemFree_v2(p)); /* it is the primary context's */
	deferred(module, ctx);

	events_and_end(slow, green, a, c);
}
