/* In which account the memory is that one process exports and another imports, and how long it lives. */
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXPORTED_MIB = 256 };

static void send_descriptor(int socket, int fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec byte = {(char[]){0}, 1};
	struct msghdr m = {.msg_iov = &byte, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	if (sendmsg(socket, &m, 0) < 0)
		perror("sendmsg");
}

static int receive_descriptor(int socket)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec byte = {(char[1]){0}, 1};
	struct msghdr m = {.msg_iov = &byte, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
	struct cmsghdr *c;
	int fd = -1;

	if (recvmsg(socket, &m, 0) > 0 && (c = CMSG_FIRSTHDR(&m)) && c->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

int export_owner(int socket)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
	CUmemGenericAllocationHandle handle;
	char word[16];
	int fd;

	begin();
	must(more.cuMemCreate(&handle, EXPORTED_MIB * MIB, &prop, 0), "cuMemCreate");
	must(more.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "cuMemExportToShareableHandle");
	send_descriptor(socket, fd);
	return fgets(word, sizeof(word), stdin) ? EXIT_FINE : EXIT_USAGE;
}

static void grown(const char *key, double now, double before)
{
	if (now < 0 || before < 0)
		answer(key, "unknown");
	else
		answer(key, "%.0f", now - before);
}

/* Its memory is in NVML's sum of the owner, of the importer, of both or of none. */
static void accounts(const char *step, pid_t owner, double owner_before, double mine_before)
{
	char key[64];

	snprintf(key, sizeof(key), "export.%s_owner_mib", step);
	grown(key, nvml_process_mib(owner), owner_before);
	snprintf(key, sizeof(key), "export.%s_importer_mib", step);
	grown(key, nvml_process_mib(getpid()), mine_before);
}

/* What is left of the memory of a process that had "theirs" and has ended, and is in the importer's account or in none. */
static void left(const char *key, double used_before, double theirs)
{
	if (theirs < 0)
		answer(key, "unknown");
	else
		answer(key, "%.0f", theirs - (used_before - nvml_used_mib()));
}

static void descriptors(void)
{
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr p;
	int pair[2], fd;
	char number_of[16];
	struct other o;
	double mine, theirs, used;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) {
		perror("socketpair");
		exit(EXIT_CUDA);
	}
	snprintf(number_of, sizeof(number_of), "%d", pair[1]);
	o = start("probe", (char *const[]){"probe", "export-owner", number_of, NULL});
	close(pair[1]);
	fd = receive_descriptor(pair[0]);
	mine = nvml_process_mib(getpid());
	theirs = nvml_process_mib(o.pid);
	must(more.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
	     "cuMemImportFromShareableHandle");
	accounts("imported", o.pid, theirs, mine);
	must(more.cuMemAddressReserve(&p, EXPORTED_MIB * MIB, 0, 0, 0), "cuMemAddressReserve");
	must(more.cuMemMap(p, EXPORTED_MIB * MIB, 0, handle, 0), "cuMemMap");
	must(more.cuMemSetAccess(p, EXPORTED_MIB * MIB, &access, 1), "cuMemSetAccess");
	accounts("mapped", o.pid, theirs, mine);
	used = nvml_used_mib();
	send_line(&o, "end");
	finish(&o);
	left("export.ended_left_mib", used, theirs);
	grown("export.ended_importer_mib", nvml_process_mib(getpid()), mine);
	must(more.cuMemRelease(handle), "cuMemRelease");
	close(fd);
	close(pair[0]);
}

/* A descriptor that no process has imported, after its owner's end. */
static void unused_descriptor(void)
{
	int pair[2], fd;
	char number_of[16];
	struct other o;
	double before = nvml_used_mib();

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) {
		perror("socketpair");
		exit(EXIT_CUDA);
	}
	snprintf(number_of, sizeof(number_of), "%d", pair[1]);
	o = start("probe", (char *const[]){"probe", "export-owner", number_of, NULL});
	close(pair[1]);
	fd = receive_descriptor(pair[0]);
	send_line(&o, "end");
	finish(&o);
	answer("export.descriptor_holds_mib", "%.0f", nvml_used_mib() - before);
	close(fd);
	close(pair[0]);
}

void ipc_owner(void)
{
	CUipcMemHandle handle;
	CUdeviceptr p;
	char word[16];

	begin();
	must(cu.cuMemAlloc_v2(&p, EXPORTED_MIB * MIB), "cuMemAlloc");
	must(more.cuIpcGetMemHandle(&handle, p), "cuIpcGetMemHandle");
	fwrite(&handle, sizeof(handle), 1, stdout);
	fflush(stdout);
	while (fgets(word, sizeof(word), stdin) && strcmp(word, "end\n")) {
		must(cu.cuMemFree_v2(p), "cuMemFree");
		answer("freed", "1");
		fflush(stdout);
	}
}

/* False: the driver makes none. */
static bool ipc_handle(struct other *o, CUipcMemHandle *handle)
{
	*o = start("probe", (char *const[]){"probe", "ipc-owner", NULL});
	if (fread(handle, sizeof(*handle), 1, o->out) == 1)
		return true;
	answer("export.ipc", "no handle");
	finish(o);
	return false;
}

static void ipc(void)
{
	struct other o;
	CUipcMemHandle handle;
	CUdeviceptr p;
	double mine, theirs, used;
	CUresult r;

	if (!ipc_handle(&o, &handle))
		return;
	mine = nvml_process_mib(getpid());
	theirs = nvml_process_mib(o.pid);
	r = more.cuIpcOpenMemHandle_v2(&p, handle, 1);
	answer("export.ipc", "%s", error_name(r));
	accounts("ipc", o.pid, theirs, mine);
	used = nvml_used_mib();
	send_line(&o, "end");
	finish(&o);
	if (r)
		return;
	left("export.ipc_ended_left_mib", used, theirs);
	used = nvml_used_mib();
	must(more.cuIpcCloseMemHandle(p), "cuIpcCloseMemHandle");
	answer("export.ipc_closed_mib", "%.0f", used - nvml_used_mib());
}

/* CUDA's manual leaves it undefined what becomes of memory that its owner frees while another process has it open. */
static void ipc_freed(void)
{
	struct other o;
	CUipcMemHandle handle;
	CUdeviceptr p, base;
	size_t size = 0;
	double theirs, used;

	if (!ipc_handle(&o, &handle))
		return;
	if (!more.cuIpcOpenMemHandle_v2(&p, handle, 1)) {
		answer("export.ipc_range", "%s", error_name(more.cuMemGetAddressRange_v2(&base, &size, p)));
		answer("export.ipc_range_mib", "%.0f", (double)size / MIB);
		used = nvml_used_mib();
		theirs = nvml_process_mib(o.pid);
		send_line(&o, "free");
		receive(&o, "freed");
		answer("export.ipc_freed_left_mib", "%.0f", EXPORTED_MIB - (used - nvml_used_mib()));
		grown("export.ipc_freed_owner_mib", nvml_process_mib(o.pid), theirs);
		answer("export.ipc_freed_close", "%s", error_name(more.cuIpcCloseMemHandle(p)));
		answer("export.ipc_freed_closed_mib", "%.0f", used - nvml_used_mib());
	}
	send_line(&o, "end");
	finish(&o);
}

void ask_export(void)
{
	nvml_begin();
	begin();
	if (!more.cuMemCreate || !more.cuMemImportFromShareableHandle) {
		answer("export.descriptor_holds_mib", "absent");
		return;
	}
	unused_descriptor();
	descriptors();
	ipc();
	ipc_freed();
}
