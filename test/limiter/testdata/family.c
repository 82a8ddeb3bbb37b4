/* A CUDA program and the processes that it makes, each in another way: family <way>.
 * The parent has 600 MiB of the limit of 1 GiB, then makes a child. What the child could
 * have, and what the parent has after it, is printed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
enum { MIB = 1 << 20 };
static void *driver;
#define CALL(name, ...) ({ int (*f_)() = (int (*)())dlsym(driver, #name); f_ ? f_(__VA_ARGS__) : -1; })

static int take(size_t mib)
{
	unsigned long long p;
	void *context;
	int r = CALL(cuInit, 0);

	r = r ? r : CALL(cuDevicePrimaryCtxRetain, &context, 0);
	r = r ? r : CALL(cuCtxSetCurrent, context);
	return r ? r : CALL(cuMemAlloc_v2, &p, mib * MIB);
}

static const char *left(void)
{
	static char text[32];
	size_t free = 0, total = 0;
	int r = CALL(cuMemGetInfo_v2, &free, &total);

	snprintf(text, sizeof(text), "%d %zu", r, free / MIB);
	return text;
}

/* The arguments of a new program: a family of one process. */
static char *const other[] = { "/proc/self/exe", "one", NULL };

static void wait_for(pid_t child)
{
	int status = 0;

	waitpid(child, &status, __WALL);
	printf("ended %x\n", status);
}

static int run(void *unused)
{
	(void)unused;
	execve(other[0], other, environ);
	_exit(9);
}

static void forked(pid_t child)
{
	if (!child) { /* what it inherited is nothing of its own, whether or not the driver lets it go on */
		printf("child %d\n", CALL(cuMemAlloc_v2, &(unsigned long long){ 0 }, (size_t)425 * MIB) != 0);
		fflush(stdout);
		_exit(5);
	}
	wait_for(child);
}

int main(int argc, char **argv)
{
	static char stack[65536];
	const char *way = argv[1];
	pid_t child = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!strcmp(way, "one")) {
		int refused = take(500), r = take(400);
		printf("other: 500 %d, 400 %d, left %s\n", refused, r, left());
		return 0;
	}
	printf("parent %d\n", take(600));
	if (!strcmp(way, "vfork")) {
		child = vfork();
		if (!child) {
			execve(other[0], other, environ);
			_exit(9);
		}
		wait_for(child);
	} else if (!strcmp(way, "vfork-exit")) {
		child = vfork();
		if (!child)
			_exit(3);
		wait_for(child);
	} else if (!strcmp(way, "spawn")) {
		posix_spawn(&child, other[0], NULL, NULL, other, environ);
		wait_for(child);
	} else if (!strcmp(way, "system")) {
		printf("system %d\n", system("exit 4") >> 8);
	} else if (!strcmp(way, "clone-vm")) { /* shares memory, has descriptors of its own */
		wait_for(clone(run, stack + sizeof(stack), CLONE_VM, NULL));
	} else if (!strcmp(way, "clone-files")) { /* shares the descriptors, until it execs */
		wait_for(clone(run, stack + sizeof(stack), CLONE_FILES | SIGCHLD, NULL));
	} else if (!strcmp(way, "fork"))
		forked(fork());
	else if (!strcmp(way, "clone")) /* past libc, and so past what it does at a fork */
		forked((pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
	else if (!strcmp(way, "fork-exec")) {
		child = fork();
		if (!child)
			run(NULL);
		wait_for(child);
	} else if (!strcmp(way, "new-namespace")) { /* its first process has PID 1 */
		if (unshare(CLONE_NEWPID))
			return 1;
		child = fork();
		if (!child)
			run(NULL);
		wait_for(child);
	} else if (!strcmp(way, "exec")) /* the same process, another program: the 600 MiB are free again */
		return run(NULL);
	else if (!strcmp(way, "exec-thread")) {
		pthread_t thread;
		pthread_create(&thread, NULL, (void *(*)(void *))run, NULL);
		pause();
	} else if (!strcmp(way, "closefrom")) {
		for (int fd = 3; fd < 1024; fd++)
			close(fd);
		posix_spawn(&child, other[0], NULL, NULL, other, environ);
		wait_for(child);
		return 0; /* the driver's files are closed, too: it is of no use any more */
	} else
		return 2;
	printf("left %s\n", left());
	return 0;
}
