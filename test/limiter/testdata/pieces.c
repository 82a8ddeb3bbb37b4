/* Takes memory of one kind in pieces until it is refused, and again for each line of its standard input: `pieces KIND KIB`. Prints
 * "pieces COUNT result RESULT" each time, and keeps the memory until its standard input ends. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../testdata/simdriver/cuda_api.h"

static void *cuda;
#define CALL(name, ...) ((__typeof__(&name))dlsym(cuda, #name))(__VA_ARGS__)

static const CUmemPoolProps in_pool = { .allocType = 1, .location = { 1, 0 } };
static CUdeviceptr ptr;

static CUresult linear(size_t bytes) { return CALL(cuMemAlloc_v2, &ptr, bytes); }
static CUresult managed(size_t bytes) { return CALL(cuMemAllocManaged, &ptr, bytes, 1); }
static CUresult pitched(size_t bytes)
{
	size_t pitch;

	return CALL(cuMemAllocPitch_v2, &ptr, &pitch, 1000, (bytes + 999) / 1000, 4);
}

static CUresult virtual(size_t bytes)
{
	CUmemAllocationProp prop = { .type = 1, .location = { 1, 0 } };
	CUmemGenericAllocationHandle handle;

	return CALL(cuMemCreate, &handle, bytes, &prop, 0);
}

static CUresult async(size_t bytes) { return CALL(cuMemAllocAsync, &ptr, bytes, NULL); }
static CUresult pooled(size_t bytes)
{
	static CUmemoryPool pool;

	if (!pool && CALL(cuMemPoolCreate, &pool, &in_pool))
		return CUDA_ERROR_INVALID_VALUE;
	return CALL(cuMemAllocFromPoolAsync, &ptr, bytes, pool, NULL);
}

/* Its memory stays after the launch. */
static CUresult graph(size_t bytes)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = { .poolProps = in_pool, .bytesize = bytes };
	CUgraph g;
	CUgraphNode node;
	CUgraphExec exec;
	CUresult r = CALL(cuGraphCreate, &g, 0);

	if (!r)
		r = CALL(cuGraphAddMemAllocNode, &node, g, NULL, 0, &params);
	if (!r)
		r = CALL(cuGraphInstantiateWithFlags, &exec, g, 0);
	return r ? r : CALL(cuGraphLaunch, exec, NULL);
}

static CUresult array(int format, unsigned channels, size_t row_pixels, size_t rows)
{
	CUDA_ARRAY3D_DESCRIPTOR desc = { .Width = row_pixels, .Height = rows, .Format = format, .NumChannels = channels };
	CUarray out;

	return CALL(cuArray3DCreate_v2, &out, &desc);
}

static CUresult plain_array(size_t bytes)
{
	return bytes < 1 << 19 ? array(1, 4, bytes / 4, 1) : array(1, 4, 1 << 15, bytes >> 17);
}

static CUresult bc1_array(size_t bytes) /* half a byte a pixel */
{
	return bytes < 1 << 19 ? array(0x91, 4, bytes / 2, 4) : array(0x91, 4, 1 << 15, bytes >> 14);
}

static CUresult nv12_array(size_t bytes) /* a byte and a half a pixel */
{
	return bytes < 1 << 19 ? array(0xb0, 3, bytes / 48 * 16, 2) : array(0xb0, 3, 1 << 15, (bytes >> 15) / 3 * 2);
}

static CUresult mipmapped(size_t bytes) /* the second level has half a row, and half the rows */
{
	CUDA_ARRAY3D_DESCRIPTOR desc = { .Width = bytes / 6, .Format = 1, .NumChannels = 4 };
	CUmipmappedArray out;

	if (bytes >= 1 << 19) {
		desc.Width = 1 << 14;
		desc.Height = bytes / 5 * 4 >> 16;
	}
	return CALL(cuMipmappedArrayCreate, &out, &desc, 2);
}

static const struct { const char *name; CUresult (*take)(size_t); } kinds[] = {
	{ "linear", linear }, { "pitched", pitched }, { "managed", managed }, { "vmm", virtual }, { "async", async }, { "pool", pooled },
	{ "graph", graph }, { "array", plain_array }, { "array BC1", bc1_array }, { "array NV12", nv12_array },
	{ "mipmapped", mipmapped },
};

int main(int argc, char **argv)
{
	CUresult (*take)(size_t) = NULL, r = CUDA_ERROR_INVALID_VALUE;
	CUcontext context;

	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	for (size_t i = 0; argc == 3 && i < sizeof(kinds) / sizeof(*kinds); i++)
		if (!strcmp(kinds[i].name, argv[1]))
			take = kinds[i].take;
	if (!take || CALL(cuInit, 0) || CALL(cuDevicePrimaryCtxRetain, &context, 0) || CALL(cuCtxSetCurrent, context))
		return 1;
	do {
		size_t count = 0;

		while (!(r = take(strtoull(argv[2], NULL, 0) << 10)))
			count++;
		printf("pieces %zu result %d\n", count, r);
		fflush(stdout);
	} while (getchar() == '\n');
	return 0;
}
