#define _GNU_SOURCE
#include "common.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct cuda cu;

static volatile sig_atomic_t term_seen;

struct lookup {
	void *handle;
	__typeof__(&cuGetProcAddress) v1;
	__typeof__(&cuGetProcAddress_v2) v2;
};

static void *look_up(const struct lookup *l, const char *name, const char *base, int version)
{
	CUdriverProcAddressQueryResult status;
	void *p = NULL;

	if (l->v2)
		l->v2(base, &p, version, 0, &status);
	else if (l->v1)
		l->v1(base, &p, version, 0);
	else
		p = dlsym(l->handle, name);
	return p;
}

static void *find(const struct lookup *l, const char *name, const char *base, int version)
{
	void *p = look_up(l, name, base, version);

	if (!p) {
		fprintf(stderr, "the driver has no %s\n", name);
		exit(EXIT_DRIVER);
	}
	return p;
}

static void *need(void *handle, const char *name)
{
	struct lookup plain = {.handle = handle};

	return find(&plain, name, name, 0);
}

void cuda_load(const char *lookup)
{
	struct lookup l = {.handle = dlopen("libcuda.so.1", RTLD_NOW)};

	if (!l.handle) {
		fprintf(stderr, "%s\n", dlerror());
		exit(EXIT_DRIVER);
	}
	if (!strcmp(lookup, "getproc")) {
		*(void **)&l.v1 = need(l.handle, "cuGetProcAddress");
	} else if (!strcmp(lookup, "getproc_v2")) {
		*(void **)&l.v2 = need(l.handle, "cuGetProcAddress_v2");
	} else if (strcmp(lookup, "dlsym") != 0) {
		fprintf(stderr, "--lookup: dlsym, getproc or getproc_v2\n");
		exit(EXIT_USAGE);
	}
#define LOAD(name, base, version) *(void **)&cu.name = find(&l, #name, #base, version);
	CUDA_CALLS(LOAD)
#undef LOAD
#define LOAD(name, base, version) *(void **)&cu.name = look_up(&l, #name, #base, version);
	CUDA_OPTIONAL_CALLS(LOAD)
#undef LOAD
}

const char *error_name(CUresult r)
{
	static _Thread_local char unknown[32];
	const char *name = NULL;

	if (!cu.cuGetErrorName(r, &name) && name)
		return name;
	snprintf(unknown, sizeof(unknown), "CUDA_ERROR_%d", (int)r);
	return unknown;
}

void must(CUresult r, const char *what)
{
	if (!r)
		return;
	fflush(stdout);
	printf("error=%s\nfailed=%s\n", error_name(r), what);
	fprintf(stderr, "%s: %s\n", what, error_name(r));
	exit(EXIT_CUDA);
}

void cuda_start(int device)
{
	CUcontext ctx;
	CUdevice dev;

	must(cu.cuInit(0), "cuInit");
	must(cu.cuDeviceGet(&dev, device), "cuDeviceGet");
	must(cu.cuDevicePrimaryCtxRetain(&ctx, dev), "cuDevicePrimaryCtxRetain");
	must(cu.cuCtxSetCurrent(ctx), "cuCtxSetCurrent");
}

static void print_help(const char *program, const char *what, const struct option_def *defs)
{
	printf("%s: %s\n", program, what);
	for (; defs->name; defs++)
		printf("  --%-24s %s\n", defs->name, defs->help);
	printf("Prints key=value lines. Exit status: 0 fine, 2 usage, 3 a CUDA call failed, 4 no driver.\n");
}

static const struct option_def *match(const struct option_def *defs, const char *text, size_t length)
{
	for (; defs->name; defs++) {
		if (strlen(defs->name) == length && !strncmp(defs->name, text, length))
			return defs;
	}
	return NULL;
}

void parse_options(int argc, char **argv, const char *what, const struct option_def *defs)
{
	for (int i = 1; i < argc; i++) {
		const char *text = argv[i] + 2;
		const char *equals = strchr(argv[i], '=');
		size_t length = equals ? (size_t)(equals - text) : strlen(argv[i]) - 2;
		const struct option_def *d = NULL;

		if (!strcmp(argv[i], "--help")) {
			print_help(argv[0], what, defs);
			exit(EXIT_FINE);
		}
		if (!strncmp(argv[i], "--", 2))
			d = match(defs, text, length);
		if (d && d->flag && !equals) {
			*d->flag = true;
		} else if (d && d->value && (equals || i + 1 < argc)) {
			*d->value = equals ? equals + 1 : argv[++i];
		} else {
			fprintf(stderr, "%s: unknown option, or no value for it: %s (see --help)\n", argv[0], argv[i]);
			exit(EXIT_USAGE);
		}
	}
}

long number(const char *name, const char *text, long min, long max)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(text, &end, 10);
	if (end == text || *end || errno || n < min || n > max) {
		fprintf(stderr, "--%s: want a number from %ld to %ld: %s\n", name, min, max, text);
		exit(EXIT_USAGE);
	}
	return n;
}

double seconds_of(const char *name, const char *text)
{
	char *end;
	double s = strtod(text, &end);

	if (end == text || *end || !(s >= 0) || s > 1e6) {
		fprintf(stderr, "--%s: want seconds: %s\n", name, text);
		exit(EXIT_USAGE);
	}
	return s;
}

double monotonic(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void on_term(int signal)
{
	(void)signal;
	term_seen = 1;
}

void catch_term(void)
{
	struct sigaction action = {.sa_handler = on_term};

	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
}

bool terminated(void)
{
	return term_seen;
}

void wait_for(double seconds)
{
	struct timespec for_ever = {.tv_sec = 3600};
	double end = monotonic() + seconds;
	sigset_t both, old;

	sigemptyset(&both);
	sigaddset(&both, SIGTERM);
	sigaddset(&both, SIGINT);
	sigprocmask(SIG_BLOCK, &both, &old); /* ppoll-like: no signal is lost between the check and the wait */
	while (!term_seen) {
		double left = end - monotonic();
		struct timespec t = {.tv_sec = (time_t)left, .tv_nsec = (long)((left - (double)(time_t)left) * 1e9)};

		if (seconds > 0 && left <= 0)
			break;
		if (sigtimedwait(&both, NULL, seconds > 0 ? &t : &for_ever) > 0)
			term_seen = 1;
	}
	sigprocmask(SIG_SETMASK, &old, NULL);
}
