/* SIGNALS [KIND]: does a kind of calls again and again, and a signal handler that interrupts it does the same. Prints the bytes
 * that are free at the end.
 *
 *   linear    allocates and frees memory
 *   ipc       opens and closes memory of another process
 *   virtual   makes virtual memory, maps it, and frees both in either order
 *   imported  imports virtual memory that the process has exported, and frees it
 *   launch    launches a kernel */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>

typedef unsigned long long ptr_t;

struct ipc_handle { unsigned char bytes[64]; };

enum { MOST_WAITS = 1000 }; /* of one call in the handler; a lock of its own thread is waited for 15,000 times */

static int (*alloc)(ptr_t *, size_t), (*release)(ptr_t);
static int (*open_handle)(ptr_t *, struct ipc_handle, unsigned), (*close_handle)(ptr_t);
static int (*create)(ptr_t *, size_t, const void *, ptr_t), (*map)(ptr_t, size_t, size_t, ptr_t, ptr_t), (*unmap)(ptr_t, size_t);
static int (*give)(ptr_t), (*export_fd)(int *, ptr_t, int, ptr_t), (*import)(ptr_t *, void *, int);
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static volatile int signals, failures, wanted;
static const struct itimerval soon = { { 0, 0 }, { 0, 50 } };
static struct { int type, handles; struct { int type, id; } place; void *windows; unsigned char flags[8]; } prop = { 1, 1, { 1, 0 } };
static int exported;

static int linear(void)
{
	ptr_t p;

	return alloc(&p, 4096) || release(p);
}

static int ipc(void)
{
	struct ipc_handle handle = { { 0 } };
	ptr_t p;
	int r = open_handle(&p, handle, 1);

	return r ? r : close_handle(p);
}

static int virtual(void)
{
	static int turn;
	ptr_t h;

	if (create(&h, 2 << 20, &prop, 0) || map(h << 21, 2 << 20, 0, h, 0))
		return 1;
	if (++turn % 2)
		return give(h) || unmap(h << 21, 2 << 20);
	return unmap(h << 21, 2 << 20) || give(h);
}

static int imported(void)
{
	ptr_t h;

	return import(&h, (void *)(intptr_t)exported, 1) || give(h);
}

static int launched(void)
{
	return launch((void *)(intptr_t)&launch, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

static const struct {
	const char *name;
	int (*once)(void);
} kinds[] = { { "linear", linear }, { "ipc", ipc }, { "virtual", virtual }, { "imported", imported }, { "launch", launched } };
static int (*kind)(void);

static void once(void)
{
	int r = kind();

	if (r)
		fprintf(stderr, "%d\n", r);
	failures += r != 0;
}

static long waits(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nvcsw;
}

static void handler(int number)
{
	long before = waits();

	(void)number;
	once();
	if (waits() - before > MOST_WAITS) {
		fprintf(stderr, "it waits for its own thread\n");
		failures++;
		signals = wanted;
	}
	if (++signals < wanted)
		setitimer(ITIMER_REAL, &soon, NULL);
}

int main(int argc, char **argv)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned) = dlsym(driver, "cuInit");
	int (*info)(size_t *, size_t *) = dlsym(driver, "cuMemGetInfo_v2");
	size_t free, total;
	ptr_t h;

#define GET(function, name) function = dlsym(driver, name)
	GET(alloc, "cuMemAlloc_v2");
	GET(release, "cuMemFree_v2");
	GET(open_handle, "cuIpcOpenMemHandle_v2");
	GET(close_handle, "cuIpcCloseMemHandle");
	GET(create, "cuMemCreate");
	GET(map, "cuMemMap");
	GET(unmap, "cuMemUnmap");
	GET(give, "cuMemRelease");
	GET(export_fd, "cuMemExportToShareableHandle");
	GET(import, "cuMemImportFromShareableHandle");
	GET(launch, "cuLaunchKernel");
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if (!strcmp(argc > 2 ? argv[2] : "linear", kinds[i].name))
			kind = kinds[i].once;
	if (!kind || init(0))
		return 1;
	if (kind == imported && (create(&h, 2 << 20, &prop, 0) || export_fd(&exported, h, 1, 0)))
		return 1;
	once();
	signal(SIGALRM, handler);
	wanted = atoi(argv[1]);
	setitimer(ITIMER_REAL, &soon, NULL);
	while (signals < wanted)
		once();
	if (failures || info(&free, &total))
		return 1;
	printf("%zu of %zu free\n", free, total);
	return 0;
}
