/*
 * NVML: profiles of GPU instances, and the GPU instances with their one compute instance, to be read. The handle of both is the
 * MIG device's. Numbers of profiles are those that `nvidia-smi mig -lgip` and `-lcip` print.
 */
#include "nvml.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SLICE_1, SLICE_2, SLICE_3, SLICE_4, SLICE_7, SLICE_1_MEDIA = 7, SLICE_1_MEMORY = 9, KINDS };

static const unsigned ids[KINDS] = {[SLICE_1] = 19, [SLICE_2] = 14, [SLICE_3] = 9, [SLICE_4] = 5, [SLICE_1_MEDIA] = 20, [SLICE_1_MEMORY] = 15};

static unsigned kind_of_slices(unsigned slices)
{
	return slices == 7 ? SLICE_7 : slices - 1;
}

/* The first profile of a GPU is the smallest. */
static unsigned kind_of(const struct gpu *c, const struct mig_profile *p)
{
	unsigned count;

	if (p->slices > 1)
		return kind_of_slices(p->slices);
	if (strstr(p->name, "+me"))
		return SLICE_1_MEDIA;
	return strcmp(p->name, mig_profiles(c, &count)->name) ? SLICE_1_MEMORY : SLICE_1;
}

const struct mig_profile *nvml_profile(const struct gpu *c, unsigned number, bool by_kind)
{
	unsigned count;
	const struct mig_profile *p = mig_profiles(c, &count);

	for (unsigned i = 0; i < count; i++) {
		unsigned kind = kind_of(c, &p[i]);

		if ((by_kind ? kind : ids[kind]) == number)
			return &p[i];
	}
	return NULL;
}
/* In NVML's units. */
static unsigned memory_mb(const struct gpu *c, const struct mig_profile *p)
{
	return (unsigned)((p->memory_bytes < gpu_capacity(c) ? p->memory_bytes : gpu_capacity(c)) >> 20);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int kind, nvmlGpuInstanceProfileInfo_t *info)
{
	const struct mig_profile *p;

	GPU_OR_RETURN(c, device);
	if (!info || kind >= NVML_GPU_INSTANCE_PROFILES)
		return NVML_ERROR_INVALID_ARGUMENT;
	p = nvml_profile(c, kind, true);
	if (!p)
		return NVML_ERROR_NOT_SUPPORTED;
	*info = (nvmlGpuInstanceProfileInfo_t){
		.id = ids[kind], .sliceCount = p->slices, .instanceCount = p->most, .multiprocessorCount = p->sm_count,
		.copyEngineCount = p->copy_engines, .decoderCount = p->decoders, .jpegCount = p->jpegs, .ofaCount = p->ofas,
		.memorySizeMB = memory_mb(c, p),
	};
	return NVML_SUCCESS;
}

/* Only version 2, the first that has the name. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int kind, nvmlGpuInstanceProfileInfo_v2_t *info)
{
	const struct mig_profile *p;

	GPU_OR_RETURN(c, device);
	if (!info || kind >= NVML_GPU_INSTANCE_PROFILES)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (info->version != NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	p = nvml_profile(c, kind, true);
	if (!p)
		return NVML_ERROR_NOT_SUPPORTED;
	*info = (nvmlGpuInstanceProfileInfo_v2_t){
		.version = info->version, .id = ids[kind], .sliceCount = p->slices, .instanceCount = p->most,
		.multiprocessorCount = p->sm_count, .copyEngineCount = p->copy_engines, .decoderCount = p->decoders,
		.jpegCount = p->jpegs, .ofaCount = p->ofas, .memorySizeMB = memory_mb(c, p),
	};
	snprintf(info->name, sizeof(info->name), "MIG %s", p->name);
	return NVML_SUCCESS;
}

static nvmlReturn_t placements(nvmlDevice_t device, unsigned id, nvmlInstancePlacement_t *out, unsigned *count, unsigned room)
{
	const struct mig_profile *p;
	unsigned n = 0;
	struct gpu *c;
	nvmlReturn_t r = nvml_find(device, &c);

	if (r)
		return r;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!atomic_load(&c->mig_enabled))
		return NVML_ERROR_NOT_SUPPORTED;
	p = nvml_profile(c, id, false);
	if (!p)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned start = 0; start < MIG_MEMORY_SLICES; start++) {
		if (!mig_may_start(p, start, 0))
			continue;
		if (out && n < room)
			out[n] = (nvmlInstancePlacement_t){start, p->size};
		n++;
	}
	*count = n;
	return out && n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int id, nvmlInstancePlacement_t *out, unsigned int *count)
{
	ENTER();
	return placements(device, id, out, count, MIG_MEMORY_SLICES);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id, nvmlInstancePlacement_t *out,
								  unsigned int *count)
{
	ENTER();
	return placements(device, id, out, count, count ? *count : 0);
}

/* Documented: instances that are not reached by a MIG device are for root. */
nvmlReturn_t nvml_privileged(nvmlDevice_t device, struct gpu **c)
{
	nvmlReturn_t r = nvml_find(device, c);

	if (r)
		return r;
	if (!atomic_load(&(*c)->mig_enabled))
		return NVML_ERROR_NOT_SUPPORTED;
	return geteuid() ? NVML_ERROR_NO_PERMISSION : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id, unsigned int *count)
{
	const struct mig_profile *p;
	unsigned left, room = 0;
	struct gpu *c;
	nvmlReturn_t r;

	ENTER();
	r = nvml_privileged(device, &c);
	if (r)
		return r;
	p = nvml_profile(c, id, false);
	if (!p || !count)
		return NVML_ERROR_INVALID_ARGUMENT;
	left = p->most - mig_count(c, p->name);
	for (unsigned start = 0; start < MIG_MEMORY_SLICES; start++)
		room += mig_may_start(p, start, mig_taken(c));
	*count = room < left ? room : left;
	return NVML_SUCCESS;
}

/* Those of a profile, in order of their ids. */
static unsigned collect(nvmlDevice_t device, const struct gpu *c, unsigned profile, nvmlDevice_t *out)
{
	unsigned slots[MAX_INSTANCES];
	unsigned n = gpu_instances_in_order(c, slots), kept = 0;

	for (unsigned i = 0; i < n; i++) {
		if (ids[kind_of(c, &c->instances[slots[i] - 1].profile)] == profile)
			out[kept++] = &nvml.migs[device->index][slots[i] - 1];
	}
	return kept;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profile, nvmlDevice_t *instances, unsigned int *count)
{
	struct gpu *c;
	nvmlReturn_t r;

	ENTER();
	r = nvml_privileged(device, &c);
	if (r)
		return r;
	if (!instances || !count || !nvml_profile(c, profile, false))
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = collect(device, c, profile, instances);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlDevice_t *instance)
{
	struct gpu *c;
	nvmlReturn_t r;

	ENTER();
	r = nvml_privileged(device, &c);
	if (r)
		return r;
	if (!instance)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned slot = 1; slot <= MAX_INSTANCES; slot++) {
		const struct instance *in = instance_at(c, slot);

		if (!in || in->id != id)
			continue;
		*instance = &nvml.migs[device->index][slot - 1];
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvml_gpu_instance(nvmlDevice_t handle, struct gpu **c, struct instance **in)
{
	nvmlReturn_t r;

	if (!nvml_is_mig(handle))
		return NVML_ERROR_INVALID_ARGUMENT;
	r = nvml_find(handle->parent, c);
	if (r)
		return r;
	*in = instance_at(*c, handle->slot);
	return *in ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlDevice_t instance, nvmlGpuInstanceInfo_t *info)
{
	struct instance *in;
	struct gpu *c;
	nvmlReturn_t r;

	ENTER();
	r = nvml_gpu_instance(instance, &c, &in);
	if (r)
		return r;
	if (!info)
		return NVML_ERROR_INVALID_ARGUMENT;
	*info = (nvmlGpuInstanceInfo_t){instance->parent, in->id, ids[kind_of(c, &in->profile)], {in->start, in->profile.size}};
	return NVML_SUCCESS;
}

/* Whether it is the profile of the one compute instance, which has all of the instance. */
nvmlReturn_t nvml_whole(nvmlDevice_t instance, unsigned profile, unsigned engines, struct instance **in)
{
	struct gpu *c;
	nvmlReturn_t r = nvml_gpu_instance(instance, &c, in);

	if (r)
		return r;
	if (profile >= NVML_COMPUTE_INSTANCE_PROFILES || engines)
		return NVML_ERROR_INVALID_ARGUMENT;
	return profile == kind_of_slices((*in)->profile.slices) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlDevice_t instance, unsigned int profile, unsigned int engines,
								 nvmlComputeInstanceProfileInfo_t *info)
{
	struct instance *in;
	nvmlReturn_t r;

	ENTER();
	r = info ? nvml_whole(instance, profile, engines, &in) : NVML_ERROR_INVALID_ARGUMENT;
	if (r)
		return r;
	*info = (nvmlComputeInstanceProfileInfo_t){
		.id = profile, .sliceCount = in->profile.slices, .instanceCount = 1, .multiprocessorCount = in->profile.sm_count,
		.sharedCopyEngineCount = in->profile.copy_engines, .sharedDecoderCount = in->profile.decoders,
		.sharedJpegCount = in->profile.jpegs, .sharedOfaCount = in->profile.ofas,
	};
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlDevice_t instance, unsigned int profile, unsigned int engines,
								  nvmlComputeInstanceProfileInfo_v2_t *info)
{
	struct instance *in;
	nvmlReturn_t r;

	ENTER();
	if (info && info->version != NVML_STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v2_t, 2))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	r = info ? nvml_whole(instance, profile, engines, &in) : NVML_ERROR_INVALID_ARGUMENT;
	if (r)
		return r;
	*info = (nvmlComputeInstanceProfileInfo_v2_t){
		.version = info->version, .id = profile, .sliceCount = in->profile.slices, .instanceCount = 1,
		.multiprocessorCount = in->profile.sm_count, .sharedCopyEngineCount = in->profile.copy_engines,
		.sharedDecoderCount = in->profile.decoders, .sharedJpegCount = in->profile.jpegs, .sharedOfaCount = in->profile.ofas,
	};
	snprintf(info->name, sizeof(info->name), "MIG %s", in->profile.name);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlDevice_t instance, unsigned int profile, unsigned int *count)
{
	struct instance *in;
	nvmlReturn_t r;

	ENTER();
	r = count ? nvml_whole(instance, profile, 0, &in) : NVML_ERROR_INVALID_ARGUMENT;
	if (!r)
		*count = !atomic_load(&in->compute);
	return r;
}

/* As in NVML's manual: count is also the room in the array. */
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlDevice_t instance, unsigned int profile,
									nvmlInstancePlacement_t *out, unsigned int *count)
{
	struct instance *in;
	nvmlReturn_t r;

	ENTER();
	r = count ? nvml_whole(instance, profile, 0, &in) : NVML_ERROR_INVALID_ARGUMENT;
	if (r)
		return r;
	if (out && !*count)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	if (out)
		out[0] = (nvmlInstancePlacement_t){0, in->profile.slices};
	*count = 1;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlDevice_t instance, unsigned int profile, nvmlDevice_t *instances, unsigned int *count)
{
	struct instance *in;
	struct gpu *c;
	nvmlReturn_t r;

	ENTER();
	r = nvml_gpu_instance(instance, &c, &in);
	if (r)
		return r;
	if (!instances || !count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = atomic_load(&in->compute) && profile == kind_of_slices(in->profile.slices);
	if (*count)
		*instances = instance;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlDevice_t instance, unsigned int id, nvmlDevice_t *compute)
{
	struct instance *in;
	struct gpu *c;
	nvmlReturn_t r;

	ENTER();
	r = nvml_gpu_instance(instance, &c, &in);
	if (r)
		return r;
	if (!compute)
		return NVML_ERROR_INVALID_ARGUMENT;
	*compute = instance;
	return id || !atomic_load(&in->compute) ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

static nvmlReturn_t compute_info(nvmlDevice_t instance, nvmlComputeInstanceInfo_t *info)
{
	struct instance *in;
	struct gpu *c;
	nvmlReturn_t r = nvml_find_any(instance, &c, &in);

	if (r)
		return r;
	if (!info || !in)
		return NVML_ERROR_INVALID_ARGUMENT;
	*info = (nvmlComputeInstanceInfo_t){instance->parent, instance, 0, kind_of_slices(in->profile.slices), {0, in->profile.slices}};
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlDevice_t instance, nvmlComputeInstanceInfo_t *info)
{
	ENTER();
	return compute_info(instance, info);
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlDevice_t instance, nvmlComputeInstanceInfo_t *info)
{
	ENTER();
	return compute_info(instance, info);
}
