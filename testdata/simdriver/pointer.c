/* Several attributes of a pointer at once, and where managed memory should be, which changes nothing here. */
#include "allocation.h"

#include <string.h>

#define LAST_ATTRIBUTE 20
#define SYNC_MEMOPS 6

/* What an attribute that is not there leaves: as many bytes of zeros. */
static size_t size_of(int attribute)
{
	static const unsigned char sizes[LAST_ATTRIBUTE + 1] = {0, 8, 4, 8, 8, 16, 4, 8, 4, 4, 4, 8, 8, 4, 8, 8, 4, 8, 8, 8, 4};

	return attribute > 0 && attribute <= LAST_ATTRIBUTE ? sizes[attribute] : 0;
}

/* As documented: a pointer that is not the driver's has attributes, too, all of them 0; its device is -2. */
CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **data, CUdeviceptr ptr)
{
	static const int no_device = -2;

	ENTER();
	if (!count || !attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		if (!size_of(attributes[i]) || !data[i])
			return CUDA_ERROR_INVALID_VALUE;
	}
	for (unsigned i = 0; i < count; i++) {
		if (!cuPointerGetAttribute(data[i], attributes[i], ptr))
			continue;
		memset(data[i], 0, size_of(attributes[i]));
		if (attributes[i] == 9)
			memcpy(data[i], &no_device, sizeof(no_device));
	}
	return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr ptr)
{
	bool known;

	ENTER();
	if (!value || attribute != SYNC_MEMOPS)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	known = allocation_find(ptr) != NULL;
	process_unlock();
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; /* all copies here are synchronous already */
}

enum { LOCATION_DEVICE = 1, LOCATION_HOST = 2, LOCATION_NUMA = 3, LOCATION_CURRENT_NUMA = 4, TO_HOST = -1 };

static CUresult prefetch(CUdeviceptr ptr, size_t bytes, CUdevice dev, CUstream handle)
{
	const struct allocation *a;
	CUcontext ctx;
	CUstream s;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (dev != TO_HOST && !device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	process_lock();
	r = stream_find(handle, ctx, &s);
	a = allocation_find(ptr);
	if (!r && (!a || a->place != MANAGED || !bytes || bytes > a->size - (ptr - a->base)))
		r = CUDA_ERROR_INVALID_VALUE;
	process_unlock();
	return r;
}

static bool location(CUmemLocation_prefetch to, CUdevice *dev)
{
	*dev = to.type == LOCATION_DEVICE ? to.id : TO_HOST;
	return to.type >= LOCATION_DEVICE && to.type <= LOCATION_CURRENT_NUMA && (to.type != LOCATION_DEVICE || device_gpu(to.id));
}

CUresult cuMemPrefetchAsync(CUdeviceptr ptr, size_t bytes, CUdevice dev, CUstream stream)
{
	ENTER();
	return prefetch(ptr, bytes, dev, stream);
}

CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr ptr, size_t bytes, CUdevice dev, CUstream stream)
{
	ENTER();
	return prefetch(ptr, bytes, dev, per_thread(stream));
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr ptr, size_t bytes, CUmemLocation_prefetch to, unsigned int flags, CUstream stream)
{
	CUdevice dev;

	ENTER();
	return flags || !location(to, &dev) ? CUDA_ERROR_INVALID_VALUE : prefetch(ptr, bytes, dev, stream);
}

CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr ptr, size_t bytes, CUmemLocation_prefetch to, unsigned int flags,
				    CUstream stream)
{
	CUdevice dev;

	ENTER();
	return flags || !location(to, &dev) ? CUDA_ERROR_INVALID_VALUE : prefetch(ptr, bytes, dev, per_thread(stream));
}

CUresult cuMemAdvise_v2(CUdeviceptr ptr, size_t bytes, int advice, CUmemLocation_prefetch at)
{
	CUdevice dev = TO_HOST;

	ENTER();
	if (advice != 1 && advice != 2 && !location(at, &dev))
		return CUDA_ERROR_INVALID_VALUE;
	return cuMemAdvise(ptr, bytes, advice, dev);
}
