/* What becomes of processes that are busy on one GPU. */
#include "probe.h"

#include <signal.h>

enum { KERNELS = 4000, US = 50 };

static struct other pace(const char *us, const char *in_flight, double seconds)
{
	char text[32];
	char *const arguments[] = {"pace", (char *)us, (char *)in_flight, text, "0", "go", NULL};

	snprintf(text, sizeof(text), "%.2f", seconds);

	struct other o = start("pace", arguments);

	receive(&o, "ready");
	return o;
}

/* Kernels a second of one, or of two beside each other. */
static void rates(struct other *a, struct other *b, double *of_a, double *of_b)
{
	send_line(a, "go");
	if (b)
		send_line(b, "go");
	*of_a = receive(a, "rate_per_second");
	finish(a);
	if (!b)
		return;
	*of_b = receive(b, "rate_per_second");
	finish(b);
}

static double solo_rate(const char *us, const char *in_flight)
{
	struct other o = pace(us, in_flight, measured_seconds / 2);
	double rate;

	rates(&o, NULL, &rate, NULL);
	return rate;
}

/* Percent of the GPU that two have beside each other, of what each has without the other. */
static void beside(const char *us, const char *in_flight, double *mine, double *theirs)
{
	double solo = solo_rate(us, in_flight), solo_theirs = solo_rate("500", "64");
	struct other a = pace(us, in_flight, measured_seconds), b = pace("500", "64", measured_seconds);

	rates(&a, &b, mine, theirs);
	*mine *= 100 / solo;
	*theirs *= 100 / solo_theirs;
}

/* Events behind short kernels show the other's turns as gaps. */
static void turns(void)
{
	static CUevent events[KERNELS];
	static double gaps[KERNELS], runs[KERNELS];
	struct other o = pace("500", "64", 30);
	CUfunction f;
	double run = 0;
	int gap_count = 0, run_count = 0;

	begin();
	f = spin_kernel(US);
	for (int i = 0; i < KERNELS; i++)
		must(cu.cuEventCreate(&events[i], 0), "cuEventCreate");
	send_line(&o, "go");
	receive(&o, "second");
	for (int i = 0; i < KERNELS; i++) {
		launch_spin(f, US, 1, 1, NULL);
		must(cu.cuEventRecord(events[i], NULL), "cuEventRecord");
	}
	must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
	kill(o.pid, SIGTERM);
	finish(&o);
	for (int i = 1; i < KERNELS; i++) {
		float ms;
		double us;

		must(cu.cuEventElapsedTime(&ms, events[i - 1], events[i]), "cuEventElapsedTime");
		us = (double)ms * 1e3;
		if (us < 6 * US) {
			run += us;
			continue;
		}
		gaps[gap_count++] = us - US;
		if (gap_count > 1)
			runs[run_count++] = run + US;
		run = 0;
	}
	answer("slice.turns", "%d", gap_count);
	answer("slice.theirs_us", "%.0f", median(gaps, gap_count));
	answer("slice.ours_us", "%.0f", median(runs, run_count));
}

void ask_slices(void)
{
	double mine, theirs;

	beside("500", "64", &mine, &theirs);
	answer("slice.even_percent", "%.0f", 100 * mine / (mine + theirs));
	answer("slice.lost_percent", "%.1f", 100 - mine - theirs);
	beside("500", "1", &mine, &theirs);
	answer("slice.waiting_percent", "%.0f", mine);
	answer("slice.beside_waiting_percent", "%.0f", theirs);
	beside("20000", "8", &mine, &theirs);
	answer("slice.long_percent", "%.0f", mine);
	turns();
}
