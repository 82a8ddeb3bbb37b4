/* Work that is counted: what two containers get of a GPU's time. */
#define _GNU_SOURCE
#include "probe.h"

#include "count.h"

#include <time.h>

/* 200 ms of work are in flight, so that a program that the machine does not run at once loses nothing. */
enum { KERNEL_US = 2000, GROUP = 10, GROUPS = 10 };
/* Before it counts, and after it has counted, in seconds: both programs work meanwhile. */
static const double settle = 1, beyond = 0.5;

void calibrate(void)
{
	cuda_start(0);
	answer("iterations", "%.3f", count_of_us());
}

void work(double begin, double seconds, double iterations)
{
	CUevent ended[GROUPS];
	bool launched[GROUPS] = {false};
	double from = begin + settle, until = from + seconds, first = 0, last = 0, now = begin;
	long kernels = 0;
	CUfunction f;

	cuda_start(0);
	f = count_kernel(KERNEL_US);
	for (int i = 0; i < GROUPS; i++)
		must(cu.cuEventCreate(&ended[i], CU_EVENT_DISABLE_TIMING), "cuEventCreate");
	count_launch(f, 1, 32, 1, NULL);
	must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
	if (begin > monotonic()) {
		struct timespec t = {.tv_sec = (time_t)begin, .tv_nsec = (long)((begin - (double)(time_t)begin) * 1e9)};

		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
	} else {
		answer("late_ms", "%.0f", (monotonic() - begin) * 1e3);
	}
	for (int i = 0; now < until + beyond; i = (i + 1) % GROUPS) {
		if (launched[i]) { /* the first group that ends in the time only begins it */
			must(cu.cuEventSynchronize(ended[i]), "cuEventSynchronize");
			now = monotonic();
			if (now >= from && now < until) {
				if (first > 0)
					kernels += GROUP;
				else
					first = now;
				last = now;
			}
		}
		for (int k = 0; k < GROUP; k++)
			count_launch(f, 1, 32, (unsigned long long)(KERNEL_US * iterations), NULL);
		must(cu.cuEventRecord(ended[i], NULL), "cuEventRecord");
		launched[i] = true;
	}
	/* A program that waits for its turn at the end has had none in that time. */
	if (until - last > 0.2)
		last = until;
	answer("kernels", "%ld", kernels);
	answer("had_percent", "%.2f", last > first && first > 0 ? (double)kernels * KERNEL_US / 1e4 / (last - first) : 0.0);
}
