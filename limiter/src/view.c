/* What a program sees of its GPU's memory: the slice. The driver is called first, with the caller's
 * own pointers, so NULL has the driver's result. */
#include <stdbool.h>

#include "device.h"
#include "hooks.h"
#include "least.h"
#include "limits.h"
#include "process.h"
#include "slot.h"
#include "usage.h"

/* A process has died: clears the slots of dead processes before the sum. */
static uint64_t used_after_deaths(struct process *p, int cell)
{
	struct borrowed file = owner_borrow(&p->owner);

	if (file.fd >= 0)
		slot_reap(p->usage, file.fd);
	owner_return(&p->owner, file);
	return usage_sum(p->usage, &p->ipcleft, cell).committed;
}

struct slice {
	uint64_t total, left;
	bool beyond; /* it may be more than the GPU has */
};

static uint64_t shown(uint64_t slice, bool beyond, uint64_t real)
{
	return beyond ? slice : least(slice, real);
}

static CUresult slice_here(struct slice *slice)
{
	struct here here;
	CUresult result = device_here(&here);

	if (result != CUDA_SUCCESS)
		return result;
	struct process *p = process_get();
	if (!p || here.cell < 0)
		return CUDA_ERROR_NOT_INITIALIZED;
	pools_refresh(p, here.cell); /* what pools have released since is free */
	struct usage_sum sum = usage_sum(p->usage, &p->ipcleft, here.cell);
	uint64_t used = __builtin_expect(sum.deaths, 0) ? used_after_deaths(p, here.cell) : sum.committed;
	used += limits_residue_bytes(here.cell);
	slice->total = limits_bytes(here.cell);
	slice->beyond = limits_physical_bytes(here.cell) != 0;
	slice->left = used < slice->total ? slice->total - used : 0;
	return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	struct slice slice;
	CUresult result = REAL(cuMemGetInfo_v2)(free, total);

	if (result == CUDA_SUCCESS)
		result = slice_here(&slice);
	if (result != CUDA_SUCCESS)
		return result;
	if (free)
		*free = shown(slice.left, slice.beyond, *free);
	if (total)
		*total = shown(slice.total, slice.beyond, *total);
	return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total)
{
	struct slice slice;
	CUresult result = REAL(cuMemGetInfo)(free, total);

	if (result == CUDA_SUCCESS)
		result = slice_here(&slice);
	if (result != CUDA_SUCCESS)
		return result;
	if (free)
		*free = (unsigned int)shown(slice.left, slice.beyond, *free);
	if (total)
		*total = (unsigned int)shown(slice.total, slice.beyond, *total);
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, dev);
	int cell = result == CUDA_SUCCESS ? device_cell(dev) : -1;

	if (result != CUDA_SUCCESS)
		return result;
	if (cell < 0)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (bytes)
		*bytes = shown(limits_bytes(cell), limits_physical_bytes(cell) != 0, *bytes);
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
	CUresult result = REAL(cuDeviceTotalMem)(bytes, dev);
	int cell = result == CUDA_SUCCESS ? device_cell(dev) : -1;

	if (result != CUDA_SUCCESS)
		return result;
	if (cell < 0)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (bytes)
		*bytes = (unsigned int)shown(limits_bytes(cell), limits_physical_bytes(cell) != 0, *bytes);
	return CUDA_SUCCESS;
}
