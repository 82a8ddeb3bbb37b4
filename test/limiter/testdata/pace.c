/* Launches kernels for some time and prints the results:
 *
 *   pace <seconds> <sync|async|queue|event|graph> <us>[,<us>...] [threads] [first-ms]
 *
 * sync waits for each launch, async for none, queue after every 16; event waits for an event of its own behind each, one in 16
 * for a new one; graph launches graphs
 * of all the kernels (eight times each if they are short) and waits for none. Prints launches,
 * the GPU's time that they took, the wall time until all was done (both ns), and the
 * longest that one call of cuLaunchKernel took, in the first milliseconds if given.
 * After SIGTERM it launches no more. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream, *CUevent, *CUgraph, *CUgraphExec;
int cuInit(unsigned), cuDevicePrimaryCtxRetain(CUcontext *, int), cuCtxSetCurrent(CUcontext), cuCtxSynchronize(void);
int cuModuleLoadData(CUmodule *, const void *), cuModuleGetFunction(CUfunction *, CUmodule, const char *);
int cuStreamCreate(CUstream *, unsigned), cuStreamSynchronize(CUstream);
int cuEventCreate(CUevent *, unsigned), cuEventDestroy_v2(CUevent), cuEventRecord(CUevent, CUstream), cuEventQuery(CUevent), cuEventSynchronize(CUevent);
int cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
int cuStreamBeginCapture_v2(CUstream, int), cuStreamEndCapture(CUstream, CUgraph *), cuGraphLaunch(CUgraphExec, CUstream);
int cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);

enum { MOST = 8, SHORT_NS = 1000000 };
static CUcontext context;
static CUfunction functions[MOST];
static uint64_t durations[MOST], end_ns, first_ns;
static int kinds;
static const char *how;
static volatile sig_atomic_t stopped;
static _Atomic uint64_t launches, busy, longest;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void stop(int number)
{
	(void)number;
	stopped = 1;
}

static void must(int result, const char *what)
{
	if (result) {
		fprintf(stderr, "%s: %d\n", what, result);
		exit(1);
	}
}

static void load(char *list)
{
	for (char *one = strtok(list, ","); one; one = strtok(NULL, ","), kinds++) {
		char text[256];
		CUmodule module;

		durations[kinds] = strtoull(one, NULL, 10) * 1000;
		snprintf(text, sizeof(text), "//\n.version 6.3\n.target sm_75\n// sim-duration-us: %s\n.visible .entry k()\n{ ret; }\n", one);
		must(cuModuleLoadData(&module, text), "cuModuleLoadData");
		must(cuModuleGetFunction(&functions[kinds], module, "k"), "cuModuleGetFunction");
	}
}

static int launch(int kind, CUstream stream)
{
	return cuLaunchKernel(functions[kind], 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

/* A graph of all kernels; *ns is what it takes. */
static CUgraphExec make_graph(CUstream stream, uint64_t *ns)
{
	CUgraphExec exec;
	CUgraph graph;

	*ns = 0;
	must(cuStreamBeginCapture_v2(stream, 2), "cuStreamBeginCapture_v2");
	for (int kind = 0; kind < kinds; kind++)
		for (int i = durations[kind] < SHORT_NS ? 8 : 1; i > 0; i--, *ns += durations[kind])
			must(launch(kind, stream), "cuLaunchKernel");
	must(cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
	must(cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiateWithFlags");
	return exec;
}

static void wait_for_event(CUevent *event, uint64_t i, CUstream stream)
{
	if (i % 16 == 0) {
		if (*event)
			must(cuEventDestroy_v2(*event), "cuEventDestroy_v2");
		must(cuEventCreate(event, 2), "cuEventCreate");
	}
	must(cuEventRecord(*event, stream), "cuEventRecord");
	cuEventQuery(*event);
	must(cuEventSynchronize(*event), "cuEventSynchronize");
}

static void *run(void *arg)
{
	CUevent event = NULL;
	CUgraphExec exec = NULL;
	uint64_t graph_ns = 0;
	CUstream stream;

	(void)arg;
	must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	must(cuStreamCreate(&stream, 1), "cuStreamCreate");
	if (how[0] == 'g')
		exec = make_graph(stream, &graph_ns);
	for (uint64_t i = 0, begin = now(), start; (start = now()) < end_ns && !stopped; i++) {
		int kind = (int)(i % (uint64_t)kinds);

		must(exec ? cuGraphLaunch(exec, stream) : launch(kind, stream), "launch");
		uint64_t took = now() - start, seen = longest;
		while ((!first_ns || start - begin < first_ns) && took > seen && !atomic_compare_exchange_weak(&longest, &seen, took))
			;
		launches++;
		busy += exec ? graph_ns : durations[kind];
		if (how[0] == 's' || (how[0] == 'q' && i % 16 == 15))
			must(cuStreamSynchronize(stream), "cuStreamSynchronize");
		if (how[0] == 'e')
			wait_for_event(&event, i, stream);
	}
	must(cuStreamSynchronize(stream), "cuStreamSynchronize");
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[64];
	int count = argc > 4 ? atoi(argv[4]) : 1;

	signal(SIGTERM, stop);
	how = argv[2];
	first_ns = argc > 5 ? strtoull(argv[5], NULL, 10) * 1000000 : 0;
	must(cuInit(0), "cuInit");
	must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
	must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	load(argv[3]);
	uint64_t begin = now();
	end_ns = begin + (uint64_t)(atof(argv[1]) * 1e9);
	for (int i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, run, NULL);
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	printf("%llu %llu %llu %llu\n", (unsigned long long)launches, (unsigned long long)busy,
	       (unsigned long long)(now() - begin), (unsigned long long)longest);
	return 0;
}
