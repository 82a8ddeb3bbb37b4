/* NVML: processes and utilisation. */
#define _GNU_SOURCE
#include "nvml.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000ull

static uint64_t pid_namespace(const char *pid)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%.16s/ns/pid", pid);
	return stat(path, &st) ? 0 : st.st_ino;
}

/* The last number of the NSpid line: the PID in the process's own namespace. */
static unsigned innermost_pid(const char *pid)
{
	char path[64], line[512];
	unsigned found = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%.16s/status", pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		char *last;

		if (strncmp(line, "NSpid:", 6) != 0)
			continue;
		last = strrchr(line, '\t');
		found = last ? (unsigned)strtoul(last, NULL, 10) : 0;
		break;
	}
	if (file)
		fclose(file);
	return found;
}

/* A client knows only the PID of its own namespace. Ours is found in /proc, as the kernel would translate it. */
unsigned visible_pid(const struct client *cl)
{
	DIR *proc;
	struct dirent *entry;
	unsigned found = 0;

	if (cl->pid_namespace == pid_namespace("self"))
		return cl->pid;
	proc = opendir("/proc");
	while (proc && !found && (entry = readdir(proc))) {
		if (!isdigit((unsigned char)entry->d_name[0]) || pid_namespace(entry->d_name) != cl->pid_namespace)
			continue;
		if (innermost_pid(entry->d_name) == cl->pid)
			found = (unsigned)strtoul(entry->d_name, NULL, 10);
	}
	if (proc)
		closedir(proc);
	return found;
}

static uint64_t client_bytes(const struct client *cl, unsigned card)
{
	return cl->cards[card].used[CHARGE_CONTEXT] + cl->cards[card].used[CHARGE_DATA];
}

/* The MIG device of that card that the client uses, in the ids of NVML. */
static void fill_instance(const struct client *cl, unsigned card, nvmlProcessInfo_t *info)
{
	const struct instance *in = cl->mig.card == card ? instance_of(nvml.view.s, &cl->mig) : NULL;

	info->gpuInstanceId = in ? in->id : NO_INSTANCE;
	info->computeInstanceId = in ? 0 : NO_INSTANCE;
}

/* Copies what is asked of the live clients of a card, or of one MIG device (slot not 0); identities are resolved after the lock is dropped. */
static unsigned list_clients(unsigned card, unsigned slot, nvmlProcessInfo_t *list)
{
	const struct state *s = nvml.view.s;
	unsigned slots[MAX_CLIENTS];
	unsigned n = 0, kept = 0;

	state_reap(&nvml.view);
	if (state_lock(&nvml.view))
		return 0;
	for (unsigned i = 0; i < s->client_limit && i < MAX_CLIENTS; i++) {
		if (!atomic_load(&s->clients[i].taken) || !client_bytes(&s->clients[i], card))
			continue;
		if (slot && (s->clients[i].mig.card != card || s->clients[i].mig.slot != slot))
			continue;
		slots[n] = i;
		fill_instance(&s->clients[i], card, &list[n]);
		list[n++].usedGpuMemory = client_bytes(&s->clients[i], card);
	}
	state_unlock(&nvml.view);
	for (unsigned i = 0; i < n; i++) {
		unsigned pid = visible_pid(&s->clients[slots[i]]);

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

static nvmlReturn_t get_processes(nvmlDevice_t device, unsigned int *count, void *out, bool old)
{
	nvmlProcessInfo_t *list;
	struct card *c;
	struct instance *in;
	nvmlReturn_t r = nvml_find_any(device, &c, &in);
	unsigned n, room;

	if (r || !count || (*count && !out))
		return r ? r : NVML_ERROR_INVALID_ARGUMENT;
	list = calloc(MAX_CLIENTS, sizeof(*list));
	if (!list)
		return NVML_ERROR_MEMORY;
	n = list_clients(device->card, device->slot, list);
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
	return get_processes(device, count, infos, true);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, void *infos)
{
	ENTER();
	return get_processes(device, count, infos, false);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, void *infos)
{
	ENTER();
	return get_processes(device, count, infos, false);
}

static nvmlReturn_t none(nvmlDevice_t device, unsigned int *count)
{
	struct card *c;
	struct instance *in;
	nvmlReturn_t r = nvml_find_any(device, &c, &in);

	if (r || !count)
		return r ? r : NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

/* No graphics, no MPS. */
#define NO_PROCESSES(name)                                                                   \
	EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *infos)      \
	{                                                                                    \
		ENTER();                                                                     \
		(void)infos;                                                                 \
		return none(device, count);                                                  \
	}

NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
	struct card *c;
	nvmlReturn_t r;
	uint64_t now = now_ns();

	ENTER();
	r = nvml_find(device, &c);
	if (r || !out)
		return r ? r : NVML_ERROR_INVALID_ARGUMENT;
	if (atomic_load(&c->mig_enabled))
		return NVML_ERROR_NOT_SUPPORTED;
	card_advance(&nvml.view, device->card);
	out->gpu = busy_percent(c->engine.busy, now - SECOND, now);
	out->memory = out->gpu / 2;
	return NVML_SUCCESS;
}

struct window {
	uint64_t from, to;  /* CLOCK_MONOTONIC */
	nvmlU64 timestamp;  /* of `to`, in microseconds of the wall clock */
};

/* Whole buckets that ended after last_seen: at most the last second's, or the last two seconds' when that is asked for. */
static struct window sample_window(nvmlU64 last_seen)
{
	struct window w;
	struct timespec wall;
	uint64_t now = now_ns();
	nvmlU64 wall_us, span_us;

	clock_gettime(CLOCK_REALTIME, &wall);
	wall_us = (nvmlU64)wall.tv_sec * 1000000 + (nvmlU64)wall.tv_nsec / 1000;
	w.to = now / BUSY_BUCKET_NS * BUSY_BUCKET_NS;
	w.timestamp = wall_us - (now - w.to) / 1000;
	span_us = !last_seen ? 1000000 : w.timestamp > last_seen ? w.timestamp - last_seen : 0;
	if (span_us > 2000000)
		span_us = 2000000;
	w.from = w.to - span_us * 1000 / BUSY_BUCKET_NS * BUSY_BUCKET_NS;
	return w;
}

static unsigned list_samples(unsigned card, const struct window *w, nvmlProcessUtilizationSample_t *list)
{
	const struct state *s = nvml.view.s;
	unsigned n = 0;

	for (unsigned i = 0; i < s->client_limit && i < MAX_CLIENTS; i++) {
		const struct client *cl = &s->clients[i];
		unsigned percent = busy_percent(cl->cards[card].busy, w->from, w->to);

		if (!atomic_load(&cl->taken) || !percent)
			continue;
		memset(&list[n], 0, sizeof(list[n]));
		list[n].pid = visible_pid(cl);
		list[n].timeStamp = w->timestamp;
		list[n].smUtil = percent;
		list[n].memUtil = percent / 2;
		n += list[n].pid != 0;
	}
	return n;
}

/* As documented: NULL asks for the room that is needed; no sample since last_seen is NOT_FOUND. */
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out,
						    unsigned int *count, nvmlU64 last_seen)
{
	nvmlProcessUtilizationSample_t *list;
	struct window w = sample_window(last_seen);
	struct card *c;
	nvmlReturn_t r;
	unsigned n, room;

	ENTER();
	r = nvml_find(device, &c);
	if (r || !count)
		return r ? r : NVML_ERROR_INVALID_ARGUMENT;
	if (atomic_load(&c->mig_enabled))
		return NVML_ERROR_NOT_SUPPORTED;
	list = calloc(MAX_CLIENTS, sizeof(*list));
	if (!list)
		return NVML_ERROR_MEMORY;
	state_reap(&nvml.view);
	card_advance(&nvml.view, device->card);
	n = list_samples(device->card, &w, list);
	room = out ? *count : 0;
	*count = n;
	if (out && n <= room)
		memcpy(out, list, n * sizeof(*list));
	free(list);
	if (!n)
		return NVML_ERROR_NOT_FOUND;
	return n <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}
