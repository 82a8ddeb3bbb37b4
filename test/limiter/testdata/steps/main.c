/* Kills a process at every step of what it does, beside others that live on.
 *
 *   steps survive
 *       allocates and launches a little all the time, and executes commands from its
 *       standard input: p frees everything and waits, f BYTES allocates so much,
 *       l launches, g continues. The answer to each is its result, and the longest
 *       time that a call took since the last answer, in us.
 *
 *   steps kill <usage file> <first> <instructions|stores> <most> <section>
 *       forks a victim that runs the section, steps it through and counts its steps
 *       ("steps N"), then kills a fresh victim after step 1, one after step 2, ... (at
 *       most so many, evenly). After each it prints "killed at STEP: where" and waits for
 *       a line. The slots from the first on are watched for what the victim writes. If the section
 *       is about another process, which lives on, " beside PID" follows, that process ends after a line
 *       more, and then it prints "ended".
 *
 * A step is an instruction of the library; or, with "stores", one after which another process
 * can see a difference: a locked instruction, a system call, a change of a watched slot,
 * or that the library is entered or left (the driver has done something). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "steps.h"

static void *driver;
static struct known_name { const char *name; void *function; } names[64];

/* Looked up once, by set_up() all of them: only the join is stepped through look-ups. */
void *find(const char *name)
{
	struct known_name *n = names;

	while (n->name && strcmp(n->name, name))
		n++;
	if (!n->name) {
		n->function = dlsym(driver, name);
		n->name = name;
	}
	return n->function;
}

void must(int r, const char *what)
{
	if (r) {
		fprintf(stderr, "steps: %s: %d\n", what, r);
		exit(1);
	}
}

void *function;

void set_up(void)
{
	static const char *const all[] = { "cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocManaged", "cuLaunchKernel", "cuCtxSynchronize",
		"cuMemAllocAsync", "cuMemFreeAsync", "cuMemPoolTrimTo", "cuMemCreate", "cuMemMap", "cuMemRelease", "cuMemUnmap",
		"cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle",
		"cuArrayCreate_v2", "cuArrayDestroy", "cuCtxCreate_v2", "cuCtxDestroy_v2", "cuGraphLaunch", "cuDeviceGraphMemTrim",
		"cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore", "cuCheckpointProcessUnlock" };
	void *context, *module;

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		find(all[i]);
	MUST(cuInit, 0);
	MUST(cuDevicePrimaryCtxRetain, &context, 0);
	MUST(cuCtxSetCurrent, context);
	MUST(cuModuleLoadData, &module, ".version 6.3\n.target sm_75\n// sim-duration-us: 200\n.visible .entry k() { ret; }\n");
	MUST(cuModuleGetFunction, &function, module, "k");
}

int launch(void)
{
	return CALL(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver)
		must(1, dlerror());
	if (argc == 2 && !strcmp(argv[1], "survive"))
		return survive();
	if (argc == 7 && !strcmp(argv[1], "kill"))
		return kill_at_steps(argv + 2);
	return 2;
}
