#include "figures.h"

#include "hooks.h"
#include "loader.h"

enum { LISTS = 3, MOST = FIGURES_MOST / 3 };

static const uint64_t NOT_AVAILABLE = UINT64_MAX; /* NVML_VALUE_NOT_AVAILABLE */

/* Of each list the newest version that the driver has counts. */
static const struct { uint8_t newest, newer, oldest; } lists[LISTS] = {
	{ HOOK_nvmlDeviceGetComputeRunningProcesses_v3, HOOK_nvmlDeviceGetComputeRunningProcesses_v2,
	  HOOK_nvmlDeviceGetComputeRunningProcesses },
	{ HOOK_nvmlDeviceGetGraphicsRunningProcesses_v3, HOOK_nvmlDeviceGetGraphicsRunningProcesses_v2,
	  HOOK_nvmlDeviceGetGraphicsRunningProcesses },
	{ HOOK_nvmlDeviceGetMPSComputeRunningProcesses_v3, HOOK_nvmlDeviceGetMPSComputeRunningProcesses_v2,
	  HOOK_nvmlDeviceGetMPSComputeRunningProcesses },
};
_Static_assert(HOOK_COUNT <= UINT8_MAX, "a hook's number in a byte");

typedef nvmlReturn_t list_fn(nvmlDevice_t device, unsigned int *count, void *infos);

bool figures_device(const char *uuid, nvmlDevice_t *device)
{
	if (!hook_exists(HOOK_nvmlInit_v2) && !loader_load("libnvidia-ml.so.1"))
		return false;
	return hook_exists(HOOK_nvmlInit_v2) && hook_exists(HOOK_nvmlDeviceGetHandleByUUID) &&
	       REAL(nvmlInit_v2)() == NVML_SUCCESS && REAL(nvmlDeviceGetHandleByUUID)(uuid, device) == NVML_SUCCESS;
}

static void store(struct figure *out, int *count, uint32_t list, uint32_t pid, uint64_t bytes)
{
	if (bytes != NOT_AVAILABLE)
		out[(*count)++] = (struct figure){ pid, list, bytes };
}

/* False: the list is too long. A driver that has no such list has no processes in it. */
static bool read_list(nvmlDevice_t device, uint32_t list, struct figure *out, int *count)
{
	union {
		nvmlProcessInfo_v2_t new[MOST];
		nvmlProcessInfo_v1_t old[MOST];
	} infos;
	unsigned int n = MOST;
	bool old = !hook_exists(lists[list].newest) && !hook_exists(lists[list].newer);
	enum hook_id id = old ? lists[list].oldest : hook_exists(lists[list].newest) ? lists[list].newest : lists[list].newer;
	nvmlReturn_t result = ((list_fn *)hook_real(id))(device, &n, &infos);

	if (result != NVML_SUCCESS)
		return result != NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < n && i < MOST; i++)
		if (old)
			store(out, count, list, infos.old[i].pid, infos.old[i].usedGpuMemory);
		else
			store(out, count, list, infos.new[i].pid, infos.new[i].usedGpuMemory);
	return true;
}

int figures_read(nvmlDevice_t device, struct figure out[FIGURES_MOST])
{
	int count = 0;

	for (uint32_t list = 0; list < LISTS; list++)
		if (!read_list(device, list, out, &count))
			return -1;
	return count;
}
