/* Each kind of device memory, up to the limit. */
#define _GNU_SOURCE
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARRAY_WIDTH = 1024, ARRAY_BYTES_PER_ELEMENT = 16, FORMAT_FLOAT = 0x20, POOLS_SUPPORTED = 115, VMM_SUPPORTED = 102 };

static bool supported(int attribute)
{
	__typeof__(&cuDeviceGetAttribute) ask = (__typeof__(ask))driver_function("cuDeviceGetAttribute");
	int value = 0;

	return ask && !ask(&value, attribute, 0) && value;
}

static CUresult alloc(size_t bytes)
{
	CUdeviceptr p;

	return cu.cuMemAlloc_v2(&p, bytes);
}

static CUresult managed(size_t bytes)
{
	CUdeviceptr p;

	return cu.cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL);
}

static CUresult async(size_t bytes)
{
	static __typeof__(&cuMemAllocAsync) take;
	CUdeviceptr p;
	CUresult r;

	if (!take)
		take = (__typeof__(take))driver_function("cuMemAllocAsync");
	if (!take || !supported(POOLS_SUPPORTED))
		return CUDA_ERROR_NOT_SUPPORTED;
	r = take(&p, bytes, NULL);
	return r ? r : cu.cuCtxSynchronize();
}

static CUresult vmm(size_t bytes)
{
	__typeof__(&cuMemCreate) create = (__typeof__(create))driver_function("cuMemCreate");
	__typeof__(&cuMemAddressReserve) reserve = (__typeof__(reserve))driver_function("cuMemAddressReserve");
	__typeof__(&cuMemMap) map = (__typeof__(map))driver_function("cuMemMap");
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr p;
	CUresult r;

	if (!create || !reserve || !map || !supported(VMM_SUPPORTED))
		return CUDA_ERROR_NOT_SUPPORTED;
	r = create(&handle, bytes, &prop, 0);
	if (!r)
		r = reserve(&p, bytes, 0, 0, 0);
	return r ? r : map(p, bytes, 0, handle, 0);
}

static CUresult array(size_t bytes)
{
	static __typeof__(&cuArrayCreate_v2) create;
	CUDA_ARRAY_DESCRIPTOR d = {.Width = ARRAY_WIDTH, .Height = bytes / (ARRAY_WIDTH * ARRAY_BYTES_PER_ELEMENT), .Format = FORMAT_FLOAT, .NumChannels = 4};
	CUarray a;

	if (!create)
		create = (__typeof__(create))driver_function("cuArrayCreate_v2");
	return create ? create(&a, &d) : CUDA_ERROR_NOT_SUPPORTED;
}

static const struct {
	const char *name;
	CUresult (*take)(size_t bytes);
} kinds[] = {{"alloc", alloc}, {"async", async}, {"vmm", vmm}, {"managed", managed}, {"array", array}};

void fill(const char *kind, long chunk_mib, long most_mib)
{
	CUresult (*take)(size_t bytes) = NULL;
	CUresult r = CUDA_SUCCESS;
	long has = 0;

	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		if (!strcmp(kinds[i].name, kind))
			take = kinds[i].take;
	}
	if (!take || chunk_mib < 1) {
		fprintf(stderr, "gpuslice-probe: no kind of memory: %s\n", kind);
		exit(EXIT_USAGE);
	}
	cuda_start(0);
	for (; !r && has < most_mib; has += r ? 0 : chunk_mib)
		r = take((size_t)chunk_mib * MIB);
	answer("allocated_mib", "%ld", has);
	answer("result", "%s", r ? error_name(r) : "CUDA_SUCCESS");
}
