/* Uses the driver in namespaces of the dynamic loader, one after the other:
 *
 *   namespaces own|new|PLUGIN|wait...
 *
 * own: the program's; new: a new one, looked up from here; PLUGIN: this file built with -DPLUGIN and
 * linked with libcuda.so.1, in a new one; wait: for a line. Prints for each the results of cuInit and of an allocation
 * of 400 MiB, and the total that is shown. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void use(const char *where, int (*init)(unsigned), int (*retain)(void **, int), int (*set)(void *),
                int (*info)(size_t *, size_t *), int (*alloc)(void **, size_t))
{
	void *context = NULL, *memory = NULL;
	size_t available = 0, total = 0;
	int result = init(0);

	if (!result)
		result = retain(&context, 0);
	if (!result)
		result = set(context);
	if (!result)
		result = info(&available, &total);
	printf("%s %d %zu %d\n", where, result, total, alloc(&memory, 400 << 20));
}

#ifdef PLUGIN
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemGetInfo_v2(size_t *, size_t *), cuMemAlloc_v2(void **, size_t);

void plugged(void)
{
	use("plugin", cuInit, cuDevicePrimaryCtxRetain, cuCtxSetCurrent, cuMemGetInfo_v2, cuMemAlloc_v2);
	fflush(stdout);
}
#else
static void look_up(void *library, const char *where)
{
	use(where, (int (*)(unsigned))dlsym(library, "cuInit"), (int (*)(void **, int))dlsym(library, "cuDevicePrimaryCtxRetain"),
	    (int (*)(void *))dlsym(library, "cuCtxSetCurrent"), (int (*)(size_t *, size_t *))dlsym(library, "cuMemGetInfo_v2"),
	    (int (*)(void **, size_t))dlsym(library, "cuMemAlloc_v2"));
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "wait")) {
			getchar();
			continue;
		}
		int plugin = argv[i][0] == '/';
		const char *file = plugin ? argv[i] : "libcuda.so.1";
		void *library = dlmopen(strcmp(argv[i], "own") ? LM_ID_NEWLM : LM_ID_BASE, file, RTLD_NOW);

		if (!library)
			return fprintf(stderr, "%s\n", dlerror()), 1;
		if (plugin)
			((void (*)(void))dlsym(library, "plugged"))();
		else
			look_up(library, argv[i]);
		fflush(stdout);
	}
	return 0;
}
#endif
