/* NVML: processes. */
#include "nvml.h"

#include <stdlib.h>

/* As measured on an H100: not what it has imported, nor all that a context takes. */
static uint64_t client_bytes(const struct client *cl, unsigned gpu)
{
	const struct client_gpu *c = &cl->gpus[gpu];
	uint64_t used = c->used[CHARGE_CONTEXT] + c->used[CHARGE_DATA];

	return (used > c->unlisted ? used - c->unlisted : 0) + c->shared;
}

/* The MIG device of that GPU that the client uses, in the ids of NVML. */
static void fill_instance(const struct client *cl, unsigned gpu, nvmlProcessInfo_t *info)
{
	const struct instance *in = cl->mig.gpu == gpu ? instance_of(nvml.view.s, &cl->mig) : NULL;

	info->gpuInstanceId = in ? in->id : NO_INSTANCE;
	info->computeInstanceId = in ? 0 : NO_INSTANCE;
}

/* As the modes of nvmlDeviceGetRunningProcessDetailList. No process is an MPS client. */
enum list { LIST_COMPUTE, LIST_GRAPHICS, LIST_MPS, LIST_ALL };

static bool listed(const struct client *cl, enum list which)
{
	switch (which) {
	case LIST_COMPUTE:
		return cl->graphics != GRAPHICS_ONLY;
	case LIST_GRAPHICS:
		return cl->graphics != GRAPHICS_NO;
	default:
		return which == LIST_ALL;
	}
}

/* Copies what is asked of the live clients of a GPU, or of one MIG device (slot not 0); identities are resolved after the lock is dropped. */
static unsigned list_clients(unsigned gpu, unsigned slot, enum list which, nvmlProcessInfo_t *list)
{
	const struct state *s = nvml.view.s;
	unsigned slots[MAX_CLIENTS];
	unsigned n = 0, kept = 0;

	state_reap(&nvml.view);
	if (state_lock(&nvml.view))
		return 0;
	for (unsigned i = 0; i < s->client_limit && i < MAX_CLIENTS; i++) {
		if (!atomic_load(&s->clients[i].taken) || !client_bytes(&s->clients[i], gpu) || !listed(&s->clients[i], which))
			continue;
		if (slot && (s->clients[i].mig.gpu != gpu || s->clients[i].mig.slot != slot))
			continue;
		slots[n] = i;
		fill_instance(&s->clients[i], gpu, &list[n]);
		list[n++].usedGpuMemory = client_bytes(&s->clients[i], gpu);
	}
	state_unlock(&nvml.view);
	for (unsigned i = 0; i < n; i++) {
		unsigned pid = client_pid(&nvml.view, slots[i], s->nvml_pids == PIDS_HOST);

		if (!pid)
			continue;
		list[kept].pid = pid;
		list[kept].usedGpuMemory = list[i].usedGpuMemory;
		list[kept].gpuInstanceId = list[i].gpuInstanceId;
		list[kept].computeInstanceId = list[i].computeInstanceId;
		kept++;
	}
	return kept;
}

static nvmlReturn_t get_processes(nvmlDevice_t device, unsigned int *count, void *out, enum list which, bool old)
{
	nvmlProcessInfo_t *list;
	struct gpu *c;
	struct instance *in;
	nvmlReturn_t r = nvml_find_any(device, &c, &in);
	unsigned n, room;

	if (r || !count || (*count && !out))
		return r ? r : NVML_ERROR_INVALID_ARGUMENT;
	list = calloc(MAX_CLIENTS, sizeof(*list));
	if (!list)
		return NVML_ERROR_MEMORY;
	n = list_clients(device->gpu, device->slot, which, list);
	room = *count;
	*count = n;
	for (unsigned i = 0; i < n && n <= room; i++) {
		if (old) {
			((nvmlProcessInfo_v1_t *)out)[i].pid = list[i].pid;
			((nvmlProcessInfo_v1_t *)out)[i].usedGpuMemory = list[i].usedGpuMemory;
		} else {
			((nvmlProcessInfo_t *)out)[i] = list[i];
		}
	}
	free(list);
	return n <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count, void *infos)
{
	ENTER();
	return get_processes(device, count, infos, LIST_COMPUTE, true);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, void *infos)
{
	ENTER();
	return get_processes(device, count, infos, LIST_COMPUTE, false);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, void *infos)
{
	ENTER();
	return get_processes(device, count, infos, LIST_COMPUTE, false);
}

static nvmlReturn_t none(nvmlDevice_t device, unsigned int *count)
{
	struct gpu *c;
	struct instance *in;
	nvmlReturn_t r = nvml_find_any(device, &c, &in);

	if (r || !count)
		return r ? r : NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

#define GRAPHICS_PROCESSES(name, old)                                                        \
	EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *infos)      \
	{                                                                                    \
		ENTER();                                                                     \
		return get_processes(device, count, infos, LIST_GRAPHICS, old);              \
	}

GRAPHICS_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, true)
GRAPHICS_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, false)
GRAPHICS_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, false)

EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *out)
{
	nvmlProcessInfo_t *list;
	unsigned n, room;

	GPU_AND_MIG_OR_RETURN(c, in, device);
	(void)c, (void)in;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != NVML_STRUCT_VERSION(*out, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (out->mode > LIST_ALL || (out->numProcArrayEntries && !out->procArray))
		return NVML_ERROR_INVALID_ARGUMENT;
	list = calloc(MAX_CLIENTS, sizeof(*list));
	if (!list)
		return NVML_ERROR_MEMORY;
	n = list_clients(device->gpu, device->slot, (enum list)out->mode, list);
	room = out->numProcArrayEntries;
	out->numProcArrayEntries = n;
	for (unsigned i = 0; i < n && n <= room; i++)
		out->procArray[i] = (nvmlProcessDetail_v1_t){list[i].pid, list[i].usedGpuMemory, list[i].gpuInstanceId,
							     list[i].computeInstanceId, 0};
	free(list);
	return n <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

/* No MPS. */
#define NO_PROCESSES(name)                                                                   \
	EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *infos)      \
	{                                                                                    \
		ENTER();                                                                     \
		(void)infos;                                                                 \
		return none(device, count);                                                  \
	}

NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)
