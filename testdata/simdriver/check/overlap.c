#define _GNU_SOURCE
#include "check.h"
#include "../graph_api.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define MS 1000000ull
#define EXACT 0.001
#define STREAMS 8
#define MULTIPROCESSORS 132 /* of an H200 */

static const char ptx[] = ".version 6.3\n"
			  ".target sm_75\n"
			  "// sim-duration-parameter-ns: 1\n"
			  ".visible .entry kernel(.param .u64 unused, .param .u64 ns) { ret; }\n";

static CUfunction kernel;

static void begin(void)
{
	CUmodule module;

	start();
	FINE(cuModuleLoadData(&module, ptx));
	FINE(cuModuleGetFunction(&kernel, module, "kernel"));
}

static void launch(CUstream s, unsigned blocks, unsigned long long ns)
{
	unsigned long long unused = 0;
	void *params[] = {&unused, &ns};

	FINE(cuLaunchKernel(kernel, blocks, 1, 1, 32, 1, 1, 0, s, params, NULL));
}

static CUevent recorded(CUstream s)
{
	CUevent e;

	FINE(cuEventCreate(&e, 0));
	FINE(cuEventRecord(e, s));
	return e;
}

static double elapsed(CUevent from, CUevent to)
{
	float ms;

	FINE(cuEventSynchronize(to));
	FINE(cuEventElapsedTime(&ms, from, to));
	return (double)ms;
}

static bool near(double ms, double wanted)
{
	return ms > wanted - EXACT && ms < wanted + EXACT;
}

/* Launched behind a kernel that is long enough for this machine, so that all begin together. */
static CUevent hold_up(CUstream streams[], int count)
{
	CUevent all;

	launch(NULL, 1, 300 * MS);
	all = recorded(NULL);
	for (int i = 0; i < count; i++)
		FINE(cuStreamWaitEvent(streams[i], all, 0));
	return all;
}

static bool held(CUevent all)
{
	return cuEventQuery(all) == CUDA_ERROR_NOT_READY;
}

/* When the last of the streams is done with two kernels of 10 ms each, and what the events of the first stream report of one. */
static double run_in_streams(CUstream streams[], unsigned blocks, double *pair)
{
	CUevent all, begins[STREAMS], ends[STREAMS];
	double last = 0;

	do {
		all = hold_up(streams, STREAMS);
		for (int i = 0; i < STREAMS; i++) {
			launch(streams[i], blocks, 10 * MS);
			begins[i] = recorded(streams[i]);
			launch(streams[i], blocks, 10 * MS);
			ends[i] = recorded(streams[i]);
		}
	} while (!held(all));
	for (int i = 0; i < STREAMS; i++) {
		double end = elapsed(all, ends[i]);

		last = end > last ? end : last;
	}
	*pair = elapsed(begins[0], ends[0]);
	return last;
}

void check_overlap(void)
{
	CUstream streams[STREAMS];
	double pair;

	begin();
	for (int i = 0; i < STREAMS; i++)
		FINE(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
	CHECK(near(run_in_streams(streams, 1, &pair), 20) && near(pair, 10));
	CHECK(near(run_in_streams(streams, MULTIPROCESSORS / STREAMS, &pair), 20) && near(pair, 10));
	CHECK(near(run_in_streams(streams, MULTIPROCESSORS * 10, &pair), 160) && pair >= 10);
}

/* Prints whether the kernels of all streams began together, which they did if they were launched in time. */
static void run_streams_once(unsigned blocks)
{
	CUstream streams[STREAMS];
	CUevent all;

	begin();
	for (int i = 0; i < STREAMS; i++)
		FINE(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
	all = hold_up(streams, STREAMS);
	for (int i = 0; i < 2 * STREAMS; i++)
		launch(streams[i % STREAMS], blocks, 10 * MS);
	printf("together=%d\n", held(all));
	FINE(cuCtxSynchronize());
}

void check_streams_small(void)
{
	run_streams_once(MULTIPROCESSORS / STREAMS);
}

void check_streams_large(void)
{
	run_streams_once(MULTIPROCESSORS);
}

/* A small kernel runs beside a large one, which has the rest. */
void check_overlap_unequal(void)
{
	CUevent all, small, large;
	CUstream streams[2];

	begin();
	for (int i = 0; i < 2; i++)
		FINE(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
	do {
		all = hold_up(streams, 2);
		launch(streams[0], MULTIPROCESSORS / 2, 20 * MS);
		small = recorded(streams[0]);
		launch(streams[1], MULTIPROCESSORS, 30 * MS);
		large = recorded(streams[1]);
	} while (!held(all));
	CHECK(near(elapsed(all, small), 20));
	CHECK(near(elapsed(all, large), 40)); /* 20 ms at half its speed, and 20 */
}

static CUgraphNode node(CUgraph graph, unsigned blocks, unsigned long long ns, const CUgraphNode *deps, size_t count)
{
	unsigned long long unused = 0;
	void *params[] = {&unused, &ns};
	CUDA_KERNEL_NODE_PARAMS p = {.func = kernel, .gridDimX = blocks, .gridDimY = 1, .gridDimZ = 1,
				     .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1, .kernelParams = params};
	CUgraphNode n;

	FINE(cuGraphAddKernelNode_v2(&n, graph, deps, count, &p));
	FINE(cuGraphKernelNodeGetParams_v2(n, &p));
	FINE(cuGraphKernelNodeSetParams_v2(n, &p)); /* with its own arguments */
	return n;
}

/* One kernel, four that depend on it, and one that depends on them: 3, 5 and 2 ms. */
static double run_graph(unsigned blocks, bool as_child)
{
	CUgraph graph, outer;
	CUgraphNode first, branches[4], child;
	CUgraphExec exec;
	CUevent all, end;

	FINE(cuGraphCreate(&graph, 0));
	first = node(graph, 1, 3 * MS, NULL, 0);
	for (int i = 0; i < 4; i++)
		branches[i] = node(graph, blocks, 5 * MS, &first, 1);
	node(graph, 1, 2 * MS, branches, 4);
	FINE(cuGraphCreate(&outer, 0));
	FINE(cuGraphAddChildGraphNode(&child, outer, NULL, 0, graph));
	FINE(cuGraphInstantiateWithFlags(&exec, as_child ? outer : graph, 0));
	do {
		all = hold_up(NULL, 0);
		FINE(cuGraphLaunch(exec, NULL));
		end = recorded(NULL);
	} while (!held(all));
	return elapsed(all, end);
}

void check_graph_overlap(void)
{
	begin();
	CHECK(near(run_graph(1, false), 10));
	CHECK(near(run_graph(1, true), 10));
	CHECK(near(run_graph(MULTIPROCESSORS, false), 25));
}

/* The same function and grid, with other data: by parameters, and in a buffer. */
void check_data_decides(void)
{
	unsigned long long buffer[] = {0, 7 * MS};
	size_t size = sizeof(buffer);
	void *extra[] = {(void *)1, buffer, (void *)2, &size, NULL};
	CUevent all, a, b, c;

	begin();
	do {
		all = hold_up(NULL, 0);
		launch(NULL, 1, 1 * MS);
		a = recorded(NULL);
		launch(NULL, 1, 50 * MS);
		b = recorded(NULL);
		FINE(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
		c = recorded(NULL);
	} while (!held(all));
	CHECK(near(elapsed(all, a), 1));
	CHECK(near(elapsed(a, b), 50));
	CHECK(near(elapsed(b, c), 7));
}

static _Atomic pid_t waiter;

static void *wait_for_all(void *ctx)
{
	FINE(cuCtxSetCurrent(ctx));
	atomic_store(&waiter, gettid());
	cuCtxSynchronize();
	return NULL;
}

/* It is in its wait, or soon will be. */
static bool sleeps(pid_t thread)
{
	char path[64], state = 0;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)thread);
	in = thread ? fopen(path, "r") : NULL;
	if (!in)
		return false;
	CHECK(fscanf(in, "%*d (%*[^)]) %c", &state) == 1);
	fclose(in);
	return state == 'S';
}

static void never(void *data)
{
	(void)data;
	CHECK(!"called");
}

/* It ends with the context of it, and so do waits for it; what the host was to do then is not done. The next one has the GPU. */
void check_never_ends(void)
{
	pthread_t waiting;
	CUstream s;
	CUcontext ctx;

	begin();
	FINE(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	launch(s, MULTIPROCESSORS, ~0ull);
	FINE(cuLaunchHostFunc(s, never, NULL));
	FINE(cuCtxGetCurrent(&ctx));
	CHECK(!pthread_create(&waiting, NULL, wait_for_all, ctx));
	while (!sleeps(atomic_load(&waiter)))
		usleep(1000);
	launch(NULL, MULTIPROCESSORS, 1);
	GIVES(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
	FINE(cuDevicePrimaryCtxReset_v2(0));
	CHECK(!pthread_join(waiting, NULL));
	begin();
	FINE(cuCtxSynchronize());
	FINE(cuCtxCreate_v2(&ctx, 0, 0));
	begin();
	launch(NULL, MULTIPROCESSORS, 1);
	FINE(cuCtxSynchronize());
	FINE(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	launch(s, 1, ~0ull);
	launch(NULL, MULTIPROCESSORS, 1); /* beside it there is room */
	FINE(cuStreamSynchronize(NULL));
	GIVES(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
}

/* Waits for a kernel that never ends; the test kills it. */
void check_waits_forever(void)
{
	begin();
	launch(NULL, MULTIPROCESSORS, ~0ull);
	puts("ready=1");
	fflush(stdout);
	cuCtxSynchronize();
}

/* Prints what a pair of events reports with nothing between them, and around a kernel of 5 us. */
void check_event_cost(void)
{
	CUevent all, a, b, c, untimed;

	begin();
	FINE(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
	do {
		all = hold_up(NULL, 0);
		a = recorded(NULL);
		b = recorded(NULL);
		launch(NULL, 1, 5000);
		FINE(cuEventRecord(untimed, NULL));
		c = recorded(NULL);
	} while (!held(all));
	printf("empty_ns=%.0f\nkernel_ns=%.0f\n", elapsed(a, b) * 1e6, elapsed(b, c) * 1e6);
}
