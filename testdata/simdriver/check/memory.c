#include "check.h"

#include <string.h>

#define MIB ((size_t)1 << 20)

static size_t free_now(void)
{
	size_t free_bytes, total;

	FINE(cuMemGetInfo_v2(&free_bytes, &total));
	CHECK(total == (143771ull - 606) * MIB);
	return free_bytes;
}

static void check_pitch(void)
{
	CUdeviceptr p;
	size_t pitch, before = free_now();

	FINE(cuMemAllocPitch_v2(&p, &pitch, 1000, 10, 4));
	CHECK(pitch == 1024 && before - free_now() == 2 * MIB);
	FINE(cuMemFree_v2(p));
	GIVES(cuMemAllocPitch_v2(&p, &pitch, 1000, 10, 3), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemAllocPitch_v2(&p, &pitch, 0, 10, 4), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemAllocPitch_v2(&p, &pitch, (size_t)1 << 62, 1 << 20, 4), CUDA_ERROR_OUT_OF_MEMORY);
}

static void check_old_calls(void)
{
	CUdeviceptr_v1 p, base;
	unsigned size, free_bytes, total, pitch;

	FINE(cuMemAlloc(&p, 4096));
	FINE(cuMemGetAddressRange(&base, &size, p + 100));
	CHECK(base == p && size == 4096);
	FINE(cuMemGetInfo(&free_bytes, &total));
	CHECK(total == 0xffffffffu);
	FINE(cuMemFree(p));
	FINE(cuMemAllocPitch(&p, &pitch, 100, 2, 8));
	CHECK(pitch == 512);
	FINE(cuMemFree(p));
}

static void check_host_and_managed(void)
{
	CUdeviceptr p, device_side;
	void *host;
	unsigned managed;
	size_t before = free_now();

	FINE(cuMemAllocHost_v2(&host, 100));
	memset(host, 1, 100);
	FINE(cuMemHostGetDevicePointer_v2(&device_side, host, 0));
	CHECK(free_now() == before);
	GIVES(cuMemFree_v2((CUdeviceptr)(uintptr_t)host), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemFreeHost(host));
	GIVES(cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemHostAlloc(&host, 100, 8), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemAllocManaged(&p, 8 * MIB, CU_MEM_ATTACH_GLOBAL));
	CHECK(before - free_now() == 8 * MIB);
	memset((void *)(uintptr_t)p, 1, 8 * MIB);
	FINE(cuPointerGetAttribute(&managed, 8, p));
	CHECK(managed == 1);
	FINE(cuMemFree_v2(p));
	GIVES(cuMemAllocManaged(&p, 1, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(free_now() == before);
}

void check_memory(void)
{
	CUdeviceptr p, q, base;
	size_t size, before;

	start();
	before = free_now();
	CHECK(before == (143771ull - 606 - 520) * MIB);
	GIVES(cuMemAlloc_v2(&p, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemAlloc_v2(NULL, 1), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemAlloc_v2(&p, before + 1), CUDA_ERROR_OUT_OF_MEMORY);
	GIVES(cuMemAlloc_v2(&p, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
	GIVES(cuMemAlloc_v2(&p, before), CUDA_ERROR_OUT_OF_MEMORY); /* the last page is not whole */
	FINE(cuMemAlloc_v2(&p, before / (2 * MIB) * (2 * MIB)));
	CHECK(free_now() == before % (2 * MIB));
	GIVES(cuMemAlloc_v2(&q, 1), CUDA_ERROR_OUT_OF_MEMORY);
	FINE(cuMemFree_v2(p));
	GIVES(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemAlloc_v2(&p, 12345));
	CHECK(before - free_now() == 2 * MIB && p % 512 == 0);
	FINE(cuMemGetAddressRange_v2(&base, &size, p + 12344));
	CHECK(base == p && size == 12345);
	GIVES(cuMemGetAddressRange_v2(&base, &size, p + 12345), CUDA_ERROR_NOT_FOUND);
	GIVES(cuMemFree_v2(p + 512), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemFree_v2(p));
	FINE(cuMemAlloc_v2(&q, 12345));
	CHECK(p == q); /* addresses are given out again */
	FINE(cuMemFree_v2(q));
	GIVES(cuMemGetInfo_v2(NULL, &size), CUDA_ERROR_INVALID_VALUE);
	check_pitch();
	check_old_calls();
	check_host_and_managed();
	CHECK(free_now() == before);
}

void check_copies(void)
{
	char host[256];
	CUdeviceptr p, q, m;

	start();
	FINE(cuMemAlloc_v2(&p, 256));
	FINE(cuMemAlloc_v2(&q, 1024));
	FINE(cuMemAllocManaged(&m, 256, CU_MEM_ATTACH_GLOBAL));
	memset(host, 7, sizeof(host));
	FINE(cuMemcpyHtoD_v2(p, host, 256));
	GIVES(cuMemcpyHtoD_v2(p, host, 257), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemcpyHtoD_v2(p + 1, host, 256), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemcpyHtoD_v2(0, host, 1), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemcpyHtoD_v2(m, host, 256));
	CHECK(((char *)(uintptr_t)m)[255] == 7);
	FINE(cuMemcpyDtoD_v2(q, p, 256));
	GIVES(cuMemcpyDtoD_v2(q + 900, p, 256), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemcpyDtoH_v2(host, p, 256));
	CHECK(host[0] == 7);
	FINE(cuMemcpy((CUdeviceptr)(uintptr_t)host, m, 256));
	CHECK(host[0] == 7);
	FINE(cuMemcpyAsync(q, p, 256, NULL));
	FINE(cuMemcpyHtoDAsync_v2(q, host, 256, CU_STREAM_PER_THREAD));
	GIVES(cuMemcpyHtoDAsync_v2(q, host, 256, (CUstream)0x5000), CUDA_ERROR_INVALID_HANDLE);
	FINE(cuMemcpyDtoHAsync_v2_ptsz(host, q, 256, NULL));
	FINE(cuMemsetD8_v2(p, 1, 256));
	GIVES(cuMemsetD8_v2(p, 1, 257), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemsetD32_v2(p, 1, 64));
	GIVES(cuMemsetD32_v2(p, 1, 65), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemsetD32_v2(p + 1, 1, 1), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemsetD16Async(m, 0x1234, 128, NULL));
	CHECK(*(unsigned short *)(uintptr_t)(m + 254) == 0x1234);
	FINE(cuMemFree_v2(p));
	GIVES(cuMemcpyDtoH_v2(host, p, 1), CUDA_ERROR_INVALID_VALUE);
}
