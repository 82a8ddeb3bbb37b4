/*
 * NVML: utilisation. Time is cut into sampling periods of the GPU's sample_ms, rounded to whole buckets. Only periods
 * that are over are reported; the buffer has five seconds of them.
 */
#include "nvml.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BUFFER_BUCKETS (BUSY_BUCKETS - 8) /* the newest may still be written */
#define SAME_NS 1000000ull /* the two clocks drift between two calls; periods are far longer */
#define TYPE_GPU 1
#define TYPE_MEMORY 2
#define VALUE_UNSIGNED_INT 1

/* A GPU has periods of that length, up to which one may be asked now, and how far CLOCK_REALTIME is ahead of the others. */
struct clocks {
	uint64_t period, last; /* CLOCK_MONOTONIC, ns */
	uint64_t ahead;
};

static struct clocks clocks_of(const struct gpu *c)
{
	struct clocks k;
	struct timespec wall;
	uint64_t now = now_ns();
	uint64_t buckets = ((uint64_t)c->sample_ms * 1000000 + BUSY_BUCKET_NS / 2) / BUSY_BUCKET_NS;

	clock_gettime(CLOCK_REALTIME, &wall);
	buckets = buckets < 1 ? 1 : buckets > BUFFER_BUCKETS ? BUFFER_BUCKETS : buckets;
	k.period = buckets * BUSY_BUCKET_NS;
	k.last = now / k.period * k.period;
	k.ahead = (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec - now;
	return k;
}

/* The end of the last period that ended by then (a CPU timestamp in microseconds), or the oldest that is kept. */
static uint64_t period_after(const struct clocks *k, nvmlU64 last_seen)
{
	uint64_t kept = BUFFER_BUCKETS * BUSY_BUCKET_NS / k->period * k->period;
	uint64_t oldest = k->last > kept ? k->last - kept : 0;
	uint64_t seen;

	if (last_seen > UINT64_MAX / 1000 || last_seen * 1000 < k->ahead)
		return last_seen < k->ahead / 1000 ? oldest : k->last;
	seen = (last_seen * 1000 - k->ahead + SAME_NS) / k->period * k->period;
	return seen < oldest ? oldest : seen;
}

static nvmlU64 timestamp(const struct clocks *k, uint64_t monotonic)
{
	return (monotonic + k->ahead) / 1000;
}

static void bring_up_to_date(unsigned gpu)
{
	if (engine_lock(&nvml.view, gpu))
		return;
	gpu_advance(&nvml.view, gpu);
	engine_unlock(&nvml.view, gpu);
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
	struct gpu *c;
	struct clocks k;
	nvmlReturn_t r;

	ENTER();
	r = nvml_find(device, &c);
	if (r || !out)
		return r ? r : NVML_ERROR_INVALID_ARGUMENT;
	if (atomic_load(&c->mig_enabled))
		return NVML_ERROR_NOT_SUPPORTED;
	k = clocks_of(c);
	bring_up_to_date(device->gpu);
	out->gpu = c->fixed_percent ? c->fixed_percent - 1 : busy_percent(c->engine.busy, k.last - k.period, k.last);
	out->memory = out->gpu / 2;
	return NVML_SUCCESS;
}

/* One for each process that had the GPU in that time, with its share of all of it. */
static unsigned list_samples(unsigned gpu, const struct clocks *k, uint64_t from, nvmlProcessUtilizationInfo_v1_t *list)
{
	const struct state *s = nvml.view.s;
	bool zero = s->gpus[gpu].process_utilization == UTILIZATION_ZERO;
	unsigned n = 0;

	for (unsigned i = 0; i < s->client_limit && i < MAX_CLIENTS; i++) {
		const struct client *cl = &s->clients[i];
		unsigned percent;

		if (!atomic_load(&cl->taken))
			continue;
		percent = busy_percent(cl->gpus[gpu].busy, from, k->last);
		if (!percent)
			continue;
		memset(&list[n], 0, sizeof(list[n]));
		list[n].pid = client_pid(&nvml.view, i, s->nvml_pids != PIDS_OWN);
		list[n].timeStamp = timestamp(k, k->last);
		list[n].smUtil = zero ? 0 : percent;
		list[n].memUtil = zero ? 0 : percent / 2;
		n += list[n].pid != 0;
	}
	return n;
}

/* The samples since last_seen, which the caller frees. */
static nvmlReturn_t get_samples(nvmlDevice_t device, const struct gpu *c, nvmlU64 last_seen,
				nvmlProcessUtilizationInfo_v1_t **list, unsigned *count)
{
	uint64_t delay = (uint64_t)c->utilization_delay_ms * 1000000;
	struct clocks k;

	if (atomic_load(&c->mig_enabled) || c->process_utilization == UTILIZATION_MISSING)
		return NVML_ERROR_NOT_SUPPORTED;
	if (c->process_utilization == UTILIZATION_NONE)
		return NVML_ERROR_NOT_FOUND;
	*list = calloc(MAX_CLIENTS, sizeof(**list));
	if (!*list)
		return NVML_ERROR_MEMORY;
	state_reap(&nvml.view);
	k = clocks_of(c);
	bring_up_to_date(device->gpu);
	k.last = k.last > delay ? (k.last - delay) / k.period * k.period : 0;
	*count = list_samples(device->gpu, &k, period_after(&k, last_seen), *list);
	if (*count)
		return NVML_SUCCESS;
	free(*list);
	return NVML_ERROR_NOT_FOUND;
}

/*
 * As documented: NULL asks for the room that is needed; last_seen 0 is all that the buffer has, else what came after it; no
 * sample since then is NOT_FOUND.
 */
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out,
						    unsigned int *count, nvmlU64 last_seen)
{
	nvmlProcessUtilizationInfo_v1_t *list;
	nvmlReturn_t r;
	unsigned n = 0, room;

	GPU_OR_RETURN(c, device);
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (c->process_utilization == UTILIZATION_INFO)
		return NVML_ERROR_NOT_SUPPORTED;
	r = get_samples(device, c, last_seen, &list, &n);
	if (r && r != NVML_ERROR_NOT_FOUND)
		return r;
	room = out ? *count : 0;
	*count = n;
	if (r)
		return r;
	for (unsigned i = 0; n <= room && i < n; i++)
		out[i] = (nvmlProcessUtilizationSample_t){list[i].pid, list[i].timeStamp, list[i].smUtil, list[i].memUtil, 0, 0};
	free(list);
	return n <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

/* The same since driver 550, and the only one that answers on some GPUs. */
EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info)
{
	nvmlProcessUtilizationInfo_v1_t *list;
	nvmlReturn_t r;
	unsigned n = 0, room;

	GPU_OR_RETURN(c, device);
	if (nvml.view.s->cuda_version < 12040)
		return NVML_ERROR_FUNCTION_NOT_FOUND; /* drivers before 550 don't have it */
	if (!info)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (info->version != NVML_STRUCT_VERSION(*info, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	r = get_samples(device, c, info->lastSeenTimeStamp, &list, &n);
	if (r && r != NVML_ERROR_NOT_FOUND)
		return r;
	room = info->procUtilArray ? info->processSamplesCount : 0;
	info->processSamplesCount = n;
	if (r)
		return r;
	if (n <= room)
		memcpy(info->procUtilArray, list, n * sizeof(*list));
	free(list);
	return n <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

/* One sample for each period, oldest first. */
EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, int type, nvmlU64 last_seen, int *value_type,
					 unsigned int *count, nvmlSample_t *samples)
{
	struct clocks k;
	struct gpu *c;
	nvmlReturn_t r;
	uint64_t from;
	unsigned n = 0, room;

	ENTER();
	r = nvml_find(device, &c);
	if (r || !count || !value_type || (samples && !*count))
		return r ? r : NVML_ERROR_INVALID_ARGUMENT;
	if ((type != TYPE_GPU && type != TYPE_MEMORY) || atomic_load(&c->mig_enabled))
		return NVML_ERROR_NOT_SUPPORTED;
	*value_type = VALUE_UNSIGNED_INT;
	k = clocks_of(c);
	bring_up_to_date(device->gpu);
	from = period_after(&k, last_seen);
	room = samples ? *count : 0;
	for (uint64_t t = from + k.period; t <= k.last; t += k.period, n++) {
		unsigned percent = busy_percent(c->engine.busy, t - k.period, t);

		if (n >= room && samples)
			break;
		if (samples) {
			samples[n].timeStamp = timestamp(&k, t);
			samples[n].sampleValue.ullVal = type == TYPE_GPU ? percent : percent / 2;
		}
	}
	*count = n;
	return n ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* In mJ, since the machine started, and its driver with it: the sum of what nvmlDeviceGetPowerUsage gives. */
EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, nvmlU64 *energy)
{
	GPU_OR_RETURN(c, device);
	if (!energy)
		return NVML_ERROR_INVALID_ARGUMENT;
	bring_up_to_date(device->gpu);
	*energy = (nvmlU64)(((double)now_ns() / 10 + (double)atomic_load(&c->engine.busy_ns) * 8 / 10) * c->power_mw / 1e9);
	return NVML_SUCCESS;
}
