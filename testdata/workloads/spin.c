/*
 * Keeps a GPU busy with kernels of a given length, or a mix, from synchronous or asynchronous launches, and prints how
 * much time of the GPU it got. Without other processes on the GPU that result is "solo", the reference for a share. Runs on
 * a real GPU too.
 */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_KINDS 8
#define MAX_STREAMS 32

static const char *lookup = "dlsym", *device = "0", *seconds = "2", *kernels = "500", *mode = "async", *call = "kernel",
		  *think = "0", *window = "20", *blocks = "1", *streams = "0", *kernel = "each";

static const struct option_def options[] = {
	{"lookup", &lookup, NULL, "dlsym, getproc or getproc_v2: how to find the driver's functions"},
	{"device", &device, NULL, "CUDA ordinal (0)"},
	{"seconds", &seconds, NULL, "for how long (2)"},
	{"kernels-us", &kernels, NULL, "durations of the kernels, in turn, as 5,500,50000; mix is that (500)"},
	{"mode", &mode, NULL, "async: as many launches as fit into the window; sync: wait for each (async)"},
	{"call", &call, NULL, "kernel, ex, cooperative or legacy: how to launch (kernel)"},
	{"window-ms", &window, NULL, "kernel time that async has in flight (20)"},
	{"blocks", &blocks, NULL, "of each kernel's grid (1)"},
	{"streams", &streams, NULL, "that launches go to in turn; 0: the default stream (0)"},
	{"kernel", &kernel, NULL, "each: a kernel for each duration; one: the same for all, its parameter decides (each)"},
	{"think-us", &think, NULL, "sync: pause between a kernel and the next launch (0)"},
	{0},
};

/* Each kind of kernel is an entry of its own, or all have the first: the comment is for the simulated driver, which runs no code. */
static const char head[] = ".version 6.3\n.target sm_75\n.address_size 64\n";
static const char entry_format[] =
	"// sim-duration-%s: %ld\n"
	".visible .entry spin%d(.param .u64 ns)\n"
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

struct kind {
	CUfunction function;
	unsigned long long ns;
	unsigned long launches;
};

static struct kind kinds[MAX_KINDS];
static int kind_count;
static CUstream stream_list[MAX_STREAMS];
static long stream_count;
static unsigned grid;
static enum { CALL_KERNEL, CALL_EX, CALL_COOPERATIVE, CALL_LEGACY } how;

static void read_kinds(void)
{
	char copy[256];
	char *rest = copy, *text;

	snprintf(copy, sizeof(copy), "%s", strcmp(kernels, "mix") ? kernels : "5,500,50000");
	while ((text = strtok_r(rest, ",", &rest))) {
		if (kind_count == MAX_KINDS) {
			fprintf(stderr, "--kernels-us: at most %d\n", MAX_KINDS);
			exit(EXIT_USAGE);
		}
		kinds[kind_count++].ns = (unsigned long long)number("kernels-us", text, 1, 60000000) * 1000;
	}
	if (!kind_count)
		number("kernels-us", kernels, 1, 60000000);
}

static void read_call(void)
{
	static const char *const names[] = {"kernel", "ex", "cooperative", "legacy"};

	for (int i = 0; i < 4; i++) {
		if (!strcmp(call, names[i])) {
			how = i;
			return;
		}
	}
	fprintf(stderr, "--call: kernel, ex, cooperative or legacy\n");
	exit(EXIT_USAGE);
}

static void load_kernels(void)
{
	static char ptx[sizeof(head) + MAX_KINDS * (sizeof(entry_format) + 32)];
	bool one = !strcmp(kernel, "one");
	char name[16];
	CUmodule module;
	int used = snprintf(ptx, sizeof(ptx), "%s", head);

	for (int i = 0; i < kind_count; i++)
		used += snprintf(ptx + used, sizeof(ptx) - (size_t)used, entry_format, one ? "parameter-ns" : "us",
				 one ? 0 : (long)(kinds[i].ns / 1000), i);
	must(cu.cuModuleLoadData(&module, ptx), "cuModuleLoadData");
	for (int i = 0; i < kind_count; i++) {
		snprintf(name, sizeof(name), "spin%d", one ? 0 : i);
		must(cu.cuModuleGetFunction(&kinds[i].function, module, name), "cuModuleGetFunction");
	}
}

static void launch_legacy(struct kind *k, CUstream s)
{
	must(cu.cuFuncSetBlockShape(k->function, 1, 1, 1), "cuFuncSetBlockShape");
	must(cu.cuParamSetSize(k->function, sizeof(k->ns)), "cuParamSetSize");
	must(cu.cuParamSetv(k->function, 0, &k->ns, sizeof(k->ns)), "cuParamSetv");
	must(cu.cuLaunchGridAsync(k->function, (int)grid, 1, s), "cuLaunchGridAsync");
}

static void make_streams(void)
{
	stream_count = number("streams", streams, 0, MAX_STREAMS);
	for (long i = 0; i < stream_count; i++)
		must(cu.cuStreamCreate(&stream_list[i], 0), "cuStreamCreate");
}

static void launch(struct kind *k)
{
	static long next;
	CUstream s = stream_count ? stream_list[next++ % stream_count] : NULL;
	void *params[] = {&k->ns};
	CUlaunchConfig config = {.gridDimX = grid, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1,
				 .hStream = s};

	k->launches++;
	if (how == CALL_KERNEL)
		must(cu.cuLaunchKernel(k->function, grid, 1, 1, 1, 1, 1, 0, s, params, NULL), "cuLaunchKernel");
	else if (how == CALL_EX)
		must(cu.cuLaunchKernelEx(&config, k->function, params, NULL), "cuLaunchKernelEx");
	else if (how == CALL_COOPERATIVE)
		must(cu.cuLaunchCooperativeKernel(k->function, grid, 1, 1, 1, 1, 1, 0, s, params), "cuLaunchCooperativeKernel");
	else
		launch_legacy(k, s);
}

static void run_sync(double end)
{
	double pause = (double)number("think-us", think, 0, 60000000) / 1e6;

	for (int i = 0; !terminated() && monotonic() < end; i = (i + 1) % kind_count) {
		launch(&kinds[i]);
		must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
		if (pause > 0)
			wait_for(pause);
	}
}

/* Two halves of the window, each with an event at its end: one is filled while the GPU works on the other. */
static void run_async(double end)
{
	unsigned long long half = (unsigned long long)number("window-ms", window, 1, 60000) * 500000;
	CUevent full[2];
	int next = 0;

	must(cu.cuEventCreate(&full[0], CU_EVENT_DISABLE_TIMING), "cuEventCreate");
	must(cu.cuEventCreate(&full[1], CU_EVENT_DISABLE_TIMING), "cuEventCreate");
	for (int i = 0; !terminated() && monotonic() < end; i = !i) {
		unsigned long long queued = 0;

		must(cu.cuEventSynchronize(full[i]), "cuEventSynchronize");
		while (queued < half) {
			launch(&kinds[next]);
			queued += kinds[next].ns;
			next = (next + 1) % kind_count;
		}
		must(cu.cuEventRecord(full[i], NULL), "cuEventRecord");
	}
}

static void report(double took, double event_ms)
{
	unsigned long launches = 0;
	double ns = 0;

	for (int i = 0; i < kind_count; i++) {
		launches += kinds[i].launches;
		ns += (double)kinds[i].launches * (double)kinds[i].ns;
		printf("launches_%llu_us=%lu\n", kinds[i].ns / 1000, kinds[i].launches);
	}
	printf("launches=%lu\nseconds=%.6f\nrate_per_second=%.1f\n", launches, took, (double)launches / took);
	printf("gpu_ms=%.3f\ngpu_share=%.5f\nevent_ms=%.3f\n", ns / 1e6, ns / 1e9 / took, event_ms);
}

int main(int argc, char **argv)
{
	CUevent start, stop;
	double begin, limit, took;
	float ms;

	parse_options(argc, argv, "keeps a GPU busy and prints how much of its time it got", options);
	read_kinds();
	read_call();
	limit = seconds_of("seconds", seconds);
	if (strcmp(mode, "sync") != 0 && strcmp(mode, "async") != 0) {
		fprintf(stderr, "--mode: sync or async\n");
		return EXIT_USAGE;
	}
	if (strcmp(kernel, "each") != 0 && (strcmp(kernel, "one") != 0 || how == CALL_LEGACY)) {
		fprintf(stderr, "--kernel: each, or one without legacy launches\n");
		return EXIT_USAGE;
	}
	grid = (unsigned)number("blocks", blocks, 1, 65535);
	catch_term();
	cuda_load(lookup);
	if ((how == CALL_EX && !cu.cuLaunchKernelEx) || (how == CALL_LEGACY && !cu.cuLaunchGridAsync)) {
		fprintf(stderr, "the driver has no such launches\n");
		return EXIT_DRIVER;
	}
	cuda_start((int)number("device", device, 0, 1023));
	load_kernels();
	make_streams();
	must(cu.cuEventCreate(&start, 0), "cuEventCreate");
	must(cu.cuEventCreate(&stop, 0), "cuEventCreate");
	printf("ready=1\n");
	fflush(stdout);
	begin = monotonic();
	must(cu.cuEventRecord(start, NULL), "cuEventRecord");
	if (strcmp(mode, "sync") == 0)
		run_sync(begin + limit);
	else
		run_async(begin + limit);
	must(cu.cuEventRecord(stop, NULL), "cuEventRecord");
	must(cu.cuEventSynchronize(stop), "cuEventSynchronize");
	took = monotonic() - begin;
	must(cu.cuEventElapsedTime(&ms, start, stop), "cuEventElapsedTime");
	report(took, (double)ms);
	return EXIT_FINE;
}
