/* What events cost, and what they add to what they measure. */
#include "probe.h"

enum { PAIRS = 200, BATCH = 100 };

static CUevent from[PAIRS], to[PAIRS];

/* Elapsed microseconds of event pairs around one kernel of that length (0: nothing). */
static double elapsed_us(long us)
{
	CUfunction f = us ? spin_kernel(us) : NULL;
	double times[PAIRS];
	float ms;

	for (int i = 0; i < PAIRS; i++) {
		must(cu.cuEventRecord(from[i], NULL), "cuEventRecord");
		if (us)
			launch_spin(f, us, 1, 1, NULL);
		must(cu.cuEventRecord(to[i], NULL), "cuEventRecord");
		must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
	}
	for (int i = 0; i < PAIRS; i++) {
		must(cu.cuEventElapsedTime(&ms, from[i], to[i]), "cuEventElapsedTime");
		times[i] = (double)ms * 1e3;
	}
	return median(times, PAIRS);
}

static double record_ns(void)
{
	double times[PAIRS];

	for (int i = 0; i < PAIRS; i++) {
		double start = monotonic();

		for (int j = 0; j < BATCH; j++)
			must(cu.cuEventRecord(from[j], NULL), "cuEventRecord");
		times[i] = (monotonic() - start) / BATCH * 1e9;
		must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
	}
	return median(times, PAIRS);
}

static double launch_and_wait_us(void)
{
	CUfunction f = spin_kernel(5);
	double times[PAIRS];

	for (int i = 0; i < PAIRS; i++) {
		double start = monotonic();

		launch_spin(f, 5, 1, 1, NULL);
		must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
		times[i] = (monotonic() - start) * 1e6;
	}
	return median(times, PAIRS);
}

/* What a launch behind another one costs on the GPU, without and with an event between. */
static double spacing_us(int with_events)
{
	CUfunction f = spin_kernel(20);
	float ms;

	launch_spin(f, 20, 1, 1, NULL);
	must(cu.cuEventRecord(from[0], NULL), "cuEventRecord");
	for (int i = 0; i < BATCH; i++) {
		launch_spin(f, 20, 1, 1, NULL);
		if (with_events)
			must(cu.cuEventRecord(to[i], NULL), "cuEventRecord");
	}
	must(cu.cuEventRecord(to[0], NULL), "cuEventRecord");
	must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
	must(cu.cuEventElapsedTime(&ms, from[0], to[0]), "cuEventElapsedTime");
	return (double)ms * 1e3 / BATCH - 20;
}

void ask_events(void)
{
	double launch;

	begin();
	for (int i = 0; i < PAIRS; i++) {
		must(cu.cuEventCreate(&from[i], 0), "cuEventCreate");
		must(cu.cuEventCreate(&to[i], 0), "cuEventCreate");
	}
	elapsed_us(0);
	answer("event.record_ns", "%.0f", record_ns());
	answer("event.floor_us", "%.1f", elapsed_us(0));
	answer("event.added_5us", "%.1f", elapsed_us(5) - 5);
	answer("event.added_500us", "%.1f", elapsed_us(500) - 500);
	answer("event.launch_and_wait_us", "%.0f", launch_and_wait_us());
	launch = spacing_us(0);
	answer("event.launch_gap_us", "%.1f", launch);
	answer("event.record_gap_us", "%.1f", spacing_us(1) - launch);
}
