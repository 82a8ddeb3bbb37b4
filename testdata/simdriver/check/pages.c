/* Memory is taken in pages of 2 MiB. */
#include "check.h"

#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static size_t used(void)
{
	size_t free_bytes, total;

	FINE(cuMemGetInfo_v2(&free_bytes, &total));
	return total - free_bytes;
}

static size_t taken_by(size_t bytes)
{
	size_t before = used(), more;
	CUdeviceptr p;

	FINE(cuMemAlloc_v2(&p, bytes));
	more = used() - before;
	FINE(cuMemFree_v2(p));
	CHECK(used() == before);
	return more;
}

static void small_ones(void)
{
	CUdeviceptr p[40];
	size_t before = used();

	for (int i = 0; i < 40; i++) { /* four to a page */
		FINE(cuMemAlloc_v2(&p[i], 512 * KIB));
		CHECK(used() == before + (size_t)(i / 4 + 1) * 2 * MIB);
	}
	for (int i = 0; i < 40; i += 4) /* no page is empty */
		FINE(cuMemFree_v2(p[i]));
	CHECK(used() == before + 20 * MIB);
	for (int i = 0; i < 40; i += 4)
		FINE(cuMemAlloc_v2(&p[i], 100));
	CHECK(used() == before + 20 * MIB);
	for (int i = 0; i < 40; i++)
		FINE(cuMemFree_v2(p[i]));
	CHECK(used() == before);
}

/* Managed and linear memory share no page. */
static void managed_ones(void)
{
	size_t before = used();
	CUdeviceptr linear, managed[2];

	FINE(cuMemAlloc_v2(&linear, 512 * KIB));
	FINE(cuMemAllocManaged(&managed[0], 512 * KIB, CU_MEM_ATTACH_GLOBAL));
	CHECK(used() == before + 4 * MIB);
	FINE(cuMemAllocManaged(&managed[1], 512 * KIB, CU_MEM_ATTACH_GLOBAL));
	CHECK(used() == before + 4 * MIB);
	FINE(cuMemFree_v2(linear));
	CHECK(used() == before + 2 * MIB);
	FINE(cuMemFree_v2(managed[0]));
	FINE(cuMemFree_v2(managed[1]));
	CHECK(used() == before);
}

static void arrays(void)
{
	CUDA_ARRAY_DESCRIPTOR flat = {1024, 768, 0x20, 1};
	size_t before = used();
	CUarray a;

	FINE(cuArrayCreate_v2(&a, &flat));
	CHECK(used() == before + 4 * MIB);
	FINE(cuArrayDestroy(a));
	CHECK(used() == before);
}

static size_t taken_by_limit(int limit, size_t value)
{
	size_t was, before = used(), more;

	FINE(cuCtxGetLimit(&was, limit));
	FINE(cuCtxSetLimit(limit, value));
	more = used() - before;
	FINE(cuCtxSetLimit(limit, was));
	CHECK(used() == before);
	return more;
}

void check_pages(void)
{
	size_t left;
	CUdeviceptr p;

	start();
	CHECK(taken_by(1) == 2 * MIB);
	CHECK(taken_by(MIB) == 2 * MIB); /* and leaves room for another */
	CHECK(taken_by(MIB + 1) == 2 * MIB);
	CHECK(taken_by(2 * MIB) == 2 * MIB);
	CHECK(taken_by(2 * MIB + 1) == 4 * MIB);
	CHECK(taken_by(3 * MIB) == 4 * MIB);
	small_ones();
	managed_ones();
	arrays();
	FINE(cuMemGetInfo_v2(&left, &(size_t){0}));
	left -= left % (2 * MIB);
	FINE(cuMemAlloc_v2(&p, left - 2 * MIB));
	GIVES(cuMemAlloc_v2(&p, 2 * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
	FINE(cuMemAlloc_v2(&p, 1));
	GIVES(cuMemAlloc_v2(&p, MIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
	FINE(cuMemAlloc_v2(&p, MIB));
}

/* What a context takes with no allocation of the program's. */
void check_context_growth(void)
{
	static const char small[] = ".version 6.3\n.target sm_75\n.visible .entry run() { ret; }\n";
	static const char large[] = ".version 6.3\n.target sm_75\n.visible .global .align 4 .b8 table[3000000];\n"
				    ".visible .entry run() { ret; }\n";
	CUmodule m[3];
	size_t before;
	CUdeviceptr p;

	start();
	before = used();
	for (int i = 0; i < 2; i++) { /* both in what a new context has */
		FINE(cuModuleLoadData(&m[i], small));
		CHECK(used() == before);
	}
	FINE(cuMemAlloc_v2(&p, 1)); /* in none of the context's */
	CHECK(used() == before + 2 * MIB);
	FINE(cuMemFree_v2(p));
	FINE(cuModuleLoadData(&m[2], large));
	CHECK(used() == before + 4 * MIB);
	for (int i = 0; i < 3; i++)
		FINE(cuModuleUnload(m[i]));
	CHECK(used() == before);
	CHECK(taken_by_limit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 * MIB) == 0);
	CHECK(taken_by_limit(CU_LIMIT_PRINTF_FIFO_SIZE, 64 * MIB) == 0);
	CHECK(taken_by_limit(CU_LIMIT_STACK_SIZE, 16 << 10) == 3960 * MIB); /* 132 multiprocessors, 2048 threads each */
	CHECK(taken_by_limit(CU_LIMIT_STACK_SIZE, 512) == 0 && taken_by_limit(CU_LIMIT_MALLOC_HEAP_SIZE, 0) == 0);
	GIVES(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
}

static const char mallocs[] = ".version 6.3\n.target sm_75\n.address_size 64\n"
			      ".extern .func (.param .b64 r) malloc(.param .b64 n);\n.visible .entry run()\n{\n\tret;\n}\n";
static const char prints[] = ".version 6.3\n.target sm_75\n.address_size 64\n"
			     ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n.visible .entry run()\n{\n\tret;\n}\n";
static const char neither[] = ".version 6.3\n.target sm_75\n// as malloc(1) would\n.visible .entry my_malloc() { ret; }\n.visible .entry run() { ret; }\n";

/* MiB that the load of a module takes, and then a launch. */
static void takes(const char *text, size_t by_load, size_t by_launch)
{
	size_t before = used();
	CUmodule m;
	CUfunction f;

	FINE(cuModuleLoadData(&m, text));
	FINE(cuModuleGetFunction(&f, m, "run"));
	CHECK(used() == before + by_load * MIB);
	FINE(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	FINE(cuCtxSynchronize());
	CHECK(used() == before + (by_load + by_launch) * MIB);
}

/* What an H100 answered, in this order. */
void check_device_heap(void)
{
	size_t value, before, after;
	CUcontext second;
	CUmodule m;

	start();
	FINE(cuCtxGetLimit(&value, CU_LIMIT_MALLOC_HEAP_SIZE));
	CHECK(value == 8 * MIB);
	FINE(cuCtxGetLimit(&value, CU_LIMIT_PRINTF_FIFO_SIZE));
	CHECK(value == 8650752);
	FINE(cuCtxGetLimit(&value, CU_LIMIT_PERSISTING_L2_CACHE_SIZE));
	CHECK(value == 9830400);
	takes(neither, 0, 0);
	FINE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 * MIB));
	takes(mallocs, 138, 66);
	GIVES(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 256 * MIB), CUDA_ERROR_INVALID_VALUE);
	FINE(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 64 * MIB));
	takes(prints, 2, 0);
	GIVES(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 128 * MIB), CUDA_ERROR_INVALID_VALUE);
	takes(neither, 0, 0);
	takes(mallocs, 0, 0);
	before = used();
	FINE(cuCtxCreate_v2(&second, 0, 0));
	after = used();
	takes(mallocs, 138, 10);
	GIVES(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 * MIB), CUDA_ERROR_INVALID_VALUE);
	FINE(cuModuleLoadData(&m, mallocs));
	CHECK(used() == after + 148 * MIB);
	FINE(cuCtxDestroy_v2(second));
	CHECK(used() == before);
}

/* A process without a context. */
void check_init_only(void)
{
	FINE(cuInit(0));
	puts("ready=1");
	fflush(stdout);
	for (;;)
		pause();
}

void check_granularity(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle h;
	size_t granularity, before;

	start();
	before = used();
	for (int recommended = 0; recommended < 2; recommended++) {
		FINE(cuMemGetAllocationGranularity(&granularity, &prop, recommended));
		CHECK(granularity == 2 * MIB);
	}
	GIVES(cuMemCreate(&h, 6912, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemCreate(&h, 3 * MIB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemCreate(&h, 2 * MIB, &prop, 0));
	CHECK(used() == before + 2 * MIB);
	FINE(cuMemRelease(h));
}
