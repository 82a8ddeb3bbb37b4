/* Launches a kernel that takes a given time, again and again. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>

static const char *lookup = "dlsym", *device = "0", *seconds = "1", *duration = "500", *in_flight = "1", *count = "0";

static const struct option_def options[] = {
	{"lookup", &lookup, NULL, "dlsym, getproc or getproc_v2: how to find the driver's functions"},
	{"device", &device, NULL, "CUDA ordinal (0)"},
	{"seconds", &seconds, NULL, "for how long (1)"},
	{"count", &count, NULL, "that many launches and no time limit; 0: go by time"},
	{"duration-us", &duration, NULL, "of one kernel (500)"},
	{"in-flight", &in_flight, NULL, "launches between two waits (1)"},
	{0},
};

/* Spins on the GPU's clock. The comment is for the simulated driver, which runs no code. */
static const char ptx_format[] =
	"//\n"
	".version 6.3\n"
	".target sm_75\n"
	".address_size 64\n"
	"// sim-duration-us: %ld\n"
	".visible .entry spin(.param .u64 ns)\n"
	"{\n"
	"	.reg .u64 %%rd<4>;\n"
	"	.reg .pred %%p<2>;\n"
	"	ld.param.u64 %%rd1, [ns];\n"
	"	mov.u64 %%rd2, %%globaltimer;\n"
	"AGAIN:\n"
	"	mov.u64 %%rd3, %%globaltimer;\n"
	"	sub.u64 %%rd3, %%rd3, %%rd2;\n"
	"	setp.lt.u64 %%p1, %%rd3, %%rd1;\n"
	"	@%%p1 bra AGAIN;\n"
	"	ret;\n"
	"}\n";

static CUfunction load_kernel(long us)
{
	char ptx[1024];
	CUmodule module;
	CUfunction f;

	snprintf(ptx, sizeof(ptx), ptx_format, us);
	must(cu.cuModuleLoadData(&module, ptx), "cuModuleLoadData");
	must(cu.cuModuleGetFunction(&f, module, "spin"), "cuModuleGetFunction");
	return f;
}

static long run(CUfunction f, long us, long batch, long wanted, double limit)
{
	unsigned long long ns = (unsigned long long)us * 1000;
	void *params[] = {&ns};
	double end = monotonic() + limit;
	long launches = 0;

	while (!terminated() && (wanted ? launches < wanted : monotonic() < end)) {
		for (long i = 0; i < batch && (!wanted || launches < wanted); i++, launches++)
			must(cu.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), "cuLaunchKernel");
		must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
	}
	return launches;
}

int main(int argc, char **argv)
{
	CUevent start, stop;
	CUfunction f;
	double begin, took;
	float ms;
	long us, launches;

	parse_options(argc, argv, "launches a kernel again and again", options);
	us = number("duration-us", duration, 1, 60000000);
	catch_term();
	cuda_load(lookup);
	cuda_start((int)number("device", device, 0, 1023));
	f = load_kernel(us);
	must(cu.cuEventCreate(&start, 0), "cuEventCreate");
	must(cu.cuEventCreate(&stop, 0), "cuEventCreate");
	printf("ready=1\n");
	fflush(stdout);
	begin = monotonic();
	must(cu.cuEventRecord(start, NULL), "cuEventRecord");
	launches = run(f, us, number("in-flight", in_flight, 1, 100000), number("count", count, 0, 1000000000),
		       seconds_of("seconds", seconds));
	must(cu.cuEventRecord(stop, NULL), "cuEventRecord");
	must(cu.cuEventSynchronize(stop), "cuEventSynchronize");
	took = monotonic() - begin;
	must(cu.cuEventElapsedTime(&ms, start, stop), "cuEventElapsedTime");
	printf("launches=%ld\nseconds=%.6f\nrate_per_second=%.1f\n", launches, took, (double)launches / took);
	printf("event_ms=%.3f\nkernel_ms=%.3f\n", (double)ms, (double)launches * (double)us / 1e3);
	return EXIT_FINE;
}
