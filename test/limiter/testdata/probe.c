/* Calls the driver as its arguments specify and prints the results, one line per
 * call: `probe init ctx 0 alloc 4096 info free 0`. How it finds the driver's
 * functions is $PROBE_ROUTE, so that one script can be run by every route. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../testdata/workloads/descriptor.h"

static void *handle;
static const char *route = "dlsym";
static int version = 12000;
static uint64_t flags;

#ifdef DIRECT
/* Linked against libcuda.so.1: the names that a direct caller uses. */
#define NAMES(X) X(cuInit) X(cuDeviceGet) X(cuDeviceGetCount) X(cuDeviceGetUuid_v2) X(cuDevicePrimaryCtxRetain) \
	X(cuDevicePrimaryCtxRelease_v2) X(cuDevicePrimaryCtxReset_v2) X(cuCtxCreate_v2) X(cuCtxDestroy_v2) \
	X(cuCtxSetCurrent) X(cuMemAlloc_v2) X(cuMemAllocManaged) X(cuMemAllocPitch_v2) X(cuMemFree_v2) \
	X(cuMemGetInfo_v2) X(cuDeviceTotalMem_v2) X(cuMemAlloc) X(cuMemFree) X(cuMemGetInfo) X(cuDeviceTotalMem) \
	X(cuDeviceGetAttribute) X(cuMemAddressReserve) X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) \
	X(cuMemRetainAllocationHandle)
#define DECLARE(name) extern int name();
NAMES(DECLARE)
static void *direct(const char *name)
{
#define COMPARE(n) if (!strcmp(name, #n)) return (void *)n;
	NAMES(COMPARE)
	fprintf(stderr, "probe: %s is not linked\n", name);
	exit(3);
}
#endif

/* The name that cuGetProcAddress knows: without version suffix. */
static const char *base(const char *name)
{
	static char text[64];
	size_t n = strlen(name);

	snprintf(text, sizeof(text), "%s", name);
	if (n > 3 && text[n - 3] == '_' && text[n - 2] == 'v')
		text[n - 3] = 0;
	return text;
}

/* The first versions of some functions are only given to callers of API 3.1. */
static int version_for(const char *name)
{
	static const char *const old[] = { "cuMemAlloc", "cuMemFree", "cuMemGetInfo", "cuDeviceTotalMem" };

	for (int i = 0; i < 4; i++)
		if (!strcmp(name, old[i]))
			return 3010;
	return version;
}

static void *find(const char *name)
{
	void *found = NULL;

	if (!handle)
		handle = dlopen("libcuda.so.1", strcmp(route, "default") && strcmp(route, "next") ? RTLD_NOW : RTLD_NOW | RTLD_GLOBAL);
	if (!handle) {
		fprintf(stderr, "probe: %s\n", dlerror());
		exit(3);
	}
#ifdef DIRECT
	return direct(name);
#endif
	if (!strcmp(route, "default"))
		return dlsym(RTLD_DEFAULT, name);
	if (!strcmp(route, "next"))
		return dlsym(RTLD_NEXT, name);
	if (!strcmp(route, "libc") || !strcmp(route, "libcv")) { /* by libc's own dlsym, as ctypes.CDLL("libc.so.6").dlsym */
		void *libc = dlopen("libc.so.6", RTLD_NOW);
		void *(*look)(void *, const char *) = strcmp(route, "libc") ? dlvsym(libc, "dlsym", "GLIBC_2.34") : dlsym(libc, "dlsym");
		if (!look) /* before 2.34 it is in libdl */
			look = dlsym(libc = dlopen("libdl.so.2", RTLD_NOW), "dlsym");
		return look(handle, name);
	}
	if (!strcmp(route, "dlvsym"))
		return dlvsym(handle, name, "libcuda.so.1");
	if (!strcmp(route, "proc1")) {
		int (*ask)(const char *, void **, int, uint64_t) = dlsym(handle, "cuGetProcAddress");
		ask(base(name), &found, version_for(name), flags);
		return found;
	}
	if (!strcmp(route, "proc2")) {
		int (*ask)(const char *, void **, int, uint64_t, int *) = dlsym(handle, "cuGetProcAddress_v2");
		ask(base(name), &found, version_for(name), flags, NULL);
		return found;
	}
	if (!strcmp(route, "proc3")) { /* cuGetProcAddress by itself, as the runtime does */
		int (*first)(const char *, void **, int, uint64_t, int *) = dlsym(handle, "cuGetProcAddress_v2"), (*ask)(const char *, void **, int, uint64_t, int *);
		first("cuGetProcAddress", (void **)&ask, 12000, flags, NULL);
		ask(base(name), &found, version_for(name), flags, NULL);
		return found;
	}
	return dlsym(handle, name);
}

#define CALL(name, ...) ({ int (*f_)() = (int (*)())find(name); f_ ? f_(__VA_ARGS__) : -1; })

static unsigned long long pointers[100000];
static int count;
static char **args;

static unsigned long long number(void)
{
	return *args ? strtoull(*args++, NULL, 0) : 0;
}

static int process(void) /* 0: this one */
{
	int pid = (int)number();

	return pid ? pid : getpid();
}

static void allocated(const char *what, int r, unsigned long long p)
{
	printf("%s %d\n", what, r);
	if (r == 0)
		pointers[count++] = p;
}

static void split(const char *how)
{
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child) {
		int status;
		waitpid(child, &status, 0);
		printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
		if (!strcmp(how, "fork")) { /* the rest was the child's */
			while (*args && strcmp(*args, "join"))
				args++;
			if (*args)
				args++;
		}
	}
}

#include "probe/nvml.h"
#include "probe/virtual.h"
#include "probe/ipc.h"

static void *stay(void *none)
{
	pause();
	return none;
}

/* A green context of 8 multiprocessors, which becomes the current one; or, if there is one, its end, by its own function
 * or (context) by that of the context that it was made into. */
static int green(int dev, int context)
{
	static void *made, *as_context;
	struct resource { int type; unsigned char rest[140]; } all, some;
	unsigned count = 1;
	void *desc;

	if (made) {
		int r = context ? CALL("cuCtxDestroy_v2", as_context) : CALL("cuGreenCtxDestroy", made);
		made = r ? made : NULL;
		return r;
	}
	int r = CALL("cuDeviceGetDevResource", dev, &all, 1);
	r = r ? r : CALL("cuDevSmResourceSplitByCount", &some, &count, &all, NULL, 0u, 8u);
	r = r ? r : CALL("cuDevResourceGenerateDesc", &desc, &some, 1u);
	r = r ? r : CALL("cuGreenCtxCreate", &made, desc, dev, 1u);
	r = r ? r : CALL("cuCtxFromGreenCtx", &as_context, made);
	return r ? r : CALL("cuCtxSetCurrent", as_context);
}

static void run(const char *what);

/* Each line is a script. */
static void listen_to_input(void)
{
	static char *words[64], line[8192];

	while (fgets(line, sizeof(line), stdin)) {
		int n = 0;

		for (char *word = strtok(line, " \n"); word && n < 63; word = strtok(NULL, " \n"))
			words[n++] = strdup(word);
		words[n] = NULL;
		for (args = words; *args;)
			run(*args++);
	}
	exit(0);
}

static void run(const char *what)
{
	unsigned long long p = 0, a, b;
	size_t x = 0, y = 0;
	int dev = 0, r;

	if (run_virtual(what) || run_ipc(what))
		return;
	if (!strcmp(what, "listen"))
		listen_to_input();
	else if (!strcmp(what, "init"))
		printf("init %d\n", CALL("cuInit", 0));
	else if (!strcmp(what, "ctx")) {
		void *ctx = NULL;
		r = CALL("cuDeviceGet", &dev, (int)number());
		if (!r)
			r = CALL("cuDevicePrimaryCtxRetain", &ctx, dev);
		if (!r)
			r = CALL("cuCtxSetCurrent", ctx);
		printf("ctx %d\n", r);
	} else if (!strcmp(what, "newctx")) {
		static void *ctx;
		if (ctx) {
			printf("destroy %d\n", CALL("cuCtxDestroy_v2", ctx));
			ctx = NULL;
			return;
		}
		printf("newctx %d\n", CALL("cuCtxCreate_v2", &ctx, 0u, (int)number()));
	} else if (!strcmp(what, "green")) {
		printf("green %d\n", green(0, 0));
	} else if (!strcmp(what, "degreen")) {
		printf("degreen %d\n", green(0, 1));
	} else if (!strcmp(what, "release")) {
		printf("release %d\n", CALL("cuDevicePrimaryCtxRelease_v2", (int)number()));
	} else if (!strcmp(what, "reset")) {
		printf("reset %d\n", CALL("cuDevicePrimaryCtxReset_v2", (int)number()));
	} else if (!strcmp(what, "alloc")) {
		r = CALL("cuMemAlloc_v2", &p, (size_t)number());
		allocated("alloc", r, p);
	} else if (!strcmp(what, "alloc1")) {
		unsigned q = 0;
		r = CALL("cuMemAlloc", &q, (unsigned)number());
		allocated("alloc1", r, q);
	} else if (!strcmp(what, "managed")) {
		r = CALL("cuMemAllocManaged", &p, (size_t)number(), 1u);
		allocated("managed", r, p);
	} else if (!strcmp(what, "pitch")) {
		a = number();
		b = number();
		r = CALL("cuMemAllocPitch_v2", &p, &x, (size_t)a, (size_t)b, 16u);
		printf("pitch %zu ", x);
		allocated("", r, p);
	} else if (!strcmp(what, "free"))
		printf("free %d\n", CALL("cuMemFree_v2", pointers[number()]));
	else if (!strcmp(what, "free1"))
		printf("free1 %d\n", CALL("cuMemFree", (unsigned)pointers[number()]));
	else if (!strcmp(what, "freeptr"))
		printf("freeptr %d\n", CALL("cuMemFree_v2", number()));
	else if (!strcmp(what, "where")) { /* 1: managed memory */
		unsigned managed = 9;

		r = CALL("cuPointerGetAttribute", &managed, 8, pointers[number()]);
		printf("where %d %u\n", r, managed);
	}
	else if (!strcmp(what, "info")) {
		r = CALL("cuMemGetInfo_v2", &x, &y);
		printf("info %d free %zu total %zu\n", r, x, y);
	} else if (!strcmp(what, "info1")) {
		unsigned m = 0, n = 0;
		r = CALL("cuMemGetInfo", &m, &n);
		printf("info1 %d free %u total %u\n", r, m, n);
	} else if (!strcmp(what, "infonull"))
		printf("infonull %d\n", CALL("cuMemGetInfo_v2", NULL, NULL));
	else if (!strcmp(what, "total")) {
		r = CALL("cuDeviceTotalMem_v2", &x, (int)number());
		printf("total %d %zu\n", r, x);
	} else if (!strcmp(what, "lock")) {
		printf("lock %d\n", CALL("cuCheckpointProcessLock", process(), NULL));
	} else if (!strcmp(what, "checkpoint")) {
		printf("checkpoint %d\n", CALL("cuCheckpointProcessCheckpoint", process(), NULL));
	} else if (!strcmp(what, "restore")) {
		printf("restore %d\n", CALL("cuCheckpointProcessRestore", process(), NULL));
	} else if (!strcmp(what, "move")) { /* to other GPUs */
		struct { void *pairs; unsigned count; char rest[52]; } to = { "01234567890123456789012345678901", 1, { 0 } };
		printf("move %d\n", CALL("cuCheckpointProcessRestore", process(), &to));
	} else if (!strcmp(what, "unlock")) {
		printf("unlock %d\n", CALL("cuCheckpointProcessUnlock", process(), NULL));
	} else if (!strcmp(what, "export")) {
		struct { int type, handles, location, id; void *more; unsigned char flags[8]; } prop = { 1, 1, 1, 0, NULL, { 0 } };
		r = CALL("cuMemCreate", &p, (size_t)number(), &prop, 0ull);
		int fd = -1;
		r = r ? r : CALL("cuMemExportToShareableHandle", &fd, p, 1, 0ull);
		printf("export %d %d\n", r, fd);
	} else if (!strcmp(what, "stack")) {
		printf("stack %d\n", CALL("cuCtxSetLimit", 0, number()));
	} else if (!strcmp(what, "heap")) {
		printf("heap %d\n", CALL("cuCtxSetLimit", 2, number()));
	} else if (!strcmp(what, "malloc")) { /* a kernel that calls it */
		static const char text[] = ".version 6.3\n.target sm_75\n.address_size 64\n.extern .func (.param .b64 r) malloc(.param .b64 n);\n"
					   ".visible .entry run()\n{\n\tret;\n}\n";
		void *module, *f;
		r = CALL("cuModuleLoadData", &module, text);
		r = r ? r : CALL("cuModuleGetFunction", &f, module, "run");
		r = r ? r : CALL("cuLaunchKernel", f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
		printf("malloc %d\n", r ? r : CALL("cuCtxSynchronize"));
	} else if (!strcmp(what, "total1")) {
		unsigned m = 0;
		r = CALL("cuDeviceTotalMem", &m, (int)number());
		printf("total1 %d %u\n", r, m);
	} else if (!strcmp(what, "uuid")) {
		unsigned char u[16] = { 0 };
		r = CALL("cuDeviceGetUuid_v2", u, (int)number());
		printf("uuid %d ", r);
		for (int i = 0; i < 16; i++)
			printf("%02x", u[i]);
		printf("\n");
	} else if (!strcmp(what, "nvml"))
		nvml(number(), -1);
	else if (!strcmp(what, "processes"))
		show_processes();
	else if (!strcmp(what, "nvmlmig")) {
		a = number();
		nvml(a, (int)number());
	}
	else if (!strcmp(what, "has")) { /* whether a name is found, by $PROBE_ROUTE */
		printf("has %s %d\n", *args, find(*args) != NULL);
		args++;
	} else if (!strcmp(what, "threads"))
		fflush(stdout), r = system("true"), printf("threads %d\n", system("exit $(ls /proc/$PPID/task | wc -l)") >> 8);
	else if (!strcmp(what, "sleep"))
		fflush(stdout), usleep((unsigned)number() * 1000);
	else if (!strcmp(what, "line")) {
		fflush(stdout);
		while (getchar() != '\n' && !feof(stdin))
			;
	} else if (!strcmp(what, "setuid"))
		printf("setuid %d\n", setgid(65534) || setuid((unsigned)number()));
	else if (!strcmp(what, "daemon"))
		printf("daemon %d\n", daemon(1, 1));
	else if (!strcmp(what, "fork"))
		split("fork");
	else if (!strcmp(what, "exit"))
		exit((int)number());
	else if (!strcmp(what, "join"))
		exit(0);
	else if (!strcmp(what, "leave")) { /* the first thread ends, and not the process */
		pthread_t other;

		pthread_create(&other, NULL, stay, NULL);
		pthread_exit(NULL);
	} else if (!strcmp(what, "chroot")) { /* nothing is there */
		char empty[] = "/tmp/probe-XXXXXX";

		printf("chroot %d\n", !mkdtemp(empty) || chroot(empty) || chdir("/") || open("/tmp", O_RDONLY) >= 0);
	} else if (!strcmp(what, "fillfds")) {
		struct rlimit few = { 64, 64 };

		setrlimit(RLIMIT_NOFILE, &few);
		while (dup(0) >= 0)
			;
		printf("fillfds %d\n", errno == EMFILE ? 0 : errno);
	} else if (!strcmp(what, "closefds"))
		for (int fd = 3; fd < 256; fd++)
			close(fd);
	else if (!strcmp(what, "exec")) {
		fflush(stdout);
		execvp(args[0], args);
		exit(4);
	} else if (!strcmp(what, "orphan")) { /* the parent dies, the child lives on with its descriptors */
		fflush(stdout);
		if (fork() != 0)
			kill(getpid(), SIGKILL);
	} else if (!strcmp(what, "kill"))
		fflush(stdout), kill(getpid(), SIGKILL);
	else {
		fprintf(stderr, "probe: %s?\n", what);
		exit(2);
	}
}

int main(int argc, char **argv)
{
	(void)argc;
	if (getenv("PROBE_ROUTE"))
		route = getenv("PROBE_ROUTE");
	if (getenv("PROBE_VERSION"))
		version = atoi(getenv("PROBE_VERSION"));
	if (getenv("PROBE_FLAGS"))
		flags = strtoull(getenv("PROBE_FLAGS"), NULL, 0);
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (args = argv + 1; *args;)
		run(*args++);
	return 0;
}
