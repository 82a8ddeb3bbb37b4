/* NVML: limits of memory for control groups, as in driver 615. Structs and results are those that NVIDIA describes and
 * others saw: no header of it was at hand. */
#include "nvml.h"
#include "memory_limit.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
	const char *nameSpace;
	unsigned long long softLimit, hardLimit;
} nvmlSetMemoryLimits_v1_t;

typedef struct {
	const char *nameSpace;
	unsigned long long softLimit, hardLimit, currentUsed;
} nvmlGetMemoryLimits_v1_t;

_Static_assert(sizeof(nvmlSetMemoryLimits_v1_t) == 24 && sizeof(nvmlGetMemoryLimits_v1_t) == 32, "the driver's sizes");

static bool may_set(void)
{
	struct stat st;

	return !geteuid() || (!fstat(nvml.view.fd, &st) && st.st_uid == geteuid());
}

static nvmlReturn_t group_of(const char *path, uint64_t ids[MAX_CGROUP_DEPTH])
{
	if (!path || *path != '/')
		return NVML_ERROR_INVALID_ARGUMENT;
	cgroup_chain(path, ids);
	return ids[0] ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t supported(const struct gpu *c)
{
	if (!nvml.view.s->memory_limits)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	return atomic_load(&c->mig_enabled) ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

/* Lock held. */
static nvmlReturn_t put(unsigned gpu, uint64_t cgroup, uint64_t soft, uint64_t hard)
{
	struct state *s = nvml.view.s;
	struct memory_limit *limit = limit_find(s, gpu, cgroup);

	for (unsigned i = 0; i < MAX_LIMITS && !limit; i++) {
		if (!s->limits[i].cgroup)
			limit = &s->limits[i];
	}
	if (!limit)
		return NVML_ERROR_MEMORY;
	if (!limit->cgroup)
		atomic_fetch_add(&s->limit_count, 1);
	*limit = (struct memory_limit){.cgroup = cgroup, .soft = soft, .hard = hard, .gpu = gpu};
	if (!soft && hard == NO_LIMIT) {
		limit->cgroup = 0;
		atomic_fetch_sub(&s->limit_count, 1);
	}
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, const nvmlSetMemoryLimits_v1_t *want);
nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, const nvmlSetMemoryLimits_v1_t *want)
{
	uint64_t ids[MAX_CGROUP_DEPTH];
	nvmlReturn_t r;

	GPU_OR_RETURN(c, device);
	r = supported(c);
	if (!r && (!want || want->softLimit > want->hardLimit))
		r = NVML_ERROR_INVALID_ARGUMENT;
	if (!r && !may_set())
		r = NVML_ERROR_NO_PERMISSION;
	if (!r)
		r = group_of(want->nameSpace, ids);
	if (!r && state_lock(&nvml.view))
		r = NVML_ERROR_UNKNOWN;
	if (r)
		return r;
	r = put(device->gpu, ids[0], want->softLimit, want->hardLimit);
	state_unlock(&nvml.view);
	return r;
}

/* Lock held. Without a limit of the group itself, misc has the same result for "none" and "not possible". */
static nvmlReturn_t get(unsigned gpu, const uint64_t ids[MAX_CGROUP_DEPTH], nvmlGetMemoryLimits_v1_t *out)
{
	struct state *s = nvml.view.s;
	const struct memory_limit *limit = limit_find(s, gpu, ids[0]);

	if (!limit && s->memory_limits == LIMITS_MISC) {
		for (unsigned i = 1; i < MAX_CGROUP_DEPTH; i++) {
			if (limit_find(s, gpu, ids[i]))
				return NVML_ERROR_NOT_FOUND;
		}
		return NVML_ERROR_NOT_SUPPORTED;
	}
	out->softLimit = limit ? limit->soft : 0;
	out->hardLimit = limit ? limit->hard : NO_LIMIT;
	out->currentUsed = cgroup_used(s, gpu, ids[0]);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *out);
nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *out)
{
	uint64_t ids[MAX_CGROUP_DEPTH];
	nvmlReturn_t r;

	GPU_OR_RETURN(c, device);
	r = supported(c);
	if (!r && !out)
		r = NVML_ERROR_INVALID_ARGUMENT;
	if (!r)
		r = group_of(out->nameSpace, ids);
	if (r)
		return r;
	state_reap(&nvml.view);
	if (state_lock(&nvml.view))
		return NVML_ERROR_UNKNOWN;
	r = get(device->gpu, ids, out);
	state_unlock(&nvml.view);
	return r;
}
