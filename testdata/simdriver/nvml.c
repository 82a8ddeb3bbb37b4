/* NVML: init, errors, and what concerns the whole system. */
#define _GNU_SOURCE
#include "nvml.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nvml nvml = {.view = {.fd = -1, .self = -1}};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static atomic_bool in_child;

static void before_fork(void)
{
	pthread_mutex_lock(&mutex);
	state_lock_before_fork();
}

static void after_fork_parent(void)
{
	state_unlock_after_fork();
	pthread_mutex_unlock(&mutex);
}

static void after_fork_child(void)
{
	atomic_store(&in_child, true);
	after_fork_parent();
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* Locks of an inherited descriptor would be the parent's. */
static nvmlReturn_t reopen_in_child(void)
{
	nvmlReturn_t r = NVML_SUCCESS;

	pthread_mutex_lock(&mutex);
	if (atomic_load(&in_child)) {
		state_close(&nvml.view);
		if (state_open(&nvml.view, NULL)) {
			nvml.references = 0;
			r = NVML_ERROR_UNINITIALIZED;
		}
		atomic_store(&in_child, false);
	}
	pthread_mutex_unlock(&mutex);
	return r;
}

nvmlReturn_t nvml_enter(const char *symbol)
{
	int error;

	if (!__atomic_load_n(&nvml.references, __ATOMIC_ACQUIRE))
		return NVML_ERROR_UNINITIALIZED;
	if (atomic_load(&in_child) && reopen_in_child())
		return NVML_ERROR_UNINITIALIZED;
	if (fail_consume(&nvml.view, symbol, &error))
		return (nvmlReturn_t)error;
	return NVML_SUCCESS;
}

static int by_pci(const void *a, const void *b)
{
	const struct nvmlDevice_st *d = a, *e = b;
	const struct gpu *x = &nvml.view.s->gpus[d->gpu], *y = &nvml.view.s->gpus[e->gpu];

	if (x->pci_domain != y->pci_domain)
		return x->pci_domain < y->pci_domain ? -1 : 1;
	if (x->pci_bus != y->pci_bus)
		return x->pci_bus < y->pci_bus ? -1 : 1;
	return x->pci_device < y->pci_device ? -1 : x->pci_device > y->pci_device;
}

static void find_devices(void)
{
	unsigned n = 0;

	for (unsigned i = 0; i < nvml.view.s->gpu_count; i++) {
		struct gpu *c = &nvml.view.s->gpus[i];

		if (!gpu_visible(c) || atomic_load(&c->presence) == GPU_REMOVED)
			continue;
		nvml.devices[n].epoch = atomic_load(&c->epoch);
		nvml.devices[n++].gpu = i;
	}
	qsort(nvml.devices, n, sizeof(nvml.devices[0]), by_pci);
	for (unsigned i = 0; i < n; i++)
		nvml.devices[i].index = i;
	for (unsigned i = 0; i < n; i++) {
		for (unsigned m = 0; m < MAX_INSTANCES; m++)
			nvml.migs[i][m] = (struct nvmlDevice_st){i, nvml.devices[i].gpu, 0, m + 1, &nvml.devices[i]};
	}
	nvml.device_count = n;
}

static nvmlReturn_t from_errno(int err)
{
	switch (err) {
	case 0:
		return NVML_SUCCESS;
	case ENOENT:
		return NVML_ERROR_DRIVER_NOT_LOADED;
	case EACCES:
	case EPERM:
		return NVML_ERROR_NO_PERMISSION;
	case EPROTO:
		return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
	default:
		return NVML_ERROR_UNKNOWN;
	}
}

static nvmlReturn_t initialise(const char *symbol)
{
	int error;
	nvmlReturn_t r = NVML_SUCCESS;

	pthread_once(&fork_once, watch_forks);
	pthread_mutex_lock(&mutex);
	if (!nvml.references) {
		state_close(&nvml.view);
		r = from_errno(state_open(&nvml.view, NULL));
		atomic_store(&in_child, false);
		if (!r)
			find_devices();
	}
	if (!r && fail_consume(&nvml.view, symbol, &error))
		r = (nvmlReturn_t)error;
	if (!r)
		__atomic_add_fetch(&nvml.references, 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&mutex);
	return r;
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
	return initialise("nvmlInit_v2");
}

EXPORT nvmlReturn_t nvmlInit(void)
{
	return initialise("nvmlInit");
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	return flags > 3 ? NVML_ERROR_INVALID_ARGUMENT : initialise("nvmlInitWithFlags");
}

/* The mapping stays until the next init: other threads may still be in a call. */
EXPORT nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t r = NVML_SUCCESS;

	pthread_mutex_lock(&mutex);
	if (nvml.references)
		__atomic_sub_fetch(&nvml.references, 1, __ATOMIC_RELEASE);
	else
		r = NVML_ERROR_UNINITIALIZED;
	pthread_mutex_unlock(&mutex);
	return r;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
#define ROW(number, name, text) {number, text},
	static const struct {
		int number;
		const char *text;
	} rows[] = {NVML_RESULTS(ROW)};
#undef ROW

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		if (rows[i].number == (int)result)
			return rows[i].text;
	}
	return "Unknown Error";
}

struct gpu *nvml_gpu(nvmlDevice_t device)
{
	uintptr_t at = (uintptr_t)device, first = (uintptr_t)nvml.devices;

	if (at < first || at >= first + nvml.device_count * sizeof(nvml.devices[0]) ||
	    (at - first) % sizeof(nvml.devices[0]))
		return NULL;
	return &nvml.view.s->gpus[device->gpu];
}

bool nvml_is_mig(nvmlDevice_t device)
{
	uintptr_t at = (uintptr_t)device, first = (uintptr_t)nvml.migs;

	return at >= first && at < first + nvml.device_count * sizeof(nvml.migs[0]) &&
	       (at - first) % sizeof(struct nvmlDevice_st) == 0;
}

/* Lost now, or since it was found: only a new init finds it again. */
bool nvml_lost(const struct nvmlDevice_st *device)
{
	struct gpu *c = &nvml.view.s->gpus[device->gpu];

	return atomic_load(&c->presence) != GPU_PRESENT || atomic_load(&c->epoch) != device->epoch;
}

nvmlReturn_t nvml_find(nvmlDevice_t device, struct gpu **gpu)
{
	*gpu = nvml_gpu(device);
	if (!*gpu)
		return nvml_is_mig(device) ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
	return nvml_lost(device) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nvml_find_any(nvmlDevice_t device, struct gpu **gpu, struct instance **in)
{
	nvmlReturn_t r;

	*in = NULL;
	if (!nvml_is_mig(device))
		return nvml_find(device, gpu);
	r = nvml_find(device->parent, gpu);
	if (r)
		return r;
	*in = instance_at(*gpu, device->slot);
	return *in && atomic_load(&(*in)->compute) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t copy_out(char *out, unsigned room, const char *text)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (room <= strlen(text))
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	ENTER();
	return copy_out(version, length, nvml.view.s->driver_version);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	char text[96];

	ENTER();
	snprintf(text, sizeof(text), "%u.%s", nvml.view.s->cuda_version / 1000, nvml.view.s->driver_version);
	return copy_out(version, length, text);
}

static nvmlReturn_t cuda_version(int *version)
{
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	*version = (int)nvml.view.s->cuda_version;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	ENTER();
	return cuda_version(version);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	ENTER();
	return cuda_version(version);
}

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	char path[64], text[256] = "";
	FILE *file;

	ENTER();
	snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
	file = fopen(path, "re");
	if (!file)
		return NVML_ERROR_NOT_FOUND;
	if (!fgets(text, sizeof(text), file))
		text[0] = 0;
	fclose(file);
	return copy_out(name, length, text);
}
