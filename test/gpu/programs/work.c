/* Keeps a GPU busy and prints how much of its time the kernels took: work --help.
 *
 * A kernel counts iterations, not time, so a kernel that the GPU interrupts takes as much longer. --calibrate prints the
 * iterations of a microsecond, which --iterations takes. Programs that are compared get the same --begin, a time of
 * CLOCK_MONOTONIC: they measure from --settle seconds after it, for --seconds, and stay busy for half a second more.
 *
 * work_percent is the time of the kernels that ended while it was measured, in percent of that time: above 100 where
 * kernels of several streams run at once. */
#include "../../../limiter/probe/count.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_KINDS = 8, MOST_STREAMS = 64, MOST_IN_FLIGHT = 4096 };

static const char *kinds_text = "500", *flight_text = "64", *streams_text = "1", *blocks_text = "1", *seconds_text = "3", *settle_text = "1",
		  *begin_text = "0", *iterations_text = "100";
static bool calibrate, ask_clock;
static const struct option_def options[] = {
	{ "us", &kinds_text, NULL, "how long the kernels take; of several, data decides which comes next (500)" },
	{ "in-flight", &flight_text, NULL, "how many are in flight; 1 waits for each (64)" },
	{ "streams", &streams_text, NULL, "in how many streams (1)" },
	{ "blocks", &blocks_text, NULL, "of each kernel (1)" },
	{ "seconds", &seconds_text, NULL, "how long to measure (3)" },
	{ "settle", &settle_text, NULL, "seconds before that (1)" },
	{ "begin", &begin_text, NULL, "when to begin, in seconds of CLOCK_MONOTONIC (at once)" },
	{ "iterations", &iterations_text, NULL, "of a kernel of a microsecond (100)" },
	{ "calibrate", NULL, &calibrate, "print these, and nothing else" },
	{ "clock", NULL, &ask_clock, "print CLOCK_MONOTONIC, and nothing else" },
	{ NULL, NULL, NULL, NULL },
};

static struct {
	long us;
	CUfunction function;
} kinds[MOST_KINDS];
static long kind_count;
static CUstream streams[MOST_STREAMS];

int main(int argc, char **argv)
{
	static CUevent ended[MOST_IN_FLIGHT];
	static long took[MOST_IN_FLIGHT];
	char list[256];
	double begin, from, until, first = 0, last = 0, now;
	long flight, stream_count, blocks, work = 0, launches = 0;
	unsigned long dice = 1;

	parse_options(argc, argv, "keeps a GPU busy", options);
	if (ask_clock) {
		printf("%.6f\n", monotonic());
		return EXIT_FINE;
	}
	flight = number("in-flight", flight_text, 1, MOST_IN_FLIGHT);
	stream_count = number("streams", streams_text, 1, MOST_STREAMS);
	blocks = number("blocks", blocks_text, 1, 1 << 20);
	double settle = seconds_of("settle", settle_text), seconds = seconds_of("seconds", seconds_text), iterations = atof(iterations_text);
	catch_term();
	cuda_load("dlsym");
	cuda_start(0);
	snprintf(list, sizeof(list), "%s", kinds_text);
	for (char *one = strtok(list, ","); one && kind_count < MOST_KINDS; one = strtok(NULL, ","), kind_count++) {
		kinds[kind_count].us = number("us", one, 1, 60000000);
		kinds[kind_count].function = count_kernel(kinds[kind_count].us);
	}
	for (long i = 0; i < stream_count; i++)
		must(cu.cuStreamCreate(&streams[i], 1), "cuStreamCreate");
	for (long i = 0; i < flight; i++)
		must(cu.cuEventCreate(&ended[i], CU_EVENT_DISABLE_TIMING), "cuEventCreate");
	if (calibrate) {
		printf("iterations=%.3f\n", count_of_us());
		return EXIT_FINE;
	}
	count_launch(kinds[0].function, 1, 32, 1, NULL);
	must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
	begin = atof(begin_text);
	if (begin > monotonic()) {
		struct timespec t = { .tv_sec = (time_t)begin, .tv_nsec = (long)((begin - (double)(time_t)begin) * 1e9) };
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
	} else if (begin > 0) {
		fprintf(stderr, "work: started %.1f s late\n", monotonic() - begin);
	}
	if (begin <= 0)
		begin = monotonic();
	from = begin + settle;
	until = from + seconds;
	now = begin;
	/* In one stream, one event for an eighth of what is in flight. */
	long group = stream_count > 1 || flight < 8 ? 1 : flight / 8, groups = flight / group;

	for (long i = 0; !terminated() && now < until + 0.5; i = (i + 1) % groups) {
		CUstream stream = streams[i % stream_count];

		if (took[i]) { /* the work of kernels counts when they ended; the first ones only begin the time */
			must(cu.cuEventSynchronize(ended[i]), "cuEventSynchronize");
			now = monotonic();
			if (now >= from && now < until) {
				if (first)
					work += took[i], launches += group;
				else
					first = now;
				last = now;
			}
		}
		took[i] = 0;
		for (long k = 0; k < group; k++) {
			dice = dice * 6364136223846793005ul + 1442695040888963407ul;
			long kind = (long)((dice >> 33) % (unsigned long)kind_count);

			took[i] += kinds[kind].us;
			count_launch(kinds[kind].function, (unsigned)blocks, 32, (unsigned long long)((double)kinds[kind].us * iterations), stream);
		}
		must(cu.cuEventRecord(ended[i], stream), "cuEventRecord");
	}
	/* A program that waits for its turn at the end has had none in that time. */
	if (until - last > 0.2)
		last = until;
	printf("launches=%ld\nwork_percent=%.2f\n", launches, last > first ? (double)work / 1e4 / (last - first) : 0.0);
	return EXIT_FINE;
}
