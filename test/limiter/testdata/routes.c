/* Looks every name of its arguments up by every route and prints where it was
 * found: "name route object symbol", or "name route none status". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void show(const char *name, const char *route, void *found, int status)
{
	Dl_info info;

	if (!found || !dladdr(found, &info)) {
		printf("%s %s none %d\n", name, route, status);
		return;
	}
	printf("%s %s %s %s\n", name, route, strrchr(info.dli_fname, '/') + 1, info.dli_sname ? info.dli_sname : "?");
}

static void by_proc_address(void *handle, const char *name)
{
	static const int versions[] = { 2000, 3010, 3020, 4000, 5000, 6050, 7000, 11000, 11020, 11030, 11040, 11060, 12000, 12010,
		12050, 12080, 13000, 13010 };
	int (*v1)(const char *, void **, int, uint64_t) = dlsym(handle, "cuGetProcAddress");
	int (*v2)(const char *, void **, int, uint64_t, int *) = dlsym(handle, "cuGetProcAddress_v2");

	for (size_t i = 0; i < sizeof(versions) / sizeof(*versions); i++) {
		for (uint64_t flags = 0; flags < 3; flags++) {
			char route[64];
			void *found = NULL;
			int status = -1;

			snprintf(route, sizeof(route), "proc1:%d:%d", versions[i], (int)flags);
			int r = v1 ? v1(name, &found, versions[i], flags) : -1;
			show(name, route, r ? NULL : found, r);
			found = NULL;
			snprintf(route, sizeof(route), "proc2:%d:%d", versions[i], (int)flags);
			r = v2 ? v2(name, &found, versions[i], flags, &status) : -1;
			show(name, route, r ? NULL : found, r * 100 + status);
		}
	}
}

int main(int argc, char **argv)
{
	const char *library = getenv("ROUTES_LIBRARY"), *version = getenv("ROUTES_VERSION");

	for (int i = 1; i < argc; i++) {
		show(argv[i], "default-before", dlsym(RTLD_DEFAULT, argv[i]), 0);
		show(argv[i], "next-before", dlsym(RTLD_NEXT, argv[i]), 0);
	}
	void *local = dlopen(library, RTLD_NOW);
	if (!local) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	for (int i = 1; i < argc; i++) {
		show(argv[i], "handle", dlsym(local, argv[i]), 0);
		show(argv[i], "dlvsym", version ? dlvsym(local, argv[i], version) : NULL, 0);
		show(argv[i], "dlvsym-wrong", dlvsym(local, argv[i], "MISSING_1"), 0);
		if (!strncmp(argv[i], "cu", 2) && !getenv("ROUTES_NO_PROC"))
			by_proc_address(local, argv[i]);
	}
	void *global = dlopen(library, RTLD_NOW | RTLD_GLOBAL), *self = dlopen(NULL, RTLD_NOW);
	for (int i = 1; i < argc && global; i++) {
		show(argv[i], "default", dlsym(RTLD_DEFAULT, argv[i]), 0);
		show(argv[i], "next", dlsym(RTLD_NEXT, argv[i]), 0);
		show(argv[i], "self", dlsym(self, argv[i]), 0);
	}
	return 0;
}
