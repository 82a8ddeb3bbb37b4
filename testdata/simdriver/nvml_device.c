/* NVML: devices, found and described. */
#define _GNU_SOURCE
#include "nvml.h"
#include "memory_limit.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static nvmlReturn_t get_count(unsigned int *count)
{
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = nvml.device_count;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
	ENTER();
	return get_count(count);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	ENTER();
	return get_count(count);
}

static nvmlReturn_t by_index(unsigned int index, nvmlDevice_t *device)
{
	if (!device || index >= nvml.device_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (nvml_lost(&nvml.devices[index]))
		return NVML_ERROR_GPU_IS_LOST;
	*device = &nvml.devices[index];
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	ENTER();
	return by_index(index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	ENTER();
	return by_index(index, device);
}

static nvmlReturn_t mig_by_uuid(const char *uuid, nvmlDevice_t *device)
{
	nvmlDevice_t migs[MAX_INSTANCES];
	char text[UUID_TEXT];

	for (unsigned i = 0; i < nvml.device_count; i++) {
		struct gpu *c = &nvml.view.s->gpus[nvml.devices[i].gpu];
		unsigned n = nvml_migs(&nvml.devices[i], migs);

		for (unsigned m = 0; m < n; m++) {
			mig_uuid_format(c, &c->instances[migs[m]->slot - 1], text);
			if (strcmp(text, uuid) != 0)
				continue;
			*device = migs[m];
			return nvml_lost(&nvml.devices[i]) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	char text[UUID_TEXT];

	ENTER();
	if (!uuid || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < nvml.device_count; i++) {
		uuid_format(nvml.view.s->gpus[nvml.devices[i].gpu].uuid, text);
		if (!strcmp(text, uuid))
			return by_index(i, device);
	}
	if (!strncmp(uuid, "MIG-", 4))
		return mig_by_uuid(uuid, device);
	return strncmp(uuid, "GPU-", 4) ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t by_pci(const char *id, nvmlDevice_t *device)
{
	unsigned domain = 0, bus, dev;

	if (!id || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (sscanf(id, "%x:%x:%x", &domain, &bus, &dev) != 3) {
		domain = 0;
		if (sscanf(id, "%x:%x", &bus, &dev) != 2)
			return NVML_ERROR_INVALID_ARGUMENT;
	}
	for (unsigned i = 0; i < nvml.device_count; i++) {
		const struct gpu *c = &nvml.view.s->gpus[nvml.devices[i].gpu];

		if (c->pci_domain == domain && c->pci_bus == bus && c->pci_device == dev)
			return by_index(i, device);
	}
	return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
	ENTER();
	return by_pci(id, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
	ENTER();
	return by_pci(id, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	char text[UUID_TEXT];

	GPU_AND_MIG_OR_RETURN(c, in, device);
	if (in)
		mig_uuid_format(c, in, text);
	else
		uuid_format(c->uuid, text);
	return copy_out(uuid, length, text);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	char text[DEVICE_NAME];

	GPU_AND_MIG_OR_RETURN(c, in, device);
	instance_name(c, in, text);
	return copy_out(name, length, text);
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
	char text[32];

	GPU_OR_RETURN(c, device);
	snprintf(text, sizeof(text), "51510000%04u", c->minor);
	return copy_out(serial, length, text);
}

EXPORT nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length)
{
	GPU_OR_RETURN(c, device);
	return copy_out(version, length, "96.00.00.00.01");
}

NUMBER(nvmlDeviceGetMinorNumber, unsigned int, c->minor)
NUMBER(nvmlDeviceGetBrand, int, c->brand)
NUMBER(nvmlDeviceGetArchitecture, unsigned int, c->architecture)
NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned int, c->bus_width)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int, c->power_mw)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, c->power_mw)
NUMBER(nvmlDeviceGetComputeMode, int, c ? 0 : 1)
NUMBER(nvmlDeviceGetPersistenceMode, int, c ? 1 : 0)
NUMBER(nvmlDeviceGetDisplayActive, int, c ? 0 : 1)
NUMBER(nvmlDeviceGetSupportedEventTypes, nvmlU64, c ? NVML_EVENTS_SUPPORTED : 0)
NUMBER(nvmlDeviceGetPowerUsage, unsigned int, c->fixed_power_mw ? c->fixed_power_mw - 1 : c->power_mw / 10 + c->power_mw / 100 *
	busy_percent(c->engine.busy, now_ns() - 1000000000u, now_ns()) * 8 / 10)

/* A MIG device's is the one that finds it under its GPU. */
EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	nvmlDevice_t migs[MAX_INSTANCES];

	GPU_AND_MIG_OR_RETURN(c, in, device);
	(void)c;
	if (!index)
		return NVML_ERROR_INVALID_ARGUMENT;
	*index = device->index;
	for (unsigned i = in ? nvml_migs(device->parent, migs) : 0; i > 0; i--) {
		if (migs[i - 1] == device)
			*index = i - 1;
	}
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *cores)
{
	GPU_OR_RETURN(c, device);
	if (!cores)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (atomic_load(&c->mig_enabled))
		return NVML_ERROR_NOT_SUPPORTED;
	*cores = c->sm_count * c->cores_per_sm;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
	GPU_OR_RETURN(c, device);
	if (!node)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (c->numa_node < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*node = (unsigned)c->numa_node;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	GPU_OR_RETURN(c, device);
	if (!major || !minor)
		return NVML_ERROR_INVALID_ARGUMENT;
	*major = (int)c->cc_major;
	*minor = (int)c->cc_minor;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *degrees)
{
	GPU_OR_RETURN(c, device);
	if (!degrees || sensor)
		return NVML_ERROR_INVALID_ARGUMENT;
	*degrees = c->fixed_celsius ? c->fixed_celsius - 1 :
				     30 + busy_percent(c->engine.busy, now_ns() - 1000000000u, now_ns()) / 3;
	return NVML_SUCCESS;
}

void fill_bus_id(const struct gpu *c, char legacy[16], char full[32])
{
	snprintf(legacy, 16, "%04X:%02X:%02X.0", c->pci_domain & 0xffff, c->pci_bus & 0xff, c->pci_device & 0x1f);
	if (full)
		snprintf(full, 32, "%08X:%02X:%02X.0", c->pci_domain, c->pci_bus & 0xff, c->pci_device & 0x1f);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	GPU_OR_RETURN(c, device);
	if (!pci)
		return NVML_ERROR_INVALID_ARGUMENT;
	memset(pci, 0, sizeof(*pci));
	fill_bus_id(c, pci->busIdLegacy, pci->busId);
	pci->domain = c->pci_domain;
	pci->bus = c->pci_bus;
	pci->device = c->pci_device;
	pci->pciDeviceId = c->pci_device_id;
	pci->pciSubSystemId = c->pci_subsystem_id;
	return NVML_SUCCESS;
}

/* The older struct is shorter and has the short bus id only; what lies behind it is the caller's. */
static void fill_old_pci(const struct gpu *c, nvmlPciInfo_t *pci)
{
	fill_bus_id(c, pci->busIdLegacy, NULL);
	pci->domain = c->pci_domain;
	pci->bus = c->pci_bus;
	pci->device = c->pci_device;
	pci->pciDeviceId = c->pci_device_id;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	GPU_OR_RETURN(c, device);
	if (!pci)
		return NVML_ERROR_INVALID_ARGUMENT;
	fill_old_pci(c, pci);
	pci->pciSubSystemId = c->pci_subsystem_id;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	GPU_OR_RETURN(c, device);
	if (!pci)
		return NVML_ERROR_INVALID_ARGUMENT;
	fill_old_pci(c, pci);
	return NVML_SUCCESS;
}

/* A GPU's numbers are the sums over its MIG devices, too. */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	uint64_t used;

	GPU_AND_MIG_OR_RETURN(c, in, device);
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (gpu_used_now(&nvml.view, device->gpu, in, &used))
		return NVML_ERROR_UNKNOWN;
	memory->total = in ? in->profile.memory_bytes : c->memory_bytes;
	memory->used = used + (in ? 0 : c->reserved_bytes);
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	uint64_t used, limit;

	GPU_AND_MIG_OR_RETURN(c, in, device);
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (memory->version != NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (gpu_used_now(&nvml.view, device->gpu, in, &used))
		return NVML_ERROR_UNKNOWN;
	memory->total = in ? in->profile.memory_bytes : c->memory_bytes;
	memory->reserved = in ? 0 : c->reserved_bytes;
	memory->used = used;
	memory->free = memory->total - memory->reserved - memory->used;
	if (!in && limit_shown(&nvml.view, device->gpu, &limit, &used) && limit < memory->total) {
		memory->total = limit;
		memory->reserved = 0;
		memory->used = used;
		memory->free = used < limit ? limit - used : 0;
	}
	return NVML_SUCCESS;
}

static int level(const struct gpu *a, const struct gpu *b)
{
	if (a->pci_board == b->pci_board)
		return NVML_TOPOLOGY_INTERNAL;
	if (a->numa_node != b->numa_node)
		return NVML_TOPOLOGY_SYSTEM;
	if (a->pci_switch == b->pci_switch)
		return NVML_TOPOLOGY_SINGLE;
	if (a->pci_upper == b->pci_upper)
		return NVML_TOPOLOGY_MULTIPLE;
	return a->pci_root == b->pci_root ? NVML_TOPOLOGY_HOSTBRIDGE : NVML_TOPOLOGY_NODE;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, int *out)
{
	GPU_OR_RETURN(c, device);
	if (!out || !nvml_gpu(other))
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = level(c, nvml_gpu(other));
	return NVML_SUCCESS;
}

/* All devices at that distance or nearer; only their number if the array is NULL. */
EXPORT nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, int wanted, unsigned int *count,
						     nvmlDevice_t *out)
{
	unsigned n = 0;

	GPU_OR_RETURN(c, device);
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < nvml.device_count; i++) {
		const struct gpu *other = &nvml.view.s->gpus[nvml.devices[i].gpu];

		if (other == c || level(c, other) > wanted)
			continue;
		if (out && n < *count)
			out[n] = &nvml.devices[i];
		n++;
	}
	*count = n;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, int which, int *status)
{
	GPU_OR_RETURN(c, device);
	(void)which;
	if (!status || !nvml_gpu(other))
		return NVML_ERROR_INVALID_ARGUMENT;
	*status = 5; /* NVML_P2P_STATUS_NOT_SUPPORTED */
	return NVML_SUCCESS;
}

static nvmlReturn_t set_bits(unsigned long *set, unsigned words, unsigned from, unsigned count)
{
	if (!set || !words)
		return NVML_ERROR_INVALID_ARGUMENT;
	memset(set, 0, words * sizeof(*set));
	for (unsigned bit = from; bit < from + count && bit < words * 64; bit++)
		set[bit / 64] |= 1ul << bit % 64;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set, unsigned scope)
{
	GPU_OR_RETURN(c, device);
	if (scope > 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	return c->numa_node < 0 ? NVML_ERROR_NOT_SUPPORTED : set_bits(set, words, (unsigned)c->numa_node, 1);
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set)
{
	GPU_OR_RETURN(c, device);
	return set_bits(set, words, 0, (unsigned)sysconf(_SC_NPROCESSORS_ONLN));
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *set,
							unsigned scope)
{
	GPU_OR_RETURN(c, device);
	return scope > 1 ? NVML_ERROR_INVALID_ARGUMENT : set_bits(set, words, 0, (unsigned)sysconf(_SC_NPROCESSORS_ONLN));
}
