/*
 * Takes memory that was exported.
 *
 *   exported own COUNT MIB       makes memory, exports it, releases it and imports it again, COUNT times
 *   exported others COUNT MIB    imports what COUNT processes have exported that then end
 *   exported kept COUNT MIB      only keeps their descriptors, until its standard input ends
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../simdriver/cuda_api.h"
#include "descriptor.h"

#define MIB ((size_t)1 << 20)

static void *handle;
#define CALL(name, ...) ((__typeof__(&name))(uintptr_t)dlsym(handle, #name))(__VA_ARGS__)

static const CUmemAllocationProp on_gpu = { .type = 1, .requestedHandleTypes = 1, .location = { 1, 0 } };

static void begin(void)
{
	CUcontext ctx;

	handle = dlopen("libcuda.so.1", RTLD_NOW);
	CALL(cuInit, 0);
	CALL(cuDevicePrimaryCtxRetain, &ctx, 0);
	CALL(cuCtxSetCurrent, ctx);
}

static int export_some(size_t size)
{
	CUmemGenericAllocationHandle h;
	int fd = -1;

	if (CALL(cuMemCreate, &h, size, &on_gpu, 0))
		return -1;
	CALL(cuMemExportToShareableHandle, &fd, h, 1, 0);
	CALL(cuMemRelease, h);
	return fd;
}

/* A process of its own exports, and ends. */
static int exported_by_other(size_t size)
{
	int ends[2];

	socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
	pid_t child = fork();
	if (!child) {
		begin();
		int fd = export_some(size);
		if (fd >= 0)
			send_descriptor(ends[1], fd);
		_exit(0);
	}
	close(ends[1]);
	int fd = receive_descriptor(ends[0]);
	waitpid(child, NULL, 0);
	close(ends[0]);
	return fd;
}

static size_t import_and_map(int fd, size_t size, CUdeviceptr at)
{
	CUmemGenericAllocationHandle h;

	if (CALL(cuMemImportFromShareableHandle, &h, (void *)(intptr_t)fd, 1))
		return 0;
	return CALL(cuMemMap, at, size, 0, h, 0) ? 0 : size;
}

int main(int argc, char **argv)
{
	int kept = argc == 4 && !strcmp(argv[1], "kept"), others = kept || (argc == 4 && !strcmp(argv[1], "others"));
	int count = argc == 4 ? atoi(argv[2]) : 0, fds[256];

	if (count < 1 || count > 256) {
		fprintf(stderr, "usage: exported own|others|kept COUNT MIB\n");
		return 2;
	}
	size_t size = (size_t)atoi(argv[3]) * MIB, mapped = 0, made = 0, free_bytes = 0, total;
	CUdeviceptr at = 0;

	for (int i = 0; others && i < count; i++) /* before this process has the driver's files, which a child would keep */
		made += (fds[i] = exported_by_other(size)) >= 0;
	if (kept) {
		printf("made=%zu\nheld_bytes=%zu\n", made, made * size);
		fflush(stdout);
		while (getchar() != EOF)
			;
		return 0;
	}
	begin();
	CALL(cuMemAddressReserve, &at, (size_t)count * size, 0, 0, 0);
	for (int i = 0; i < count; i++) {
		int fd = others ? fds[i] : export_some(size);

		made += !others && fd >= 0;
		if (fd >= 0)
			mapped += import_and_map(fd, size, at + (size_t)i * size);
		if (fd >= 0)
			close(fd);
	}
	CALL(cuMemGetInfo_v2, &free_bytes, &total);
	printf("made=%zu\nmapped_bytes=%zu\nfree_bytes=%zu\n", made, mapped, free_bytes);
	return 0;
}
