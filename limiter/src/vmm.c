/* Virtual memory: charged when it is made, to the GPU where it lies, whatever context is
 * current; given back when the last handle and the last mapping have ended. Host memory is not
 * limited. The driver keeps exported memory while a descriptor of it
 * exists in any process: it stays charged until the process ends, and after that while it
 * is held (exported.h). */
#include <unistd.h>

#include "charge.h"
#include "hooks.h"
#include "limits.h"
#include "log.h"
#include "vmm.h"

bool vmm_on_host(const CUmemAllocationProp *prop)
{
	return prop->location.type >= CU_MEM_LOCATION_TYPE_HOST && prop->location.type <= CU_MEM_LOCATION_TYPE_HOST_LAST;
}

/* Memory at an unknown kind of location: it is not known which GPU to charge. */
static CUresult nowhere(void)
{
	static _Atomic unsigned once;

	log_line(&once, "cuMemCreate: memory at a kind of location that this limiter does not know; refused");
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult vmm_settle(struct charge *charge, CUresult result, CUmemGenericAllocationHandle handle)
{
	if (result == CUDA_SUCCESS && backing_add(charge->process, handle, charge->bytes, charge->here.cell)) {
		charge_hold_vmm(charge);
		return CUDA_SUCCESS;
	}
	if (result == CUDA_SUCCESS) {
		REAL(cuMemRelease)(handle);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	charge_cancel(charge);
	return result;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags)
{
	struct charge charge;

	if (!handle || !prop)
		return CUDA_ERROR_INVALID_VALUE;
	if (vmm_on_host(prop))
		return REAL(cuMemCreate)(handle, size, prop, flags);
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return nowhere();
	CUresult result = charge_begin_on(&charge, prop->location.id, size);
	limits_warn_unmovable(charge.here.cell);
	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemCreate)(handle, size, prop, flags);
	return vmm_settle(&charge, result, *handle);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct process *p = process_peek();
	uint32_t memory = p ? backing_release_begin(p, handle) : 0;
	CUresult result = REAL(cuMemRelease)(handle);

	if (p)
		backing_release_end(p, memory, result == CUDA_SUCCESS);
	return result;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct process *p = process_peek();
	uint32_t mapping = 0;

	if (p && !backing_map_begin(p, handle, &mapping))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = REAL(cuMemMap)(ptr, size, offset, handle, flags);
	if (p)
		backing_map_end(p, mapping, BACKING_ADDRESS, ptr, size, result == CUDA_SUCCESS);
	return result;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	struct process *p = process_peek();
	uint32_t chain = p ? backing_unmap_begin(p, BACKING_ADDRESS, ptr, size) : 0;
	CUresult result = REAL(cuMemUnmap)(ptr, size);

	if (p)
		backing_unmap_end(p, chain, result == CUDA_SUCCESS);
	return result;
}

/* Documented: the handle has the value with which the memory was mapped. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	struct process *p = process_peek();

	if (p)
		backing_retain_begin(p);
	CUresult result = REAL(cuMemRetainAllocationHandle)(handle, addr);
	bool done = result == CUDA_SUCCESS && handle;
	if (p)
		backing_retain_end(p, done, done ? *handle : 0);
	return result;
}

/* Without this lock nothing would show when the memory has ended. */
static CUresult mark(struct process *p, int *fd, uint32_t slot)
{
	static _Atomic unsigned once;

	if (exported_mark(p, *fd, slot))
		return CUDA_SUCCESS;
	log_line(&once, "cuMemExportToShareableHandle: the exported descriptor can't be locked; refused");
	close(*fd);
	*fd = -1;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
	struct process *p = process_peek();
	uint32_t slot = 0, memory = p ? backing_export_begin(p, handle, &slot) : 0;
	CUresult result = REAL(cuMemExportToShareableHandle)(shareable, handle, type, flags);

	if (memory && result == CUDA_SUCCESS && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		result = mark(p, shareable, slot);
	if (p)
		backing_export_end(p, memory, result == CUDA_SUCCESS);
	return result;
}

/* A sparse array keeps what is mapped into it. A part of it is unmapped in the order of a stream, at
 * a moment that is not known here; so its memory stays charged until the array ends. */
static bool hold_in_array(struct process *p, const CUarrayMapInfo *info)
{
	uint32_t mapping;

	if (info->memOperationType != CU_MEM_OPERATION_TYPE_MAP || info->memHandleType != CU_MEM_HANDLE_TYPE_GENERIC)
		return true;
	if (!backing_map_begin(p, info->memHandle, &mapping))
		return false;
	backing_map_end(p, mapping, BACKING_ARRAY, (uintptr_t)info->resource, 1, true);
	return true;
}

/* Held before the driver is called, and also if the call fails: the driver does not report how many
 * entries of the list it has mapped before the error. */
static bool hold_in_arrays(const CUarrayMapInfo *list, unsigned int count)
{
	struct process *p = process_peek();

	for (unsigned int i = 0; p && list && i < count; i++)
		if (!hold_in_array(p, &list[i]))
			return false;
	return true;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	return hold_in_arrays(list, count) ? REAL(cuMemMapArrayAsync)(list, count, stream) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	return hold_in_arrays(list, count) ? REAL(cuMemMapArrayAsync_ptsz)(list, count, stream) : CUDA_ERROR_OUT_OF_MEMORY;
}
