#include "device.h"

#include <stdatomic.h>

#include "hooks.h"
#include "limits.h"

/* By the driver's number, which is fixed in a process once cuInit is done:
 * 0 not looked up yet, else the cell + 1. Denied GPUs are looked up each time. */
enum { KNOWN = 64 };
static _Atomic unsigned char known[KNOWN];

/* Of a MIG device the first version gives the GPU's UUID, which has no record then. */
static int look_up(CUdevice dev)
{
	CUuuid uuid;
	CUresult result = hook_exists(HOOK_cuDeviceGetUuid_v2) ? REAL(cuDeviceGetUuid_v2)(&uuid, dev)
	                                                       : REAL(cuDeviceGetUuid)(&uuid, dev);

	return result == CUDA_SUCCESS ? limits_cell(uuid.bytes, dev) : -1;
}

int device_cell(CUdevice dev)
{
	if (dev < 0 || dev >= KNOWN)
		return look_up(dev);
	/* Relaxed: the number is all there is, and every thread finds the same. */
	int cell = (int)atomic_load_explicit(&known[dev], memory_order_relaxed) - 1;
	if (__builtin_expect(cell >= 0, 1))
		return cell;
	cell = look_up(dev);
	if (cell >= 0)
		atomic_store_explicit(&known[dev], (unsigned char)(cell + 1), memory_order_relaxed);
	return cell;
}

CUresult device_here(struct here *out)
{
	CUdevice dev = -1;
	CUresult result = REAL(cuCtxGetCurrent)(&out->context);

	if (result == CUDA_SUCCESS)
		result = REAL(cuCtxGetDevice)(&dev);
	if (result == CUDA_SUCCESS)
		out->cell = device_cell(dev);
	return result;
}
