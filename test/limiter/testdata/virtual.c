/* Virtual memory, arrays, and memory of others, call by call: prints of each what it
 * returned and by how much it changed what is left. What it prints must be the same
 * with the library as without. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../testdata/simdriver/cuda_api.h"

#define MIB ((size_t)1 << 20)

static void *handle;
#define CALL(name, ...) ((__typeof__(&name))dlsym(handle, #name))(__VA_ARGS__)
#define SHOW(what, call) show(what, (int)(call))

static size_t before;

static void show(const char *what, int r)
{
	size_t now = 0, total;

	CALL(cuMemGetInfo_v2, &now, &total);
	printf("%s %d %zd\n", what, r, (ssize_t)(before - now));
	before = now;
}

static void begin(void)
{
	CUcontext ctx;
	size_t total;

	handle = dlopen("libcuda.so.1", RTLD_NOW);
	CALL(cuInit, 0);
	CALL(cuDevicePrimaryCtxRetain, &ctx, 0);
	CALL(cuCtxSetCurrent, ctx);
	CALL(cuMemGetInfo_v2, &before, &total);
}

static const CUmemAllocationProp on_gpu = { .type = 1, .requestedHandleTypes = 1, .location = { 1, 0 } };
static const CUmemAllocationProp on_host = { .type = 1, .location = { 2, 0 } };
static const CUmemAllocationProp nowhere = { .type = 1, .location = { 1, 77 } };

/* What keeps memory allocated. */
static void lives(void)
{
	CUmemGenericAllocationHandle h = 0, again = 0, host = 0;
	CUdeviceptr p = 0;

	SHOW("reserve", CALL(cuMemAddressReserve, &p, 256 * MIB, 0, 0, 0));
	SHOW("create", CALL(cuMemCreate, &h, 4 * MIB, &on_gpu, 0));
	SHOW("map", CALL(cuMemMap, p, 4 * MIB, 0, h, 0));
	SHOW("map elsewhere too", CALL(cuMemMap, p + 8 * MIB, 4 * MIB, 0, h, 0));
	SHOW("map over it", CALL(cuMemMap, p, 4 * MIB, 0, h, 0));
	SHOW("release while mapped", CALL(cuMemRelease, h));
	SHOW("release again", CALL(cuMemRelease, h));
	SHOW("unmap a part", CALL(cuMemUnmap, p, 2 * MIB));
	SHOW("unmap too much", CALL(cuMemUnmap, p, 12 * MIB));
	SHOW("unmap one", CALL(cuMemUnmap, p, 4 * MIB));
	SHOW("retain", CALL(cuMemRetainAllocationHandle, &again, (void *)(uintptr_t)(p + 11 * MIB)));
	SHOW("retain nothing", CALL(cuMemRetainAllocationHandle, &again, (void *)(uintptr_t)p));
	SHOW("retain once more", CALL(cuMemRetainAllocationHandle, &again, (void *)(uintptr_t)(p + 8 * MIB)));
	SHOW("unmap the other", CALL(cuMemUnmap, p + 8 * MIB, 4 * MIB));
	SHOW("map it again", CALL(cuMemMap, p, 4 * MIB, 0, again, 0));
	SHOW("release one reference", CALL(cuMemRelease, again));
	SHOW("release the last", CALL(cuMemRelease, again));
	SHOW("unmap the last", CALL(cuMemUnmap, p, 4 * MIB));
	SHOW("unmap nothing", CALL(cuMemUnmap, p, 4 * MIB));
	SHOW("release without mapping", (CALL(cuMemCreate, &h, 2 * MIB, &on_gpu, 0), CALL(cuMemRelease, h)));
	SHOW("host", CALL(cuMemCreate, &host, 64 * MIB, &on_host, 0));
	SHOW("map host", CALL(cuMemMap, p, 64 * MIB, 0, host, 0));
	SHOW("create between", CALL(cuMemCreate, &h, 2 * MIB, &on_gpu, 0));
	SHOW("map beside it", CALL(cuMemMap, p + 64 * MIB, 2 * MIB, 0, h, 0));
	SHOW("release", CALL(cuMemRelease, h) | CALL(cuMemRelease, host));
	SHOW("unmap both", CALL(cuMemUnmap, p, 66 * MIB));
	SHOW("odd size", CALL(cuMemCreate, &h, MIB, &on_gpu, 0));
	SHOW("no GPU", CALL(cuMemCreate, &h, 2 * MIB, &nowhere, 0) != 0);
	SHOW("no properties", CALL(cuMemCreate, &h, 2 * MIB, NULL, 0));
	SHOW("no handle", CALL(cuMemCreate, NULL, 2 * MIB, &on_gpu, 0));
	SHOW("too large", CALL(cuMemCreate, &h, (size_t)1 << 50, &on_gpu, 0));
	SHOW("unmap with a size that overflows", CALL(cuMemUnmap, p, SIZE_MAX));
	SHOW("free addresses", CALL(cuMemAddressFree, p, 256 * MIB));
}

/* As PyTorch's expandable segments: one large range, chunks of 2 or 20 MiB. */
static void segments(void)
{
	enum { CHUNKS = 64 };
	CUmemGenericAllocationHandle h[CHUNKS];
	CUmemAccessDesc access = { { 1, 0 }, 3 };
	CUdeviceptr p = 0;

	CALL(cuMemAddressReserve, &p, (size_t)160 << 30, 0, 0, 0);
	for (int kind = 0; kind < 2; kind++) {
		size_t chunk = (kind ? 20 : 2) * MIB;

		for (int i = 0; i < CHUNKS; i++)
			CALL(cuMemCreate, &h[i], chunk, &on_gpu, 0);
		SHOW("chunks", 0);
		for (int i = 0; i < CHUNKS; i++)
			CALL(cuMemMap, p + i * chunk, chunk, 0, h[i], 0);
		SHOW("access", CALL(cuMemSetAccess, p, CHUNKS * chunk, &access, 1));
		for (int i = 0; i < CHUNKS; i++)
			if (i % 3 == 0)
				CALL(cuMemUnmap, p + i * chunk, chunk), CALL(cuMemRelease, h[i]);
		SHOW("a third back", 0);
		for (int i = 0; i < CHUNKS; i++)
			if (i % 3)
				CALL(cuMemRelease, h[i]);
		SHOW("handles back", 0);
		for (int i = 1; i < CHUNKS; i += 3)
			CALL(cuMemUnmap, p + i * chunk, i + 1 < CHUNKS ? 2 * chunk : chunk);
		SHOW("all back", 0);
	}
	SHOW("addresses", CALL(cuMemAddressFree, p, (size_t)160 << 30));
}

/* Compressed in blocks, and brightness and colours in planes of their own. */
static void blocks_and_planes(void)
{
	static const size_t sizes[][3] = { { 1, 0, 0 }, { 1000, 0, 0 }, { 63, 63, 0 }, { 65, 66, 3 }, { 4096, 4096, 0 }, { 4100, 2160, 0 } };

	for (int format = 0x91; format <= 0xb0; format += format == 0x9e ? 0xb0 - 0x9e : 1) {
		for (int s = 0; s < 6; s++) {
			for (unsigned channels = 1; channels <= 4; channels++) {
				CUDA_ARRAY3D_DESCRIPTOR d = { sizes[s][0], sizes[s][1], sizes[s][2], format, channels, sizes[s][2] ? 1 : 0 };
				CUmipmappedArray m = NULL;
				CUarray a = NULL;

				SHOW("blocks", CALL(cuArray3DCreate_v2, &a, &d));
				SHOW("destroy", a ? CALL(cuArrayDestroy, a) : 0);
				SHOW("mipmapped", CALL(cuMipmappedArrayCreate, &m, &d, 5));
				SHOW("destroy", m ? CALL(cuMipmappedArrayDestroy, m) : 0);
			}
		}
	}
}

static void arrays(void)
{
	static const int formats[] = { 1, 2, 3, 8, 9, 10, 16, 32, 0xc0, 0xc4, 0xcb };
	static const size_t sizes[][3] = { { 1, 0, 0 }, { 1000, 0, 0 }, { 63, 63, 0 }, { 64, 8, 4 }, { 4096, 4096, 0 }, { 100, 0, 5 } };

	for (int f = 0; f < 11; f++) {
		for (int s = 0; s < 6; s++) {
			for (unsigned channels = 1; channels <= 4; channels *= 2) {
				for (int layered = 0; layered < 2; layered++) {
					CUDA_ARRAY3D_DESCRIPTOR d = { sizes[s][0], sizes[s][1], sizes[s][2], formats[f], channels, (unsigned)layered };
					CUmipmappedArray m = NULL;
					CUarray a = NULL;

					SHOW("array", CALL(cuArray3DCreate_v2, &a, &d));
					SHOW("destroy", CALL(cuArrayDestroy, a));
					SHOW("mipmapped", CALL(cuMipmappedArrayCreate, &m, &d, 5));
					SHOW("destroy", CALL(cuMipmappedArrayDestroy, m));
				}
			}
		}
	}
	for (unsigned flag = 0x40; flag <= 0x80; flag *= 2) { /* memory would be mapped in */
		CUDA_ARRAY3D_DESCRIPTOR d = { 1024, 1024, 0, 32, 4, flag };
		CUDA_ARRAY_MEMORY_REQUIREMENTS needs = { 0 };
		CUarray a = NULL, same = NULL;

		SHOW("empty array", CALL(cuArray3DCreate_v2, &a, &d));
		int r = CALL(cuArrayGetMemoryRequirements, &needs, a, 0);
		d.Flags = 0;
		printf("requirements %d %zu\n", r, needs.size);
		SHOW("the same with memory", CALL(cuArray3DCreate_v2, &same, &d));
		CALL(cuArrayDestroy, a), CALL(cuArrayDestroy, same);
		SHOW("back", 0);
	}
	CUDA_ARRAY_DESCRIPTOR_v1 first = { 333, 7, 32, 2 };
	CUDA_ARRAY3D_DESCRIPTOR_v1 first3 = { 333, 7, 3, 32, 2, 0 };
	CUDA_ARRAY_DESCRIPTOR second = { 333, 7, 32, 2 };
	CUarray a[3] = { 0 };
	SHOW("first API", CALL(cuArrayCreate, &a[0], &first));
	SHOW("first API", CALL(cuArray3DCreate, &a[1], &first3));
	SHOW("second", CALL(cuArrayCreate_v2, &a[2], &second));
	CUcontext ctx = NULL;
	CALL(cuDevicePrimaryCtxReset_v2, 0);
	CALL(cuDevicePrimaryCtxRetain, &ctx, 0);
	CALL(cuCtxSetCurrent, ctx);
	SHOW("reset", 0);
}

/* What another process or another interface has is not charged here. */
static void others(void)
{
	CUmemGenericAllocationHandle h = 0;
	CUipcMemHandle ipc;
	CUdeviceptr p = 0;
	int fd = -1, ends[2];
	char ready;

	socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
	pid_t child = fork();
	if (!child) { /* the exporter */
		begin();
		CALL(cuMemAlloc_v2, &p, 32 * MIB);
		CALL(cuIpcGetMemHandle, &ipc, p);
		CALL(cuMemCreate, &h, 16 * MIB, &on_gpu, 0);
		CALL(cuMemExportToShareableHandle, &fd, h, 1, 0);
		union { struct cmsghdr header; char room[CMSG_SPACE(sizeof(int))]; } control = { 0 };
		struct iovec data = { &ipc, sizeof(ipc) };
		struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
		control.header = (struct cmsghdr){ CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
		sendmsg(ends[1], &message, 0);
		read(ends[1], &ready, 1);
		_exit(0);
	}
	union { struct cmsghdr header; char room[CMSG_SPACE(sizeof(int))]; } control;
	struct iovec data = { &ipc, sizeof(ipc) };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	recvmsg(ends[0], &message, 0);
	memcpy(&fd, CMSG_DATA(&control.header), sizeof(fd));
	begin();
	SHOW("open", CALL(cuIpcOpenMemHandle_v2, &p, ipc, 1));
	SHOW("free what was opened", CALL(cuMemFree_v2, p));
	SHOW("close", CALL(cuIpcCloseMemHandle, p));
	CALL(cuMemAddressReserve, &p, 64 * MIB, 0, 0, 0);
	SHOW("create beside", CALL(cuMemCreate, &h, 2 * MIB, &on_gpu, 0));
	SHOW("map beside", CALL(cuMemMap, p, 2 * MIB, 0, h, 0));
	SHOW("release", CALL(cuMemRelease, h));
	SHOW("unmap", CALL(cuMemUnmap, p, 2 * MIB));
	close(fd); /* what a descriptor keeps of a process that has ended, the library can't see */
	SHOW("descriptor gone", 0);
	write(ends[0], "", 1);
	waitpid(child, NULL, 0);
	SHOW("exporter gone", 0);

	CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = { .type = 1, .handle.fd = memfd_create("vulkan", 0), .size = 8 * MIB };
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer = { 0, 8 * MIB };
	CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC image = { .arrayDesc = { 64, 64, 0, 32, 4, 0 }, .numLevels = 2 };
	CUexternalMemory memory = NULL;
	CUmipmappedArray m = NULL;
	static char page[4096];
	SHOW("external", CALL(cuImportExternalMemory, &memory, &desc));
	SHOW("buffer", CALL(cuExternalMemoryGetMappedBuffer, &p, memory, &buffer));
	SHOW("image", CALL(cuExternalMemoryGetMappedMipmappedArray, &m, memory, &image));
	SHOW("free buffer", CALL(cuMemFree_v2, p));
	SHOW("free image", CALL(cuMipmappedArrayDestroy, m));
	SHOW("end", CALL(cuDestroyExternalMemory, memory));
	SHOW("register", CALL(cuMemHostRegister_v2, page, sizeof(page), 0));
	SHOW("unregister", CALL(cuMemHostUnregister, page));
}

/* Sparse arrays: what is mapped into one lives at least as long as it. */
static void sparse(void)
{
	CUDA_ARRAY3D_DESCRIPTOR d = { 1024, 1024, 0, 32, 4, 0x40 };
	CUarrayMapInfo info = { .memOperationType = 1 };
	CUmemGenericAllocationHandle h = 0, other = 0;

	CALL(cuArray3DCreate_v2, &info.resource.array, &d);
	SHOW("create", CALL(cuMemCreate, &h, 2 * MIB, &on_gpu, 0) | CALL(cuMemCreate, &other, 4 * MIB, &on_gpu, 0));
	info.memHandle.memHandle = h;
	SHOW("map into an array", CALL(cuMemMapArrayAsync, &info, 1, NULL));
	info.subresource.sparseLevel.offsetX = 64;
	info.memHandle.memHandle = other;
	SHOW("map more", CALL(cuMemMapArrayAsync_ptsz, &info, 1, NULL));
	SHOW("release", CALL(cuMemRelease, h) | CALL(cuMemRelease, other));
	SHOW("destroy the array", CALL(cuArrayDestroy, info.resource.array));
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 1 && !strcmp(argv[1], "others")) {
		others();
		return 0;
	}
	begin();
	lives();
	segments();
	arrays();
	blocks_and_planes();
	sparse();
	return 0;
}
