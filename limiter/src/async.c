/* Stream-ordered allocation. A pool takes memory of its GPU in chunks and keeps
 * it, so the pool's reserved memory is charged (account.h) and not the allocations;
 * cuMemFreeAsync does not change that memory (of linear memory it does: memory.c). A pool
 * gets smaller when it is trimmed, and at synchronisations; after these, and after the next
 * allocation, the driver is queried for its size.
 *
 * In a stream that is being captured an allocation takes nothing: it becomes a node of
 * a graph, and graph.c charges the graph when it is launched. */
#include "capture.h"
#include "hooks.h"
#include "pool.h"
#include "process.h"
#include "reserve.h"
#include "log.h"

static uint64_t round_up(uint64_t value, uint64_t unit)
{
	return value > UINT64_MAX - unit ? UINT64_MAX : (value + unit - 1) / unit * unit;
}

/* The device of the stream, whatever context is current: the pool of that device is used. */
static CUresult device_of(CUstream stream, CUdevice *dev)
{
	CUcontext here = NULL, own = NULL;

	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD)
		return REAL(cuCtxGetDevice)(dev);
	CUresult result = REAL(cuCtxGetCurrent)(&here);
	if (result == CUDA_SUCCESS)
		result = REAL(cuStreamGetCtx)(stream, &own);
	if (result != CUDA_SUCCESS || own == here)
		return result != CUDA_SUCCESS ? result : REAL(cuCtxGetDevice)(dev);
	result = REAL(cuCtxPushCurrent_v2)(own);
	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuCtxGetDevice)(dev);
	REAL(cuCtxPopCurrent_v2)(&own);
	return result;
}

struct taking {
	struct process *process;
	struct pool *pool; /* NULL: nothing is charged */
	uint64_t size, bytes;
	CUstream stream;
};

/* The most that the pool can grow by: the size, rounded up to whole chunks. */
static uint64_t worst(const struct taking *t)
{
	return round_up(t->size ? t->size : 1, atomic_load_explicit(&t->pool->chunk, memory_order_relaxed));
}

/* If it does not fit: trims the pools first; then waits for the stream, and trims what it has
 * freed; then waits for linear memory that is being freed. */
static bool charge(struct taking *t)
{
	struct account *a = &t->pool->account;

	t->bytes = worst(t);
	if (__builtin_expect(account_begin(t->process, a, t->bytes), 1))
		return true;
	if (pools_make_room(t->process, a->cell, t->bytes)) {
		if (account_begin(t->process, a, t->bytes))
			return true;
		if (capture_wait(t->stream) != CUDA_SUCCESS)
			return false;
		pools_make_room(t->process, a->cell, UINT64_MAX);
		if (account_begin(t->process, a, t->bytes))
			return true;
	}
	while (freeing_wait(t->process))
		if (account_begin(t->process, a, t->bytes))
			return true;
	return false;
}

static CUresult refused(struct taking *t)
{
	reserve_refused(t->process, t->pool->account.cell);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult unknown_pool(void)
{
	static _Atomic unsigned once;

	log_line(&once, "a memory pool that this limiter does not know can't be allocated from inside a memory limit");
	return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult find_pool(struct taking *t, CUmemoryPool handle, bool current)
{
	CUdevice dev = -1;
	CUresult result = CUDA_SUCCESS;

	if (current || !(t->pool = pool_find(t->process, handle)))
		result = device_of(t->stream, &dev);
	if (result == CUDA_SUCCESS && current)
		result = REAL(cuDeviceGetMemPool)(&handle, dev);
	if (result == CUDA_SUCCESS && !t->pool)
		t->pool = pool_known(t->process, handle, dev);
	if (result == CUDA_SUCCESS && !t->pool && !current) /* another device's default pool */
		for (dev = 0; dev < VGPU_MAX_DEVICES && !t->pool; dev++)
			t->pool = pool_known(t->process, handle, dev);
	return result != CUDA_SUCCESS ? result : t->pool ? CUDA_SUCCESS : unknown_pool();
}

/* Charges the allocation. On an error the driver must not be called. */
static CUresult begin(struct taking *t, CUmemoryPool handle, bool current)
{
	if (capture_any() && capture_of(t->stream))
		return CUDA_SUCCESS; /* a node of a graph, or the driver refuses it */
	t->process = process_peek();
	if (__builtin_expect(!t->process, 0)) {
		CUdevice dev;
		CUresult none = REAL(cuCtxGetDevice)(&dev);

		if (none != CUDA_SUCCESS)
			return none; /* no context, so the driver would refuse too */
		t->process = process_get();
	}
	if (!t->process || !owner_wait(&t->process->owner))
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult result = find_pool(t, handle, current);
	if (result != CUDA_SUCCESS)
		return result;
	switch (atomic_load_explicit(&t->pool->state, memory_order_relaxed)) {
	case POOL_CHARGED:
		residue_catch_up(t->process, &t->process->residue, t->pool->account.cell);
		return charge(t) ? CUDA_SUCCESS : refused(t);
	case POOL_FREE_OF_CHARGE:
		t->pool = NULL;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE; /* it is destroyed */
	}
}

/* It grew by more than its chunk: the next time more is charged beforehand. */
static void learn(struct taking *t, uint64_t more)
{
	uint64_t chunk = atomic_load_explicit(&t->pool->chunk, memory_order_relaxed);

	while (round_up(t->size, chunk) < t->bytes + more && chunk < (uint64_t)1 << 40)
		chunk *= 2;
	atomic_store_explicit(&t->pool->chunk, chunk, memory_order_relaxed);
}

static CUresult end(struct taking *t, CUresult result, CUdeviceptr *ptr)
{
	uint64_t more;

	if (!t->pool)
		return result;
	bool fits = account_end(t->process, &t->pool->account, t->bytes, &more);
	if (__builtin_expect(more != 0, 0))
		learn(t, more);
	if (fits || result != CUDA_SUCCESS)
		return result;
	REAL(cuMemFreeAsync)(*ptr, t->stream);
	pools_make_room(t->process, t->pool->account.cell, UINT64_MAX);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

#define TAKE(handle, current, as, call)                                                                \
	struct taking t = { .size = size, .stream = as };                                              \
	CUresult result = ptr ? begin(&t, handle, current) : CUDA_ERROR_INVALID_VALUE;         \
                                                                                                       \
	return result != CUDA_SUCCESS ? result : end(&t, call, ptr)

static CUstream per_thread(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

CUresult cuMemAllocAsync(CUdeviceptr *ptr, size_t size, CUstream stream)
{
	TAKE(NULL, true, stream, REAL(cuMemAllocAsync)(ptr, size, stream));
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *ptr, size_t size, CUstream stream)
{
	TAKE(NULL, true, per_thread(stream), REAL(cuMemAllocAsync_ptsz)(ptr, size, stream));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream)
{
	TAKE(pool, false, stream, REAL(cuMemAllocFromPoolAsync)(ptr, size, pool, stream));
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream)
{
	TAKE(pool, false, per_thread(stream), REAL(cuMemAllocFromPoolAsync_ptsz)(ptr, size, pool, stream));
}
