/* Prints what a program can see of its own state when main begins. With a preloaded
 * library that it has no use for, every line must be the same as without. It then
 * prints "ready" and ends with its standard input. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char **environ;

static void signals(void)
{
	sigset_t blocked, pending;

	sigprocmask(SIG_SETMASK, NULL, &blocked);
	sigpending(&pending);
	for (int s = 1; s <= 64; s++) {
		struct { void *handler; unsigned long flags; void *restorer; unsigned long mask; } a; /* the kernel's, all 64 of them */
		if (syscall(SYS_rt_sigaction, s, NULL, &a, 8))
			memset(&a, 0, sizeof(a));
		if (a.handler || sigismember(&blocked, s) == 1 || sigismember(&pending, s) == 1)
			printf("signal %d: %s, %lx, blocked %d, pending %d\n", s, a.handler == SIG_IGN ? "ignored" : a.handler ? "handled" : "default",
			       a.flags, sigismember(&blocked, s), sigismember(&pending, s));
	}
	stack_t stack;
	sigaltstack(NULL, &stack);
	printf("signal stack %d %zu\n", stack.ss_flags, stack.ss_size);
}

static void descriptors(void)
{
	for (int fd = 0; fd < 1024; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			printf("fd %d: %x %x\n", fd, fcntl(fd, F_GETFD), fcntl(fd, F_GETFL));
}

static void threads(void)
{
	DIR *d = opendir("/proc/self/task");
	int count = 0;

	for (struct dirent *e; d && (e = readdir(d));)
		count += e->d_name[0] != '.';
	if (d)
		closedir(d);
	void *list = NULL;
	size_t size = 0;
	syscall(SYS_get_robust_list, 0, &list, &size);
	printf("threads %d, robust list %d %zu\n", count, list != NULL, size);
}

int main(void)
{
	int error = errno;
	mode_t mask = umask(0);
	char name[16] = "";
	const char *complaint = dlerror();

	umask(mask);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("errno %d, dlerror %s, umask %o, locale %s\n", error, complaint ? complaint : "none", mask, setlocale(LC_ALL, NULL));
	printf("uid %d %d gid %d %d secure %lu\n", getuid(), geteuid(), getgid(), getegid(), getauxval(AT_SECURE));
	prctl(PR_GET_NAME, name);
	printf("name %s, no new privileges %d, dies with its parent %d\n", name, prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
	       prctl(PR_GET_PDEATHSIG, &error) ? -1 : error);
	signals();
	descriptors();
	threads();
	for (int r = 0; r < RLIM_NLIMITS; r++) {
		struct rlimit l;
		getrlimit(r, &l);
		printf("limit %d: %lx %lx\n", r, l.rlim_cur, l.rlim_max);
	}
	for (char **e = environ; *e; e++)
		printf("%s\n", *e);
	printf("lookups %d %d %d\n", dlsym(RTLD_DEFAULT, "getpid") == (void *)getpid, dlsym(RTLD_DEFAULT, "no such") == NULL,
	       dlerror() != NULL);
	printf("ready\n");
	for (char text[64]; read(0, text, sizeof(text)) > 0;)
		;
	return 7;
}
