/* Times calls on whatever driver there is: "name p50 p99" in nanoseconds per call,
 * over the means of batches, one line each.
 *
 *   hold    takes a slot, allocates and waits instead
 *   pairs   only allocations that are freed
 *   first   launches for half a second: "longest" of the calls, and how many there were */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long ptr_t;

static int (*kernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*alloc)(ptr_t *, size_t), (*release)(ptr_t), (*info)(size_t *, size_t *);
static int (*graph)(void *, void *);
static int (*create)(ptr_t *, size_t, const void *, ptr_t), (*map)(ptr_t, size_t, size_t, ptr_t, ptr_t);
static int (*unmap)(ptr_t, size_t), (*give)(ptr_t);
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

static int (*record)(void *, void *), (*query)(void *);

static void launch_event(void)
{
	static char events[64][16];
	static unsigned at;
	void *event = events[at++ % 64];

	launch();
	record(event, NULL);
	query(event);
}

static void launch_graph(void)
{
	graph(&graph, NULL);
}

static void virtual(void)
{
	static const struct { int type, handles, location, id; char rest[16]; } prop = { .type = 1, .location = 1 };
	ptr_t h;

	if (create(&h, 2 << 20, &prop, 0))
		exit(2);
	map(1ull << 40, 2 << 20, 0, h, 0);
	give(h);
	unmap(1ull << 40, 2 << 20);
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
	printf("%s %.2f %.2f\n", name, batches[1000], batches[1980]);
}

/* A kernel or graph is measured often at first: that is not what is asked here. */
static void warm(void (*once)(void))
{
	for (double end = now() + 2e8; now() < end;)
		once();
}

static void first(void)
{
	double begin = now(), before = begin, longest = 0;
	long calls = 0;

	for (; before < begin + 5e8; calls++) {
		launch();
		double after = now();
		longest = after - before > longest ? after - before : longest;
		before = after;
	}
	printf("longest %.0f %.0f\ncalls %ld %ld\n", longest, longest, calls, calls);
}

int main(int argc, char **argv)
{
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
	graph = dlsym(handle, "cuGraphLaunch");
	record = dlsym(handle, "cuEventRecord");
	query = dlsym(handle, "cuEventQuery");
	create = dlsym(handle, "cuMemCreate");
	map = dlsym(handle, "cuMemMap");
	unmap = dlsym(handle, "cuMemUnmap");
	give = dlsym(handle, "cuMemRelease");
	if (argc > 1 && !strcmp(argv[1], "first")) {
		first();
		return 0;
	}
	if (argc > 1 && !strcmp(argv[1], "pairs")) {
		measure("alloc+free", pair, 32);
		return 0;
	}
	if (argc > 1) {
		ptr_t p;

		alloc(&p, 4096);
		fflush(stdout);
		pause();
	}
	warm(launch);
	measure("launch", launch, 256);
	measure("launch+record+query", launch_event, 64);
	warm(launch_graph);
	measure("graph-launch", launch_graph, 256);
	measure("vmm-create+map+release+unmap", virtual, 16);
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
