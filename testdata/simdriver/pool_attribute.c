/* The attributes of a pool, and the devices that may access its memory. */
#include "pool.h"

static CUresult get(CUmemoryPool p, int attribute, void *value)
{
	switch (attribute) {
	case CU_MEMPOOL_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		*(int *)value = p->reuse[attribute - 1];
		return CUDA_SUCCESS;
	case CU_MEMPOOL_RELEASE_THRESHOLD:
		*(cuuint64_t *)value = p->threshold;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_RESERVED_MEM_CURRENT:
		*(cuuint64_t *)value = p->reserved;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_RESERVED_MEM_HIGH:
		*(cuuint64_t *)value = p->reserved_high;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_USED_MEM_CURRENT:
		*(cuuint64_t *)value = p->used;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_USED_MEM_HIGH:
		*(cuuint64_t *)value = p->used_high;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult set(CUmemoryPool p, int attribute, const void *value)
{
	switch (attribute) {
	case CU_MEMPOOL_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		p->reuse[attribute - 1] = *(const int *)value != 0;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_RELEASE_THRESHOLD:
		p->threshold = *(const cuuint64_t *)value;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_RESERVED_MEM_HIGH: /* may only be reset, to what is */
		p->reserved_high = p->reserved;
		return *(const cuuint64_t *)value ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	case CU_MEMPOOL_USED_MEM_HIGH:
		p->used_high = p->used;
		return *(const cuuint64_t *)value ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	CUresult r;

	ENTER();
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	r = object_is(OBJECT_POOL, pool) ? get(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
	process_unlock();
	return r;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	CUresult r;

	ENTER();
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	r = object_is(OBJECT_POOL, pool) ? set(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
	process_unlock();
	return r;
}

/* There are no peers: a pool's own GPU has access, and no other can. */
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
	CUresult r = CUDA_SUCCESS;

	ENTER();
	process_lock();
	if (!object_is(OBJECT_POOL, pool) || (count && !map))
		r = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; !r && i < count; i++) {
		if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || !device_gpu(map[i].location.id))
			r = CUDA_ERROR_INVALID_VALUE;
		else if (map[i].location.id == pool->device ? map[i].flags != 3 : map[i].flags != 0)
			r = CUDA_ERROR_INVALID_DEVICE;
	}
	process_unlock();
	return r;
}

CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, CUmemLocation *location)
{
	CUresult r = CUDA_SUCCESS;

	ENTER();
	if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE || !device_gpu(location->id))
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	if (object_is(OBJECT_POOL, pool))
		*flags = location->id == pool->device ? 3 : 0;
	else
		r = CUDA_ERROR_INVALID_VALUE;
	process_unlock();
	return r;
}
