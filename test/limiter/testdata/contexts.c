/* Every way to make a context, on the fake driver: what is charged for each. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void *handle;
#define FIND(name) ((int (*)())dlsym(handle, name))
#define CALL(name, ...) FIND(#name)(__VA_ARGS__)

static size_t before;

static long charged(void)
{
	size_t now, total;

	CALL(cuMemGetInfo_v2, &now, &total);
	long mib = ((long)before - (long)now) >> 20;
	before = now;
	return mib;
}

static void show(const char *what, int r)
{
	printf("%s %d %ld\n", what, r, charged());
}

static int create(const char *name, void **ctx)
{
	if (!strcmp(name, "cuCtxCreate_v3"))
		return FIND(name)(ctx, NULL, 0, 0u, 0);
	if (!strcmp(name, "cuCtxCreate_v4"))
		return FIND(name)(ctx, NULL, 0u, 0);
	if (strstr(name, "VDPAU"))
		return FIND(name)(ctx, 0u, 0, 0u, NULL);
	return FIND(name)(ctx, 0u, 0);
}

int main(void)
{
	static const char *const names[] = { "cuCtxCreate", "cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4", "cuGLCtxCreate",
		"cuGLCtxCreate_v2", "cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2" };
	void *a, *b, *c;
	int r;

	handle = dlopen("libcuda.so.1", RTLD_NOW);
	CALL(cuInit, 0);
	charged();
	for (int i = 0; i < 8; i++) {
		printf("%s ", names[i]);
		r = create(names[i], &a);
		printf("%d %ld, ", r, charged());
		r = create(names[i], &b);
		printf("%d %ld, ", r, charged());
		r = create(names[i], &c);
		printf("%d %ld, ", r, charged());
		CALL(cuCtxDestroy_v2, a);
		CALL(cuCtxDestroy, b);
		printf("destroyed %ld\n", charged());
	}
	show("green", CALL(cuGreenCtxCreate, &a, NULL, 0, 0u));
	show("green", CALL(cuGreenCtxCreate, &b, NULL, 0, 0u));
	show("primary", CALL(cuDevicePrimaryCtxRetain, &c, 0));
	show("destroy green", CALL(cuGreenCtxDestroy, a));
	show("destroy green", CALL(cuGreenCtxDestroy, b));
	show("release", CALL(cuDevicePrimaryCtxRelease, 0));
	show("green", CALL(cuGreenCtxCreate, &a, NULL, 0, 0u));
	show("destroy green", CALL(cuGreenCtxDestroy, a));
	show("green", CALL(cuGreenCtxCreate, &a, NULL, 0, 0u));
	CALL(cuCtxFromGreenCtx, &b, a);
	show("destroy what it was made into", CALL(cuCtxDestroy_v2, b));
	create("cuCtxCreate_v2", &a);
	create("cuCtxCreate_v2", &b);
	charged();
	show("full", CALL(cuGreenCtxCreate, &c, NULL, 0, 0u));
	show("none", CALL(cuGreenCtxCreate, &c, NULL, 1, 0u));
	return 0;
}
