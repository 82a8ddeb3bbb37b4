/* Holds N MiB. */
#include "common.h"

#include <stdio.h>

static const char *lookup = "dlsym", *device = "0", *mib = "64", *seconds = "0";

static const struct option_def options[] = {
	{"lookup", &lookup, NULL, "dlsym, getproc or getproc_v2: how to find the driver's functions"},
	{"device", &device, NULL, "CUDA ordinal (0)"},
	{"mib", &mib, NULL, "how much (64); 0: a context and no more"},
	{"seconds", &seconds, NULL, "for how long, 0: until SIGTERM"},
	{0},
};

int main(int argc, char **argv)
{
	CUdeviceptr p = 0;
	size_t bytes;

	parse_options(argc, argv, "holds device memory until SIGTERM", options);
	bytes = (size_t)number("mib", mib, 0, 1 << 24) << 20;
	catch_term();
	cuda_load(lookup);
	cuda_start((int)number("device", device, 0, 1023));
	if (bytes)
		must(cu.cuMemAlloc_v2(&p, bytes), "cuMemAlloc");
	printf("allocated_bytes=%zu\nready=1\n", bytes);
	fflush(stdout);
	wait_for(seconds_of("seconds", seconds));
	if (p)
		must(cu.cuMemFree_v2(p), "cuMemFree");
	printf("done=1\n");
	return EXIT_FINE;
}
