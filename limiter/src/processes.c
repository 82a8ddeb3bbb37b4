/* NVML's lists of processes on a GPU, reduced to the container's own. The driver fills the caller's
 * list, and other processes are removed from it. A caller that only queries the length of the
 * list gets the driver's number, because the driver needs room for all entries. */
#include <string.h>
#include <unistd.h>

#include "hooks.h"
#include "usage.h"

enum { MOST_PROCESSES = VGPU_PROCESSES + 1 };

/* Removes the entries with PIDs of other containers from a list; returns how many remain. */
static unsigned int keep_own(void *list, unsigned int count, size_t entry)
{
	unsigned int own[MOST_PROCESSES], pid, kept = 0;
	int known = usage_pids(own, MOST_PROCESSES - 1);
	char *at = list;

	own[known++] = (unsigned int)getpid(); /* be it without a context, or with no usage file */
	for (unsigned int i = 0; i < count; i++) {
		memcpy(&pid, at + i * entry, sizeof(pid));
		for (int j = 0; j < known; j++) {
			if (own[j] != pid)
				continue;
			memmove(at + kept++ * entry, at + i * entry, entry);
			break;
		}
	}
	return kept;
}

static nvmlReturn_t own_only(nvmlReturn_t result, unsigned int *count, void *infos, size_t entry)
{
	if (result == NVML_SUCCESS && count && infos)
		*count = keep_own(infos, *count, entry);
	return result;
}

#define LIST(name, type)                                                                             \
	nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *infos)                     \
	{                                                                                            \
		return own_only(REAL(name)(device, count, infos), count, infos, sizeof(type));       \
	}

LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list)
{
	nvmlReturn_t result = REAL(nvmlDeviceGetRunningProcessDetailList)(device, list);

	if (result == NVML_SUCCESS && list && list->procArray)
		list->numProcArrayEntries =
			keep_own(list->procArray, list->numProcArrayEntries, sizeof(nvmlProcessDetail_v1_t));
	return result;
}
