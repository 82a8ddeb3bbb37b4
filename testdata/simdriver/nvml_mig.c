/* NVML: MIG mode, and MIG devices. */
#include "nvml.h"

#include <string.h>

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
	GPU_OR_RETURN(c, device);
	if (!current || !pending)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!c->max_mig)
		return NVML_ERROR_NOT_SUPPORTED;
	*current = *pending = atomic_load(&c->mig_enabled);
	return NVML_SUCCESS;
}

/* As documented: 0 also where MIG is off. */
EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	GPU_OR_RETURN(c, device);
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = atomic_load(&c->mig_enabled) ? c->max_mig : 0;
	return NVML_SUCCESS;
}

unsigned nvml_migs(nvmlDevice_t parent, nvmlDevice_t migs[MAX_INSTANCES])
{
	const struct gpu *c = &nvml.view.s->gpus[parent->gpu];
	unsigned slots[MAX_INSTANCES];
	unsigned n = instances_in_order(c, slots), kept = 0;

	for (unsigned i = 0; i < n; i++) {
		if (instance_visible(c, &c->instances[slots[i] - 1]))
			migs[kept++] = &nvml.migs[parent->index][slots[i] - 1];
	}
	return kept;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
	nvmlDevice_t migs[MAX_INSTANCES];

	GPU_OR_RETURN(c, device);
	if (!mig)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!c->max_mig)
		return NVML_ERROR_NOT_SUPPORTED;
	if (index >= c->max_mig)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (index >= nvml_migs(device, migs))
		return NVML_ERROR_NOT_FOUND;
	*mig = migs[index];
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
	GPU_AND_MIG_OR_RETURN(c, in, device);
	(void)c;
	if (!is_mig)
		return NVML_ERROR_INVALID_ARGUMENT;
	*is_mig = in != NULL;
	return NVML_SUCCESS;
}

/* What a whole GPU answers where a MIG device is asked for. */
static nvmlReturn_t not_mig(const struct gpu *c)
{
	return c->max_mig ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
	GPU_AND_MIG_OR_RETURN(c, in, mig);
	if (!device)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!in)
		return not_mig(c);
	*device = mig->parent;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
	GPU_AND_MIG_OR_RETURN(c, in, device);
	if (!id)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!in)
		return not_mig(c);
	*id = in->id;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
	GPU_AND_MIG_OR_RETURN(c, in, device);
	if (!id)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!in)
		return not_mig(c);
	*id = 0;
	return NVML_SUCCESS;
}

/* Documented for MIG devices only. */
EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
	const struct mig_profile *p;

	GPU_AND_MIG_OR_RETURN(c, in, device);
	(void)c;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!in)
		return NVML_ERROR_NOT_SUPPORTED;
	p = &in->profile;
	memset(out, 0, sizeof(*out));
	out->multiprocessorCount = p->sm_count;
	out->sharedCopyEngineCount = p->copy_engines;
	out->sharedDecoderCount = p->decoders;
	out->sharedJpegCount = p->jpegs;
	out->sharedOfaCount = p->ofas;
	out->gpuInstanceSliceCount = out->computeInstanceSliceCount = p->slices;
	out->memorySizeMB = p->memory_bytes >> 20;
	return NVML_SUCCESS;
}
