/* The process in the driver: cuInit, the visible devices, fork, the table of handles. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct process process;

static pthread_mutex_t objects_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static atomic_bool usable; /* cuInit succeeded, and this is not a forked child */
static bool forked;

void process_lock(void)
{
	pthread_mutex_lock(&objects_mutex);
}

void process_unlock(void)
{
	pthread_mutex_unlock(&objects_mutex);
}

static pthread_cond_t changed;

static void make_changed(void)
{
	pthread_condattr_t a;

	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&changed, &a);
	pthread_condattr_destroy(&a);
}

void process_wait(uint64_t until)
{
	struct timespec t = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};

	if (until == UINT64_MAX)
		pthread_cond_wait(&changed, &objects_mutex);
	else
		pthread_cond_timedwait(&changed, &objects_mutex, &t);
}

void process_changed(void)
{
	pthread_cond_broadcast(&changed);
}

static void before_fork(void)
{
	process_lock();
	state_lock_before_fork();
}

static void after_fork_parent(void)
{
	state_unlock_after_fork();
	process_unlock();
}

/* As with the real driver, the child can't use CUDA; the descriptor that it keeps keeps the parent's memory. */
static void after_fork_child(void)
{
	if (process.ready) {
		forked = true;
		atomic_store(&usable, false);
	}
	after_fork_parent();
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

CUresult from_errno(int err)
{
	switch (err) {
	case 0:
		return CUDA_SUCCESS;
	case ENOMEM:
		return CUDA_ERROR_OUT_OF_MEMORY;
	case ENOENT:
	case ENODEV:
		return CUDA_ERROR_NO_DEVICE;
	case EPROTO:
		return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
	default:
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
}

CUresult enter(const char *symbol)
{
	CUresult r = enter_locked(symbol);

	if (!r && atomic_load_explicit(&process.view.s->clients[process.view.self].stage, memory_order_relaxed) != STAGE_RUNNING)
		client_wait_running(&process.view);
	return r;
}

CUresult enter_locked(const char *symbol)
{
	int error;

	if (!atomic_load_explicit(&usable, memory_order_acquire))
		return CUDA_ERROR_NOT_INITIALIZED;
	if (fail_consume(&process.view, symbol, &error))
		return (CUresult)error;
	return host_function_calls() ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

struct gpu *device_gpu(CUdevice dev)
{
	if (dev < 0 || (unsigned)dev >= process.device_count)
		return NULL;
	return &process.view.s->gpus[process.devices[dev].gpu];
}

struct instance *device_instance(CUdevice dev)
{
	return instance_of(process.view.s, &process.devices[dev].mig);
}

bool device_lost(CUdevice dev)
{
	const struct device *d = &process.devices[dev];
	struct gpu *c = &process.view.s->gpus[d->gpu];

	if (atomic_load(&c->presence) != GPU_PRESENT || atomic_load(&c->epoch) != d->epoch)
		return true;
	return d->mig.slot ? !device_instance(dev) : atomic_load(&c->mig_enabled);
}

uint64_t device_capacity(CUdevice dev)
{
	const struct instance *in = device_instance(dev);

	return in ? in->profile.memory_bytes : gpu_capacity(&process.view.s->gpus[process.devices[dev].gpu]);
}

static CUresult find_devices(void)
{
	struct mig found[MAX_GPUS];
	unsigned n = visible_devices(process.view.s, found);

	for (unsigned i = 0; i < n; i++) {
		struct device *d = &process.devices[i];

		memset(d, 0, sizeof(*d));
		d->gpu = found[i].gpu;
		d->mig = found[i];
		d->epoch = atomic_load(&process.view.s->gpus[d->gpu].epoch);
		d->primary.gpu = d->gpu;
		d->primary.device = (CUdevice)i;
		d->primary.primary = true;
	}
	process.device_count = n;
	return n ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

static void read_kernel_time(void)
{
	const char *text = getenv("SIMGPU_KERNEL_US");

	process.kernel_ns_set = text != NULL;
	process.kernel_ns = text ? strtoull(text, NULL, 10) * 1000 : 0;
}

static CUresult initialise(void)
{
	int error;
	CUresult r = from_errno(state_open(&process.view, NULL));

	if (r)
		return r;
	if (fail_consume(&process.view, "cuInit", &error))
		r = (CUresult)error;
	if (!r)
		r = find_devices();
	if (!r)
		r = from_errno(client_join(&process.view, process.devices[0].mig));
	if (r) {
		state_close(&process.view);
		return r;
	}
	read_kernel_time();
	make_changed();
	pthread_once(&fork_once, watch_forks);
	process.ready = true;
	atomic_store_explicit(&usable, true, memory_order_release);
	return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int flags)
{
	CUresult r = CUDA_SUCCESS;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	if (forked)
		r = CUDA_ERROR_NOT_INITIALIZED;
	else if (!process.ready)
		r = initialise();
	else
		r = enter("cuInit");
	process_unlock();
	return r;
}

CUresult cuDriverGetVersion(int *version)
{
	struct view view;
	CUresult r;

	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	if (process.ready) {
		*version = (int)process.view.s->cuda_version;
		return CUDA_SUCCESS;
	}
	*version = 0;
	r = from_errno(state_open(&view, NULL));
	if (!r) {
		*version = (int)view.s->cuda_version;
		state_close(&view);
	}
	return r == CUDA_ERROR_NO_DEVICE ? CUDA_SUCCESS : r; /* documented: 0 where no driver is */
}
