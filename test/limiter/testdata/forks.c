/* Forks all the time beside a thread that checkpoints this process, restores it, and is refused memory. The children
 * stay until the program ends. Prints "done" at the end, and waits for a line. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { ROUNDS = 40, CHILDREN = 200 };

static void *driver;
static atomic_int finished;

#define MUST(wanted, name, ...) do { int (*f_)() = (int (*)())dlsym(driver, #name); int r_ = f_(__VA_ARGS__); \
	if (r_ != (wanted)) { fprintf(stderr, "%s: %d\n", #name, r_); exit(1); } } while (0)

static void *suspend(void *context)
{
	unsigned long long p;

	MUST(0, cuCtxSetCurrent, context);
	for (int i = 0; i < ROUNDS; i++) {
		MUST(0, cuCheckpointProcessLock, getpid(), NULL);
		MUST(0, cuCheckpointProcessCheckpoint, getpid(), NULL);
		MUST(0, cuCheckpointProcessRestore, getpid(), NULL);
		MUST(0, cuCheckpointProcessUnlock, getpid(), NULL);
		MUST(2, cuMemAlloc_v2, &p, (size_t)500 << 20); /* the slow path */
	}
	atomic_store(&finished, 1);
	return NULL;
}

int main(void)
{
	pid_t parent = getpid();
	pthread_t thread;
	void *context;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	MUST(0, cuInit, 0);
	MUST(0, cuDevicePrimaryCtxRetain, &context, 0);
	pthread_create(&thread, NULL, suspend, context);
	for (int i = 0; i < CHILDREN && !atomic_load(&finished); i++) {
		if (!fork()) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			while (getppid() == parent)
				pause();
			_exit(0);
		}
		usleep(500);
	}
	pthread_join(thread, NULL);
	puts("done");
	fflush(stdout);
	getchar();
	return 0;
}
