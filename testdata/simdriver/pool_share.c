/* Pools of another process: only what distinguishes them from the process's own. An imported pool has no memory for allocations. */
#define _GNU_SOURCE
#include "pool.h"

#include "allocation.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHARED_MAGIC 0x4c4f4f504d495331ull

struct shared {
	uint64_t magic;
	uint64_t bytes;
	unsigned gpu;
};

CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool pool, int type, unsigned long long flags)
{
	struct shared shared = {.magic = SHARED_MAGIC};
	CUdevice dev;
	int fd;

	ENTER();
	if (!handle || type != CU_MEM_HANDLE_POSIX_FD || flags || !pool_device(pool, &dev))
		return CUDA_ERROR_INVALID_VALUE;
	shared.gpu = process.devices[dev].gpu;
	fd = memfd_create("simgpu-pool", MFD_CLOEXEC);
	if (fd < 0 || pwrite(fd, &shared, sizeof(shared), 0) != sizeof(shared))
		return CUDA_ERROR_OPERATING_SYSTEM;
	*(int *)handle = fd;
	return CUDA_SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, int type, unsigned long long flags)
{
	struct shared shared;
	int fd = (int)(intptr_t)handle;

	ENTER();
	if (!pool || type != CU_MEM_HANDLE_POSIX_FD || flags || pread(fd, &shared, sizeof(shared), 0) != sizeof(shared) ||
	    shared.magic != SHARED_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < process.device_count; i++) {
		if (process.devices[i].gpu == shared.gpu)
			return pool_import(pool, (CUdevice)i);
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr ptr)
{
	struct shared shared = {.magic = SHARED_MAGIC};
	const struct allocation *a;
	bool known;

	ENTER();
	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	a = allocation_find(ptr);
	known = a && a->pool;
	if (known)
		shared.bytes = a->size;
	process_unlock();
	memcpy(data, &shared, sizeof(shared));
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *ptr, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
	struct shared shared;
	CUcontext ctx;
	CUresult r;

	ENTER();
	if (!ptr || !data)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&shared, data, sizeof(shared));
	r = current_context(&ctx);
	if (!r && (shared.magic != SHARED_MAGIC || !shared.bytes))
		r = CUDA_ERROR_INVALID_VALUE;
	return r ? r : pool_import_pointer(pool, ctx, shared.bytes, ptr);
}
