/* Allocates chunks until it is refused. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static const char *lookup = "dlsym", *device = "0", *chunk = "64", *max = "0", *hold, *kind = "alloc";
static bool keep;

static const struct option_def options[] = {
	{"lookup", &lookup, NULL, "dlsym, getproc or getproc_v2: how to find the driver's functions"},
	{"device", &device, NULL, "CUDA ordinal (0)"},
	{"chunk-mib", &chunk, NULL, "size of a chunk (64)"},
	{"max-mib", &max, NULL, "stop at that much; 0: only when refused. Managed memory on a real card is never refused"},
	{"kind", &kind, NULL, "alloc, managed or pitch"},
	{"hold", &hold, NULL, "keep it for that many seconds, 0: until SIGTERM"},
	{"keep", NULL, &keep, "end without freeing"},
	{0},
};

static CUresult allocate(CUdeviceptr *p, size_t bytes)
{
	size_t pitch;

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
		must(cu.cuMemFree_v2(chunks[i]), "cuMemFree");
	must(cu.cuMemGetInfo_v2(&free_bytes, &total), "cuMemGetInfo");
	printf("freed_chunks=%zu\nfree_bytes=%zu\n", count, free_bytes);
}

int main(int argc, char **argv)
{
	static CUdeviceptr chunks[1 << 20];
	size_t bytes, limit, count = 0, free_bytes, total;
	CUresult r = CUDA_SUCCESS;

	parse_options(argc, argv, "allocates chunks until it is refused", options);
	bytes = (size_t)number("chunk-mib", chunk, 1, 1 << 20) * MIB;
	limit = (size_t)number("max-mib", max, 0, 1 << 24) * MIB;
	if (strcmp(kind, "alloc") != 0 && strcmp(kind, "managed") != 0 && strcmp(kind, "pitch") != 0) {
		fprintf(stderr, "--kind: alloc, managed or pitch\n");
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
