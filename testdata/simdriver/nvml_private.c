/* NVML: the private table that nvidia-smi asks for. NVIDIA describes what it needs of it in NVIDIA/k8s-test-infra
 * (pkg/gpu/mocknvml/bridge/internal.go, "nvidia-smi compatibility"). */
#include "nvml.h"

#include <string.h>

enum { TABLE_BYTES = 0x1000, SLOTS = TABLE_BYTES / sizeof(void *), SLOT_HANDLE = 81, SLOT_COMPUTE = 213, SLOT_GRAPHICS = 214 };

struct process_entry {
	uint32_t pid;
	uint64_t bytes;
	uint32_t gpu_instance, compute_instance;
	uint64_t protected_bytes;
	char name[4096];
};
_Static_assert(sizeof(struct process_entry) == 4128 && offsetof(struct process_entry, name) == 32, "nvidia-smi's layout");

typedef nvmlReturn_t (*get_processes)(nvmlDevice_t, unsigned int *, void *);

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, void *infos);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, void *infos);
nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length);

static nvmlReturn_t handle(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

/* *count is the room, and then the number. */
static nvmlReturn_t processes(nvmlDevice_t device, unsigned int *count, struct process_entry *out, get_processes get)
{
	nvmlProcessInfo_t list[MAX_CLIENTS];
	unsigned int room = count ? *count : 0, n = MAX_CLIENTS;
	nvmlReturn_t r = count ? get(device, &n, list) : NVML_ERROR_INVALID_ARGUMENT;

	if (r)
		return r;
	*count = n;
	if (n > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < n; i++) {
		memset(&out[i], 0, sizeof(out[i]));
		out[i].pid = list[i].pid;
		out[i].bytes = list[i].usedGpuMemory;
		out[i].gpu_instance = list[i].gpuInstanceId;
		out[i].compute_instance = list[i].computeInstanceId;
		nvmlSystemGetProcessName(list[i].pid, out[i].name, sizeof(out[i].name));
	}
	return NVML_SUCCESS;
}

static nvmlReturn_t compute(nvmlDevice_t device, unsigned int *count, struct process_entry *out)
{
	return processes(device, count, out, nvmlDeviceGetComputeRunningProcesses_v3);
}

static nvmlReturn_t graphics(nvmlDevice_t device, unsigned int *count, struct process_entry *out)
{
	return processes(device, count, out, nvmlDeviceGetGraphicsRunningProcesses_v3);
}

/* Every other slot: none of what is asked for. */
static nvmlReturn_t none(nvmlDevice_t device, unsigned int *count)
{
	struct gpu *gpu;
	struct instance *in;

	if (!nvml_find_any(device, &gpu, &in) && count)
		*count = 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id);
nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id)
{
	static const unsigned char known[] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
	static void *slots[SLOTS];

	if (!table || !id)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (memcmp(id, known, sizeof(known)))
		return NVML_ERROR_NOT_FOUND;
	for (unsigned i = 1; i < SLOTS; i++)
		slots[i] = i == SLOT_HANDLE ? (void *)handle : i == SLOT_COMPUTE ? (void *)compute : i == SLOT_GRAPHICS ? (void *)graphics : (void *)none;
	slots[0] = (void *)(uintptr_t)TABLE_BYTES;
	*table = slots;
	return NVML_SUCCESS;
}
