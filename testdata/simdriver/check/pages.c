/* Of a GPU that has pages of 2 MiB. */
#include "check.h"

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

void check_pages(void)
{
	size_t left;
	CUdeviceptr p;

	start();
	CHECK(taken_by(1) == 2 * MIB);
	CHECK(taken_by(MIB) == 2 * MIB);
	CHECK(taken_by(MIB + 1) == 2 * MIB);
	CHECK(taken_by(2 * MIB) == 2 * MIB);
	CHECK(taken_by(2 * MIB + 1) == 4 * MIB);
	CHECK(taken_by(3 * MIB) == 4 * MIB);
	small_ones();
	arrays();
	FINE(cuMemGetInfo_v2(&left, &(size_t){0}));
	left -= left % (2 * MIB);
	FINE(cuMemAlloc_v2(&p, left - 2 * MIB));
	GIVES(cuMemAlloc_v2(&p, 2 * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
	FINE(cuMemAlloc_v2(&p, 1));
	GIVES(cuMemAlloc_v2(&p, MIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
	FINE(cuMemAlloc_v2(&p, MIB));
}
