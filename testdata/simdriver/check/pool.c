#include "check.h"

#define MIB ((size_t)1 << 20)

static size_t free_now(void)
{
	size_t free_bytes, total;

	FINE(cuMemGetInfo_v2(&free_bytes, &total));
	return free_bytes;
}

static CUfunction slow(void) /* 20 ms */
{
	CUmodule module;
	CUfunction f;

	FINE(cuModuleLoadData(&module, spin_ptx));
	FINE(cuModuleGetFunction(&f, module, "slow"));
	return f;
}

static void launch(CUfunction f, CUstream s)
{
	FINE(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
}

static cuuint64_t of(CUmemoryPool pool, int attribute)
{
	cuuint64_t value;

	FINE(cuMemPoolGetAttribute(pool, attribute, &value));
	return value;
}

#define RESERVED(pool) of(pool, CU_MEMPOOL_RESERVED_MEM_CURRENT)
#define USED(pool) of(pool, CU_MEMPOOL_USED_MEM_CURRENT)

static void check_reuse(CUmemoryPool pool, CUfunction f)
{
	CUstream a, b;
	CUdeviceptr p, q, r;

	FINE(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
	FINE(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
	FINE(cuMemAllocFromPoolAsync(&p, 32 * MIB, pool, a));
	launch(f, a);
	FINE(cuMemFreeAsync(p, a));
	CHECK(USED(pool) == 0 && RESERVED(pool) == 32 * MIB);
	FINE(cuMemAllocFromPoolAsync(&q, 32 * MIB, pool, a)); /* in order: at once */
	CHECK(RESERVED(pool) == 32 * MIB);
	FINE(cuMemFreeAsync(q, a));
	if (cuStreamQuery(a) == CUDA_ERROR_NOT_READY) { /* else this machine was too slow to see it */
		FINE(cuMemAllocFromPoolAsync(&r, 32 * MIB, pool, b));
		CHECK(RESERVED(pool) == 64 * MIB);
		FINE(cuMemFreeAsync(r, b));
	}
	FINE(cuStreamSynchronize(a));
	FINE(cuStreamSynchronize(b));
	CHECK(RESERVED(pool) == 0 && of(pool, CU_MEMPOOL_RESERVED_MEM_HIGH) >= 32 * MIB);
	FINE(cuStreamDestroy_v2(a));
	FINE(cuStreamDestroy_v2(b));
}

static void check_threshold(CUmemoryPool pool)
{
	cuuint64_t keep = 64 * MIB, none = 0, one = 1;
	CUdeviceptr p, q;
	size_t before = free_now();

	FINE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_RELEASE_THRESHOLD, &keep));
	FINE(cuMemAllocFromPoolAsync(&p, 100 * MIB, pool, NULL));
	FINE(cuMemAllocFromPoolAsync(&q, 100, pool, NULL));
	CHECK(before - free_now() == 128 * MIB && RESERVED(pool) == 128 * MIB && USED(pool) == 100 * MIB + 512);
	FINE(cuMemFreeAsync(p, NULL));
	FINE(cuCtxSynchronize());
	CHECK(RESERVED(pool) == 64 * MIB);
	FINE(cuMemPoolTrimTo(pool, 0));
	CHECK(RESERVED(pool) == 32 * MIB); /* q is in it */
	FINE(cuMemFree_v2(q));
	GIVES(cuMemFreeAsync(q, NULL), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemPoolTrimTo(pool, 0));
	CHECK(free_now() == before);
	GIVES(cuMemPoolSetAttribute(pool, CU_MEMPOOL_USED_MEM_HIGH, &one), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemPoolSetAttribute(pool, CU_MEMPOOL_USED_MEM_CURRENT, &none), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_RESERVED_MEM_HIGH, &none));
	CHECK(of(pool, CU_MEMPOOL_RESERVED_MEM_HIGH) == 0);
	FINE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_RELEASE_THRESHOLD, &none));
}

static void check_pool_shared(CUmemoryPool pool)
{
	CUmemPoolPtrExportData data;
	CUmemoryPool other;
	CUdeviceptr p, q;
	size_t before;
	int fd;

	FINE(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_POSIX_FD, 0));
	FINE(cuMemPoolImportFromShareableHandle(&other, (void *)(intptr_t)fd, CU_MEM_HANDLE_POSIX_FD, 0));
	GIVES(cuMemAllocFromPoolAsync(&p, 1, other, NULL), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemAllocFromPoolAsync(&p, 4096, pool, NULL));
	FINE(cuMemPoolExportPointer(&data, p));
	before = free_now();
	FINE(cuMemPoolImportPointer(&q, other, &data));
	GIVES(cuMemPoolImportPointer(&q, pool, &data), CUDA_ERROR_INVALID_VALUE);
	CHECK(free_now() == before);
	FINE(cuMemFreeAsync(q, NULL));
	FINE(cuMemFreeAsync(p, NULL));
	FINE(cuMemPoolDestroy(other));
	FINE(cuCtxSynchronize());
}

void check_pools(void)
{
	CUmemPoolProps props = {.allocType = 1, .handleTypes = CU_MEM_HANDLE_POSIX_FD, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, 3};
	CUmemoryPool fixed, pool, now;
	CUfunction function;
	CUdeviceptr p;
	size_t before;
	int flags;

	start();
	function = slow();
	before = free_now();
	FINE(cuDeviceGetDefaultMemPool(&fixed, 0));
	FINE(cuDeviceGetMemPool(&now, 0));
	CHECK(now == fixed);
	GIVES(cuMemPoolDestroy(fixed), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemPoolCreate(&pool, &props));
	FINE(cuMemPoolSetAccess(pool, &access, 1));
	FINE(cuMemPoolGetAccess(&flags, pool, &access.location));
	CHECK(flags == 3);
	check_reuse(pool, function);
	check_threshold(pool);
	check_pool_shared(pool);
	FINE(cuDeviceSetMemPool(0, pool));
	FINE(cuMemAllocAsync(&p, 1, NULL));
	CHECK(USED(pool) == 512 && RESERVED(fixed) == 0);
	FINE(cuMemPoolDestroy(pool)); /* its memory goes with its last allocation, and the default pool is current */
	GIVES(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
	CHECK(before - free_now() == 32 * MIB);
	FINE(cuDeviceGetMemPool(&now, 0));
	CHECK(now == fixed);
	FINE(cuMemFreeAsync(p, NULL));
	FINE(cuCtxSynchronize());
	CHECK(free_now() == before);
	GIVES(cuMemAllocAsync(&p, before + MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	GIVES(cuMemAllocAsync(&p, 0, NULL), CUDA_ERROR_INVALID_VALUE);
}
