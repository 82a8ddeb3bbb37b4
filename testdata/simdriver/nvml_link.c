/*
 * NVML: NVLinks. A GPU's links are numbered by the GPU that they lead to, those to switches last. A link to a GPU that
 * is lost is down.
 */
#include "nvml.h"

#include <stdio.h>
#include <string.h>

#define TO_SWITCH MAX_GPUS
#define FABRIC_INFO_V2 ((unsigned)(offsetof(nvmlGpuFabricInfo_v3_t, healthSummary) | 2u << 24)) /* it ends there */

/* The GPU at the far end of a link, or TO_SWITCH; what a GPU without such a link answers otherwise. */
static nvmlReturn_t far_end(unsigned gpu, unsigned link, unsigned *remote)
{
	const struct state *s = nvml.view.s;
	unsigned total = 0;

	for (unsigned i = 0; i < s->gpu_count; i++) {
		total += nvlinks_between(s, gpu, i);
		if (link < total) {
			*remote = i;
			return NVML_SUCCESS;
		}
	}
	total += s->gpus[gpu].nvswitch_links;
	*remote = TO_SWITCH;
	if (link < total)
		return NVML_SUCCESS;
	return total ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, int *active)
{
	unsigned remote;
	nvmlReturn_t r;

	GPU_OR_RETURN(c, device);
	(void)c;
	if (!active)
		return NVML_ERROR_INVALID_ARGUMENT;
	r = far_end(device->gpu, link, &remote);
	if (!r)
		*active = remote == TO_SWITCH || atomic_load(&nvml.view.s->gpus[remote].presence) == GPU_PRESENT;
	return r;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, int *type)
{
	unsigned remote;
	nvmlReturn_t r;

	GPU_OR_RETURN(c, device);
	(void)c;
	if (!type)
		return NVML_ERROR_INVALID_ARGUMENT;
	r = far_end(device->gpu, link, &remote);
	if (!r)
		*type = remote == TO_SWITCH ? NVML_NVLINK_DEVICE_SWITCH : NVML_NVLINK_DEVICE_GPU;
	return r;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
	unsigned remote;
	nvmlReturn_t r;

	GPU_OR_RETURN(c, device);
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	r = far_end(device->gpu, link, &remote);
	if (!r)
		*version = c->cc_major >= 10 ? 5 : c->cc_major >= 9 ? 4 : 3;
	return r;
}

static nvmlReturn_t remote_pci(unsigned gpu, unsigned link, nvmlPciInfo_t *pci, bool full)
{
	static const struct gpu nvswitch = {.pci_bus = 0xfe, .pci_device_id = 0x22a310deu};
	const struct gpu *to;
	unsigned remote;
	nvmlReturn_t r;

	if (!pci)
		return NVML_ERROR_INVALID_ARGUMENT;
	r = far_end(gpu, link, &remote);
	if (r)
		return r;
	to = remote == TO_SWITCH ? &nvswitch : &nvml.view.s->gpus[remote];
	fill_bus_id(to, pci->busIdLegacy, full ? pci->busId : NULL);
	pci->domain = to->pci_domain;
	pci->bus = to->pci_bus;
	pci->device = to->pci_device;
	pci->pciDeviceId = to->pci_device_id;
	pci->pciSubSystemId = to->pci_subsystem_id;
	return NVML_SUCCESS;
}

/* The first version's struct has the short bus id only. */
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
	GPU_OR_RETURN(c, device);
	(void)c;
	return remote_pci(device->gpu, link, pci, false);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
	GPU_OR_RETURN(c, device);
	(void)c;
	return remote_pci(device->gpu, link, pci, true);
}

/*
 * Where there are switches the fabric manager is done, as CUDA does not start before. What it reports of health is not
 * there: 0 in each part.
 */
static nvmlReturn_t fabric(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
	struct gpu *c;
	nvmlReturn_t r = nvml_find(device, &c);

	if (r)
		return r;
	if (c->cc_major < 9)
		return NVML_ERROR_NOT_SUPPORTED;
	*info = (nvmlGpuFabricInfo_t){.status = NVML_SUCCESS, .state = c->nvswitch_links ? NVML_FABRIC_COMPLETED : NVML_FABRIC_NOT_SUPPORTED};
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
	ENTER();
	return info ? fabric(device, info) : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v3_t *info)
{
	nvmlGpuFabricInfo_t known;
	nvmlReturn_t r;

	ENTER();
	if (!info)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (info->version != FABRIC_INFO_V2 && info->version != NVML_STRUCT_VERSION(*info, 3))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	r = fabric(device, &known);
	if (r)
		return r;
	memcpy(info->clusterUuid, known.clusterUuid, sizeof(known.clusterUuid));
	info->status = known.status;
	info->cliqueId = known.cliqueId;
	info->state = known.state;
	info->healthMask = 0;
	if (info->version != FABRIC_INFO_V2)
		info->healthSummary = 0;
	return NVML_SUCCESS;
}
