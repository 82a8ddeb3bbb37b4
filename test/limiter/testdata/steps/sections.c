/* What a victim does, and the dead that it meets. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../../testdata/workloads/descriptor.h"
#include "steps.h"

static void mark(void) { raise(SIGUSR1); }

static void join_section(void)
{
	void *context;

	mark();
	CALL(cuInit, 0);
	CALL(cuDevicePrimaryCtxRetain, &context, 0);
	CALL(cuCtxSetCurrent, context);
	mark();
}

static void alloc_section(void)
{
	u64 p = 0;

	set_up();
	mark();
	CALL(cuMemAlloc_v2, &p, (size_t)64 * MIB);
	CALL(cuMemFree_v2, p);
	mark();
}

static void managed_section(void) /* which may lie in the host's memory */
{
	u64 p = 0;

	set_up();
	mark();
	CALL(cuMemAllocManaged, &p, (size_t)64 * MIB, 1u);
	CALL(cuMemFree_v2, p);
	mark();
}

static void refused_section(void) /* by the driver: the reservation is undone */
{
	u64 p = 0;

	set_up();
	mark();
	CALL(cuMemAllocManaged, &p, (size_t)64 * MIB, 77u);
	mark();
}

static void full_section(void) /* by the limit: the slow path */
{
	u64 p = 0;

	set_up();
	mark();
	CALL(cuMemAlloc_v2, &p, (size_t)1020 * MIB);
	mark();
}

static void reap_section(void) /* see corpse() */
{
	u64 p = 0;

	set_up();
	mark();
	CALL(cuMemAlloc_v2, &p, (size_t)700 * MIB);
	mark();
}

static void launch_section(void)
{
	set_up();
	for (int i = 0; i < 4; i++)
		launch();
	CALL(cuCtxSynchronize);
	usleep(20000); /* a new tick: the bucket is refilled, the cost is measured again */
	mark();
	launch();
	launch();
	mark();
}

static void first_launch_section(void)
{
	set_up();
	mark();
	launch();
	mark();
}

static void wait_section(void) /* for its turn */
{
	void *module;

	set_up();
	MUST(cuModuleLoadData, &module, ".version 6.3\n.target sm_75\n// sim-duration-us: 20000\n.visible .entry k() { ret; }\n");
	MUST(cuModuleGetFunction, &function, module, "k");
	launch();
	CALL(cuCtxSynchronize);
	mark();
	launch();
	launch();
	mark();
}

static void pool_section(void)
{
	u64 p = 0;
	void *pool;

	set_up();
	MUST(cuDeviceGetDefaultMemPool, &pool, 0);
	mark();
	CALL(cuMemAllocAsync, &p, (size_t)40 * MIB, NULL);
	CALL(cuMemFreeAsync, p, NULL);
	CALL(cuCtxSynchronize);
	CALL(cuMemPoolTrimTo, pool, (size_t)0);
	mark();
}

static void vmm_section(void)
{
	struct { int type, handles, location, id; void *more; unsigned char flags[8]; } prop = { 1, 0, 1, 0 };
	u64 range = 0, handle = 0;

	set_up();
	MUST(cuMemAddressReserve, &range, (size_t)64 * MIB, (size_t)0, 0ull, 0ull);
	mark();
	CALL(cuMemCreate, &handle, (size_t)32 * MIB, &prop, 0ull);
	CALL(cuMemMap, range, (size_t)32 * MIB, (size_t)0, handle, 0ull);
	CALL(cuMemRelease, handle);
	CALL(cuMemUnmap, range, (size_t)32 * MIB);
	mark();
}

static void export_section(void)
{
	struct { int type, handles, location, id; void *more; unsigned char flags[8]; } prop = { 1, 1, 1, 0 };
	u64 handle = 0, import = 0;
	int fd = -1;

	set_up();
	mark();
	CALL(cuMemCreate, &handle, (size_t)32 * MIB, &prop, 0ull);
	CALL(cuMemExportToShareableHandle, &fd, handle, 1, 0ull);
	CALL(cuMemRelease, handle);
	CALL(cuMemImportFromShareableHandle, &import, (void *)(long)fd, 1);
	CALL(cuMemRelease, import);
	mark();
}

int held = -1;

static void held_section(void) /* reaps, imports what one of the dead exported, and exports it again */
{
	u64 p = 0, import = 0;
	int fd = -1;

	set_up();
	mark();
	CALL(cuMemAlloc_v2, &p, (size_t)950 * MIB);
	CALL(cuMemImportFromShareableHandle, &import, (void *)(long)held, 1);
	CALL(cuMemExportToShareableHandle, &fd, import, 1, 0ull);
	CALL(cuMemRelease, import);
	mark();
}

static void array_section(void)
{
	struct { size_t width, height; int format; unsigned channels; } d = { 2048, 2048, 32, 4 };
	void *array = NULL;

	set_up();
	mark();
	CALL(cuArrayCreate_v2, &array, &d);
	CALL(cuArrayDestroy, array);
	mark();
}

static void context_section(void)
{
	void *context = NULL;

	set_up();
	mark();
	CALL(cuCtxCreate_v2, &context, 0u, 0);
	CALL(cuCtxDestroy_v2, context);
	mark();
}

static void graph_section(void)
{
	struct { struct { int type, handles, location, id; void *security; size_t max; char rest[56]; } props; void *access; size_t accesses, size; u64 ptr, spare[8]; }
		a = { .props = { .type = 1, .location = 1 }, .size = 16 * MIB };
	void *graph, *first, *second, *exec;

	set_up();
	MUST(cuGraphCreate, &graph, 0u);
	MUST(cuGraphAddMemAllocNode, &first, graph, NULL, (size_t)0, &a);
	MUST(cuGraphAddMemFreeNode, &second, graph, &first, (size_t)1, a.ptr);
	MUST(cuGraphInstantiateWithFlags, &exec, graph, 0ull);
	mark();
	CALL(cuGraphLaunch, exec, NULL);
	CALL(cuCtxSynchronize);
	CALL(cuDeviceGraphMemTrim, 0);
	mark();
}

static void suspend_section(void) /* itself */
{
	u64 p = 0;

	set_up();
	MUST(cuMemAlloc_v2, &p, (size_t)600 * MIB);
	mark();
	CALL(cuCheckpointProcessLock, getpid(), NULL);
	CALL(cuCheckpointProcessCheckpoint, getpid(), NULL);
	CALL(cuCheckpointProcessRestore, getpid(), NULL);
	CALL(cuCheckpointProcessUnlock, getpid(), NULL);
	mark();
}

pid_t beside;

static void suspend_other_section(void) /* there is no room for its restore at first */
{
	u64 p = 0;

	set_up();
	mark();
	CALL(cuCheckpointProcessLock, beside, NULL);
	CALL(cuCheckpointProcessCheckpoint, beside, NULL);
	CALL(cuMemAlloc_v2, &p, (size_t)500 * MIB);
	CALL(cuCheckpointProcessRestore, beside, NULL);
	CALL(cuMemFree_v2, p);
	CALL(cuCheckpointProcessRestore, beside, NULL);
	CALL(cuCheckpointProcessUnlock, beside, NULL);
	mark();
}

struct ipc_handle { char bytes[64]; } shared;
pid_t maker;
static int other; /* a socket to the companion */

static int open_shared(u64 *p)
{
	int (*open)(u64 *, struct ipc_handle, unsigned) = find("cuIpcOpenMemHandle_v2");

	return open(p, shared, 1u);
}

static void ipc_open_section(void) /* the maker ends meanwhile */
{
	u64 p = 0, again = 0, more = 0;

	set_up();
	mark();
	open_shared(&p);
	open_shared(&again);
	CALL(cuIpcCloseMemHandle, again);
	kill(maker, SIGKILL);
	CALL(cuMemAlloc_v2, &more, (size_t)900 * MIB);
	CALL(cuIpcCloseMemHandle, p);
	mark();
}

static void ipc_free_section(void) /* the companion has it open */
{
	char one;
	u64 p = 0;

	set_up();
	mark();
	CALL(cuMemAlloc_v2, &p, (size_t)64 * MIB);
	CALL(cuIpcGetMemHandle, &shared, p);
	if (write(other, &shared, sizeof(shared)) != sizeof(shared) || read(other, &one, 1) != 1)
		must(1, "the companion");
	CALL(cuMemFree_v2, p);
	CALL(cuMemAlloc_v2, &p, (size_t)64 * MIB);
	CALL(cuIpcGetMemHandle, &shared, p);
	CALL(cuMemFree_v2, p);
	mark();
}

/* Opens what the victim makes. */
static void open_and_wait(int socket)
{
	u64 p;

	if (read(socket, &shared, sizeof(shared)) == sizeof(shared)) {
		must(open_shared(&p), "cuIpcOpenMemHandle_v2");
		if (write(socket, "", 1) != 1)
			must(1, "the victim");
	}
	for (;;)
		pause();
}

static void born_to_hold(void)
{
	int ends[2];
	char one;

	if (other)
		close(other);
	socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
	beside = fork();
	if (!beside) {
		close(ends[0]);
		set_up();
		if (write(ends[1], "", 1) != 1)
			must(1, "companion");
		open_and_wait(ends[1]);
	}
	close(ends[1]);
	other = ends[0];
	if (read(other, &one, 1) != 1)
		must(1, "companion");
}

static void born_to_make(void)
{
	int ready[2];
	u64 p;

	if (pipe(ready))
		must(1, "pipe");
	maker = fork();
	if (!maker) {
		set_up();
		MUST(cuMemAlloc_v2, &p, (size_t)64 * MIB);
		MUST(cuIpcGetMemHandle, &shared, p);
		if (write(ready[1], &shared, sizeof(shared)) != sizeof(shared))
			must(1, "maker");
		for (;;)
			pause();
	}
	close(ready[1]);
	if (read(ready[0], &shared, sizeof(shared)) != sizeof(shared))
		must(1, "maker");
	close(ready[0]);
}

void end_maker(void)
{
	if (!maker)
		return;
	kill(maker, SIGKILL);
	waitpid(maker, NULL, 0);
	maker = 0;
}

/* One that lives on. */
void companion(const char *section)
{
	if (!strcmp(section, "ipc-free")) {
		born_to_hold();
		return;
	}
	if (!strcmp(section, "ipc-open")) {
		born_to_make();
		return;
	}
	bool shares = !strcmp(section, "suspend-ipc");
	if (!shares && strcmp(section, "suspend-other"))
		return;
	int ready[2];
	char one;
	u64 p;

	if (pipe(ready))
		must(1, "pipe");
	beside = fork();
	if (!beside) {
		set_up();
		MUST(cuMemAlloc_v2, &p, (size_t)600 * MIB);
		if (shares)
			MUST(cuIpcGetMemHandle, &shared, p);
		close(ready[1]);
		for (;;)
			pause();
	}
	close(ready[1]);
	if (read(ready[0], &one, 1))
		must(1, "companion");
	close(ready[0]);
}

void end_companion(void)
{
	if (!beside)
		return;
	kill(beside, SIGKILL);
	waitpid(beside, NULL, 0);
	beside = 0;
}

/* One of the dead. Of some of its memory a descriptor is held, which the victim inherits. */
void corpse(bool exports)
{
	struct { int type, handles, location, id; void *more; unsigned char flags[8]; } prop = { 1, 1, 1, 0 };
	int ends[2], fd;
	u64 p;

	socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
	pid_t child = fork();
	if (!child) {
		set_up();
		MUST(cuMemAlloc_v2, &p, (size_t)600 * MIB);
		if (exports) {
			MUST(cuMemCreate, &p, (size_t)64 * MIB, &prop, 0ull);
			MUST(cuMemExportToShareableHandle, &fd, p, 1, 0ull);
			send_descriptor(ends[1], fd);
		}
		raise(SIGKILL);
	}
	close(ends[1]);
	held = receive_descriptor(ends[0]);
	close(ends[0]);
	waitpid(child, NULL, 0);
}

static const struct section sections[] = {
	{ "join", join_section }, { "alloc", alloc_section }, { "refused", refused_section }, { "full", full_section },
	{ "reap", reap_section }, { "launch", launch_section }, { "first-launch", first_launch_section },
	{ "wait", wait_section }, { "pool", pool_section }, { "vmm", vmm_section }, { "export", export_section }, { "held", held_section }, { "array", array_section },
	{ "context", context_section }, { "graph", graph_section }, { "managed", managed_section },
	{ "ipc-open", ipc_open_section }, { "ipc-free", ipc_free_section },
	{ "suspend", suspend_section }, { "suspend-other", suspend_other_section },
	{ "suspend-ipc", suspend_other_section },
};

const struct section *section_of(const char *name)
{
	for (size_t i = 0; i < sizeof(sections) / sizeof(*sections); i++)
		if (!strcmp(sections[i].name, name))
			return &sections[i];
	fprintf(stderr, "steps: no section %s\n", name);
	exit(2);
}
