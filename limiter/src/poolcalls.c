/* Making and ending pools, and the calls after which one may be smaller. */
#include "device.h"
#include "hooks.h"
#include "pool.h"
#include "process.h"
#include "log.h"

static bool of_host(int type)
{
	return type >= CU_MEM_LOCATION_TYPE_HOST && type <= CU_MEM_LOCATION_TYPE_HOST_LAST;
}

static CUresult refuse(void)
{
	static _Atomic unsigned once;

	log_line(&once, "a memory pool of managed memory is not supported inside a memory limit");
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	if (!pool || !props)
		return REAL(cuMemPoolCreate)(pool, props);
	bool host = of_host(props->location.type);
	if (!host && props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return refuse();
	if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED && !host)
		return refuse();
	int cell = host ? 0 : device_cell(props->location.id);
	if (cell < 0) /* of a GPU that there is not, or that is not granted */
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult result = REAL(cuMemPoolCreate)(pool, props);
	if (result != CUDA_SUCCESS)
		return result;
	struct process *p = process_get();
	if (p && pool_add(p, *pool, host ? POOL_FREE_OF_CHARGE : POOL_CHARGED, cell))
		return result;
	REAL(cuMemPoolDestroy)(*pool);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Does what the driver does when the current pool is destroyed: makes the default pool current. */
static void make_default_current(CUmemoryPool pool)
{
	for (CUdevice dev = 0; dev < VGPU_MAX_DEVICES; dev++) {
		CUmemoryPool current, fixed;

		if (REAL(cuDeviceGetMemPool)(&current, dev) == CUDA_SUCCESS && current == pool &&
		    REAL(cuDeviceGetDefaultMemPool)(&fixed, dev) == CUDA_SUCCESS)
			REAL(cuDeviceSetMemPool)(dev, fixed);
	}
}

/* The driver frees a destroyed pool with its last allocation, and answers no query about it
 * until then. So a pool that has memory is only marked as destroyed: its release threshold
 * becomes 0, and the driver destroys it when it is empty. */
CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	struct process *p = process_peek();
	struct pool *pool = p ? pool_find(p, handle) : NULL;
	uint32_t state = pool ? atomic_load_explicit(&pool->state, memory_order_acquire) : 0;
	CUmemoryPool fixed = NULL;
	uint64_t none = 0;

	if (state == POOL_ENDED)
		return CUDA_ERROR_INVALID_VALUE;
	for (CUdevice dev = 0; pool && dev < VGPU_MAX_DEVICES; dev++)
		if (REAL(cuDeviceGetDefaultMemPool)(&fixed, dev) == CUDA_SUCCESS && fixed == handle)
			pool = NULL; /* a default pool: the driver refuses the call */
	if (!pool)
		return REAL(cuMemPoolDestroy)(handle);
	make_default_current(handle);
	if (state == POOL_CHARGED)
		REAL(cuMemPoolSetAttribute)(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none);
	/* One thread destroys it; any other gets an error. */
	if (!atomic_compare_exchange_strong_explicit(&pool->state, &state, POOL_ENDED, memory_order_acq_rel,
	                                             memory_order_relaxed))
		return CUDA_ERROR_INVALID_VALUE;
	if (!account_empty(&pool->account))
		pools_make_room(p, pool->account.cell, UINT64_MAX);
	pool_destroy_if_empty(p, pool);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	CUresult result = REAL(cuMemPoolTrimTo)(pool, keep);

	pools_may_have_shrunk();
	return result;
}
