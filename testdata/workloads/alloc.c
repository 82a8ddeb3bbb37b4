/* Allocates chunks until it is refused. */
#include "common.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static const char *lookup = "dlsym", *device = "0", *chunk = "64", *small = "0", *max = "0", *hold, *kind = "alloc";
static bool keep;

static const struct option_def options[] = {
	{"lookup", &lookup, NULL, "dlsym, getproc or getproc_v2: how to find the driver's functions"},
	{"device", &device, NULL, "CUDA ordinal (0)"},
	{"chunk-mib", &chunk, NULL, "size of a chunk (64)"},
	{"chunk-kib", &small, NULL, "the same, in KiB; 0: --chunk-mib"},
	{"max-mib", &max, NULL, "stop at that much; 0: only when refused. Managed memory on a real GPU is never refused"},
	{"kind", &kind, NULL, "alloc, managed, pitch, async (stream-ordered) or vmm (cuMemCreate)"},
	{"hold", &hold, NULL, "keep it for that many seconds, 0: until SIGTERM"},
	{"keep", NULL, &keep, "end without freeing"},
	{0},
};

/* Functions that a driver of before CUDA 11.2 may lack. */
static void *newer(const char *name)
{
	void *function = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);

	if (!function) {
		fprintf(stderr, "this driver has no %s\n", name);
		exit(EXIT_DRIVER);
	}
	return function;
}

static CUresult allocate_async(CUdeviceptr *p, size_t bytes)
{
	CUresult (*alloc_async)(CUdeviceptr *, size_t, void *) = newer("cuMemAllocAsync");
	CUresult r = alloc_async(p, bytes, NULL);

	return r ? r : cu.cuCtxSynchronize();
}

static CUresult create(CUdeviceptr *handle, size_t bytes)
{
	/* The beginning of CUmemAllocationProp: pinned, no export, on the device. */
	struct { int type, exported, location, device; void *windows; unsigned char flags[8]; } prop = {.type = 1, .location = 1};
	CUresult (*mem_create)(CUdeviceptr *, size_t, const void *, unsigned long long) = newer("cuMemCreate");

	prop.device = (int)number("device", device, 0, 1023);
	return mem_create(handle, bytes, &prop, 0);
}

static CUresult give_back(CUdeviceptr p)
{
	if (!strcmp(kind, "vmm"))
		return ((CUresult(*)(CUdeviceptr))newer("cuMemRelease"))(p);
	return cu.cuMemFree_v2(p); /* stream-ordered memory too */
}

static bool known(const char *name)
{
	static const char *const kinds[] = {"alloc", "managed", "pitch", "async", "vmm"};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (!strcmp(name, kinds[i]))
			return true;
	return false;
}

static CUresult allocate(CUdeviceptr *p, size_t bytes)
{
	size_t pitch;

	if (!strcmp(kind, "async"))
		return allocate_async(p, bytes);
	if (!strcmp(kind, "vmm"))
		return create(p, bytes);
	if (!strcmp(kind, "managed"))
		return cu.cuMemAllocManaged(p, bytes, CU_MEM_ATTACH_GLOBAL);
	if (!strcmp(kind, "pitch"))
		return cu.cuMemAllocPitch_v2(p, &pitch, 1024, bytes / 1024, 4);
	return cu.cuMemAlloc_v2(p, bytes);
}

static void release(const CUdeviceptr *chunks, size_t count)
{
	size_t free_bytes, total;

	for (size_t i = 0; i < count; i++)
		must(give_back(chunks[i]), "free");
	must(cu.cuMemGetInfo_v2(&free_bytes, &total), "cuMemGetInfo");
	printf("freed_chunks=%zu\nfree_bytes=%zu\n", count, free_bytes);
}

int main(int argc, char **argv)
{
	static CUdeviceptr chunks[1 << 20];
	size_t bytes, limit, count = 0, free_bytes, total;
	CUresult r = CUDA_SUCCESS;

	parse_options(argc, argv, "allocates chunks until it is refused", options);
	bytes = (size_t)number("chunk-kib", small, 0, 1 << 30) << 10;
	if (!bytes)
		bytes = (size_t)number("chunk-mib", chunk, 1, 1 << 20) * MIB;
	limit = (size_t)number("max-mib", max, 0, 1 << 24) * MIB;
	if (!known(kind)) {
		fprintf(stderr, "--kind: alloc, managed, pitch, async or vmm\n");
		return EXIT_USAGE;
	}
	catch_term();
	cuda_load(lookup);
	cuda_start((int)number("device", device, 0, 1023));
	while (count < sizeof(chunks) / sizeof(chunks[0]) && (!limit || (count + 1) * bytes <= limit)) {
		r = allocate(&chunks[count], bytes);
		if (r)
			break;
		count++;
	}
	must(cu.cuMemGetInfo_v2(&free_bytes, &total), "cuMemGetInfo");
	printf("chunks=%zu\nallocated_bytes=%zu\nresult=%s\n", count, count * bytes, error_name(r));
	printf("free_bytes=%zu\ntotal_bytes=%zu\nready=1\n", free_bytes, total);
	fflush(stdout);
	if (r && r != CUDA_ERROR_OUT_OF_MEMORY)
		return EXIT_CUDA;
	if (hold)
		wait_for(seconds_of("hold", hold));
	if (!keep)
		release(chunks, count);
	return EXIT_FINE;
}
