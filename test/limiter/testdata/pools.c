/* A script of words about pools, graphs and captures, a line of output for each:
 * "word result", for some words with more. Objects are numbered in the order in which they are made. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
struct props { int type, handles, location, id; void *security; size_t max; unsigned short usage; char rest[54]; };
struct alloc { struct props props; void *access; size_t accesses, size; u64 ptr; u64 spare[8]; };
struct any { int type, zero[3]; union { struct alloc alloc; u64 free; long long room[40]; }; };
struct params { u64 flags; void *stream, *node; int result; };

static void *handle, *streams[16], *pools[300], *graphs[16], *execs[1024], *events[16], *context, *another;
static u64 ptrs[4096];
static int stream_count = 1, pool_count = 1, graph_count, exec_count, event_count, ptr_count;
static int stream, pool, twin;
static char **args;

static void *find(const char *name)
{
	char text[64];

	snprintf(text, sizeof(text), "%s%s", name, twin ? "_ptsz" : "");
	void *found = twin ? dlsym(handle, text) : NULL;
	return found ? found : dlsym(handle, name);
}

#define CALL(name, ...) ({ int (*f_)() = (int (*)())find(#name); f_ ? f_(__VA_ARGS__) : -1; })

static u64 number(void)
{
	return *args ? strtoull(*args++, NULL, 0) : 0;
}

static int took(int r, u64 p)
{
	if (!r)
		ptrs[ptr_count++] = p;
	return r;
}

static void *function(unsigned us)
{
	char ptx[256];
	void *module, *f = NULL;

	snprintf(ptx, sizeof(ptx), ".version 6.3\n.target sm_75\n// sim-duration-us: %u\n.visible .entry k() { ret; }\n", us);
	if (CALL(cuModuleLoadData, &module, ptx) == 0)
		CALL(cuModuleGetFunction, &f, module, "k");
	return f;
}

static int kernel(unsigned us)
{
	return CALL(cuLaunchKernel, function(us), 1, 1, 1, 1, 1, 1, 0, streams[stream], NULL, NULL);
}

/* A green context of 8 multiprocessors, which becomes the current one; or, if there is one, its end. */
static int green(void)
{
	static void *made;
	struct resource { int type; unsigned char rest[140]; } all, some;
	unsigned count = 1;
	void *desc, *as_context;

	if (made) {
		int r = CALL(cuGreenCtxDestroy, made);
		made = r ? made : NULL;
		return r;
	}
	int r = CALL(cuDeviceGetDevResource, 0, &all, 1);
	r = r ? r : CALL(cuDevSmResourceSplitByCount, &some, &count, &all, NULL, 0u, 8u);
	r = r ? r : CALL(cuDevResourceGenerateDesc, &desc, &some, 1u);
	r = r ? r : CALL(cuGreenCtxCreate, &made, desc, 0, 1u);
	r = r ? r : CALL(cuCtxFromGreenCtx, &as_context, made);
	return r ? r : CALL(cuCtxSetCurrent, as_context);
}

/* An allocation node and, unless kept, the node that frees it. */
static int graph_add(void *graph, size_t size, int keep, int any)
{
	struct alloc a = { .props = { .type = 1, .location = 1 }, .size = size };
	struct any n = { .type = 10, .alloc = a };
	void *first, *second;
	int r = any ? CALL(cuGraphAddNode, &first, graph, NULL, (size_t)0, &n) : CALL(cuGraphAddMemAllocNode, &first, graph, NULL, (size_t)0, &a);
	u64 p = any ? n.alloc.ptr : a.ptr;

	if (!r && keep)
		return took(0, p);
	return r ? r : CALL(cuGraphAddMemFreeNode, &second, graph, &first, (size_t)1, p);
}

static void *last_free[sizeof(graphs) / sizeof(*graphs)]; /* of each graph */

/* An allocation, and its end, after what the one before it has ended. */
static int graph_add_after(void *graph, size_t size)
{
	struct alloc a = { .props = { .type = 1, .location = 1 }, .size = size };
	void **last = &last_free[graph_count - 1], *first;
	int r = CALL(cuGraphAddMemAllocNode, &first, graph, last, (size_t)!!*last, &a);

	return r ? r : CALL(cuGraphAddMemFreeNode, last, graph, &first, (size_t)1, a.ptr);
}

static int instantiate(void *graph, int how)
{
	void **exec = &execs[exec_count++];
	struct params p = { .flags = 2, .stream = streams[stream] };

	switch (how) {
	case 0: return CALL(cuGraphInstantiate, exec, graph, NULL, NULL, (size_t)0);
	case 1: return CALL(cuGraphInstantiate_v2, exec, graph, NULL, NULL, (size_t)0);
	case 2: return CALL(cuGraphInstantiateWithFlags, exec, graph, 0ull);
	default: return CALL(cuGraphInstantiateWithParams, exec, graph, &p);
	}
}

static int run(const char *what)
{
	struct props props = { .type = 1, .location = 1 };
	u64 p = 0, a, b;
	size_t x = 0, y = 0;
	int dev = 0, r, status = -1;
	void *extra = NULL;

	if (!strcmp(what, "init"))
		return CALL(cuInit, 0);
	if (!strcmp(what, "ctx"))
		return CALL(cuDevicePrimaryCtxRetain, &context, (int)number()) || CALL(cuCtxSetCurrent, context);
	if (!strcmp(what, "newctx")) /* current until it is gone */
		return CALL(cuCtxCreate_v2, &another, 0u, 0);
	if (!strcmp(what, "gone"))
		return CALL(cuCtxDestroy_v2, another) || CALL(cuCtxSetCurrent, context);
	if (!strcmp(what, "release"))
		return CALL(cuDevicePrimaryCtxRelease_v2, (int)number());
	if (!strcmp(what, "green"))
		return green();
	if (!strcmp(what, "stream"))
		return CALL(cuStreamCreate, &streams[stream_count++], 1u);
	if (!strcmp(what, "use"))
		return stream = (int)number(), 0;
	if (!strcmp(what, "twin"))
		return twin = (int)number(), 0;
	if (!strcmp(what, "mk"))
		return props.id = (int)number(), CALL(cuMemPoolCreate, &pools[pool_count++], &props);
	if (!strcmp(what, "mkhost"))
		return props.location = 2, CALL(cuMemPoolCreate, &pools[pool_count++], &props);
	if (!strcmp(what, "pick"))
		return (pool = (int)number()) ? 0 : CALL(cuDeviceGetDefaultMemPool, &pools[0], 0);
	if (!strcmp(what, "rm"))
		return CALL(cuMemPoolDestroy, pools[pool]);
	if (!strcmp(what, "current"))
		return CALL(cuDeviceSetMemPool, (int)number(), pools[pool]);
	if (!strcmp(what, "trim"))
		return CALL(cuMemPoolTrimTo, pools[pool], (size_t)number());
	if (!strcmp(what, "keep"))
		return p = number(), CALL(cuMemPoolSetAttribute, pools[pool], 4, &p);
	if (!strcmp(what, "reserved")) {
		r = CALL(cuMemPoolGetAttribute, pools[pool], 5, &a) || CALL(cuMemPoolGetAttribute, pools[pool], 7, &b);
		printf("%llu used %llu ", a, b);
		return r;
	}
	if (!strcmp(what, "share")) { /* the pool again, as another process would have it */
		int fd = -1;
		r = CALL(cuMemPoolExportToShareableHandle, &fd, pools[pool], 1, 0ull);
		return r ? r : CALL(cuMemPoolImportFromShareableHandle, &pools[pool_count++], (void *)(intptr_t)fd, 1, 0ull);
	}
	if (!strcmp(what, "async"))
		return r = CALL(cuMemAllocAsync, &p, (size_t)number(), streams[stream]), took(r, p);
	if (!strcmp(what, "from"))
		return r = CALL(cuMemAllocFromPoolAsync, &p, (size_t)number(), pools[pool], streams[stream]), took(r, p);
	if (!strcmp(what, "alloc"))
		return r = CALL(cuMemAlloc_v2, &p, (size_t)number()), took(r, p);
	if (!strcmp(what, "managed"))
		return r = CALL(cuMemAllocManaged, &p, (size_t)number(), 1u), took(r, p);
	if (!strcmp(what, "pitch"))
		return r = CALL(cuMemAllocPitch_v2, &p, &x, (size_t)number(), (size_t)1, 16u), took(r, p);
	if (!strcmp(what, "afree"))
		return CALL(cuMemFreeAsync, ptrs[number()], streams[stream]);
	if (!strcmp(what, "free"))
		return CALL(cuMemFree_v2, ptrs[number()]);
	if (!strcmp(what, "sync"))
		return CALL(cuStreamSynchronize, streams[stream]);
	if (!strcmp(what, "query"))
		return CALL(cuStreamQuery, streams[stream]);
	if (!strcmp(what, "ctxsync"))
		return CALL(cuCtxSynchronize);
	if (!strcmp(what, "event"))
		return CALL(cuEventCreate, &events[event_count++], 2u) || CALL(cuEventRecord, events[event_count - 1], streams[stream]);
	if (!strcmp(what, "await"))
		return CALL(cuStreamWaitEvent, streams[stream], events[event_count - 1], 0);
	if (!strcmp(what, "eventsync"))
		return CALL(cuEventSynchronize, events[event_count - 1]);
	if (!strcmp(what, "kernel"))
		return kernel((unsigned)number());
	if (!strcmp(what, "info")) {
		r = CALL(cuMemGetInfo_v2, &x, &y);
		printf("%zu ", x);
		return r;
	}
	if (!strcmp(what, "attr"))
		return r = CALL(cuDeviceGetAttribute, &status, (int)number(), 0), printf("%d ", status), r;
	if (!strcmp(what, "graph"))
		return CALL(cuGraphCreate, &graphs[graph_count++], 0u);
	if (!strcmp(what, "node"))
		return graph_add(graphs[graph_count - 1], number(), 0, 0);
	if (!strcmp(what, "anynode"))
		return graph_add(graphs[graph_count - 1], number(), 0, 1);
	if (!strcmp(what, "keptnode"))
		return graph_add(graphs[graph_count - 1], number(), 1, 0);
	if (!strcmp(what, "nextnode"))
		return graph_add_after(graphs[graph_count - 1], number());
	if (!strcmp(what, "child"))
		return CALL(cuGraphAddChildGraphNode, &extra, graphs[graph_count - 1], NULL, (size_t)0, graphs[number()]);
	if (!strcmp(what, "freenode"))
		return CALL(cuGraphAddMemFreeNode, &extra, graphs[graph_count - 1], NULL, (size_t)0, ptrs[number()]);
	if (!strcmp(what, "inst"))
		return instantiate(graphs[graph_count - 1], (int)number());
	if (!strcmp(what, "launch"))
		return CALL(cuGraphLaunch, execs[number()], streams[stream]);
	if (!strcmp(what, "upload"))
		return CALL(cuGraphUpload, execs[number()], streams[stream]);
	if (!strcmp(what, "unmake"))
		return CALL(cuGraphExecDestroy, execs[number()]);
	if (!strcmp(what, "gtrim"))
		return CALL(cuDeviceGraphMemTrim, 0);
	if (!strcmp(what, "gmem"))
		return r = CALL(cuDeviceGetGraphMemAttribute, 0, 2, &a), printf("%llu ", a), r;
	if (!strcmp(what, "begin"))
		return CALL(cuStreamBeginCapture_v2, streams[stream], (int)number());
	if (!strcmp(what, "end"))
		return CALL(cuStreamEndCapture, streams[stream], &graphs[graph_count++]);
	if (!strcmp(what, "capturing"))
		return r = CALL(cuStreamIsCapturing, streams[stream], &status), printf("%d ", status), r;
	if (!strcmp(what, "sleep"))
		return fflush(stdout), usleep((unsigned)number() * 1000);
	if (!strcmp(what, "kill"))
		return fflush(stdout), kill(getpid(), SIGKILL);
	fprintf(stderr, "pools: %s?\n", what);
	exit(2);
}

/* "N{ … }" repeats, and prints only the last round's lines. */
int main(int argc, char **argv)
{
	(void)argc;
	setvbuf(stdout, NULL, _IOLBF, 0);
	handle = dlopen("libcuda.so.1", RTLD_NOW);
	for (args = argv + 1; *args;) {
		const char *word = *args++;
		size_t n = strlen(word);

		if (word[n - 1] == '{') { /* prints how many of its calls failed */
			char **body = args;
			int failed = 0;

			for (u64 left = strtoull(word, NULL, 0); left; left--) {
				int mark = ptr_count;
				for (args = body; *args && strcmp(*args, "}");) {
					const char *inner = *args++;
					failed += run(inner) != 0;
				}
				ptr_count = mark;
			}
			args += *args != NULL;
			printf("failed %d\n", failed);
			continue;
		}
		printf("%s ", word);
		printf("%d\n", run(word));
	}
	return 0;
}
