/* How long after a SIGKILL what a process had can be allocated by another that is
 * there already:
 *
 *   reuse BYTES TIMES     "nanoseconds" per time, from kill() on
 *   reuse BYTES           allocates all, and prints a line */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long ptr_t;
extern char **environ;
static int (*alloc)(ptr_t *, size_t), (*release)(ptr_t);

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void once(char **argv, size_t bytes)
{
	char *args[] = { argv[0], argv[1], NULL }, c;
	posix_spawn_file_actions_t actions;
	int there[2];
	ptr_t p;
	pid_t pid;

	if (pipe(there))
		exit(2);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, there[1], 1);
	if (posix_spawn(&pid, argv[0], &actions, NULL, args, environ) || read(there[0], &c, 1) != 1 || alloc(&p, bytes) != 2)
		exit(3);
	double from = now();
	kill(pid, SIGKILL);
	while (alloc(&p, bytes))
		;
	printf("%.0f\n", now() - from);
	release(p);
	waitpid(pid, NULL, 0); /* only now: it was a zombie */
	close(there[0]);
	close(there[1]);
	posix_spawn_file_actions_destroy(&actions);
}

int main(int argc, char **argv)
{
	void *h = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned) = (int (*)(unsigned))dlsym(h, "cuInit");
	size_t bytes = strtoull(argv[1], NULL, 0);
	ptr_t p;

	alloc = (int (*)(ptr_t *, size_t))dlsym(h, "cuMemAlloc_v2");
	release = (int (*)(ptr_t))dlsym(h, "cuMemFree_v2");
	if (init(0))
		return 1;
	if (argc == 2) {
		if (alloc(&p, bytes))
			return 4;
		write(1, "x", 1);
		pause();
	}
	for (int i = atoi(argv[2]); i > 0; i--)
		once(argv, bytes);
	return 0;
}
