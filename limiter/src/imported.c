/* Virtual memory of other processes. An import of memory that this container is charged
 * for already (exported.h) is free. Any other is charged in full to the importing process. */
#include "charge.h"
#include "hooks.h"
#include "log.h"
#include "vmm.h"

struct place { /* the driver writes more than the beginning that is used here */
	CUmemAllocationProp prop;
	unsigned char rest[112];
};

static CUresult refuse(CUmemGenericAllocationHandle handle, CUresult why)
{
	REAL(cuMemRelease)(handle);
	return why;
}

/* The driver documents that a range larger than the memory can't be mapped. False: the driver fails
 * for another reason, so the size is not known. */
static bool try_size(CUdeviceptr at, size_t size, CUmemGenericAllocationHandle handle, bool *fits)
{
	CUresult result = REAL(cuMemMap)(at, size, 0, handle, 0);

	*fits = result == CUDA_SUCCESS;
	if (*fits)
		return REAL(cuMemUnmap)(at, size) == CUDA_SUCCESS;
	return result == CUDA_ERROR_INVALID_VALUE;
}

static size_t largest(CUdeviceptr at, size_t unit, size_t units, CUmemGenericAllocationHandle handle)
{
	size_t low = 0, high = units;

	while (low < high) {
		size_t middle = high - (high - low) / 2;
		bool fits;

		if (!try_size(at, middle * unit, handle, &fits))
			return 0;
		if (fits)
			low = middle;
		else
			high = middle - 1;
	}
	return low * unit;
}

/* The size of imported memory in bytes, which no call of the driver returns. 0: it can't be
 * determined. */
static size_t size_of(CUmemGenericAllocationHandle handle, const struct place *place)
{
	size_t unit = 0, total = 0;
	CUdeviceptr at;

	if (REAL(cuMemGetAllocationGranularity)(&unit, &place->prop, 0) != CUDA_SUCCESS || !unit ||
	    REAL(cuDeviceTotalMem_v2)(&total, place->prop.location.id) != CUDA_SUCCESS)
		return 0;
	size_t units = total / unit + 1;
	if (REAL(cuMemAddressReserve)(&at, units * unit, 0, 0, 0) != CUDA_SUCCESS)
		return 0;
	size_t size = largest(at, unit, units, handle);
	REAL(cuMemAddressFree)(at, units * unit);
	return size;
}

static CUresult unknown_size(CUmemGenericAllocationHandle handle)
{
	static _Atomic unsigned once;

	log_line(&once, "cuMemImportFromShareableHandle: the size of the imported memory can't be found out; refused");
	return refuse(handle, CUDA_ERROR_NOT_SUPPORTED);
}

static CUresult charge_import(CUmemGenericAllocationHandle handle)
{
	struct place place = { 0 };
	struct charge charge;

	if (REAL(cuMemGetAllocationPropertiesFromHandle)(&place.prop, handle) != CUDA_SUCCESS)
		return CUDA_SUCCESS; /* no memory, but an object that memory is bound to (multicast) */
	if (vmm_on_host(&place.prop))
		return CUDA_SUCCESS;
	size_t size = place.prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? size_of(handle, &place) : 0;
	if (!size)
		return unknown_size(handle);
	CUresult result = charge_begin_on(&charge, place.prop.location.id, size);
	return result == CUDA_SUCCESS ? vmm_settle(&charge, result, handle) : refuse(handle, result);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type)
{
	static _Atomic unsigned once;

	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
		log_line(&once, "cuMemImportFromShareableHandle: handle type %d (not a file descriptor) is not supported inside a limit; refused", type);
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	struct process *p = process_peek();
	int slot = p && owner_wait(&p->owner) ? exported_import_begin(p, (int)(intptr_t)shareable) : -1;
	CUresult result = REAL(cuMemImportFromShareableHandle)(handle, shareable, type);
	if (slot < 0)
		return result == CUDA_SUCCESS ? charge_import(*handle) : result;
	if (result == CUDA_SUCCESS && backing_add_imported(p, *handle, slot))
		return CUDA_SUCCESS;
	exported_import_end(p, slot);
	return result == CUDA_SUCCESS ? refuse(*handle, CUDA_ERROR_OUT_OF_MEMORY) : result;
}
