/* Virtual memory at random until it is stopped: `segments SECONDS SEED THREADS`. Chunks
 * are made, mapped, released before or after they are unmapped, retained, and mapped
 * twice, by threads that share handles' values with each other through the driver's
 * reuse. Prints how often it was given memory and how often refused. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../../../testdata/simdriver/cuda_api.h"

#define MIB ((size_t)1 << 20)
enum { PLACES = 24 };

#define NAMES(X) X(cuInit) X(cuMemAddressReserve) X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) \
	X(cuMemRetainAllocationHandle) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuArrayCreate_v2) X(cuArrayDestroy)
#define DECLARE(name) static __typeof__(&name) p_##name;
NAMES(DECLARE)

static double seconds;
static CUcontext context;
static atomic_ulong given, refused, wrong;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

struct place {
	CUmemGenericAllocationHandle handle; /* 0: has none any more */
	size_t size; /* 0: nothing is mapped here */
	CUdeviceptr twin; /* is mapped there too */
};

static void must(CUresult r)
{
	if (r != CUDA_SUCCESS)
		atomic_fetch_add(&wrong, 1);
}

static int take(struct place *p, CUdeviceptr at, unsigned *seed)
{
	CUmemAllocationProp prop = { .type = 1, .location = { 1, 0 } };

	p->size = (rand_r(seed) % 4 ? 2 : 20) * MIB;
	if (p_cuMemCreate(&p->handle, p->size, &prop, 0)) {
		p->size = 0;
		return -1;
	}
	must(p_cuMemMap(at, p->size, 0, p->handle, 0));
	p->twin = rand_r(seed) % 3 ? 0 : at + 20 * MIB;
	if (p->twin)
		must(p_cuMemMap(p->twin, p->size, 0, p->handle, 0));
	if (rand_r(seed) % 2) { /* the order of cuda-python */
		must(p_cuMemRelease(p->handle));
		p->handle = 0;
	}
	return 0;
}

static void give(struct place *p, CUdeviceptr at, unsigned *seed)
{
	CUmemGenericAllocationHandle again;

	if (rand_r(seed) % 3 == 0) {
		must(p_cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + MIB)));
		must(p_cuMemRelease(again));
	}
	if (p->handle && rand_r(seed) % 2) {
		must(p_cuMemRelease(p->handle));
		p->handle = 0;
	}
	must(p_cuMemUnmap(at, p->size));
	if (p->twin)
		must(p_cuMemUnmap(p->twin, p->size));
	if (p->handle)
		must(p_cuMemRelease(p->handle));
	*p = (struct place){ 0 };
}

static void *work(void *argument)
{
	unsigned seed = (unsigned)(uintptr_t)argument;
	struct place places[PLACES] = { 0 };
	CUdeviceptr base = 0;
	double until = now() + seconds;

	must(p_cuCtxSetCurrent(context));
	must(p_cuMemAddressReserve(&base, PLACES * 40 * MIB, 0, 0, 0));
	while (now() < until) {
		int i = rand_r(&seed) % PLACES;
		CUDA_ARRAY_DESCRIPTOR flat = { 1000, 1000, 32, 4 };
		CUarray array;

		if (places[i].size) {
			give(&places[i], base + i * 40 * MIB, &seed);
		} else if (!take(&places[i], base + i * 40 * MIB, &seed)) {
			atomic_fetch_add(&given, 1);
		} else {
			atomic_fetch_add(&refused, 1);
			usleep(200);
		}
		if (rand_r(&seed) % 8 == 0 && !p_cuArrayCreate_v2(&array, &flat))
			must(p_cuArrayDestroy(array));
	}
	for (int i = 0; i < PLACES; i++)
		if (places[i].size)
			give(&places[i], base + i * 40 * MIB, &seed);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[64];
	int count = argc > 3 ? atoi(argv[3]) : 1, r;
	void *h = dlopen("libcuda.so.1", RTLD_NOW);

	if (!h || argc < 3) {
		fprintf(stderr, "segments: %s\n", h ? "SECONDS SEED THREADS" : dlerror());
		return 3;
	}
#define FIND(name) p_##name = (__typeof__(&name))dlsym(h, #name);
	NAMES(FIND)
	seconds = atof(argv[1]);
	if ((r = p_cuInit(0)) || (r = p_cuDevicePrimaryCtxRetain(&context, 0))) {
		fprintf(stderr, "segments: no context: %d\n", r);
		return 4;
	}
	for (int i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(strtoul(argv[2], NULL, 0) * 64 + (unsigned)i));
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	printf("given %lu refused %lu wrong %lu\n", given, refused, wrong);
	return wrong ? 5 : 0;
}
