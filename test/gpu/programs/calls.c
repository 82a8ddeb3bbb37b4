/* Times single calls on whatever driver there is: "name nanoseconds", the median of batches. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../../../testdata/simdriver/cuda_api.h"

static const char ptx[] =
	".version 6.3\n"
	".target sm_75\n"
	".address_size 64\n"
	"// sim-duration-us: 0\n"
	".visible .entry nothing()\n"
	"{\n"
	"	ret;\n"
	"}\n";

static __typeof__(&cuMemAlloc_v2) alloc;
static __typeof__(&cuMemFree_v2) release;
static __typeof__(&cuMemGetInfo_v2) info;
static __typeof__(&cuLaunchKernel) launch;
static __typeof__(&cuCtxSynchronize) synchronize;
static CUfunction nothing;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void pair(void)
{
	CUdeviceptr p;

	if (!alloc(&p, 4096))
		release(p);
}

static void look(void)
{
	size_t f, t;

	info(&f, &t);
}

static void go(void)
{
	launch(nothing, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

static int rising(const void *a, const void *b)
{
	return *(const double *)a < *(const double *)b ? -1 : 1;
}

enum { BATCHES = 501, BATCH = 64, MOST_NS = 300000000 };

static void measure(const char *name, void (*once)(void))
{
	static double batches[BATCHES];

	double most = now() + MOST_NS;
	int count = 0;

	for (; count < BATCHES && (count < 11 || now() < most); count++) {
		double start = now();

		for (int j = 0; j < BATCH; j++)
			once();
		batches[count] = (now() - start) / BATCH;
		synchronize(); /* queues stay short: a full one would be measured */
	}
	qsort(batches, (size_t)count, sizeof(*batches), rising);
	printf("%s %.1f\n", name, batches[count / 2]);
}

int main(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	CUcontext context;
	CUmodule module;

	if (!cuda)
		return 4;
	__typeof__(&cuInit) init = dlsym(cuda, "cuInit");
	__typeof__(&cuDevicePrimaryCtxRetain) retain = dlsym(cuda, "cuDevicePrimaryCtxRetain");
	__typeof__(&cuCtxSetCurrent) set = dlsym(cuda, "cuCtxSetCurrent");
	__typeof__(&cuModuleLoadData) load = dlsym(cuda, "cuModuleLoadData");
	__typeof__(&cuModuleGetFunction) function = dlsym(cuda, "cuModuleGetFunction");
	alloc = dlsym(cuda, "cuMemAlloc_v2");
	release = dlsym(cuda, "cuMemFree_v2");
	info = dlsym(cuda, "cuMemGetInfo_v2");
	launch = dlsym(cuda, "cuLaunchKernel");
	synchronize = dlsym(cuda, "cuCtxSynchronize");
	CUresult r = init(0);
	if (!r)
		r = retain(&context, 0);
	if (!r)
		r = set(context);
	if (!r)
		r = load(&module, ptx);
	if (!r)
		r = function(&nothing, module, "nothing");
	if (r) {
		fprintf(stderr, "calls: error %d of the driver at start\n", (int)r);
		return 3;
	}
	go();
	synchronize();
	measure("launch", go);
	measure("alloc+free", pair);
	measure("meminfo", look);
	return 0;
}
