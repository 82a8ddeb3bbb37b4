/* On a GPU with MIG on. Not in the list of checks: the test makes the GPUs. */
#include "check.h"

#include "../nvml_api.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define SIZE (20096 * MIB) /* of 3g.20gb */
#define CONTEXT (420 * MIB)

static int attribute(int which)
{
	int value;

	FINE(cuDeviceGetAttribute(&value, which, 0));
	return value;
}

/* The GPU's UUID from the old function, the MIG device's from the new; by name, the version that is asked for decides. */
static void check_uuids(void)
{
	CUresult (*by_version)(CUuuid *, CUdevice);
	CUuuid old, new, got;

	FINE(cuDeviceGetUuid(&old, 0));
	FINE(cuDeviceGetUuid_v2(&new, 0));
	CHECK((old.bytes[6] & 0xf0) == 0x40 && (new.bytes[6] & 0xf0) == 0x50);
	CHECK(!memcmp(old.bytes, new.bytes, 4));
	FINE(cuGetProcAddress("cuDeviceGetUuid", (void **)&by_version, 11030, 0));
	FINE(by_version(&got, 0));
	CHECK(!memcmp(&got, &old, sizeof(got)));
	FINE(cuGetProcAddress("cuDeviceGetUuid", (void **)&by_version, 11040, 0));
	FINE(by_version(&got, 0));
	CHECK(!memcmp(&got, &new, sizeof(got)));
	GIVES(cuDeviceGetUuid_v2(&got, 1), CUDA_ERROR_INVALID_DEVICE);
	GIVES(cuDeviceGetUuid_v2(NULL, 0), CUDA_ERROR_INVALID_VALUE);
}

static void check_memory_of_instance(void)
{
	size_t free_bytes, total;
	CUdeviceptr p, q;

	FINE(cuDeviceTotalMem_v2(&total, 0));
	CHECK(total == SIZE);
	start();
	FINE(cuMemGetInfo_v2(&free_bytes, &total));
	CHECK(total == SIZE && free_bytes == SIZE - CONTEXT);
	GIVES(cuMemAlloc_v2(&p, free_bytes + 1), CUDA_ERROR_OUT_OF_MEMORY);
	FINE(cuMemAlloc_v2(&p, free_bytes));
	GIVES(cuMemAlloc_v2(&q, 1), CUDA_ERROR_OUT_OF_MEMORY);
	FINE(cuMemGetInfo_v2(&free_bytes, &total));
	CHECK(!free_bytes);
	FINE(cuMemFree_v2(p));
}

static void check_work(void)
{
	CUmodule module;
	CUfunction f;

	FINE(cuModuleLoadData(&module, spin_ptx));
	FINE(cuModuleGetFunction(&f, module, "quick"));
	for (int i = 0; i < 10; i++)
		FINE(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	FINE(cuCtxSynchronize());
	FINE(cuModuleUnload(module));
}

#define FUNCTION(name, ...)                             \
	nvmlReturn_t (*name)(__VA_ARGS__);              \
	*(void **)&name = dlsym(library, "nvml" #name); \
	CHECK(name)

/* NVML reports the same values, and this process on the instance. */
static void check_nvml(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	nvmlProcessInfo_t processes[4];
	nvmlDeviceAttributes_t attributes;
	nvmlDevice_t gpu, mig, parent;
	nvmlMemory_t memory;
	unsigned count = 4, id, shard;

	CHECK(library);
	FUNCTION(Init_v2, void);
	FUNCTION(Shutdown, void);
	FUNCTION(DeviceGetHandleByIndex_v2, unsigned, nvmlDevice_t *);
	FUNCTION(DeviceGetMigDeviceHandleByIndex, nvmlDevice_t, unsigned, nvmlDevice_t *);
	FUNCTION(DeviceGetDeviceHandleFromMigDeviceHandle, nvmlDevice_t, nvmlDevice_t *);
	FUNCTION(DeviceGetAttributes_v2, nvmlDevice_t, nvmlDeviceAttributes_t *);
	FUNCTION(DeviceGetGpuInstanceId, nvmlDevice_t, unsigned *);
	FUNCTION(DeviceGetComputeInstanceId, nvmlDevice_t, unsigned *);
	FUNCTION(DeviceGetMemoryInfo, nvmlDevice_t, nvmlMemory_t *);
	FUNCTION(DeviceGetComputeRunningProcesses_v3, nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);

	CHECK(!Init_v2() && !DeviceGetHandleByIndex_v2(0, &gpu));
	CHECK(!DeviceGetMigDeviceHandleByIndex(gpu, 0, &mig));
	CHECK(!DeviceGetDeviceHandleFromMigDeviceHandle(mig, &parent) && parent == gpu);
	CHECK(!DeviceGetAttributes_v2(mig, &attributes) && attributes.multiprocessorCount == 42);
	CHECK(!DeviceGetGpuInstanceId(mig, &id) && !DeviceGetComputeInstanceId(mig, &shard) && !shard);
	CHECK(!DeviceGetMemoryInfo(mig, &memory) && memory.total == SIZE && memory.used == CONTEXT);
	CHECK(!DeviceGetComputeRunningProcesses_v3(mig, &count, processes) && count == 1);
	CHECK(processes[0].pid == (unsigned)getpid() && processes[0].gpuInstanceId == id);
	CHECK(DeviceGetMigDeviceHandleByIndex(mig, 0, &mig) == NVML_ERROR_NOT_SUPPORTED);
	CHECK(DeviceGetGpuInstanceId((nvmlDevice_t)((char *)mig + 1), &id) == NVML_ERROR_INVALID_ARGUMENT);
	CHECK(!Shutdown());
}

void check_mig(void)
{
	CUdevice dev;
	char text[96];
	int count;

	FINE(cuInit(0));
	FINE(cuDeviceGetCount(&count));
	CHECK(count == 1);
	FINE(cuDeviceGetName(text, sizeof(text), 0));
	CHECK(!strcmp(text, "NVIDIA A100-SXM4-40GB MIG 3g.20gb"));
	CHECK(attribute(16) == 42 && attribute(37) == 5120 / 2 && attribute(38) == 41943040 / 2 && attribute(40) == 3);
	FINE(cuDeviceGetPCIBusId(text, sizeof(text), 0));
	FINE(cuDeviceGetByPCIBusId(&dev, text));
	CHECK(dev == 0);
	check_uuids();
	check_memory_of_instance();
	check_work();
	check_nvml();
	FINE(cuDevicePrimaryCtxRelease_v2(0));
}

/* The GPU is cut up after cuInit: this process gets nothing of it any more. */
void check_mig_late(void)
{
	CUcontext ctx;
	char line[8];

	FINE(cuInit(0));
	printf("ready=1\n");
	fflush(stdout);
	CHECK(fgets(line, sizeof(line), stdin));
	GIVES(cuDevicePrimaryCtxRetain(&ctx, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
}
