/* What a context can be set to, and what has no effect on a simulated GPU but is remembered. */
#include "page.h"

#define MIB (1ull << 20)
#define CACHE_CONFIGS 3
#define SHARED_CONFIGS 2
#define MAX_STACK (512ull << 10)
#define SM_COUNT 16 /* MULTIPROCESSOR_COUNT */

/* A new context's. Those of printf and of the cache are an H100's by its 132 multiprocessors and its cache of 50 MiB. */
static uint64_t default_of(CUcontext ctx, int limit)
{
	static const uint64_t values[CU_LIMITS] = {1024, 0, 8 * MIB, 2, 2048, 64, 0};
	const struct gpu *c = &process.view.s->gpus[ctx->gpu];

	switch (limit) {
	case CU_LIMIT_PRINTF_FIFO_SIZE:
		return 64ull * 1024 * c->sm_count;
	case CU_LIMIT_PERSISTING_L2_CACHE_SIZE:
		return c->cc_major < 8 ? 0 : c->l2_bytes / 16 * 3;
	default:
		return values[limit];
	}
}

uint64_t *context_limit(CUcontext ctx, int limit)
{
	if (!ctx->limits_set) {
		for (int i = 0; i < CU_LIMITS; i++)
			ctx->limits[i] = default_of(ctx, i);
		ctx->limits_set = true;
	}
	return &ctx->limits[limit];
}

static CUresult limit_fits(CUcontext ctx, int limit, uint64_t value)
{
	switch (limit) {
	case CU_LIMIT_STACK_SIZE:
		return value > MAX_STACK ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	case CU_LIMIT_MALLOC_HEAP_SIZE: /* the GPU has not so much: our reading */
		return value > device_capacity(ctx->device) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
	case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH: /* as documented: not from compute capability 9.0 on */
		return process.view.s->gpus[ctx->gpu].cc_major >= 9 ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_SUCCESS;
	case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
		return value > 128 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	case CU_LIMIT_PERSISTING_L2_CACHE_SIZE:
		return process.view.s->gpus[ctx->gpu].cc_major < 8 ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_SUCCESS;
	default:
		return CUDA_SUCCESS;
	}
}

/* The stacks of all threads that the GPU can hold are memory of the context. What they take by default is in what a new one takes,
 * and it keeps that. The heap is taken later: see runtime.c. */
static uint64_t memory_of(CUcontext ctx, int limit, uint64_t value)
{
	int sms = 0;

	if (limit != CU_LIMIT_STACK_SIZE)
		return 0;
	if (value < default_of(ctx, limit))
		value = default_of(ctx, limit);
	cuDeviceGetAttribute(&sms, SM_COUNT, ctx->device);
	return value * (unsigned)sms * process.view.s->gpus[ctx->gpu].threads_per_sm;
}

static CUresult resize(CUcontext ctx, uint64_t from, uint64_t to)
{
	CUresult r = CUDA_SUCCESS;

	if (to > SIZE_MAX / 2)
		return CUDA_ERROR_OUT_OF_MEMORY;
	from = page_whole(ctx, from);
	to = page_whole(ctx, to);
	if (to > from)
		r = from_errno(charge_take(&process.view, ctx->gpu, CHARGE_CONTEXT, to - from));
	else if (to < from)
		charge_return(&process.view, ctx->gpu, CHARGE_CONTEXT, from - to);
	if (!r)
		ctx->charged += to - from;
	return r;
}

CUresult cuCtxSetLimit(int limit, size_t value)
{
	CUcontext ctx;
	CUresult r;

	ENTER();
	r = current_context(&ctx);
	if (r)
		return r;
	if (limit < 0 || limit >= CU_LIMITS)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	r = limit_fits(ctx, limit, value);
	if (r)
		return r;
	process_lock();
	r = runtime_fixed(ctx, limit) ? CUDA_ERROR_INVALID_VALUE :
					resize(ctx, memory_of(ctx, limit, *context_limit(ctx, limit)), memory_of(ctx, limit, value));
	if (!r)
		*context_limit(ctx, limit) = value;
	process_unlock();
	return r;
}

CUresult cuCtxGetLimit(size_t *value, int limit)
{
	CUcontext ctx;
	CUresult r;

	ENTER();
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	r = current_context(&ctx);
	if (r)
		return r;
	if (limit < 0 || limit >= CU_LIMITS)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	r = limit_fits(ctx, limit, 0);
	if (r)
		return r;
	process_lock();
	*value = *context_limit(ctx, limit);
	process_unlock();
	return CUDA_SUCCESS;
}

static CUresult get_setting(int *value, size_t offset)
{
	CUcontext ctx;
	CUresult r;

	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	r = current_context(&ctx);
	if (!r)
		*value = *(int *)((char *)ctx + offset);
	return r;
}

static CUresult set_setting(int value, int most, size_t offset)
{
	CUcontext ctx;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (value < 0 || value > most)
		return CUDA_ERROR_INVALID_VALUE;
	*(int *)((char *)ctx + offset) = value;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(int *config)
{
	ENTER();
	return get_setting(config, offsetof(struct CUctx_st, cache_config));
}

CUresult cuCtxSetCacheConfig(int config)
{
	ENTER();
	return set_setting(config, CACHE_CONFIGS, offsetof(struct CUctx_st, cache_config));
}

CUresult cuCtxGetSharedMemConfig(int *config)
{
	CUresult r;

	ENTER();
	r = get_setting(config, offsetof(struct CUctx_st, shared_config));
	if (!r && !*config)
		*config = 1; /* banks of four bytes, as on every GPU since Maxwell */
	return r;
}

CUresult cuCtxSetSharedMemConfig(int config)
{
	ENTER();
	return set_setting(config, SHARED_CONFIGS, offsetof(struct CUctx_st, shared_config));
}

CUresult cuFuncSetSharedMemConfig(CUfunction f, int config)
{
	bool known;

	ENTER();
	if (config < 0 || config > SHARED_CONFIGS)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	known = object_is(OBJECT_FUNCTION, f);
	process_unlock();
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuCtxResetPersistingL2Cache(void)
{
	CUcontext ctx;
	CUresult r;

	ENTER();
	r = current_context(&ctx);
	if (r)
		return r;
	return process.view.s->gpus[ctx->gpu].cc_major < 8 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

/* Another for each context of the process, also of those that were. */
CUresult cuCtxGetId(CUcontext ctx, unsigned long long *id)
{
	static unsigned long long last;
	CUresult r = CUDA_SUCCESS;

	ENTER();
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	if (!ctx)
		r = current_context(&ctx);
	if (r)
		return r;
	process_lock();
	if (!object_is(OBJECT_CONTEXT, ctx)) {
		r = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	} else {
		if (!ctx->id)
			ctx->id = ++last;
		*id = ctx->id;
	}
	process_unlock();
	return r;
}

CUresult cuCtxSetFlags(unsigned int flags)
{
	CUcontext ctx;
	CUresult r;

	ENTER();
	r = current_context(&ctx);
	if (r)
		return r;
	if (flags & ~0x7fu)
		return CUDA_ERROR_INVALID_VALUE;
	ctx->flags = flags;
	return CUDA_SUCCESS;
}

/* Deprecated: a context has one more user, or one less, and goes with the last. */
CUresult cuCtxAttach(CUcontext *ctx, unsigned int flags)
{
	CUcontext current;
	CUresult r;

	ENTER();
	if (!ctx || flags)
		return CUDA_ERROR_INVALID_VALUE;
	r = current_context(&current);
	if (r)
		return r;
	process_lock();
	current->attached++;
	process_unlock();
	*ctx = current;
	return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext ctx)
{
	CUcontext current;
	bool last;
	CUresult r;

	ENTER();
	r = current_context(&current);
	if (r)
		return r;
	if (ctx != current)
		return CUDA_ERROR_INVALID_CONTEXT;
	process_lock();
	last = !ctx->attached;
	ctx->attached -= !last;
	process_unlock();
	return last ? cuCtxDestroy_v2(ctx) : CUDA_SUCCESS;
}

/* No GPU reaches another's memory, as cuDeviceCanAccessPeer reports. */
static CUresult peer(CUcontext ctx, CUresult none)
{
	CUcontext current;
	bool known;
	CUresult r = current_context(&current);

	if (r)
		return r;
	process_lock();
	known = object_is(OBJECT_CONTEXT, ctx);
	process_unlock();
	return known && ctx != current ? none : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxEnablePeerAccess(CUcontext ctx, unsigned int flags)
{
	ENTER();
	return flags ? CUDA_ERROR_INVALID_VALUE : peer(ctx, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
}

CUresult cuCtxDisablePeerAccess(CUcontext ctx)
{
	ENTER();
	return peer(ctx, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
}

CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice dev, CUdevice other)
{
	ENTER();
	if (!value || attribute < 1 || attribute > 4)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_gpu(dev) || !device_gpu(other) || dev == other)
		return CUDA_ERROR_INVALID_DEVICE;
	*value = 0;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev)
{
	static const int attributes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}; /* in order of the struct */
	int *to = (int *)prop;
	CUresult r = CUDA_SUCCESS;

	ENTER();
	if (!prop)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]) && !r; i++)
		r = cuDeviceGetAttribute(&to[i], attributes[i], dev);
	return r;
}

CUresult cuProfilerInitialize(const char *config, const char *output, int mode)
{
	ENTER();
	(void)config, (void)output, (void)mode;
	return CUDA_ERROR_NOT_SUPPORTED; /* as documented since CUDA 11 */
}

CUresult cuProfilerStart(void)
{
	CUcontext ctx;

	ENTER();
	return current_context(&ctx);
}

CUresult cuProfilerStop(void)
{
	CUcontext ctx;

	ENTER();
	return current_context(&ctx);
}

#define EXEC_AFFINITY_SM_COUNT 0

/* A part of the multiprocessors is only for clients of MPS. */
CUresult cuDeviceGetExecAffinitySupport(int *supported, int type, CUdevice dev)
{
	ENTER();
	if (!supported || type != EXEC_AFFINITY_SM_COUNT)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*supported = 0;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetExecAffinity(void *affinity, int type)
{
	CUcontext ctx;
	CUresult r;

	ENTER();
	r = current_context(&ctx);
	if (r)
		return r;
	return affinity && type == EXEC_AFFINITY_SM_COUNT ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : CUDA_ERROR_INVALID_VALUE;
}
