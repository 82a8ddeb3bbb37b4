/* Times calls on whatever driver there is: "name nanoseconds" (the median of
 * batches), one line each. With an argument it takes a slot and waits instead. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long ptr_t;

static int (*kernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*alloc)(ptr_t *, size_t), (*release)(ptr_t), (*info)(size_t *, size_t *);
static void *handle;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void pair(void)
{
	ptr_t p;

	if (alloc(&p, 4096) == 0)
		release(p);
}

static int (*alloc_async)(ptr_t *, size_t, void *), (*release_async)(ptr_t, void *), (*synchronise)(void *);

/* Of a pool that has it: as the fake driver's always does after the first. */
static void pair_async(void)
{
	ptr_t p;

	if (alloc_async(&p, 4096, NULL) == 0)
		release_async(p, NULL);
}

static void wait_for(void)
{
	synchronise(NULL);
}

static void look(void)
{
	size_t f, t;

	info(&f, &t);
}

static void launch(void)
{
	kernel(&kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

static void symbol(void)
{
	dlsym(handle, "cuMemcpyHtoD_v2");
}

static int rising(const void *a, const void *b)
{
	return *(const double *)a < *(const double *)b ? -1 : 1;
}

static void measure(const char *name, void (*once)(void), int batch)
{
	static double batches[2001];

	for (int i = 0; i < 2001; i++) {
		double start = now();

		for (int j = 0; j < batch; j++)
			once();
		batches[i] = (now() - start) / batch;
	}
	qsort(batches, 2001, sizeof(*batches), rising);
	printf("%s %.1f\n", name, batches[1000]);
}

int main(int argc, char **argv)
{
	double start = now();

	handle = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned) = dlsym(handle, "cuInit");
	alloc = dlsym(handle, "cuMemAlloc_v2");
	release = dlsym(handle, "cuMemFree_v2");
	info = dlsym(handle, "cuMemGetInfo_v2");
	alloc_async = dlsym(handle, "cuMemAllocAsync");
	release_async = dlsym(handle, "cuMemFreeAsync");
	synchronise = dlsym(handle, "cuStreamSynchronize");
	kernel = dlsym(handle, "cuLaunchKernel");
	if (init(0))
		return 1;
	printf("init %.1f\n", now() - start);
	if (argc > 1) {
		ptr_t p;

		alloc(&p, 4096);
		fflush(stdout);
		pause();
	}
	measure("launch", launch, 256);
	measure("alloc+free", pair, 32);
	for (int live = 0, i = 0; i < 2; i++) {
		ptr_t p;
		char name[32];

		for (; live < (i ? 10000 : 1000); live++)
			alloc(&p, 4096);
		snprintf(name, sizeof(name), "alloc+free/live=%d", live);
		measure(name, pair, 32);
	}
	measure("meminfo", look, 32);
	measure("dlsym", symbol, 32);
	measure("synchronise", wait_for, 32);
	measure("allocasync+freeasync", pair_async, 32);
	measure("synchronise/pool", wait_for, 32);
	return 0;
}
