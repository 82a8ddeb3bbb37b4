/*
 * Stream-ordered allocation. A pool reserves memory of its GPU in chunks and hands it out; what is freed stays in it until
 * a synchronisation finds more reserved than its release threshold. What was freed in a stream can be had again in that
 * stream at once, elsewhere when the stream has come so far. A pool is a sum here, without addresses: it never grows
 * while it has enough, as if it could not fragment, and what it must grow by it takes in one piece of whole chunks.
 */
#define _GNU_SOURCE
#include "pool.h"

#include "allocation.h"
#include "pending.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_DEFAULT (32ull << 20)
#define UNIT 512ull

struct freed {
	struct freed *next;
	CUstream stream;
	struct queue *queue; /* free when that has come so far */
	uint64_t tail;
	uint64_t bytes;
};

static CUmemoryPool pools;
static struct {
	CUmemoryPool fixed, current;
} of_device[MAX_GPUS];

static uint64_t chunk(void)
{
	static uint64_t bytes; /* process lock */
	const char *text = bytes ? NULL : getenv("SIMGPU_POOL_CHUNK");

	if (!bytes)
		bytes = text ? strtoull(text, NULL, 0) : CHUNK_DEFAULT;
	return bytes ? bytes : CHUNK_DEFAULT;
}

static uint64_t align_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

/* What was freed in a stream that has come so far is free. */
static uint64_t settle(CUmemoryPool p)
{
	struct freed **at = &p->pending;
	uint64_t left = 0;

	while (*at) {
		struct freed *one = *at;

		if (!queue_done(one->queue, one->tail)) {
			left += one->bytes;
			at = &one->next;
			continue;
		}
		*at = one->next;
		free(one);
	}
	return left;
}

static void give(CUmemoryPool p, uint64_t bytes)
{
	p->reserved -= bytes;
	if (bytes)
		charge_return(&process.view, p->gpu, CHARGE_DATA, bytes);
}

/* Gives back whole chunks that no one uses, until not more than keep is left. */
static void trim(CUmemoryPool p, uint64_t keep)
{
	uint64_t waiting = settle(p), idle = p->imported ? 0 : p->reserved - p->used - waiting;
	uint64_t count = align_up(p->reserved > keep ? p->reserved - keep : 0, chunk()) / chunk();

	if (count > idle / chunk())
		count = idle / chunk();
	give(p, count * chunk());
}

static void bury(CUmemoryPool p)
{
	CUmemoryPool *at = &pools;

	trim(p, 0);
	if (p->used || p->pending)
		return;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	free(p);
}

void pool_freed(CUmemoryPool p, size_t bytes, CUstream stream, struct queue *q, uint64_t tail)
{
	struct freed *one = q && !queue_done(q, tail) ? calloc(1, sizeof(*one)) : NULL;

	p->used -= align_up(bytes, UNIT);
	if (one) {
		*one = (struct freed){p->pending, stream, q, tail, align_up(bytes, UNIT)};
		p->pending = one;
	}
	if (p->destroyed)
		bury(p);
}

void pools_synchronised(void)
{
	process_lock();
	allocations_settle();
	for (CUmemoryPool p = pools, next; p; p = next) {
		next = p->next;
		if (p->destroyed)
			bury(p);
		else if (p->reserved > p->threshold)
			trim(p, p->threshold);
	}
	process_unlock();
}

void pools_trim(unsigned gpu)
{
	allocations_settle();
	for (CUmemoryPool p = pools; p; p = p->next) {
		if (p->gpu == gpu)
			trim(p, 0);
	}
}

static void raise_to(uint64_t *high, uint64_t value)
{
	if (value > *high)
		*high = value;
}

/* Of what was freed in this very stream, up to so much. */
static uint64_t reuse_own(CUmemoryPool p, CUstream stream, uint64_t wanted, bool take)
{
	uint64_t found = 0;

	for (struct freed *one = p->pending; one && found < wanted; one = one->next) {
		uint64_t part = one->bytes < wanted - found ? one->bytes : wanted - found;

		if (one->stream != stream)
			continue;
		found += part;
		if (take)
			one->bytes -= part;
	}
	return found;
}

static CUresult grow(CUmemoryPool p, uint64_t bytes)
{
	uint64_t more = align_up(bytes, chunk());
	CUresult r;

	if (p->max && p->reserved + more > p->max)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = from_errno(charge_take(&process.view, p->gpu, CHARGE_DATA, more));
	if (r == CUDA_ERROR_OUT_OF_MEMORY) {
		pools_trim(p->gpu);
		r = from_errno(charge_take(&process.view, p->gpu, CHARGE_DATA, more));
	}
	if (r)
		return r;
	p->reserved += more;
	raise_to(&p->reserved_high, p->reserved);
	return CUDA_SUCCESS;
}

/* Process lock held. */
static CUresult take(CUmemoryPool p, CUcontext ctx, CUstream stream, size_t bytes, CUdeviceptr *out)
{
	uint64_t wanted = align_up(bytes, UNIT), waiting = settle(p), idle = p->reserved - p->used - waiting;
	CUresult r = CUDA_SUCCESS;

	if (p->imported || p->destroyed)
		return CUDA_ERROR_INVALID_VALUE;
	if (idle < wanted && idle + reuse_own(p, stream, wanted - idle, false) < wanted) {
		r = grow(p, wanted);
		idle = wanted;
	}
	if (!r)
		r = allocation_add(ctx, bytes, p, out);
	if (r)
		return r;
	if (idle < wanted)
		reuse_own(p, stream, wanted - idle, true);
	p->used += wanted;
	raise_to(&p->used_high, p->used);
	return CUDA_SUCCESS;
}

static CUmemoryPool new_pool(CUdevice dev)
{
	CUmemoryPool p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->device = dev;
	p->gpu = process.devices[dev].gpu;
	p->reuse[0] = p->reuse[1] = p->reuse[2] = 1;
	if (!object_add(OBJECT_POOL, p)) {
		free(p);
		return NULL;
	}
	p->next = pools;
	pools = p;
	return p;
}

/* Process lock held. */
static CUmemoryPool default_pool(CUdevice dev)
{
	if (!of_device[dev].fixed) {
		of_device[dev].fixed = new_pool(dev);
		if (of_device[dev].fixed)
			of_device[dev].fixed->fixed = true;
	}
	return of_device[dev].fixed;
}

static CUmemoryPool current_pool(CUdevice dev)
{
	return of_device[dev].current ? of_device[dev].current : default_pool(dev);
}

static CUresult allocate_async(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, bool any, CUstream handle)
{
	CUcontext ctx;
	CUstream s;
	bool captured = false;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (!out || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes > SIZE_MAX / 2)
		return CUDA_ERROR_OUT_OF_MEMORY;
	process_lock();
	r = stream_find(handle, ctx, &s);
	if (!r) {
		ctx = s ? s->ctx : ctx;
		r = capture_check(ctx, s, &captured);
	}
	if (!r && any)
		pool = current_pool(ctx->device);
	if (!r && !object_is(OBJECT_POOL, pool))
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r)
		r = captured ? graph_capture_alloc(s, pool->device, bytes, out) : take(pool, ctx, s, bytes, out);
	process_unlock();
	return r;
}

CUresult cuMemAllocAsync(CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
	ENTER();
	return allocate_async(ptr, bytes, NULL, true, stream);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
	ENTER();
	return allocate_async(ptr, bytes, NULL, true, per_thread(stream));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	ENTER();
	return allocate_async(ptr, bytes, pool, false, stream);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	ENTER();
	return allocate_async(ptr, bytes, pool, false, per_thread(stream));
}

static CUresult free_async(CUdeviceptr ptr, CUstream handle)
{
	CUcontext ctx;
	CUstream s;
	bool captured = false;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	process_lock();
	r = stream_find(handle, ctx, &s);
	if (!r) {
		ctx = s ? s->ctx : ctx;
		r = capture_check(ctx, s, &captured);
	}
	if (!r && captured)
		r = graph_capture_free(s, ptr);
	else if (!r && pending_before(ctx, s))
		r = pending_put_free(ctx, s, ptr);
	else if (!r)
		r = allocation_free_async(ptr, ctx, s);
	process_unlock();
	return r;
}

CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
	ENTER();
	return free_async(ptr, stream);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream)
{
	ENTER();
	return free_async(ptr, per_thread(stream));
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	ENTER();
	if (!pool || !props || props->allocType != 1 || (props->handleTypes & ~CU_MEM_HANDLE_POSIX_FD))
		return CUDA_ERROR_INVALID_VALUE;
	if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!device_gpu(props->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	process_lock();
	*pool = new_pool(props->location.id);
	if (*pool)
		(*pool)->max = props->maxSize;
	process_unlock();
	return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	CUresult r = CUDA_SUCCESS;

	ENTER();
	process_lock();
	if (!object_is(OBJECT_POOL, pool) || pool->fixed) {
		r = CUDA_ERROR_INVALID_VALUE;
	} else {
		object_remove(pool);
		for (unsigned i = 0; i < MAX_GPUS; i++) {
			if (of_device[i].current == pool)
				of_device[i].current = NULL; /* the default one is current again */
		}
		pool->destroyed = true;
		bury(pool);
	}
	process_unlock();
	return r;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	CUresult r;

	ENTER();
	r = capture_forbids_unsafe();
	if (r)
		return r;
	process_lock();
	if (object_is(OBJECT_POOL, pool))
		trim(pool, keep);
	else
		r = CUDA_ERROR_INVALID_VALUE;
	process_unlock();
	return r;
}

static CUresult current_of(CUmemoryPool *pool, CUdevice dev, CUmemoryPool (*which)(CUdevice))
{
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	process_lock();
	*pool = which(dev);
	process_unlock();
	return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev)
{
	ENTER();
	return current_of(pool, dev, default_pool);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
	ENTER();
	return current_of(pool, dev, current_pool);
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
	CUresult r = CUDA_SUCCESS;

	ENTER();
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	process_lock();
	if (!object_is(OBJECT_POOL, pool) || pool->device != dev || pool->imported)
		r = CUDA_ERROR_INVALID_VALUE;
	else
		of_device[dev].current = pool;
	process_unlock();
	return r;
}

bool pool_device(CUmemoryPool pool, CUdevice *dev)
{
	bool own;

	process_lock();
	own = object_is(OBJECT_POOL, pool) && !pool->imported;
	if (own)
		*dev = pool->device;
	process_unlock();
	return own;
}

CUresult pool_import(CUmemoryPool *pool, CUdevice dev)
{
	process_lock();
	*pool = new_pool(dev);
	if (*pool)
		(*pool)->imported = true;
	process_unlock();
	return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult pool_import_pointer(CUmemoryPool pool, CUcontext ctx, const struct share *found, int kept, unsigned slot, CUdeviceptr *out)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	process_lock();
	if (object_is(OBJECT_POOL, pool) && pool->imported)
		r = allocation_open(ctx, DEVICE, pool, found, kept, slot, out);
	if (!r)
		pool->used += align_up(found->length, UNIT);
	process_unlock();
	return r;
}
