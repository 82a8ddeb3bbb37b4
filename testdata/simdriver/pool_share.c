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
	unsigned gpu;
	unsigned share; /* of an allocation */
	uint64_t serial;
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
	struct allocation *a;
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	ENTER();
	if (!data)
		return r;
	process_lock();
	a = allocation_find(ptr);
	if (a && a->pool && !a->pool->imported)
		r = allocation_export(a);
	if (!r) {
		shared.share = a->share;
		shared.serial = process.view.s->shares[a->share].serial;
	}
	process_unlock();
	if (!r)
		memcpy(data, &shared, sizeof(shared));
	return r;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *ptr, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
	struct shared shared;
	struct share found;
	CUcontext ctx;
	int kept;
	CUresult r;

	ENTER();
	if (!ptr || !data)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&shared, data, sizeof(shared));
	r = current_context(&ctx);
	if (!r && (shared.magic != SHARED_MAGIC || share_open(&process.view, shared.share, shared.serial, &found, &kept)))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r)
		return r;
	r = pool_import_pointer(pool, ctx, &found, kept, shared.share, ptr);
	if (r)
		share_close(&process.view, kept);
	return r;
}
