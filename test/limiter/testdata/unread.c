/* Takes and frees memory, and asks for what is free; then once more without access to the IPC records of the usage file, which
 * is argument 1. Prints what is free. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

typedef unsigned long long ptr_t;

enum { RECORDS = 1232896, END = 1314816 }; /* limiter/src/LAYOUT.md */

static int (*alloc)(ptr_t *, size_t), (*release)(ptr_t), (*info)(size_t *, size_t *);

static int once(size_t *left)
{
	size_t total;
	ptr_t p;

	return alloc(&p, 4096) || release(p) || info(left, &total);
}

/* Where the file is mapped for writing. */
static char *mapped(const char *path)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[4096], mode[5];
	unsigned long at;

	while (maps && fgets(line, sizeof(line), maps))
		if (strstr(line, path) && sscanf(line, "%lx-%*x %4s", &at, mode) == 2 && mode[1] == 'w')
			return (char *)at;
	return NULL;
}

int main(int argc, char **argv)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned) = dlsym(driver, "cuInit");
	size_t left;
	char *usage;

	alloc = dlsym(driver, "cuMemAlloc_v2");
	release = dlsym(driver, "cuMemFree_v2");
	info = dlsym(driver, "cuMemGetInfo_v2");
	if (argc < 2 || init(0) || once(&left) || !(usage = mapped(argv[1])) || mprotect(usage + RECORDS, END - RECORDS, PROT_NONE))
		return 1;
	for (int i = 0; i < 1000; i++)
		if (once(&left))
			return 1;
	printf("%zu\n", left);
	return 0;
}
