/* Several attributes of a pointer at once, and setting one. */
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
