/*
 * A program that gets past the limiter, each way that there is: cheat LIBRARY dlsym|elf MIB [alloc|vmm|module] holds that
 * much of GPU 0, as linear memory, as a physical allocation that is mapped nowhere, or as data of a module.
 * LIBRARY is the driver's, or a copy of it under another name. dlsym is for where no limiter is loaded; elf finds the
 * functions by reading the library's own tables, which no limiter can stand in front of. With RAW the driver is linked
 * in, as for a program that speaks to the kernel itself: cheat - - MIB.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

typedef int (*init_fn)(unsigned);
typedef int (*get_fn)(int *, int);
typedef int (*retain_fn)(void **, int);
typedef int (*current_fn)(void *);
typedef int (*alloc_fn)(unsigned long long *, size_t);
typedef int (*create_fn)(unsigned long long *, size_t, const void *, unsigned long long);
typedef int (*load_fn)(void **, const void *);

#ifdef RAW
int cuInit(unsigned);
int cuDeviceGet(int *, int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuMemCreate(unsigned long long *, size_t, const void *, unsigned long long);
int cuModuleLoadData(void **, const void *);
#define FIND(name) ((void *)name)
#else
static void *library;
static int by_elf;

static void *in_tables(const char *name)
{
	struct link_map *map = library;
	const ElfW(Sym) *symbols = NULL;
	const char *names = NULL;

	for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
		/* glibc has added where it is loaded, musl has not. */
		ElfW(Addr) at = d->d_un.d_ptr < map->l_addr ? d->d_un.d_ptr + map->l_addr : d->d_un.d_ptr;

		if (d->d_tag == DT_SYMTAB)
			symbols = (const void *)at;
		else if (d->d_tag == DT_STRTAB)
			names = (const void *)at;
	}
	/* Linkers put the names behind the symbols. */
	for (; symbols && (const char *)symbols < names; symbols++)
		if (symbols->st_value && !strcmp(names + symbols->st_name, name))
			return (void *)(map->l_addr + symbols->st_value);
	return NULL;
}

static void *find(const char *name)
{
	void *p = by_elf ? in_tables(name) : dlsym(library, name);

	if (!p) {
		fprintf(stderr, "no %s\n", name);
		exit(4);
	}
	return p;
}
#define FIND(name) find(#name)
#endif

static void must(int result, const char *what)
{
	if (result) {
		printf("failed=%s\nresult=%d\n", what, result);
		exit(3);
	}
}

static void hold(const char *kind, size_t bytes, int device)
{
	/* The beginning of CUmemAllocationProp: pinned, no export, on the device. */
	struct { int type, exported, location, device; void *windows; unsigned char flags[8]; } prop = {1, 0, 1, device, NULL, {0}};
	unsigned long long p;
	char image[256];
	void *module;

	if (!bytes)
		return;
	if (!strcmp(kind, "vmm")) {
		must(((create_fn)FIND(cuMemCreate))(&p, bytes, &prop, 0), "cuMemCreate");
	} else if (!strcmp(kind, "module")) {
		snprintf(image, sizeof(image), ".version 8.0\n.target sm_50\n.address_size 64\n.global .align 4 .b8 big[%zu];\n", bytes);
		must(((load_fn)FIND(cuModuleLoadData))(&module, image), "cuModuleLoadData");
	} else {
		must(((alloc_fn)FIND(cuMemAlloc_v2))(&p, bytes), "cuMemAlloc");
	}
}

int main(int argc, char **argv)
{
	void *context;
	int device;

	if (argc != 4 && argc != 5)
		return 2;
#ifndef RAW
	library = dlopen(argv[1], RTLD_NOW);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 4;
	}
	by_elf = !strcmp(argv[2], "elf");
#endif
	prctl(PR_SET_NAME, "a) R 1 (sh"); /* a process can choose any name */
	must(((init_fn)FIND(cuInit))(0), "cuInit");
	must(((get_fn)FIND(cuDeviceGet))(&device, 0), "cuDeviceGet");
	must(((retain_fn)FIND(cuDevicePrimaryCtxRetain))(&context, device), "cuDevicePrimaryCtxRetain");
	must(((current_fn)FIND(cuCtxSetCurrent))(context), "cuCtxSetCurrent");
	hold(argc == 5 ? argv[4] : "alloc", (size_t)atol(argv[3]) << 20, device);
	printf("pid=%d\nready=1\n", (int)getpid());
	fflush(stdout);
	for (;;)
		pause();
}
