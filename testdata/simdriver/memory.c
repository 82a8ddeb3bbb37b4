/* Memory: allocating, freeing, asking. */
#include "allocation.h"
#include "memory_limit.h"

#define PITCH_ALIGN 512ull

static uint64_t align_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static CUresult get_info(uint64_t *free_bytes, uint64_t *total)
{
	uint64_t used, limit;
	CUcontext ctx;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	process_lock();
	allocations_settle();
	process_unlock();
	r = from_errno(gpu_used_now(&process.view, ctx->gpu, device_instance(ctx->device), &used));
	if (r)
		return r;
	*total = device_capacity(ctx->device);
	*free_bytes = used < *total ? *total - used : 0;
	if (limit_shown(&process.view, ctx->gpu, &limit, &used) && limit < *total) {
		uint64_t left = used < limit ? limit - used : 0;

		*total = limit;
		*free_bytes = left < *free_bytes ? left : *free_bytes;
	}
	return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	uint64_t f, t;
	CUresult r;

	ENTER();
	if (!free_bytes || !total)
		return CUDA_ERROR_INVALID_VALUE;
	r = get_info(&f, &t);
	if (!r) {
		*free_bytes = f;
		*total = t;
	}
	return r;
}

CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total)
{
	uint64_t f, t;
	CUresult r;

	ENTER();
	if (!free_bytes || !total)
		return CUDA_ERROR_INVALID_VALUE;
	r = get_info(&f, &t);
	if (!r) {
		*free_bytes = f > UINT32_MAX ? UINT32_MAX : (unsigned)f;
		*total = t > UINT32_MAX ? UINT32_MAX : (unsigned)t;
	}
	return r;
}

CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes)
{
	ENTER();
	if (!ptr)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate(DEVICE, bytes, false, ptr);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *ptr, unsigned int bytes)
{
	CUdeviceptr wide;
	CUresult r;

	ENTER();
	if (!ptr)
		return CUDA_ERROR_INVALID_VALUE;
	r = allocate(DEVICE, bytes, true, &wide);
	if (!r)
		*ptr = (CUdeviceptr_v1)wide;
	return r;
}

static CUresult allocate_pitch(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned element, bool narrow)
{
	size_t row;
	CUresult r;

	if ((element != 4 && element != 8 && element != 16) || !width || !height)
		return CUDA_ERROR_INVALID_VALUE;
	if (width > SIZE_MAX / 2)
		return CUDA_ERROR_OUT_OF_MEMORY;
	row = align_up(width, PITCH_ALIGN);
	if (height > SIZE_MAX / 2 / row)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = allocate(DEVICE, row * height, narrow, ptr);
	if (!r)
		*pitch = row;
	return r;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	ENTER();
	if (!ptr || !pitch)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate_pitch(ptr, pitch, width, height, element, false);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *ptr, unsigned int *pitch, unsigned int width, unsigned int height,
			 unsigned int element)
{
	CUdeviceptr wide;
	size_t row;
	CUresult r;

	ENTER();
	if (!ptr || !pitch)
		return CUDA_ERROR_INVALID_VALUE;
	r = allocate_pitch(&wide, &row, width, height, element, true);
	if (!r) {
		*ptr = (CUdeviceptr_v1)wide;
		*pitch = (unsigned)row;
	}
	return r;
}

CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t bytes, unsigned int flags)
{
	ENTER();
	if (!ptr || (flags != 1 && flags != 2)) /* GLOBAL, HOST */
		return CUDA_ERROR_INVALID_VALUE;
	return allocate(MANAGED, bytes, false, ptr);
}

CUresult cuMemFree_v2(CUdeviceptr ptr)
{
	ENTER();
	return ptr ? allocation_free(ptr, false) : CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr_v1 ptr)
{
	ENTER();
	return ptr ? allocation_free(ptr, false) : CUDA_SUCCESS;
}

static CUresult allocate_host(void **pp, size_t bytes)
{
	CUdeviceptr p;
	CUresult r;

	if (!pp)
		return CUDA_ERROR_INVALID_VALUE;
	r = allocate(HOST, bytes, false, &p);
	if (!r)
		*pp = (void *)(uintptr_t)p;
	return r;
}

CUresult cuMemAllocHost_v2(void **pp, size_t bytes)
{
	ENTER();
	return allocate_host(pp, bytes);
}

CUresult cuMemAllocHost(void **pp, unsigned int bytes)
{
	ENTER();
	return allocate_host(pp, bytes);
}

CUresult cuMemHostAlloc(void **pp, size_t bytes, unsigned int flags)
{
	ENTER();
	if (flags & ~7u)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate_host(pp, bytes);
}

CUresult cuMemFreeHost(void *p)
{
	ENTER();
	return allocation_free((CUdeviceptr)(uintptr_t)p, true);
}

static CUresult host_pointer(CUdeviceptr *dptr, void *p, unsigned flags)
{
	const struct allocation *a;

	if (!dptr || flags)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	a = allocation_find((CUdeviceptr)(uintptr_t)p);
	process_unlock();
	*dptr = (CUdeviceptr)(uintptr_t)p; /* unified addressing */
	return a ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *dptr, void *p, unsigned int flags)
{
	ENTER();
	return host_pointer(dptr, p, flags);
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr_v1 *dptr, void *p, unsigned int flags)
{
	CUdeviceptr wide = 0;
	CUresult r;

	ENTER();
	if (!dptr)
		return CUDA_ERROR_INVALID_VALUE;
	r = host_pointer(&wide, p, flags);
	*dptr = (CUdeviceptr_v1)wide;
	return r;
}
