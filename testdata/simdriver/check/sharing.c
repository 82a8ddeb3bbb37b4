/* Two processes have the same memory: by an IPC handle, a descriptor, a pool. */
#define _GNU_SOURCE
#include "check.h"

#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

enum { MAPPED, POOL, DESCRIPTORS };

struct parcel {
	CUipcMemHandle ipc;
	CUmemPoolPtrExportData pointer;
};

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

static void write_all(CUdeviceptr p, size_t bytes, unsigned char value)
{
	FINE(cuMemsetD8_v2(p, value, bytes));
}

static bool holds_all(CUdeviceptr p, size_t bytes, unsigned char value)
{
	unsigned char *host = malloc(bytes);
	size_t same = 0;

	FINE(cuMemcpyDtoH_v2(host, p, bytes));
	while (same < bytes && host[same] == value)
		same++;
	free(host);
	return same == bytes;
}

static CUdeviceptr map(CUmemGenericAllocationHandle h, size_t bytes)
{
	CUdeviceptr p;

	FINE(cuMemAddressReserve(&p, bytes, 0, 0, 0));
	FINE(cuMemMap(p, bytes, 0, h, 0));
	FINE(cuMemSetAccess(p, bytes, &access_all, 1));
	FINE(cuMemRelease(h));
	return p;
}

static void post(int socket, const struct parcel *parcel, const int fds[DESCRIPTORS])
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(DESCRIPTORS * sizeof(int))];
	} control = {0};
	struct iovec data = {(void *)parcel, sizeof(*parcel)};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

	control.header = (struct cmsghdr){CMSG_LEN(DESCRIPTORS * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
	memcpy(CMSG_DATA(&control.header), fds, DESCRIPTORS * sizeof(int));
	CHECK(sendmsg(socket, &message, 0) == sizeof(*parcel));
}

static void take(int socket, struct parcel *parcel, int fds[DESCRIPTORS])
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(DESCRIPTORS * sizeof(int))];
	} control;
	struct iovec data = {parcel, sizeof(*parcel)};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

	CHECK(recvmsg(socket, &message, MSG_WAITALL) == sizeof(*parcel));
	memcpy(fds, CMSG_DATA(&control.header), DESCRIPTORS * sizeof(int));
}

static void ready(int socket)
{
	CHECK(write(socket, "x", 1) == 1);
}

static void hear(int socket)
{
	char c;

	CHECK(read(socket, &c, 1) == 1);
}

/* A third process, which opens memory when it has gone. */
static pid_t stranger(CUresult wants, int *socket)
{
	struct parcel parcel = {0};
	int fds[DESCRIPTORS], ends[2];
	CUdeviceptr p;

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	pid_t child = fork();
	if (!child) {
		close(ends[0]);
		take(ends[1], &parcel, fds);
		start();
		GIVES(cuIpcOpenMemHandle_v2(&p, parcel.ipc, 1), wants);
		exit(0);
	}
	close(ends[1]);
	*socket = ends[0];
	return child;
}

static void meet(pid_t other, int socket, const struct parcel *parcel)
{
	int status;

	post(socket, parcel, (int[DESCRIPTORS]){0, 0});
	CHECK(waitpid(other, &status, 0) == other && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(socket);
}

static void importer(int socket)
{
	CUdeviceptr ipc, again, mapped, pooled;
	CUmemGenericAllocationHandle h;
	struct parcel parcel = {0};
	CUmemoryPool pool;
	size_t before;
	int fds[DESCRIPTORS];

	start();
	take(socket, &parcel, fds);
	FINE(cuIpcOpenMemHandle_v2(&ipc, parcel.ipc, 1));
	FINE(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fds[MAPPED], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	mapped = map(h, 4 * MIB);
	FINE(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fds[POOL], CU_MEM_HANDLE_POSIX_FD, 0));
	FINE(cuMemPoolImportPointer(&pooled, pool, &parcel.pointer));
	close(fds[MAPPED]);
	close(fds[POOL]);
	CHECK(holds_all(ipc, 3 * MIB, 1) && holds_all(mapped, 4 * MIB, 2) && holds_all(pooled, 5000, 3));
	write_all(ipc, 3 * MIB, 11);
	write_all(mapped, 4 * MIB, 12);
	write_all(pooled, 5000, 13);
	ready(socket);
	hear(socket); /* the maker has freed all of it */
	before = used();
	CHECK(holds_all(ipc, 3 * MIB, 21) && holds_all(mapped, 4 * MIB, 22) && holds_all(pooled, 5000, 23));
	FINE(cuIpcOpenMemHandle_v2(&again, parcel.ipc, 1));
	CHECK(again == ipc);
	FINE(cuIpcCloseMemHandle(again));
	CHECK(used() == before && holds_all(ipc, 3 * MIB, 21));
	GIVES(cuMemPoolImportPointer(&again, pool, &parcel.pointer), CUDA_ERROR_INVALID_VALUE);
	FINE(cuIpcCloseMemHandle(ipc));
	CHECK(used() == before - 4 * MIB);
	FINE(cuMemUnmap(mapped, 4 * MIB));
	CHECK(used() == before - 8 * MIB);
	FINE(cuMemFree_v2(pooled));
	FINE(cuMemPoolDestroy(pool));
	exit(0);
}

void check_sharing(void)
{
	CUmemPoolProps props = {.allocType = 1, .handleTypes = CU_MEM_HANDLE_POSIX_FD, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUdeviceptr ipc, mapped, pooled;
	CUmemGenericAllocationHandle h;
	struct parcel parcel;
	CUmemoryPool pool;
	int fds[DESCRIPTORS], ends[2], status, third;
	pid_t child, late = stranger(CUDA_ERROR_INVALID_VALUE, &third);

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	child = fork();
	if (!child) {
		close(ends[0]);
		importer(ends[1]);
	}
	close(ends[1]);
	start();
	FINE(cuMemAlloc_v2(&ipc, 3 * MIB));
	write_all(ipc, 3 * MIB, 1); /* before it is exported, and after */
	FINE(cuIpcGetMemHandle(&parcel.ipc, ipc + 100));
	FINE(cuMemCreate(&h, 4 * MIB, &on_gpu, 0));
	FINE(cuMemExportToShareableHandle(&fds[MAPPED], h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	mapped = map(h, 4 * MIB);
	write_all(mapped, 4 * MIB, 2);
	FINE(cuMemPoolCreate(&pool, &props));
	FINE(cuMemAllocFromPoolAsync(&pooled, 5000, pool, NULL));
	write_all(pooled, 5000, 3);
	FINE(cuMemPoolExportToShareableHandle(&fds[POOL], pool, CU_MEM_HANDLE_POSIX_FD, 0));
	FINE(cuMemPoolExportPointer(&parcel.pointer, pooled));
	post(ends[0], &parcel, fds);
	close(fds[MAPPED]);
	close(fds[POOL]);
	hear(ends[0]);
	CHECK(holds_all(ipc, 3 * MIB, 11) && holds_all(mapped, 4 * MIB, 12) && holds_all(pooled, 5000, 13));
	write_all(ipc, 3 * MIB, 21);
	write_all(mapped, 4 * MIB, 22);
	write_all(pooled, 5000, 23);
	FINE(cuMemFree_v2(ipc));
	FINE(cuMemUnmap(mapped, 4 * MIB));
	FINE(cuMemFreeAsync(pooled, NULL));
	FINE(cuMemPoolDestroy(pool));
	meet(late, third, &parcel);
	ready(ends[0]);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void survivor(int socket)
{
	struct parcel parcel = {0};
	CUdeviceptr p, again;
	int fds[DESCRIPTORS], third;
	pid_t late = stranger(CUDA_ERROR_INVALID_HANDLE, &third);
	char c;

	start();
	take(socket, &parcel, fds);
	FINE(cuIpcOpenMemHandle_v2(&p, parcel.ipc, 1));
	ready(socket);
	CHECK(read(socket, &c, 1) == 0); /* the maker is dead */
	meet(late, third, &parcel);
	FINE(cuIpcOpenMemHandle_v2(&again, parcel.ipc, 1));
	CHECK(again == p);
	FINE(cuIpcCloseMemHandle(again));
	CHECK(holds_all(p, 64 * MIB, 5));
	printf("child=%d\n", (int)getpid());
	fclose(stdout); /* the test waits until all of its output is closed */
	close(STDERR_FILENO);
	for (;;)
		pause();
}

/* The maker dies. Another process has its memory open by an IPC handle. */
void check_ipc_orphan(void)
{
	struct parcel parcel;
	CUdeviceptr p;
	int ends[2];

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	if (!fork()) {
		close(ends[0]);
		survivor(ends[1]);
	}
	close(ends[1]);
	start();
	FINE(cuMemAlloc_v2(&p, 64 * MIB));
	write_all(p, 64 * MIB, 5);
	FINE(cuIpcGetMemHandle(&parcel.ipc, p));
	post(ends[0], &parcel, (int[DESCRIPTORS]){0, 0});
	hear(ends[0]);
	raise(SIGKILL);
}
