/*
 * NVML: GPU instances and their compute instances, made and destroyed. Error codes as in NVML's manual; which of them a full GPU gives
 * (INSUFFICIENT_RESOURCES, also where an instance is there already) is as seen on real ones.
 */
#include "nvml.h"

#include <unistd.h>

/* Locked, without what the dead held. */
static nvmlReturn_t change(void)
{
	state_reap(&nvml.view);
	return state_lock(&nvml.view) ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

/* Where start is none, anywhere. */
#define ANY_START MIG_MEMORY_SLICES

static nvmlReturn_t put(nvmlDevice_t device, struct gpu *c, const struct mig_profile *p, unsigned start, nvmlDevice_t *instance)
{
	unsigned taken = mig_taken(c), slot;

	if (mig_count(c, p->name) >= p->most)
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	for (unsigned s = MIG_MEMORY_SLICES; s > 0 && start == ANY_START; s--)
		start = mig_may_start(p, s - 1, taken) ? s - 1 : start;
	if (!mig_may_start(p, start, taken) || mig_put(c, p, start, false, &slot) != MIG_PUT)
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	*instance = &nvml.migs[device->index][slot - 1];
	return NVML_SUCCESS;
}

static nvmlReturn_t create(nvmlDevice_t device, unsigned profile, unsigned start, unsigned size, nvmlDevice_t *instance)
{
	const struct mig_profile *p;
	struct gpu *c;
	nvmlReturn_t r = nvml_privileged(device, &c);

	if (r)
		return r;
	p = nvml_profile(c, profile, false);
	if (!p || !instance || (start != ANY_START && (size != p->size || !mig_may_start(p, start, 0))))
		return NVML_ERROR_INVALID_ARGUMENT;
	r = change();
	if (r)
		return r;
	/* MIG mode may be off by now. */
	r = atomic_load(&c->mig_enabled) ? put(device, c, p, start, instance) : NVML_ERROR_NOT_SUPPORTED;
	state_unlock(&nvml.view);
	crash_point();
	return r;
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profile, nvmlDevice_t *instance)
{
	ENTER();
	return create(device, profile, ANY_START, 0, instance);
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profile, const nvmlInstancePlacement_t *placement,
							     nvmlDevice_t *instance)
{
	ENTER();
	if (!placement || placement->start >= MIG_MEMORY_SLICES)
		return NVML_ERROR_INVALID_ARGUMENT;
	return create(device, profile, placement->start, placement->size, instance);
}

/* The instance of a handle, with the state locked. */
static nvmlReturn_t locked(nvmlDevice_t handle, struct instance **in)
{
	struct gpu *c;
	nvmlReturn_t r = nvml_gpu_instance(handle, &c, in);

	if (r)
		return r;
	if (geteuid())
		return NVML_ERROR_NO_PERMISSION;
	r = change();
	if (r)
		return r;
	r = nvml_gpu_instance(handle, &c, in);
	if (r)
		state_unlock(&nvml.view);
	return r;
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlDevice_t instance)
{
	struct instance *in;
	nvmlReturn_t r;

	ENTER();
	r = locked(instance, &in);
	if (r)
		return r;
	if (atomic_load(&in->compute)) {
		r = NVML_ERROR_IN_USE;
	} else {
		crash_point();
		atomic_store(&in->serial, 0);
	}
	state_unlock(&nvml.view);
	crash_point();
	return r;
}

static nvmlReturn_t create_compute(nvmlDevice_t instance, unsigned profile, nvmlDevice_t *compute)
{
	struct instance *in;
	nvmlReturn_t r = nvml_whole(instance, profile, 0, &in);

	if (r)
		return r;
	if (!compute)
		return NVML_ERROR_INVALID_ARGUMENT;
	r = locked(instance, &in);
	if (r)
		return r;
	if (atomic_load(&in->compute))
		r = NVML_ERROR_INSUFFICIENT_RESOURCES;
	crash_point();
	atomic_store(&in->compute, true);
	*compute = instance;
	state_unlock(&nvml.view);
	crash_point();
	return r;
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlDevice_t instance, unsigned int profile, nvmlDevice_t *compute)
{
	ENTER();
	return create_compute(instance, profile, compute);
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlDevice_t instance, unsigned int profile,
								      const nvmlInstancePlacement_t *placement, nvmlDevice_t *compute)
{
	ENTER();
	if (!placement || placement->start)
		return NVML_ERROR_INVALID_ARGUMENT;
	return create_compute(instance, profile, compute);
}

/* In use: a process that was killed meanwhile does not count. */
EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlDevice_t compute)
{
	struct instance *in;
	nvmlReturn_t r;

	ENTER();
	r = locked(compute, &in);
	if (r)
		return r;
	if (!atomic_load(&in->compute))
		r = NVML_ERROR_INVALID_ARGUMENT;
	else if (mig_user(nvml.view.s, compute->gpu, compute->slot))
		r = NVML_ERROR_IN_USE;
	else
		atomic_store(&in->compute, false);
	state_unlock(&nvml.view);
	crash_point();
	return r;
}
