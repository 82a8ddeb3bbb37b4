/* Keeps a GPU busy at a steady pace and prints each second how many kernels ended:
 *
 *   pace US IN_FLIGHT SECONDS MIB [go]
 *
 * Kernels take US where no other process has the GPU; IN_FLIGHT 1 waits for each. MIB of memory are held. With "go" it begins when it reads a line, and stays,
 * idle, until its standard input is closed. "settled_per_second" is the rate of the second half: by then the agent's loop
 * has corrected the share. */
#include "../../../limiter/probe/count.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	CUevent ended[2];
	CUdeviceptr memory;
	CUfunction f;
	char line[16];
	double begin, half, seconds, now;
	unsigned long long iterations;
	long us, flight, done = 0, settled = 0, reported = 0;

	if (argc != 5 && argc != 6) {
		fprintf(stderr, "usage: pace US IN_FLIGHT SECONDS MIB [go]\n");
		return EXIT_USAGE;
	}
	us = number("us", argv[1], 1, 60000000);
	flight = number("in-flight", argv[2], 1, 100000);
	seconds = seconds_of("seconds", argv[3]);
	catch_term();
	cuda_load("dlsym");
	cuda_start(0);
	if (atoi(argv[4]))
		must(cu.cuMemAlloc_v2(&memory, (size_t)atoi(argv[4]) << 20), "cuMemAlloc");
	f = count_kernel(us);
	iterations = (unsigned long long)((double)us * count_of_us());
	for (int i = 0; i < 2; i++)
		must(cu.cuEventCreate(&ended[i], CU_EVENT_DISABLE_TIMING), "cuEventCreate");
	printf("ready=1\n");
	fflush(stdout);
	if (argc == 6 && !fgets(line, sizeof(line), stdin))
		return EXIT_USAGE;
	begin = half = now = monotonic();
	for (int turn = 0; !terminated() && now < begin + seconds; turn = !turn) {
		long batch = flight > 1 ? flight / 2 : 1;

		must(cu.cuEventSynchronize(ended[turn]), "cuEventSynchronize");
		for (long i = 0; i < batch; i++)
			count_launch(f, 1, 32, iterations, NULL);
		must(cu.cuEventRecord(ended[turn], NULL), "cuEventRecord");
		if (flight == 1)
			must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
		done += batch;
		now = monotonic();
		if (now - begin >= seconds / 2 && !settled) {
			half = now;
			settled = done;
		}
		if ((long)(now - begin) > reported) {
			reported = (long)(now - begin);
			printf("second=%ld\n", done);
			fflush(stdout);
		}
	}
	must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
	now = monotonic();
	printf("launches=%ld\nrate_per_second=%.1f\nsettled_per_second=%.1f\n", done, (double)done / (now - begin),
	       (double)(done - settled) / (now - half));
	fflush(stdout);
	while (argc == 6 && !terminated() && fgets(line, sizeof(line), stdin))
		;
	return EXIT_FINE;
}
