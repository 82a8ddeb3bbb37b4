/*
 * Functions that give errors: what the simulated GPUs do not support, as their attributes report, and those that the driver has
 * by name only.
 */
#include "absent.h"
#include "driver.h"

static CUresult absent(struct miss_row *row, const char *symbol)
{
	CUresult r = enter(symbol);

	if (r)
		return r;
	miss(&process.view, row, symbol);
	return CUDA_ERROR_NOT_SUPPORTED;
}

#define SYM(name, base, version, kind)      \
	CUresult name(void)                 \
	{                                   \
		static struct miss_row row; \
		return absent(&row, #name); \
	}
#include "absent.def"
#undef SYM

/* Of Windows only. */
CUresult cuDeviceGetLuid(char *luid, unsigned int *mask, CUdevice dev)
{
	ENTER();
	if (!luid || !mask)
		return CUDA_ERROR_INVALID_VALUE;
	return device_gpu(dev) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_DEVICE;
}

/* As CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is 0. */
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr ptr, size_t bytes, int type, unsigned long long flags)
{
	(void)flags;
	ENTER();
	return handle && ptr && bytes && type == 1 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

/* As CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED and …_FLUSH_WRITES_OPTIONS are 0. */
CUresult cuFlushGPUDirectRDMAWrites(int target, int scope)
{
	ENTER();
	return target == 0 && (scope == 100 || scope == 200) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
	ENTER();
	(void)handle, (void)event;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
	ENTER();
	(void)event, (void)handle;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const void *prop)
{
	ENTER();
	(void)handle, (void)prop;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice dev)
{
	ENTER();
	(void)handle, (void)dev;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset, CUmemGenericAllocationHandle memory,
			    size_t memory_offset, size_t size, unsigned long long flags)
{
	ENTER();
	(void)handle, (void)offset, (void)memory, (void)memory_offset, (void)size, (void)flags;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr ptr, size_t size,
			     unsigned long long flags)
{
	ENTER();
	(void)handle, (void)offset, (void)ptr, (void)size, (void)flags;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice dev, size_t offset, size_t size)
{
	ENTER();
	(void)handle, (void)dev, (void)offset, (void)size;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMulticastGetGranularity(size_t *granularity, const void *prop, int option)
{
	ENTER();
	(void)granularity, (void)prop, (void)option;
	return CUDA_ERROR_NOT_SUPPORTED;
}
