/* One thread unmaps the last mapping of memory while another retains its handle: while
 * a reference exists, the limit must not allow other memory in its place. The limit
 * must be 2 MiB. Prints how often the one, and how often the other came first. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../../testdata/simdriver/cuda_api.h"

#define SIZE ((size_t)2 << 20)
#define NAMES(X) X(cuInit) X(cuMemAddressReserve) X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemRetainAllocationHandle)
#define DECLARE(name) static __typeof__(&name) p_##name;
NAMES(DECLARE)

static CUdeviceptr at;
static pthread_barrier_t ready;
static _Atomic int go;
static int rounds;

static void *unmap(void *wrong)
{
	for (int i = 0; i < rounds; i++) {
		pthread_barrier_wait(&ready);
		while (atomic_load(&go) != i)
			;
		*(int *)wrong += p_cuMemUnmap(at, SIZE) != 0;
		pthread_barrier_wait(&ready);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	CUmemAllocationProp prop = { .type = 1, .location = { 1, 0 } };
	CUmemGenericAllocationHandle h, kept, more;
	int wrong = 0, wrong_there = 0, retained = 0;
	pthread_t other;
	void *d = dlopen("libcuda.so.1", RTLD_NOW);

#define FIND(name) p_##name = (__typeof__(&name))dlsym(d, #name);
	NAMES(FIND)
	rounds = atoi(argv[1]);
	wrong += p_cuInit(0) || p_cuMemAddressReserve(&at, SIZE, 0, 0, 0);
	pthread_barrier_init(&ready, NULL, 2);
	atomic_store(&go, -1);
	pthread_create(&other, NULL, unmap, &wrong_there);
	for (int i = 0; i < rounds; i++) {
		wrong += p_cuMemCreate(&h, SIZE, &prop, 0) || p_cuMemMap(at, SIZE, 0, h, 0) || p_cuMemRelease(h);
		pthread_barrier_wait(&ready);
		atomic_store(&go, i);
		for (volatile int spin = rand() % 20000; spin > 0; spin--)
			;
		int r = p_cuMemRetainAllocationHandle(&kept, (void *)(uintptr_t)at);
		pthread_barrier_wait(&ready);
		int another = p_cuMemCreate(&more, SIZE, &prop, 0);
		wrong += r == 0 ? another != 2 : another != 0;
		retained += r == 0;
		wrong += r == 0 ? p_cuMemRelease(kept) != 0 : p_cuMemRelease(more) != 0;
	}
	pthread_join(other, NULL);
	printf("retained %d missed %d wrong %d\n", retained, rounds - retained, wrong + wrong_there);
	return 0;
}
