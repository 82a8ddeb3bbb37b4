/* A job that computes, and looks in every round whether all is as it was: the first error ends it. */
#include "common.h"

#include <stdio.h>

static const char *lookup = "dlsym", *device = "0", *mib = "64", *too_many = "0", *rounds = "0", *every = "20";

static const struct option_def options[] = {
	{"lookup", &lookup, NULL, "dlsym, getproc or getproc_v2: how to find the driver's functions"},
	{"device", &device, NULL, "CUDA ordinal (0)"},
	{"mib", &mib, NULL, "how much is allocated, used and freed in a round (64)"},
	{"refused-mib", &too_many, NULL, "how much must be refused in every round; 0: none is tried"},
	{"rounds", &rounds, NULL, "how many, 0: until SIGTERM"},
	{"every-ms", &every, NULL, "time between two rounds (20)"},
	{0},
};

/* The comment is for the simulated driver, which runs no code. */
static const char ptx[] = "//\n.version 6.3\n.target sm_75\n.address_size 64\n// sim-duration-us: 200\n"
			  ".visible .entry work()\n{\n	ret;\n}\n";

static void must_be_refused(size_t bytes)
{
	CUdeviceptr p;
	CUresult r = cu.cuMemAlloc_v2(&p, bytes);

	if (r == CUDA_ERROR_OUT_OF_MEMORY)
		return;
	must(r, "cuMemAlloc of more than the limit");
	must(CUDA_ERROR_UNKNOWN, "a limit, which took too much");
}

static void round_of(CUfunction work, size_t bytes, size_t refused, size_t total)
{
	size_t now_free, now_total;
	CUdeviceptr p;

	must(cu.cuMemAlloc_v2(&p, bytes), "cuMemAlloc");
	must(cu.cuLaunchKernel(work, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
	must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
	if (refused)
		must_be_refused(refused);
	must(cu.cuMemGetInfo_v2(&now_free, &now_total), "cuMemGetInfo");
	if (now_total != total || now_free + bytes > now_total)
		must(CUDA_ERROR_UNKNOWN, "cuMemGetInfo with a different total");
	must(cu.cuMemFree_v2(p), "cuMemFree");
}

int main(int argc, char **argv)
{
	size_t bytes, refused, unused, total;
	long wanted, done = 0;
	double pause;
	CUmodule module;
	CUfunction work;

	parse_options(argc, argv, "computes until SIGTERM or the first error", options);
	bytes = (size_t)number("mib", mib, 1, 1 << 24) << 20;
	refused = (size_t)number("refused-mib", too_many, 0, 1 << 24) << 20;
	wanted = number("rounds", rounds, 0, 1000000000);
	pause = (double)number("every-ms", every, 1, 60000) / 1e3;
	catch_term();
	cuda_load(lookup);
	cuda_start((int)number("device", device, 0, 1023));
	must(cu.cuModuleLoadData(&module, ptx), "cuModuleLoadData");
	must(cu.cuModuleGetFunction(&work, module, "work"), "cuModuleGetFunction");
	must(cu.cuMemGetInfo_v2(&unused, &total), "cuMemGetInfo");
	printf("total_bytes=%zu\nready=1\n", total);
	while (!terminated() && (!wanted || done < wanted)) {
		round_of(work, bytes, refused, total);
		if (++done % 10 == 0) {
			printf("rounds=%ld\n", done);
			fflush(stdout);
		}
		wait_for(pause);
	}
	printf("rounds=%ld\ndone=1\n", done);
	return EXIT_FINE;
}
