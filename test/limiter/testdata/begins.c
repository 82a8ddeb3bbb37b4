/* A program begins on an idle GPU: for 15 ms of a played clock it launches kernels, in turn as many microseconds long as its
 * arguments are, waits for each, and prints how many they were. The driver is the fake one. */
#include <stdio.h>
#include <stdlib.h>

#include "playedclock.h"

enum { FOR_NS = 15000000 };
static char functions[16];

int main(int argc, char **argv)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned) = dlsym(cuda, "cuInit");
	int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) = dlsym(cuda, "cuLaunchKernel");
	float *milliseconds = dlsym(cuda, "fakeMilliseconds");
	uint64_t end = played_ns + FOR_NS;
	int launches = 0;

	if (init(0))
		return 1;
	for (; played_ns < end; launches++) {
		int kind = launches % (argc - 1);
		int us = atoi(argv[1 + kind]);

		*milliseconds = (float)us / 1000;
		launch(&functions[kind], 1, 1, 1, 1, 1, 1, 0, (void *)0x1000, NULL, NULL);
		play_us((uint64_t)us);
	}
	printf("launches %d\n", launches);
	return 0;
}
