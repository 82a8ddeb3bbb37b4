/* Worker processes that allocate and free at random; some of them killed, if asked for. */
#define _GNU_SOURCE
#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_WORKERS 1024
#define MAX_LIVE 4096

static const char *lookup = "dlsym", *device = "0", *seconds = "1", *seed = "1", *workers = "1", *min_kib = "4",
		  *max_kib = "65536", *live = "64", *kill_ms = "0", *role;

static const struct option_def options[] = {
	{"lookup", &lookup, NULL, "dlsym, getproc or getproc_v2: how to find the driver's functions"},
	{"device", &device, NULL, "CUDA ordinal (0)"},
	{"seconds", &seconds, NULL, "for how long (1)"},
	{"seed", &seed, NULL, "of the random numbers (1)"},
	{"workers", &workers, NULL, "processes (1)"},
	{"min-kib", &min_kib, NULL, "smallest allocation (4)"},
	{"max-kib", &max_kib, NULL, "largest allocation (65536)"},
	{"live", &live, NULL, "allocations that a worker holds at most (64)"},
	{"kill-every-ms", &kill_ms, NULL, "SIGKILL a random worker that often and start another (0: never)"},
	{"role", &role, NULL, "(internal)"},
	{0},
};

struct tally {
	unsigned long long ops, oom, killed;
};

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static size_t random_size(uint64_t *state)
{
	uint64_t low = (uint64_t)number("min-kib", min_kib, 1, 1 << 30) << 10;
	uint64_t high = (uint64_t)number("max-kib", max_kib, 1, 1 << 30) << 10;

	return high > low ? low + next_random(state) % (high - low) : low;
}

static struct tally churn(uint64_t random, double limit, size_t room)
{
	static CUdeviceptr held[MAX_LIVE];
	struct tally t = {0};
	double end = monotonic() + limit;

	while (!terminated() && monotonic() < end) {
		size_t i = next_random(&random) % room;
		CUresult r;

		t.ops++;
		if (held[i]) {
			must(cu.cuMemFree_v2(held[i]), "cuMemFree");
			held[i] = 0;
			continue;
		}
		r = cu.cuMemAlloc_v2(&held[i], random_size(&random));
		if (r != CUDA_ERROR_OUT_OF_MEMORY)
			must(r, "cuMemAlloc");
		if (r) {
			held[i] = 0;
			t.oom++;
		}
	}
	for (size_t i = 0; i < room; i++) {
		if (held[i])
			must(cu.cuMemFree_v2(held[i]), "cuMemFree");
	}
	return t;
}

/* A context may be refused too: then the worker has nothing to do, which is no error. */
static int work(void)
{
	CUcontext ctx;
	CUdevice dev;
	CUresult r;
	struct tally t = {.oom = 1};

	cuda_load(lookup);
	must(cu.cuInit(0), "cuInit");
	must(cu.cuDeviceGet(&dev, (int)number("device", device, 0, 1023)), "cuDeviceGet");
	r = cu.cuDevicePrimaryCtxRetain(&ctx, dev);
	if (r != CUDA_ERROR_OUT_OF_MEMORY)
		must(r, "cuDevicePrimaryCtxRetain");
	if (!r) {
		must(cu.cuCtxSetCurrent(ctx), "cuCtxSetCurrent");
		t = churn((uint64_t)number("seed", seed, 0, 1L << 60) * 0x9e3779b97f4a7c15u + 1,
			  seconds_of("seconds", seconds), (size_t)number("live", live, 1, MAX_LIVE));
	}
	printf("ops=%llu\noom=%llu\n", t.ops, t.oom);
	return EXIT_FINE;
}

struct worker {
	pid_t pid;
	int out;
};

static bool start_worker(struct worker *w, char **argv, long worker_seed, double left)
{
	char seed_text[32], seconds_text[32];
	char *args[64];
	int n = 0, ends[2];

	if (pipe2(ends, O_CLOEXEC))
		return false;
	for (; n < 56 && argv[n]; n++)
		args[n] = argv[n];
	snprintf(seed_text, sizeof(seed_text), "--seed=%ld", worker_seed);
	snprintf(seconds_text, sizeof(seconds_text), "--seconds=%.3f", left);
	args[n++] = seed_text;
	args[n++] = seconds_text;
	args[n++] = "--role=worker";
	args[n] = NULL;
	w->pid = fork();
	if (!w->pid) {
		dup2(ends[1], STDOUT_FILENO);
		execv("/proc/self/exe", args);
		_exit(127);
	}
	close(ends[1]);
	w->out = ends[0];
	return w->pid > 0;
}

/* Adds what the worker printed; false if it ended in any way but well or by our SIGKILL. */
static bool collect(struct worker *w, struct tally *sum)
{
	FILE *out = fdopen(w->out, "r");
	char line[256];
	int status = 0;

	while (out && fgets(line, sizeof(line), out)) {
		unsigned long long n;

		if (sscanf(line, "ops=%llu", &n) == 1)
			sum->ops += n;
		else if (sscanf(line, "oom=%llu", &n) == 1)
			sum->oom += n;
		else
			fputs(line, stdout);
	}
	if (out)
		fclose(out);
	while (waitpid(w->pid, &status, 0) < 0 && errno == EINTR)
		;
	w->pid = 0;
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		sum->killed++;
	else if (!WIFEXITED(status) || WEXITSTATUS(status))
		return false;
	return true;
}

static int lead(char **argv)
{
	static struct worker list[MAX_WORKERS];
	long count = number("workers", workers, 1, MAX_WORKERS);
	double every = (double)number("kill-every-ms", kill_ms, 0, 1000000) / 1e3;
	double end = monotonic() + seconds_of("seconds", seconds);
	long next_seed = number("seed", seed, 0, 1L << 40) * 1000003;
	uint64_t random = (uint64_t)next_seed + 88172645463325252u;
	struct tally sum = {0};
	bool fine = true;

	for (long i = 0; i < count; i++)
		fine &= start_worker(&list[i], argv, next_seed++, end - monotonic());
	while (every > 0 && !terminated() && monotonic() + every < end) {
		struct worker *w = &list[next_random(&random) % (uint64_t)count];

		wait_for(every);
		kill(w->pid, SIGKILL);
		fine &= collect(w, &sum);
		fine &= start_worker(w, argv, next_seed++, end > monotonic() ? end - monotonic() : 0);
	}
	for (long i = 0; i < count; i++) {
		if (terminated() && list[i].pid > 0)
			kill(list[i].pid, SIGTERM);
		fine &= collect(&list[i], &sum);
	}
	printf("workers=%ld\nops=%llu\noom=%llu\nkilled=%llu\nfine=%d\n", count, sum.ops, sum.oom, sum.killed, fine);
	return fine ? EXIT_FINE : EXIT_CUDA;
}

int main(int argc, char **argv)
{
	parse_options(argc, argv, "worker processes that allocate and free at random", options);
	random_size(&(uint64_t){1}); /* reports invalid sizes before any worker does */
	catch_term();
	return role ? work() : lead(argv);
}
