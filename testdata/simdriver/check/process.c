#define _GNU_SOURCE
#include "check.h"

#include "../nvml_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static size_t free_now(void)
{
	size_t free_bytes, total;

	FINE(cuMemGetInfo_v2(&free_bytes, &total));
	return free_bytes;
}

/* A child that didn't exec can't use CUDA, and doesn't disturb the parent. */
void check_fork(void)
{
	CUdeviceptr p;
	size_t before;
	int status, version, count;
	pid_t child;

	start();
	before = free_now();
	FINE(cuMemAlloc_v2(&p, MIB));
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		GIVES(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
		GIVES(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
		GIVES(cuMemAlloc_v2(&p, 1), CUDA_ERROR_NOT_INITIALIZED);
		GIVES(cuMemFree_v2(p), CUDA_ERROR_NOT_INITIALIZED);
		FINE(cuDriverGetVersion(&version));
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(before - free_now() == 2 * MIB);
	FINE(cuMemFree_v2(p));
	CHECK(before == free_now());
}

static struct {
	nvmlReturn_t (*init)(void);
	nvmlReturn_t (*handle)(unsigned, nvmlDevice_t *);
	nvmlReturn_t (*memory)(nvmlDevice_t, nvmlMemory_t *);
} nvml;

static void ask_often(void)
{
	nvmlDevice_t device;
	nvmlMemory_t memory;

	CHECK(!nvml.handle(0, &device));
	for (int i = 0; i < 300; i++)
		CHECK(!nvml.memory(device, &memory) && memory.used + memory.free == memory.total);
}

/* NVML goes on in a forked child, beside its parent. */
void check_nvml_fork(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	int status;
	pid_t child;

	CHECK(library);
	*(void **)&nvml.init = dlsym(library, "nvmlInit_v2");
	*(void **)&nvml.handle = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&nvml.memory = dlsym(library, "nvmlDeviceGetMemoryInfo");
	CHECK(nvml.init && nvml.handle && nvml.memory && !nvml.init());
	child = fork();
	CHECK(child >= 0);
	ask_often();
	if (!child)
		_exit(0);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Dies and leaves a forked child that keeps the driver's descriptor: the memory stays until the child goes too. */
void check_orphan(void)
{
	CUdeviceptr p;
	pid_t child;

	start();
	FINE(cuMemAlloc_v2(&p, 64 * MIB));
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		close(STDOUT_FILENO); /* a reader of the parent's output must not wait for this child */
		close(STDERR_FILENO);
		for (;;)
			pause();
	}
	printf("child=%d\n", (int)child);
	fflush(stdout);
	raise(SIGKILL);
}

static CUcontext shared;
static CUfunction quick;

static void *work(void *argument)
{
	CUdeviceptr held[8];
	CUstream s;
	CUevent e;

	(void)argument;
	FINE(cuCtxSetCurrent(shared));
	FINE(cuStreamCreate(&s, 0));
	for (int i = 0; i < 200; i++) {
		for (int k = 0; k < 8; k++)
			FINE(cuMemAlloc_v2(&held[k], 4096u << (i % 4)));
		FINE(cuEventCreate(&e, 0));
		FINE(cuLaunchKernel_ptsz(quick, 1, 1, 1, 1, 1, 1, 0, i % 2 ? s : NULL, NULL, NULL));
		FINE(cuEventRecord(e, s));
		FINE(cuMemsetD8Async(held[0], 0, 4096, s));
		FINE(cuEventDestroy_v2(e));
		for (int k = 0; k < 8; k++)
			FINE(cuMemFree_v2(held[k]));
	}
	FINE(cuStreamSynchronize(s));
	FINE(cuStreamDestroy_v2(s));
	return NULL;
}

static void *fork_often(void *argument)
{
	int status;

	(void)argument;
	for (int i = 0; i < 20; i++) {
		pid_t child = fork();

		CHECK(child >= 0);
		if (!child)
			_exit(0);
		CHECK(waitpid(child, &status, 0) == child);
	}
	return NULL;
}

/* Eight threads at all of it, while another forks: nothing lost, nothing stuck. */
void check_threads(void)
{
	pthread_t threads[9];
	CUmodule module;
	size_t before;

	shared = start();
	FINE(cuModuleLoadData(&module, spin_ptx));
	FINE(cuModuleGetFunction(&quick, module, "quick"));
	before = free_now();
	for (int i = 0; i < 9; i++)
		CHECK(!pthread_create(&threads[i], NULL, i < 8 ? work : fork_often, NULL));
	for (int i = 0; i < 9; i++)
		CHECK(!pthread_join(threads[i], NULL));
	FINE(cuCtxSynchronize());
	CHECK(free_now() == before);
}

/*
 * Whether NVML reports this process's own PID: exit status 10, plus 1 if the list of processes has it, plus 2 if the
 * utilisation has it. When the GPU has been busy for a while, it prints ready=1 and waits for the end of its input.
 */
void check_nvml_pids(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	nvmlReturn_t (*list)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
	nvmlReturn_t (*utilisation)(nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned *, nvmlU64);
	nvmlProcessUtilizationSample_t sample = {0};
	nvmlProcessInfo_t process = {0};
	unsigned own = (unsigned)getpid(), count = 1;
	nvmlDevice_t device;
	CUmodule module;
	CUfunction f;

	CHECK(library);
	*(void **)&nvml.init = dlsym(library, "nvmlInit_v2");
	*(void **)&nvml.handle = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&list = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
	*(void **)&utilisation = dlsym(library, "nvmlDeviceGetProcessUtilization");
	CHECK(!nvml.init() && !nvml.handle(0, &device));
	start();
	FINE(cuModuleLoadData(&module, spin_ptx));
	FINE(cuModuleGetFunction(&f, module, "second"));
	FINE(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	FINE(cuCtxSynchronize());
	printf("ready=1\n");
	fflush(stdout);
	while (getchar() != EOF)
		;
	CHECK(!list(device, &count, &process) && count == 1);
	CHECK(!utilisation(device, &sample, &count, 0) && count == 1);
	exit(10 + (process.pid == own) + 2 * (sample.pid == own));
}
