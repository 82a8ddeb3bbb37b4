/* Contexts: one primary per device and process, any number of plain ones; a stack of current ones per thread. */
#include "green.h"
#include "pending.h"
#include "pool.h"

#include <stdlib.h>

#define STACK_DEPTH 64
#define FLAGS_MASK 0x7fu

static _Thread_local CUcontext stack[STACK_DEPTH];
static _Thread_local unsigned depth;

CUresult current_context(CUcontext *ctx)
{
	CUcontext top = depth ? stack[depth - 1] : NULL;

	*ctx = top && top->of ? top->of : top;
	if (!top)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!top->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return device_lost(top->device) ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
}

CUcontext current_as_set(void)
{
	return depth ? stack[depth - 1] : NULL;
}

/* Process lock held. */
static CUresult activate(CUcontext ctx)
{
	const struct gpu *c = &process.view.s->gpus[ctx->gpu];
	uint64_t bytes = c->context_bytes, unlisted = c->unlisted_bytes < bytes ? c->unlisted_bytes : bytes;
	CUresult r;

	if (device_lost(ctx->device))
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	r = from_errno(charge_take_unlisted(&process.view, ctx->gpu, bytes, unlisted));
	if (r)
		return r;
	if (!object_add(OBJECT_CONTEXT, ctx)) {
		charge_return_unlisted(&process.view, ctx->gpu, bytes, unlisted);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	ctx->charged = bytes;
	ctx->unlisted = unlisted;
	ctx->alive = true;
	ctx->legacy_tail = ctx->kernel_tail = ctx->blocking_tail = ctx->any_tail = ctx->floor = 0;
	ctx->limits_set = false;
	ctx->loaded = ctx->ran = 0;
	ctx->id = 0;
	ctx->attached = 0;
	ctx->cache_config = ctx->shared_config = 0;
	return CUDA_SUCCESS;
}

static bool other_lives; /* process lock */

static bool find_other(void *object, CUcontext ctx)
{
	CUcontext other = object;

	other_lives |= other != ctx && other->gpu == ctx->gpu;
	return false;
}

/* Process lock held. What it had queued ends with it. Contexts of one process have one queue, so that takes the last one's end. */
static void deactivate(CUcontext ctx)
{
	if (!ctx->alive)
		return;
	greens_drop_context(ctx);
	other_lives = false;
	object_sweep(OBJECT_CONTEXT, find_other, ctx);
	if (!other_lives)
		queue_drop(&process.queues[ctx->gpu]);
	pending_drop_context(ctx);
	streams_drop_context(ctx);
	modules_drop_context(ctx);
	memory_drop_context(ctx);
	ctx->settings = (struct stream_settings){0};
	textures_drop_context(ctx);
	arrays_drop_context(ctx);
	object_remove(ctx);
	charge_return_unlisted(&process.view, ctx->gpu, ctx->charged, ctx->unlisted);
	free(ctx->backlog.tails);
	ctx->backlog = (struct backlog){0};
	ctx->charged = 0;
	ctx->alive = false;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
	CUcontext primary;
	CUresult r = CUDA_SUCCESS;

	ENTER();
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	primary = &process.devices[dev].primary;
	process_lock();
	if (!primary->alive)
		r = activate(primary);
	if (!r) {
		primary->retained++;
		*ctx = primary;
	}
	process_unlock();
	return r;
}

static CUresult primary_release(CUdevice dev)
{
	CUcontext primary;
	CUresult r = CUDA_SUCCESS;

	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	primary = &process.devices[dev].primary;
	process_lock();
	if (!primary->retained)
		r = CUDA_ERROR_INVALID_CONTEXT;
	else if (--primary->retained == 0)
		deactivate(primary);
	process_unlock();
	return r;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
	ENTER();
	return primary_release(dev);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	ENTER();
	return primary_release(dev);
}

static CUresult primary_reset(CUdevice dev)
{
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	process_lock();
	deactivate(&process.devices[dev].primary);
	process_unlock();
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
	ENTER();
	return primary_reset(dev);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	ENTER();
	return primary_reset(dev);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	ENTER();
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	process_lock();
	*flags = process.devices[dev].primary.flags;
	*active = process.devices[dev].primary.alive;
	process_unlock();
	return CUDA_SUCCESS;
}

static CUresult primary_set_flags(CUdevice dev, unsigned int flags)
{
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (flags & ~FLAGS_MASK)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	process.devices[dev].primary.flags = flags;
	process_unlock();
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
	ENTER();
	return primary_set_flags(dev, flags);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
	ENTER();
	return primary_set_flags(dev, flags);
}

static CUresult create(CUcontext *out, unsigned int flags, CUdevice dev)
{
	CUcontext ctx;
	CUresult r;

	if (!out || (flags & ~FLAGS_MASK))
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (depth == STACK_DEPTH)
		return CUDA_ERROR_OUT_OF_MEMORY;
	ctx = calloc(1, sizeof(*ctx));
	if (!ctx)
		return CUDA_ERROR_OUT_OF_MEMORY;
	ctx->device = dev;
	ctx->gpu = process.devices[dev].gpu;
	ctx->flags = flags;
	process_lock();
	r = activate(ctx);
	process_unlock();
	if (r) {
		free(ctx);
		return r;
	}
	stack[depth++] = ctx;
	*out = ctx;
	return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	ENTER();
	return create(ctx, flags, dev);
}

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	ENTER();
	return create(ctx, flags, dev);
}

CUresult cuCtxCreate_v3(CUcontext *ctx, void *affinity, int count, unsigned int flags, CUdevice dev)
{
	ENTER();
	if (affinity || count)
		return CUDA_ERROR_NOT_SUPPORTED; /* execution affinity needs MPS */
	return create(ctx, flags, dev);
}

CUresult cuCtxCreate_v4(CUcontext *ctx, void *params, unsigned int flags, CUdevice dev)
{
	ENTER();
	if (params)
		return CUDA_ERROR_NOT_SUPPORTED;
	return create(ctx, flags, dev);
}

/* The struct is not freed: other threads may have it on their stacks, and their calls must find that it is destroyed. */
static struct graveyard {
	CUcontext ctx;
	struct graveyard *next;
} *destroyed;

static CUresult destroy(CUcontext ctx)
{
	struct graveyard *grave = malloc(sizeof(*grave));
	CUresult r = CUDA_SUCCESS;

	if (!grave)
		return CUDA_ERROR_OUT_OF_MEMORY;
	process_lock();
	if (!object_is(OBJECT_CONTEXT, ctx) || ctx->primary || ctx->green) {
		r = CUDA_ERROR_INVALID_CONTEXT;
		free(grave);
	} else {
		deactivate(ctx);
		grave->ctx = ctx;
		grave->next = destroyed;
		destroyed = grave;
	}
	process_unlock();
	if (!r && depth && stack[depth - 1] == ctx)
		depth--;
	return r;
}

CUresult cuCtxDestroy(CUcontext ctx)
{
	ENTER();
	return destroy(ctx);
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	ENTER();
	return destroy(ctx);
}

static bool is_context(CUcontext ctx)
{
	bool known;

	process_lock();
	known = object_is(OBJECT_CONTEXT, ctx);
	process_unlock();
	return known;
}

static CUresult push(CUcontext ctx)
{
	if (!is_context(ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (depth == STACK_DEPTH)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stack[depth++] = ctx;
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext ctx)
{
	ENTER();
	return push(ctx);
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	ENTER();
	return push(ctx);
}

static CUresult pop(CUcontext *ctx)
{
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (ctx)
		*ctx = stack[depth];
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *ctx)
{
	ENTER();
	return pop(ctx);
}

CUresult cuCtxPopCurrent_v2(CUcontext *ctx)
{
	ENTER();
	return pop(ctx);
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
	ENTER();
	if (!ctx) {
		if (depth)
			depth--;
		return CUDA_SUCCESS;
	}
	if (!is_context(ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!depth)
		depth = 1;
	stack[depth - 1] = ctx;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *ctx)
{
	ENTER();
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	*ctx = depth ? stack[depth - 1] : NULL;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *dev)
{
	CUcontext ctx;
	CUresult r;

	ENTER();
	if (!dev)
		return CUDA_ERROR_INVALID_VALUE;
	r = current_context(&ctx);
	if (!r)
		*dev = ctx->device;
	return r;
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
	CUcontext ctx;
	CUresult r;

	ENTER();
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	r = current_context(&ctx);
	if (!r)
		*flags = ctx->flags;
	return r;
}

CUresult cuCtxSynchronize(void)
{
	CUcontext ctx;
	CUresult r;
	uint64_t tail;
	struct queue *q;

	ENTER();
	r = current_context(&ctx);
	if (!r)
		r = capture_forbids_wait(ctx, NULL);
	if (r)
		return r;
	pending_wait_context(ctx);
	process_lock();
	tail = ctx->any_tail;
	q = queue_of(ctx);
	process_unlock();
	queue_wait(q, tail);
	pools_synchronised();
	return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
	CUresult r;

	ENTER();
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	if (!ctx) {
		r = current_context(&ctx);
		if (r)
			return r;
	}
	if (!is_context(ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	*version = 3020; /* the context ABI of all _v2 functions */
	return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	CUcontext ctx;
	CUresult r;

	ENTER();
	r = current_context(&ctx);
	if (r)
		return r;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}
