#include "check.h"

#include <string.h>

/* Every call before cuInit returns an error, except those that need no initialisation. */
void check_uninitialised(void)
{
	CUdeviceptr p = 0;
	CUcontext ctx;
	CUdevice dev;
	size_t n;
	int count, version;
	const char *text;

	FINE(cuDriverGetVersion(&version));
	CHECK(version == 12080);
	GIVES(cuDriverGetVersion(NULL), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
	GIVES(cuDeviceGet(&dev, 0), CUDA_ERROR_NOT_INITIALIZED);
	GIVES(cuDevicePrimaryCtxRetain(&ctx, 0), CUDA_ERROR_NOT_INITIALIZED);
	GIVES(cuMemAlloc_v2(&p, 1), CUDA_ERROR_NOT_INITIALIZED);
	GIVES(cuMemFree_v2(p), CUDA_ERROR_NOT_INITIALIZED);
	GIVES(cuMemGetInfo_v2(&n, &n), CUDA_ERROR_NOT_INITIALIZED);
	GIVES(cuCtxSynchronize(), CUDA_ERROR_NOT_INITIALIZED);
	GIVES(cuInit(1), CUDA_ERROR_INVALID_VALUE);
	FINE(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
	CHECK(!strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY"));
	FINE(cuGetErrorString(CUDA_SUCCESS, &text));
	CHECK(!strcmp(text, "no error"));
	GIVES(cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
	CHECK(!text);
}

static int attribute(int which)
{
	int value;

	FINE(cuDeviceGetAttribute(&value, which, 0));
	return value;
}

/* Runs on an H200 in place 0. */
void check_devices(void)
{
	char name[64], bus[32], shorter[5];
	CUuuid uuid, uuid2;
	CUdevice dev;
	size_t total;
	unsigned narrow;
	int major, minor;

	FINE(cuInit(0));
	FINE(cuInit(0));
	FINE(cuDeviceGet(&dev, 0));
	GIVES(cuDeviceGet(&dev, 99), CUDA_ERROR_INVALID_DEVICE);
	GIVES(cuDeviceGet(&dev, -1), CUDA_ERROR_INVALID_DEVICE);
	GIVES(cuDeviceGet(NULL, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuDeviceGetCount(NULL), CUDA_ERROR_INVALID_VALUE);
	FINE(cuDeviceGetName(name, sizeof(name), 0));
	CHECK(!strcmp(name, "NVIDIA H200"));
	FINE(cuDeviceGetName(shorter, sizeof(shorter), 0));
	CHECK(!strcmp(shorter, "NVID"));
	FINE(cuDeviceGetUuid(&uuid, 0));
	FINE(cuDeviceGetUuid_v2(&uuid2, 0));
	CHECK(!memcmp(&uuid, &uuid2, 16) && uuid.bytes[3] == 1);
	FINE(cuDeviceTotalMem_v2(&total, 0));
	CHECK(total == (143771ull - 606) << 20);
	FINE(cuDeviceTotalMem(&narrow, 0));
	CHECK(narrow == 0xffffffffu);
	FINE(cuDeviceComputeCapability(&major, &minor, 0));
	CHECK(major == 9 && minor == 0 && attribute(75) == 9 && attribute(76) == 0);
	CHECK(attribute(16) == 132 && attribute(1) == 1024 && attribute(10) == 32);
	CHECK(attribute(102) == 1 && attribute(115) == 1);
	GIVES(cuDeviceGetAttribute(&major, 0, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuDeviceGetAttribute(&major, 16, 7), CUDA_ERROR_INVALID_DEVICE);
	FINE(cuDeviceGetPCIBusId(bus, sizeof(bus), 0));
	CHECK(!strcmp(bus, "0000:10:00.0") && attribute(33) == 0x10);
	dev = -1;
	FINE(cuDeviceGetByPCIBusId(&dev, bus));
	CHECK(dev == 0);
	FINE(cuDeviceGetByPCIBusId(&dev, "10:00.0"));
	GIVES(cuDeviceGetByPCIBusId(&dev, "0000:7f:00.0"), CUDA_ERROR_INVALID_DEVICE);
	GIVES(cuDeviceGetByPCIBusId(&dev, "what"), CUDA_ERROR_INVALID_VALUE);
}

static size_t free_now(void)
{
	size_t free_bytes, total;

	FINE(cuMemGetInfo_v2(&free_bytes, &total));
	return free_bytes;
}

static void check_primary(void)
{
	CUcontext a, b, now;
	CUdeviceptr p;
	unsigned flags;
	int active;

	FINE(cuDevicePrimaryCtxGetState(0, &flags, &active));
	CHECK(!active);
	GIVES(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
	FINE(cuDevicePrimaryCtxRetain(&a, 0));
	FINE(cuDevicePrimaryCtxRetain(&b, 0));
	CHECK(a == b);
	FINE(cuCtxGetCurrent(&now));
	CHECK(!now);
	GIVES(cuMemAlloc_v2(&p, 1), CUDA_ERROR_INVALID_CONTEXT);
	FINE(cuCtxSetCurrent(a));
	FINE(cuMemAlloc_v2(&p, 1 << 20));
	FINE(cuDevicePrimaryCtxRelease_v2(0));
	FINE(cuDevicePrimaryCtxGetState(0, &flags, &active));
	CHECK(active);
	FINE(cuDevicePrimaryCtxRelease_v2(0));
	FINE(cuDevicePrimaryCtxGetState(0, &flags, &active));
	CHECK(!active);
	GIVES(cuMemAlloc_v2(&p, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	FINE(cuDevicePrimaryCtxRetain(&a, 0));
	FINE(cuMemAlloc_v2(&p, 1 << 20));
	FINE(cuDevicePrimaryCtxReset_v2(0));
	GIVES(cuMemFree_v2(p), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	FINE(cuDevicePrimaryCtxRetain(&a, 0));
	GIVES(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE); /* went with the reset */
}

void check_contexts(void)
{
	CUcontext ctx, second, popped;
	CUdevice dev;
	unsigned version;
	size_t before;

	FINE(cuInit(0));
	GIVES(cuCtxGetDevice(&dev), CUDA_ERROR_INVALID_CONTEXT);
	GIVES(cuCtxPopCurrent_v2(&ctx), CUDA_ERROR_INVALID_CONTEXT);
	GIVES(cuCtxSetCurrent((CUcontext)0x1234), CUDA_ERROR_INVALID_CONTEXT);
	check_primary();
	before = free_now();
	FINE(cuCtxCreate_v2(&ctx, 0, 0));
	CHECK(before - free_now() == 520ull << 20); /* its own overhead */
	FINE(cuCtxCreate_v3(&second, NULL, 0, 0, 0));
	FINE(cuCtxGetDevice(&dev));
	FINE(cuCtxPopCurrent_v2(&popped));
	CHECK(popped == second);
	FINE(cuCtxDestroy_v2(second));
	FINE(cuCtxCreate_v4(&second, NULL, 0, 0));
	FINE(cuCtxGetApiVersion(second, &version));
	FINE(cuCtxDestroy_v2(second));
	GIVES(cuCtxDestroy_v2(second), CUDA_ERROR_INVALID_CONTEXT);
	GIVES(cuCtxPushCurrent_v2(second), CUDA_ERROR_INVALID_CONTEXT);
	FINE(cuCtxGetCurrent(&popped));
	CHECK(popped == ctx);
	FINE(cuCtxDestroy_v2(ctx));
	CHECK(free_now() == before);
	GIVES(cuCtxCreate_v2(&ctx, 0x1000, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuCtxCreate_v2(&ctx, 0, 9), CUDA_ERROR_INVALID_DEVICE);
}
