/* NVML: event sets. Events are XIDs that simctl put into the state's ring. */
#define _GNU_SOURCE
#include "nvml.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct nvmlEventSet_st {
	nvmlU64 wanted[MAX_GPUS]; /* types, by GPU */
	uint64_t seen;             /* sequence of the newest event that was looked at */
};

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	ENTER();
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	*set = calloc(1, sizeof(**set));
	if (!*set)
		return NVML_ERROR_MEMORY;
	if (!state_lock(&nvml.view)) {
		(*set)->seen = nvml.view.s->next_event;
		state_unlock(&nvml.view);
	}
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	ENTER();
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	free(set);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, nvmlU64 types, nvmlEventSet_t set)
{
	struct gpu *c;
	nvmlReturn_t r;

	ENTER();
	r = nvml_find(device, &c);
	if (r || !set)
		return r ? r : NVML_ERROR_INVALID_ARGUMENT;
	if (types & ~NVML_EVENTS_SUPPORTED)
		return NVML_ERROR_NOT_SUPPORTED;
	set->wanted[device->gpu] |= types;
	return NVML_SUCCESS;
}

/* The oldest unseen event that the set wants. What was overwritten in the ring is lost, as in a real driver's queue. */
static bool next_event(nvmlEventSet_t set, struct event *found)
{
	const struct state *s = nvml.view.s;
	bool hit = false;

	if (state_lock(&nvml.view))
		return false;
	if (s->next_event > set->seen + MAX_EVENTS)
		set->seen = s->next_event - MAX_EVENTS;
	while (!hit && set->seen < s->next_event) {
		const struct event *e = &s->events[++set->seen % MAX_EVENTS];

		hit = e->gpu < MAX_GPUS && (set->wanted[e->gpu] & NVML_EVENT_XID);
		if (hit)
			*found = *e;
	}
	state_unlock(&nvml.view);
	return hit;
}

static nvmlDevice_t device_of(unsigned gpu)
{
	for (unsigned i = 0; i < nvml.device_count; i++) {
		if (nvml.devices[i].gpu == gpu)
			return &nvml.devices[i];
	}
	return NULL;
}

/* A GPU of the set fell off the bus. */
static bool lost_one(const struct nvmlEventSet_st *set)
{
	for (unsigned i = 0; i < nvml.device_count; i++) {
		if (set->wanted[nvml.devices[i].gpu] && nvml_lost(&nvml.devices[i]))
			return true;
	}
	return false;
}

static nvmlReturn_t wait_event(nvmlEventSet_t set, struct event *e, unsigned timeout_ms)
{
	uint64_t end = now_ns() + timeout_ms * 1000000ull;

	for (;;) {
		uint32_t seq = atomic_load(&nvml.view.s->event_seq);
		uint64_t now;
		struct timespec left;

		if (next_event(set, e))
			return NVML_SUCCESS;
		if (lost_one(set))
			return NVML_ERROR_GPU_IS_LOST;
		now = now_ns();
		if (now >= end)
			return NVML_ERROR_TIMEOUT;
		left.tv_sec = (time_t)((end - now) / 1000000000u);
		left.tv_nsec = (long)((end - now) % 1000000000u);
		syscall(SYS_futex, &nvml.view.s->event_seq, FUTEX_WAIT, seq, &left, NULL, 0);
	}
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
	struct event e;
	nvmlReturn_t r;

	ENTER();
	if (!set || !data)
		return NVML_ERROR_INVALID_ARGUMENT;
	r = wait_event(set, &e, timeout_ms);
	if (r)
		return r;
	memset(data, 0, sizeof(*data));
	data->device = device_of(e.gpu);
	data->eventType = NVML_EVENT_XID;
	data->eventData = e.data;
	data->gpuInstanceId = e.instance ? e.instance - 1 : NO_INSTANCE;
	data->computeInstanceId = e.instance ? 0 : NO_INSTANCE;
	return NVML_SUCCESS;
}

/* The first version's struct ends after eventData. */
EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
	nvmlEventData_t full;
	nvmlReturn_t r;

	if (!data)
		return NVML_ERROR_INVALID_ARGUMENT;
	r = nvmlEventSetWait_v2(set, &full, timeout_ms);
	if (!r)
		memcpy(data, &full, offsetof(nvmlEventData_t, gpuInstanceId));
	return r;
}
