#include "check.h"

#include <time.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Prints what a launch costs the program, while the stream has room: the least of many rounds. */
void check_launch_cost(void)
{
	enum { ROUNDS = 200, LAUNCHES = 500 };
	CUmodule module;
	CUfunction f;
	double best = 1e9;

	start();
	FINE(cuModuleLoadData(&module, spin_ptx));
	FINE(cuModuleGetFunction(&f, module, "quick"));
	for (int round = 0; round < ROUNDS; round++) {
		double began = now(), took;

		for (int i = 0; i < LAUNCHES; i++)
			FINE(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
		took = (now() - began) / LAUNCHES;
		best = took < best ? took : best;
		FINE(cuCtxSynchronize());
	}
	printf("launch_ns=%.0f\n", best);
}
