/* `refusals WORKERS SECONDS LIMIT SLACK`: processes that allocate and free at random, and are killed at random. A refusal is
 * false if there was room for it, and SLACK more, right before and right after the call, by what the processes that are
 * not killed had or were about to have. Prints how many allocations were given and refused, and how many of these refusals
 * were false. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, PIECES = 24 };
typedef unsigned long long u64;

static struct shared {
	atomic_ullong most[MOST]; /* bytes that a process can have */
	atomic_ulong given, refused, wrong;
	atomic_uint stop;
} *shared;
static int workers;
static u64 limit, slack;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static u64 sum(void)
{
	u64 all = 0;

	for (int i = 0; i < workers; i++)
		all += atomic_load(&shared->most[i]);
	return all;
}

static void work(int me, unsigned seed)
{
	void *h = dlopen("libcuda.so.1", RTLD_NOW), *ctx;
	int (*alloc)(u64 *, size_t) = dlsym(h, "cuMemAlloc_v2"), (*release)(u64) = dlsym(h, "cuMemFree_v2");
	int (*init)(unsigned) = dlsym(h, "cuInit"), (*retain)(void **, int) = dlsym(h, "cuDevicePrimaryCtxRetain"), (*current)(void *) = dlsym(h, "cuCtxSetCurrent");
	u64 held[PIECES] = { 0 }, size[PIECES];

	if (init(0) || retain(&ctx, 0) || current(ctx))
		_exit(3);
	while (!atomic_load(&shared->stop)) {
		int i = rand_r(&seed) % PIECES;
		if (held[i]) {
			release(held[i]);
			held[i] = 0;
			atomic_fetch_sub(&shared->most[me], size[i]);
			continue;
		}
		size[i] = (1 + rand_r(&seed) % 512) * (u64)(1 << 20);
		u64 before = sum();
		atomic_fetch_add(&shared->most[me], size[i]);
		int r = alloc(&held[i], size[i]);
		if (!r) {
			atomic_fetch_add(&shared->given, 1);
			continue;
		}
		atomic_fetch_sub(&shared->most[me], size[i]);
		held[i] = 0;
		u64 after = sum();
		atomic_fetch_add(&shared->refused, 1);
		if (before + size[i] + slack <= limit && after + size[i] + slack <= limit)
			atomic_fetch_add(&shared->wrong, 1);
	}
	_exit(0);
}

int main(int argc, char **argv)
{
	pid_t pids[MOST];
	unsigned seed = 1, kills = 0;
	double until;

	workers = atoi(argv[1]);
	until = now() + atof(argv[2]);
	limit = strtoull(argv[3], NULL, 0);
	slack = strtoull(argv[4], NULL, 0);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < workers; i++)
		if (!(pids[i] = fork()))
			work(i, i + 1);
	while (now() < until) {
		usleep(10000 + rand_r(&seed) % 50000);
		int i = rand_r(&seed) % workers;
		kill(pids[i], SIGKILL);
		atomic_store(&shared->most[i], 0);
		kills++;
		waitpid(pids[i], NULL, 0);
		atomic_store(&shared->most[i], 0);
		if (!(pids[i] = fork()))
			work(i, rand_r(&seed));
	}
	atomic_store(&shared->stop, 1);
	for (int i = 0; i < workers; i++)
		waitpid(pids[i], NULL, 0);
	printf("given %lu refused %lu false %lu kills %u\n", shared->given, shared->refused, shared->wrong, kills);
	return 0;
}
