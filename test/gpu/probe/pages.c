/* What allocations take of the device's memory. */
#include "probe.h"

#include <stdio.h>

enum { ALLOCATIONS = 32 };

static double taken_kib(size_t bytes)
{
	CUdeviceptr p[ALLOCATIONS];
	double before = free_bytes(), after;

	for (int i = 0; i < ALLOCATIONS; i++)
		must(cu.cuMemAlloc_v2(&p[i], bytes), "cuMemAlloc");
	after = free_bytes();
	for (int i = 0; i < ALLOCATIONS; i++)
		must(cu.cuMemFree_v2(p[i]), "cuMemFree");
	return (before - after) / ALLOCATIONS / 1024;
}

static const struct {
	const char *key;
	size_t bytes;
} sizes[] = {
	{"page.16m_and_1", 16 * MIB + 1}, {"page.3m", 3 * MIB}, {"page.2m_and_1", 2 * MIB + 1}, {"page.2m", 2 * MIB},
	{"page.1m_and_1", MIB + 1}, {"page.1m", MIB}, {"page.768k", MIB * 3 / 4}, {"page.512k", MIB / 2},
	{"page.64k", MIB / 16}, {"page.4k", 4096},
};

/* The largest page that explains all sizes above 1 MiB, and the largest size that takes less than a page. */
static void law(const double *kib)
{
	static const double pages[] = {65536, 32768, 4096, 2048, 1024, 512, 128, 64, 4};
	double page = 0, small = 0;

	for (int i = 0; i < COUNT(pages) && !page; i++) {
		page = pages[i];
		for (int s = 0; s < COUNT(sizes); s++) {
			double pages_of = ((double)sizes[s].bytes / 1024 + page - 1.0 / 1024) / page;
			double up = (double)(long)pages_of * page;

			if (sizes[s].bytes > MIB && (kib[s] < up * 0.999 || kib[s] > up * 1.001))
				page = 0;
		}
	}
	for (int s = 0; s < COUNT(sizes); s++) {
		if (kib[s] < page * 0.999 && (double)sizes[s].bytes / 1024 > small)
			small = (double)sizes[s].bytes / 1024;
	}
	answer("page.page_kib", "%.0f", page);
	answer("page.small_kib", "%.0f", page > 0 ? small : 1024);
}

static void pools(void)
{
	double before = free_bytes();
	CUdeviceptr p;

	if (!more.cuMemAllocAsync || !more.cuMemFreeAsync) {
		answer("page.pool_first_mib", "absent");
		return;
	}
	must(more.cuMemAllocAsync(&p, MIB, NULL), "cuMemAllocAsync");
	must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
	answer("page.pool_first_mib", "%.0f", (before - free_bytes()) / (double)MIB);
	must(more.cuMemFreeAsync(p, NULL), "cuMemFreeAsync");
	must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
	before = free_bytes();
	must(cu.cuMemAlloc_v2(&p, 64 * MIB), "cuMemAlloc");
	answer("page.free_async", "%s", error_name(more.cuMemFreeAsync(p, NULL)));
	must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
	answer("page.free_async_left_mib", "%.0f", (before - free_bytes()) / (double)MIB);
}

static void virtual_memory(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle handle;
	size_t least = 0, best = 0;
	double before;

	if (!more.cuMemCreate || more.cuMemGetAllocationGranularity(&least, &prop, 0) ||
	    more.cuMemGetAllocationGranularity(&best, &prop, 1)) {
		answer("page.vmm_kib", "absent");
		return;
	}
	answer("page.vmm_kib", "%zu", least >> 10);
	answer("page.vmm_recommended_kib", "%zu", best >> 10);
	before = free_bytes();
	must(more.cuMemCreate(&handle, 16 * least, &prop, 0), "cuMemCreate");
	answer("page.vmm_create_percent", "%.0f", 100 * (before - free_bytes()) / (16 * (double)least));
	must(more.cuMemRelease(handle), "cuMemRelease");
}

static void arrays(void)
{
	CUDA_ARRAY_DESCRIPTOR rgba = {.Width = 1000, .Height = 1000, .Format = 1, .NumChannels = 4};
	CUarray array[16];
	double before = free_bytes();

	for (int i = 0; i < 16; i++)
		must(more.cuArrayCreate_v2(&array[i], &rgba), "cuArrayCreate");
	answer("page.array_kib", "%.0f", (before - free_bytes()) / 16 / 1024);
	for (int i = 0; i < 16; i++)
		must(more.cuArrayDestroy(array[i]), "cuArrayDestroy");
}

void ask_pages(void)
{
	double kib[COUNT(sizes)], before;
	CUdeviceptr p;

	begin();
	before = free_bytes();
	for (int s = 0; s < COUNT(sizes); s++) {
		kib[s] = taken_kib(sizes[s].bytes);
		answer(sizes[s].key, "%.2f", kib[s]);
	}
	answer("page.left_mib", "%.0f", (before - free_bytes()) / (double)MIB);
	law(kib);
	before = free_bytes();
	must(cu.cuMemAllocManaged(&p, 64 * MIB, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged");
	answer("page.managed_64m_mib", "%.0f", (before - free_bytes()) / (double)MIB);
	must(cu.cuMemFree_v2(p), "cuMemFree");
	pools();
	virtual_memory();
	arrays();
}
