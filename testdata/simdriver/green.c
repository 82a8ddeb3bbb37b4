/*
 * Green contexts: some of a device's multiprocessors, and streams that use no others. Everything else is the primary context's.
 * The rules of partitions are those of NVIDIA's documentation (green contexts), by compute capability.
 */
#include "green.h"

#include "capture.h"

#include <stdlib.h>
#include <string.h>

struct inside { /* a resource's internal part */
	unsigned device; /* 1 + it; 0: not from this driver */
	uint64_t split;	 /* the call that made it, which is not split again; 0: a device's or a context's */
	unsigned part;	 /* of that split */
};

struct CUdevResourceDesc_st {
	CUdevice device;
	unsigned count; /* multiprocessors */
};

static struct inside inside_of(const CUdevResource *r)
{
	struct inside in;

	memcpy(&in, r->internal, sizeof(in));
	return in;
}

static unsigned step_of(CUdevice dev, unsigned flags)
{
	unsigned major = device_gpu(dev)->cc_major;

	return major >= 9 && !(flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING) ? 8 : major >= 7 ? 2 : 1;
}

static unsigned least_of(CUdevice dev, unsigned flags)
{
	unsigned major = device_gpu(dev)->cc_major;

	return major == 8 ? 4 : step_of(dev, flags);
}

static CUdevResource make(CUdevice dev, unsigned count, uint64_t split, unsigned part)
{
	struct inside in = {(unsigned)dev + 1, split, part};
	CUdevResource r = {.type = count ? CU_DEV_RESOURCE_TYPE_SM : CU_DEV_RESOURCE_TYPE_INVALID};

	memcpy(r.internal, &in, sizeof(in));
	if (count) {
		r.sm.smCount = count;
		r.sm.minSmPartitionSize = least_of(dev, 0);
		r.sm.smCoscheduledAlignment = step_of(dev, 0);
	}
	return r;
}

static CUresult whole(CUdevice dev, CUdevResource *out, int type)
{
	int count;
	CUresult r;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	r = cuDeviceGetAttribute(&count, 16, dev); /* MULTIPROCESSOR_COUNT */
	if (!r)
		*out = make(dev, (unsigned)count, 0, 0);
	return r;
}

CUresult cuDeviceGetDevResource(CUdevice dev, CUdevResource *resource, int type)
{
	ENTER();
	return device_gpu(dev) ? whole(dev, resource, type) : CUDA_ERROR_INVALID_DEVICE;
}

static bool is_green(CUgreenCtx green)
{
	bool is;

	process_lock();
	is = object_is(OBJECT_GREEN, green);
	process_unlock();
	return is;
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *resource, int type)
{
	ENTER();
	if (!resource || !is_green(green))
		return CUDA_ERROR_INVALID_VALUE;
	if (type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	*resource = make(green->as_context.device, green->count, 0, 0);
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevResource(CUcontext ctx, CUdevResource *resource, int type)
{
	bool known;

	ENTER();
	process_lock();
	known = object_is(OBJECT_CONTEXT, ctx);
	process_unlock();
	if (!known)
		return CUDA_ERROR_INVALID_CONTEXT;
	return ctx->green ? cuGreenCtxGetDevResource(ctx->green, resource, type) : whole(ctx->device, resource, type);
}

CUresult cuDevSmResourceSplitByCount(CUdevResource *groups, unsigned int *count, const CUdevResource *input, CUdevResource *remaining,
				     unsigned int flags, unsigned int least)
{
	static atomic_ullong splits;
	unsigned step, size, n, all;
	unsigned long long split;
	struct inside in;
	CUdevice dev;

	ENTER();
	if (!count || !input || (groups && !*count) || (flags & ~3u))
		return CUDA_ERROR_INVALID_VALUE;
	if (input->type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	in = inside_of(input);
	all = input->sm.smCount;
	dev = (CUdevice)in.device - 1;
	if (!in.device || !device_gpu(dev))
		return CUDA_ERROR_INVALID_VALUE;
	if (in.split || least > all)
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	step = flags & CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE && device_gpu(dev)->cc_major >= 9 ? 16 : step_of(dev, flags);
	size = least > least_of(dev, flags) ? least : least_of(dev, flags);
	size = (size + step - 1) / step * step;
	n = all / size;
	if (!n)
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	if (groups && *count < n)
		n = *count;
	*count = n;
	split = atomic_fetch_add(&splits, 1) + 1;
	for (unsigned i = 0; groups && i < n; i++)
		groups[i] = make(dev, size, split, i);
	if (remaining)
		*remaining = make(dev, all - n * size, split, n);
	return CUDA_SUCCESS;
}

/* Of one split, and each once. */
static bool fits(const CUdevResource *resources, unsigned count)
{
	struct inside last = inside_of(&resources[count]);

	for (unsigned i = 0; i < count; i++) {
		struct inside in = inside_of(&resources[i]);

		if (!in.split || in.split != last.split || in.part == last.part)
			return false;
	}
	return last.device != 0;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *desc, CUdevResource *resources, unsigned int count)
{
	struct CUdevResourceDesc_st d = {0};

	ENTER();
	if (!desc || !resources || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		struct inside in = inside_of(&resources[i]);

		if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM)
			return CUDA_ERROR_INVALID_RESOURCE_TYPE;
		if (!fits(resources, i))
			return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
		d.device = (CUdevice)in.device - 1;
		d.count += resources[i].sm.smCount;
	}
	process_lock();
	*desc = malloc(sizeof(d));
	if (*desc) {
		**desc = d;
		if (!object_add(OBJECT_RESOURCES, *desc)) {
			free(*desc);
			*desc = NULL;
		}
	}
	process_unlock();
	return *desc ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Process lock held. */
static CUresult create(CUgreenCtx *out, CUdevResourceDesc desc, CUdevice dev)
{
	CUgreenCtx g;

	if (!object_is(OBJECT_RESOURCES, desc) || desc->device != dev)
		return CUDA_ERROR_INVALID_VALUE;
	g = calloc(1, sizeof(*g));
	if (!g || !object_add(OBJECT_GREEN, g) || !object_add(OBJECT_CONTEXT, &g->as_context)) {
		object_remove(g);
		free(g);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	g->as_context.device = dev;
	g->as_context.gpu = process.devices[dev].gpu;
	g->as_context.green = g;
	g->as_context.of = &process.devices[dev].primary;
	g->as_context.alive = true;
	g->count = desc->count;
	g->width = width_of(dev, desc->count);
	*out = g;
	return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
{
	CUcontext primary;
	CUresult r;

	ENTER();
	if (!green || flags != CU_GREEN_CTX_DEFAULT_STREAM) /* documented: required */
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	r = cuDevicePrimaryCtxRetain(&primary, dev);
	if (r)
		return r;
	process_lock();
	r = create(green, desc, dev);
	process_unlock();
	if (r)
		cuDevicePrimaryCtxRelease_v2(dev);
	return r;
}

static bool detach(void *object, CUcontext ctx)
{
	CUstream s = object;

	if (!s->green || s->green != ctx->green)
		return false;
	s->green = NULL;
	s->detached = true;
	if (s->capture)
		s->capture->invalid = true;
	return false;
}

/* It is not freed, as no context is: threads may have it on their stacks. */
static void end(CUgreenCtx g)
{
	static CUgreenCtx gone;

	object_sweep(OBJECT_STREAM, detach, &g->as_context);
	object_remove(g);
	object_remove(&g->as_context);
	g->as_context.alive = false;
	g->next_gone = gone;
	gone = g;
}

static bool drop(void *object, CUcontext primary)
{
	CUgreenCtx g = object;

	if (g->as_context.of != primary)
		return false;
	end(g);
	if (primary->retained) /* by it, where this is a reset */
		primary->retained--;
	return false;
}

void greens_drop_context(CUcontext primary)
{
	object_sweep(OBJECT_GREEN, drop, primary);
}

CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	CUresult r = CUDA_ERROR_INVALID_CONTEXT;
	CUdevice dev = 0;

	ENTER();
	process_lock();
	if (object_is(OBJECT_GREEN, green)) {
		dev = green->as_context.device;
		end(green);
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r ? r : cuDevicePrimaryCtxRelease_v2(dev);
}

CUresult cuCtxFromGreenCtx(CUcontext *ctx, CUgreenCtx green)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	ENTER();
	process_lock();
	if (ctx && object_is(OBJECT_GREEN, green)) {
		*ctx = &green->as_context;
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

static _Thread_local CUgreenCtx of_deferred;

void green_deferred(CUgreenCtx g)
{
	of_deferred = g;
}

CUgreenCtx green_of(CUstream s)
{
	CUcontext ctx = s ? NULL : of_deferred ? &of_deferred->as_context : current_as_set();

	return s ? s->green : ctx && ctx->alive ? ctx->green : NULL;
}

struct load green_load(CUgreenCtx g, struct load load)
{
	unsigned width = g->width;

	if (load.width > width) {
		load.ns = (uint64_t)((double)load.ns * load.width / width);
		load.width = width;
	}
	return load;
}

/* Kernels that fill it run one after the other. */
uint64_t green_ready(CUgreenCtx g, uint64_t ready, struct load load)
{
	return load.width == g->width && ready < g->full_tail ? g->full_tail : ready;
}

void green_advance(CUgreenCtx g, uint64_t tail, struct load load)
{
	if (load.width == g->width && g->full_tail < tail)
		g->full_tail = tail;
}

CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned int flags, int priority)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	ENTER();
	if (!stream || !(flags & CU_STREAM_NON_BLOCKING))
		return r;
	process_lock();
	if (object_is(OBJECT_GREEN, green)) {
		*stream = stream_new(green->as_context.of, flags, priority);
		if (*stream)
			(*stream)->green = green;
		r = *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	process_unlock();
	return r;
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event)
{
	ENTER();
	return is_green(green) ? context_record(&green->as_context, event) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event)
{
	ENTER();
	return is_green(green) ? context_wait(&green->as_context, event) : CUDA_ERROR_INVALID_CONTEXT;
}
