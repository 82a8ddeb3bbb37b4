/* SIGNALS [ipc]: allocates and frees, or opens and closes memory of another process, and a signal handler that interrupts it
 * does the same. Prints the bytes that are free at the end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

typedef unsigned long long ptr_t;

struct ipc_handle { unsigned char bytes[64]; };

static int (*alloc)(ptr_t *, size_t), (*open_handle)(ptr_t *, struct ipc_handle, unsigned), (*release)(ptr_t);
static volatile int signals, failures, wanted;
static const struct itimerval soon = { { 0, 0 }, { 0, 50 } };

static void once(void)
{
	struct ipc_handle handle = { { 0 } };
	ptr_t p;
	int r = open_handle ? open_handle(&p, handle, 1) : alloc(&p, 4096);

	if (r)
		fprintf(stderr, "%d\n", r);
	failures += r || release(p);
}

static void handler(int number)
{
	(void)number;
	once();
	if (++signals < wanted)
		setitimer(ITIMER_REAL, &soon, NULL);
}

int main(int argc, char **argv)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned) = dlsym(driver, "cuInit");
	int (*info)(size_t *, size_t *) = dlsym(driver, "cuMemGetInfo_v2");
	size_t free, total;

	alloc = dlsym(driver, "cuMemAlloc_v2");
	open_handle = argc > 2 ? dlsym(driver, "cuIpcOpenMemHandle_v2") : NULL;
	release = dlsym(driver, argc > 2 ? "cuIpcCloseMemHandle" : "cuMemFree_v2");
	if (init(0))
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
