#define _GNU_SOURCE
#include "check.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static const CUmemAllocationProp on_gpu = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
};
static const CUmemAccessDesc access_all = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

static size_t used(void)
{
	size_t free_bytes, total;

	FINE(cuMemGetInfo_v2(&free_bytes, &total));
	return total - free_bytes;
}

/* What is released stays while it is mapped. */
static void check_life(void)
{
	CUmemGenericAllocationHandle h, again;
	CUdeviceptr p;
	size_t before = used();

	FINE(cuMemAddressReserve(&p, 64 * MIB, 0, 0, 0));
	FINE(cuMemCreate(&h, 4 * MIB, &on_gpu, 0));
	CHECK(used() == before + 4 * MIB);
	FINE(cuMemMap(p, 4 * MIB, 0, h, 0));
	GIVES(cuMemMap(p + 2 * MIB, 4 * MIB, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemsetD8_v2(p, 0, 4 * MIB), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemSetAccess(p, 4 * MIB, &access_all, 1));
	FINE(cuMemsetD8_v2(p, 0, 4 * MIB));
	FINE(cuMemRelease(h));
	GIVES(cuMemRelease(h), CUDA_ERROR_INVALID_VALUE);
	CHECK(used() == before + 4 * MIB);
	FINE(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(p + 3 * MIB)));
	CHECK(again == h);
	GIVES(cuMemUnmap(p, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemAddressFree(p, 64 * MIB), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemUnmap(p, 4 * MIB));
	CHECK(used() == before + 4 * MIB);
	FINE(cuMemRelease(again));
	CHECK(used() == before);
	FINE(cuMemAddressFree(p, 64 * MIB));
	GIVES(cuMemMap(p, 4 * MIB, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
}

/* Chunks beside each other are unmapped by one call. */
static void check_chunks(void)
{
	CUmemGenericAllocationHandle h[8];
	CUdeviceptr p, requested;
	size_t before = used();

	FINE(cuMemAddressReserve(&p, 1024 * MIB, 0, 0, 0));
	FINE(cuMemAddressReserve(&requested, 2 * MIB, 0, p + 2048 * MIB, 0));
	CHECK(requested == p + 2048 * MIB);
	for (int i = 0; i < 8; i++) {
		FINE(cuMemCreate(&h[i], 2 * MIB, &on_gpu, 0));
		FINE(cuMemMap(p + (size_t)i * 2 * MIB, 2 * MIB, 0, h[i], 0));
		FINE(cuMemRelease(h[i]));
	}
	FINE(cuMemSetAccess(p, 16 * MIB, &access_all, 1));
	FINE(cuMemsetD8_v2(p + MIB, 0, 14 * MIB));
	CHECK(used() == before + 16 * MIB);
	FINE(cuMemUnmap(p + 4 * MIB, 4 * MIB));
	CHECK(used() == before + 12 * MIB);
	GIVES(cuMemUnmap(p, 16 * MIB), CUDA_ERROR_INVALID_VALUE); /* it has a gap */
	FINE(cuMemUnmap(p + 8 * MIB, 8 * MIB));
	FINE(cuMemUnmap(p, 4 * MIB));
	CHECK(used() == before);
	FINE(cuMemAddressFree(p, 1024 * MIB));
	FINE(cuMemAddressFree(requested, 2 * MIB));
}

static void check_refusals(void)
{
	CUmemGenericAllocationHandle h;
	CUmemAllocationProp prop = on_gpu;
	size_t granularity, before = used();

	FINE(cuMemGetAllocationGranularity(&granularity, &prop, 0));
	CHECK(granularity == 2 * MIB);
	GIVES(cuMemCreate(&h, MIB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemCreate(&h, (size_t)1 << 40, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	prop.location.id = 99;
	GIVES(cuMemCreate(&h, 2 * MIB, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
	prop.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0};
	FINE(cuMemCreate(&h, 2 * MIB, &prop, 0));
	CHECK(used() == before);
	FINE(cuMemRelease(h));
}

/* Memory lives as long as a handle, a mapping or a descriptor of it. */
static void check_export(void)
{
	CUmemGenericAllocationHandle h, other, again;
	CUmemAllocationProp prop;
	CUdeviceptr p;
	size_t before = used();
	int fd, second;

	FINE(cuMemCreate(&h, 4 * MIB, &on_gpu, 0));
	FINE(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	CHECK(used() == before + 4 * MIB);
	FINE(cuMemRelease(h));
	CHECK(used() == before + 4 * MIB);
	FINE(cuMemImportFromShareableHandle(&other, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	FINE(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	FINE(cuMemGetAllocationPropertiesFromHandle(&prop, other));
	CHECK(prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE && prop.location.id == 0);
	CHECK(used() == before + 4 * MIB);
	FINE(cuMemExportToShareableHandle(&second, again, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	close(fd);
	FINE(cuMemRelease(again));
	FINE(cuMemAddressReserve(&p, 8 * MIB, 0, 0, 0));
	GIVES(cuMemMap(p, 6 * MIB, 0, other, 0), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemMap(p, 4 * MIB, 0, other, 0));
	FINE(cuMemRelease(other));
	close(second);
	CHECK(used() == before + 4 * MIB);
	FINE(cuMemUnmap(p, 4 * MIB));
	CHECK(used() == before);
	FINE(cuMemAddressFree(p, 8 * MIB));
	GIVES(cuMemImportFromShareableHandle(&other, (void *)(intptr_t)0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), CUDA_ERROR_INVALID_VALUE);
}

static void send_descriptor(int socket, int fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec data = {"x", 1};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

	control.header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	CHECK(sendmsg(socket, &message, 0) == 1);
}

/* The exporting process dies. The descriptor is in a socket that a process without the driver has, and is never received. */
void check_export_orphan(void)
{
	CUmemGenericAllocationHandle h;
	int fd, ends[2];
	pid_t child;

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	child = fork();
	if (!child) {
		close(STDOUT_FILENO); /* the test waits until all of its output is closed */
		close(STDERR_FILENO);
		for (;;)
			pause();
	}
	printf("child=%d\n", (int)child);
	fflush(stdout);
	start();
	FINE(cuMemCreate(&h, 64 * MIB, &on_gpu, 0));
	FINE(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	send_descriptor(ends[0], fd);
	raise(SIGKILL);
}

static int receive_descriptor(int socket)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {0};
	char byte;
	struct iovec data = {&byte, 1};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	int fd;

	CHECK(recvmsg(socket, &message, 0) == 1);
	memcpy(&fd, CMSG_DATA(&control.header), sizeof(fd));
	return fd;
}

/* Imports what this process exports, in another one, which lives on when this one is killed. */
void check_import_holder(void)
{
	CUmemGenericAllocationHandle h;
	char byte = 0;
	int fd, ends[2];
	pid_t child;

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	child = fork();
	if (!child) {
		fd = receive_descriptor(ends[1]);
		start();
		FINE(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
		close(fd);
		close(STDOUT_FILENO); /* the test waits until all of its output is closed */
		close(STDERR_FILENO);
		CHECK(write(ends[1], &byte, 1) == 1);
		for (;;)
			pause();
	}
	start();
	FINE(cuMemCreate(&h, 64 * MIB, &on_gpu, 0));
	FINE(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	send_descriptor(ends[0], fd);
	close(fd);
	CHECK(read(ends[0], &byte, 1) == 1);
	printf("child=%d\nready=1\n", (int)child);
	fflush(stdout);
	for (;;)
		pause();
}

void check_vmm(void)
{
	int yes = 0;

	start();
	FINE(cuDeviceGetAttribute(&yes, 102, 0));
	CHECK(yes);
	check_life();
	check_chunks();
	check_refusals();
	check_export();
}

static void check_sparse(void)
{
	CUDA_ARRAY3D_DESCRIPTOR desc = {1024, 1024, 0, 0x20, 1, CUDA_ARRAY3D_SPARSE};
	CUarrayMapInfo info = {.memOperationType = 1};
	CUmemGenericAllocationHandle h;
	size_t before = used();

	FINE(cuArray3DCreate_v2(&info.resource.array, &desc));
	CHECK(used() == before);
	FINE(cuMemCreate(&h, 2 * MIB, &on_gpu, 0));
	info.memHandle.memHandle = h;
	FINE(cuMemMapArrayAsync(&info, 1, NULL));
	FINE(cuMemRelease(h));
	CHECK(used() == before + 2 * MIB);
	info.memOperationType = 2;
	FINE(cuMemMapArrayAsync(&info, 1, NULL));
	CHECK(used() == before);
	FINE(cuArrayDestroy(info.resource.array));
}

static size_t taken_by(int format, unsigned channels)
{
	CUDA_ARRAY_DESCRIPTOR flat = {4096, 2048, format, channels};
	size_t before = used(), more;
	CUarray a;

	FINE(cuArrayCreate_v2(&a, &flat));
	more = used() - before;
	FINE(cuArrayDestroy(a));
	return more;
}

/* Compressed ones take 8 or 16 bytes for 4 by 4 elements, those in planes a byte and two of colour for every four. */
static void check_formats(void)
{
	CUDA_ARRAY_DESCRIPTOR bc1 = {16, 8, 0x91, 4};
	unsigned char host[32];
	CUarray a;

	CHECK(taken_by(0x91, 4) == 4096 * 2048 / 2);
	CHECK(taken_by(0x95, 4) == 4096 * 2048);
	CHECK(taken_by(0x97, 1) == 4096 * 2048 / 2);
	CHECK(taken_by(0x9b, 3) == 4096 * 2048);
	CHECK(taken_by(0x9e, 4) == 4096 * 2048);
	CHECK(taken_by(0xb0, 3) == 4096 * 2048 * 3 / 2);
	GIVES(cuArrayCreate_v2(&a, &(CUDA_ARRAY_DESCRIPTOR){16, 8, 0x91, 1}), CUDA_ERROR_INVALID_VALUE);
	FINE(cuArrayCreate_v2(&a, &bc1));
	FINE(cuMemcpyHtoA_v2(a, 0, host, 32)); /* a row of four blocks */
	GIVES(cuMemcpyHtoA_v2(a, 0, host, 33), CUDA_ERROR_INVALID_VALUE);
	FINE(cuArrayDestroy(a));
}

void check_arrays(void)
{
	CUDA_ARRAY_DESCRIPTOR flat = {1023, 1025, 0x20, 4};
	CUDA_ARRAY3D_DESCRIPTOR deep = {1024, 1024, 4, 0x10, 2, 0}, reported;
	CUDA_ARRAY_MEMORY_REQUIREMENTS needs;
	CUarray a, level;
	CUmipmappedArray m;
	size_t before;

	start();
	before = used();
	FINE(cuArrayCreate_v2(&a, &flat));
	CHECK(used() == before + 18 * MIB); /* 16 bytes less than 16 MiB, and the padding of rows */
	GIVES(cuArrayGetMemoryRequirements(&needs, a, 0), CUDA_ERROR_INVALID_VALUE);
	FINE(cuArrayDestroy(a));
	GIVES(cuArrayDestroy(a), CUDA_ERROR_INVALID_HANDLE);
	FINE(cuArray3DCreate_v2(&a, &deep));
	FINE(cuArray3DGetDescriptor_v2(&reported, a));
	CHECK(reported.Depth == 4 && reported.NumChannels == 2);
	CHECK(used() == before + 16 * MIB);
	FINE(cuArrayDestroy(a));
	FINE(cuMipmappedArrayCreate(&m, &deep, 3));
	CHECK(used() == before + 20 * MIB); /* 16, 2 and a quarter */
	FINE(cuMipmappedArrayGetLevel(&level, m, 1));
	GIVES(cuArrayDestroy(level), CUDA_ERROR_INVALID_HANDLE);
	FINE(cuMipmappedArrayDestroy(m));
	deep.Flags = CUDA_ARRAY3D_DEFERRED_MAPPING;
	FINE(cuArray3DCreate_v2(&a, &deep));
	CHECK(used() == before);
	FINE(cuArrayGetMemoryRequirements(&needs, a, 0));
	CHECK(needs.size == 16 * MIB);
	FINE(cuArrayDestroy(a));
	flat.NumChannels = 3;
	GIVES(cuArrayCreate_v2(&a, &flat), CUDA_ERROR_INVALID_VALUE);
	check_formats();
	check_sparse();
	CHECK(used() == before);
}

static void check_module_data(void)
{
	static const char ptx[] = ".version 6.3\n.target sm_75\n.visible .global .align 4 .b8 table[3000000];\n"
				  "// .global .u32 not_this;\n.global .u64 counter;\n.visible .entry run() { ld.global.u32 %r1, [x]; ret; }\n";
	size_t size, before = used();
	CUmodule module;
	CUdeviceptr p, q;

	FINE(cuModuleLoadData(&module, ptx));
	CHECK(used() == before + 4 * MIB);
	FINE(cuModuleGetGlobal_v2(&p, &size, module, "table"));
	CHECK(size == 3000000);
	FINE(cuMemsetD8_v2(p, 0, size));
	GIVES(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
	FINE(cuModuleGetGlobal_v2(&q, &size, module, "counter"));
	CHECK(size == 8 && q != p);
	GIVES(cuModuleGetGlobal_v2(&q, &size, module, "not_this"), CUDA_ERROR_NOT_FOUND);
	FINE(cuModuleUnload(module));
	CHECK(used() == before);
	GIVES(cuMemsetD8_v2(p, 0, 8), CUDA_ERROR_INVALID_VALUE);
}

void check_shared(void)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {.type = 1, .size = MIB};
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer = {.offset = 0, .size = MIB};
	CUexternalMemory memory;
	CUipcMemHandle handle;
	CUdeviceptr p, other;
	static char text[4096];
	size_t before;

	start();
	before = used();
	FINE(cuMemAlloc_v2(&p, MIB));
	FINE(cuIpcGetMemHandle(&handle, p));
	GIVES(cuIpcOpenMemHandle_v2(&other, handle, 1), CUDA_ERROR_INVALID_CONTEXT);
	FINE(cuMemFree_v2(p));
	desc.handle.fd = memfd_create("vulkan", 0);
	FINE(cuImportExternalMemory(&memory, &desc));
	FINE(cuExternalMemoryGetMappedBuffer(&p, memory, &buffer));
	FINE(cuMemsetD8_v2(p, 0, MIB));
	CHECK(used() == before);
	FINE(cuMemFree_v2(p));
	FINE(cuDestroyExternalMemory(memory));
	FINE(cuMemHostRegister_v2(text, sizeof(text), 0));
	GIVES(cuMemHostRegister_v2(text, sizeof(text), 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	GIVES(cuMemFreeHost(text), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemHostUnregister(text));
	GIVES(cuMemHostUnregister(text), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	check_module_data();
}
