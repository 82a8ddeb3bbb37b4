/* What go-nvml has no way to ask. */
#define _GNU_SOURCE
#include "check.h"

#include "../nvml_api.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

static void *nvml_function(const char *name)
{
	static void *library;
	void *function;

	if (!library)
		library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	CHECK(library);
	function = dlsym(library, name);
	CHECK(function);
	return function;
}

static nvmlDevice_t first_gpu(void)
{
	nvmlReturn_t (*by_index)(unsigned, nvmlDevice_t *) = nvml_function("nvmlDeviceGetHandleByIndex_v2");
	nvmlReturn_t (*init)(void) = nvml_function("nvmlInit_v2");
	nvmlDevice_t device;

	CHECK(!init());
	CHECK(!by_index(0, &device));
	return device;
}

/* Run as a process that only draws. */
void check_nvml_details(void)
{
	nvmlReturn_t (*list)(nvmlDevice_t, nvmlProcessDetailList_v1_t *) = nvml_function("nvmlDeviceGetRunningProcessDetailList");
	static const unsigned wanted[] = {0, 1, 0, 1}; /* compute, graphics, MPS, all */
	nvmlDevice_t device = first_gpu();
	nvmlProcessDetail_v1_t entries[4] = {{0}};

	start();
	for (unsigned mode = 0; mode < 4; mode++) {
		nvmlProcessDetailList_v1_t l = {NVML_STRUCT_VERSION(l, 1), mode, 4, entries};

		CHECK(list(device, &l) == NVML_SUCCESS);
		CHECK(l.numProcArrayEntries == wanted[mode]);
		CHECK(!wanted[mode] || (entries[0].pid == (unsigned)getpid() && entries[0].usedGpuMemory > 0));
	}
	{
		nvmlProcessDetailList_v1_t l = {NVML_STRUCT_VERSION(l, 1), 3, 0, NULL};

		CHECK(list(device, &l) == NVML_ERROR_INSUFFICIENT_SIZE && l.numProcArrayEntries == 1);
		l.mode = 4;
		CHECK(list(device, &l) == NVML_ERROR_INVALID_ARGUMENT);
		l.mode = l.version = 0;
		CHECK(list(device, &l) == NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	}
}

/* Run beside a process that keeps the GPU busy. */
void check_nvml_utilization(void)
{
	nvmlReturn_t (*get)(nvmlDevice_t, nvmlProcessesUtilizationInfo_v1_t *) = nvml_function("nvmlDeviceGetProcessesUtilizationInfo");
	nvmlProcessUtilizationInfo_v1_t entries[2];
	nvmlProcessesUtilizationInfo_v1_t info = {0, 2, 0, entries};
	nvmlDevice_t device = first_gpu();

	CHECK(get(device, &info) == NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	info.version = NVML_STRUCT_VERSION(info, 1);
	CHECK(get(device, &info) == NVML_SUCCESS);
	CHECK(info.processSamplesCount == 1 && entries[0].smUtil > 0 && entries[0].smUtil <= 100);
	printf("pid=%u\n", entries[0].pid);
	info.lastSeenTimeStamp = entries[0].timeStamp + 3600000000ull;
	CHECK(get(device, &info) == NVML_ERROR_NOT_FOUND && info.processSamplesCount == 0);
	CHECK(get(device, NULL) == NVML_ERROR_INVALID_ARGUMENT);
}

/* What nvidia-smi takes from the private table: a handle, and the processes that compute and that draw. */
void check_nvml_private(void)
{
	static const unsigned char id[] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
	struct entry {
		uint32_t pid;
		uint64_t bytes;
		uint32_t gpu_instance, compute_instance;
		uint64_t protected_bytes;
		char name[4096];
	} entries[2];
	nvmlReturn_t (*get_table)(const void **, const void *) = nvml_function("nvmlInternalGetExportTable");
	nvmlReturn_t (*list)(nvmlDevice_t, unsigned *, struct entry *);
	nvmlReturn_t (*by_index)(unsigned, nvmlDevice_t *, int, int);
	nvmlDevice_t first = first_gpu(), device;
	const void *const *slots;
	unsigned count = 2;
	const void *table;

	start();
	CHECK(get_table(&table, spin_ptx) == NVML_ERROR_NOT_FOUND);
	CHECK(get_table(&table, id) == NVML_SUCCESS);
	slots = table;
	CHECK((uintptr_t)slots[0] > 648);
	by_index = (nvmlReturn_t (*)(unsigned, nvmlDevice_t *, int, int))slots[81];
	CHECK(by_index(0, &device, 0x22, 0xffff) == NVML_SUCCESS && device == first);
	list = (nvmlReturn_t (*)(nvmlDevice_t, unsigned *, struct entry *))slots[213];
	CHECK(list(device, &count, entries) == NVML_SUCCESS && count == 1);
	CHECK(entries[0].pid == (unsigned)getpid() && entries[0].bytes > 0 && strstr(entries[0].name, "check"));
	count = 0;
	CHECK(list(device, &count, NULL) == NVML_ERROR_INSUFFICIENT_SIZE && count == 1);
	for (int slot = 214; slot <= 215; slot++) { /* that draw, and of MPS */
		list = (nvmlReturn_t (*)(nvmlDevice_t, unsigned *, struct entry *))slots[slot];
		count = 2;
		CHECK(list(device, &count, entries) == NVML_SUCCESS && count == 0);
	}
}

/* Functions that exist by name only: three calls of one of CUDA's, one of NVML's. */
void check_missed(void)
{
	CUresult (*coredump)(void) = dlsym(RTLD_DEFAULT, "cuCoredumpGetAttribute");
	nvmlReturn_t (*metadata)(nvmlDevice_t, void *, unsigned *) = nvml_function("nvmlDeviceGetVgpuMetadata");
	void *found;

	CHECK(coredump);
	GIVES(coredump(), CUDA_ERROR_NOT_INITIALIZED);
	start();
	for (int i = 0; i < 3; i++)
		GIVES(coredump(), CUDA_ERROR_NOT_SUPPORTED);
	CHECK(metadata(first_gpu(), NULL, NULL) == NVML_ERROR_NOT_SUPPORTED);
	FINE(cuGetProcAddress_v2("cuCoredumpGetAttribute", &found, 12010, 0, NULL));
	CHECK(found == (void *)coredump);
	FINE(cuGetProcAddress_v2("cuEGLApiInit", &found, 12000, 0, NULL));
	CHECK(!found);
}
