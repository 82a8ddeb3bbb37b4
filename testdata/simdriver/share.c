/*
 * Memory of other processes (IPC) and of other programming interfaces (external memory), and host memory that is registered.
 * None of it is charged to the process that opens it.
 */
#include "allocation.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define IPC_MAGIC 0x314350494d4953ull /* "SIMIPC1" */

struct ipc { /* what the 64 bytes of a handle hold */
	uint64_t magic, joined, serial;
	uint32_t gpu, client, share;
};

_Static_assert(sizeof(struct ipc) <= CU_IPC_HANDLE_SIZE, "fits");

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
	const struct state *s;
	struct allocation *a;
	struct ipc ipc = {.magic = IPC_MAGIC};
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	ENTER();
	if (!handle)
		return r;
	s = process.view.s;
	process_lock();
	a = allocation_find(ptr);
	if (a && a->place == DEVICE && !a->pool)
		r = allocation_export(a);
	if (!r) {
		ipc.gpu = a->ctx->gpu;
		ipc.client = (uint32_t)process.view.self;
		ipc.joined = s->clients[ipc.client].joined;
		ipc.share = a->share;
		ipc.serial = s->shares[a->share].serial;
	}
	process_unlock();
	if (!r) {
		memset(handle, 0, sizeof(*handle));
		memcpy(handle, &ipc, sizeof(ipc));
	}
	return r;
}

/* Seen on an H100: a process that has it open opens it again at the same address, also when its maker has freed it. */
static CUresult open_again(CUcontext ctx, const struct ipc *ipc, CUdeviceptr *ptr)
{
	bool found = false;

	process_lock();
	if (ipc->share < MAX_SHARES && process.view.s->shares[ipc->share].serial == ipc->serial)
		found = allocation_reopen(ctx, ipc->share, ptr);
	process_unlock();
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult open_ipc(CUdeviceptr *ptr, const CUipcMemHandle *handle, unsigned flags)
{
	struct share found;
	struct ipc ipc;
	CUcontext ctx;
	int kept;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	memcpy(&ipc, handle, sizeof(ipc));
	if (!ptr || flags != 1 || ipc.magic != IPC_MAGIC || ipc.client >= MAX_CLIENTS) /* LAZY_ENABLE_PEER_ACCESS */
		return CUDA_ERROR_INVALID_VALUE;
	if (ipc.client == (uint32_t)process.view.self && ipc.joined == process.view.s->clients[ipc.client].joined)
		return CUDA_ERROR_INVALID_CONTEXT; /* documented: not in the process that made it */
	if (!open_again(ctx, &ipc, ptr))
		return CUDA_SUCCESS;
	if (!client_lives(&process.view, ipc.client) || process.view.s->clients[ipc.client].joined != ipc.joined || ipc.gpu != ctx->gpu)
		return CUDA_ERROR_INVALID_HANDLE;
	if (share_open(&process.view, ipc.share, ipc.serial, &found, &kept))
		return CUDA_ERROR_INVALID_VALUE; /* its maker has freed it */
	process_lock();
	r = allocation_open(ctx, PEER, NULL, &found, kept, ipc.share, ptr);
	process_unlock();
	if (r)
		share_close(&process.view, kept);
	return r;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	ENTER();
	return open_ipc(ptr, &handle, flags);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	ENTER();
	return open_ipc(ptr, &handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr ptr)
{
	ENTER();
	return allocation_end(ptr, PEER);
}

struct CUextMemory_st {
	uint64_t size;
	int fd;
};

/* Any file stands for memory that another interface (Vulkan) has: what it has is not this driver's to charge. */
CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
	CUexternalMemory m;
	struct stat is;
	bool added;

	ENTER();
	if (!memory || !desc || !desc->size)
		return CUDA_ERROR_INVALID_VALUE;
	if (desc->type != 1)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (fstat(desc->handle.fd, &is))
		return CUDA_ERROR_INVALID_HANDLE;
	m = malloc(sizeof(*m));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*m = (struct CUextMemory_st){desc->size, desc->handle.fd}; /* documented: the descriptor is the driver's from here on */
	process_lock();
	added = object_add(OBJECT_EXTERNAL, m);
	process_unlock();
	if (!added) {
		free(m);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*memory = m;
	return CUDA_SUCCESS;
}

static CUresult size_of(CUexternalMemory memory, uint64_t *size)
{
	bool known;

	process_lock();
	known = object_is(OBJECT_EXTERNAL, memory);
	*size = known ? memory->size : 0;
	process_unlock();
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* It ends by cuMemFree. */
CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *ptr, CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc)
{
	uint64_t size;
	CUresult r;

	ENTER();
	r = size_of(memory, &size);
	if (r)
		return r;
	if (!ptr || !desc || desc->flags || desc->offset > size || desc->size > size - desc->offset)
		return CUDA_ERROR_INVALID_VALUE;
	r = allocate(EXTERNAL, desc->size, false, ptr);
	if (r)
		return r;
	process_lock();
	content_open_file(&allocation_find(*ptr)->content, memory->fd, desc->offset);
	process_unlock();
	return CUDA_SUCCESS;
}

CUresult cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *array, CUexternalMemory memory,
						 const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *desc)
{
	uint64_t size;
	CUresult r;

	ENTER();
	r = size_of(memory, &size);
	if (r)
		return r;
	if (!array || !desc || desc->offset > size)
		return CUDA_ERROR_INVALID_VALUE;
	return mipmap_create(array, &desc->arrayDesc, desc->numLevels, false);
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
	uint64_t size;
	CUresult r;

	ENTER();
	r = size_of(memory, &size);
	if (r)
		return r;
	close(memory->fd);
	return object_destroy(OBJECT_EXTERNAL, memory);
}

static CUresult host_register(void *p, size_t bytes, unsigned flags)
{
	if (!p || !bytes || flags & ~15u)
		return CUDA_ERROR_INVALID_VALUE;
	return allocation_register((CUdeviceptr)(uintptr_t)p, bytes);
}

CUresult cuMemHostRegister(void *p, size_t bytes, unsigned int flags)
{
	ENTER();
	return host_register(p, bytes, flags);
}

CUresult cuMemHostRegister_v2(void *p, size_t bytes, unsigned int flags)
{
	ENTER();
	return host_register(p, bytes, flags);
}

CUresult cuMemHostUnregister(void *p)
{
	ENTER();
	return allocation_end((CUdeviceptr)(uintptr_t)p, REGISTERED);
}

CUresult cuMemHostGetFlags(unsigned int *flags, void *p)
{
	const struct allocation *a;

	ENTER();
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	a = allocation_find((CUdeviceptr)(uintptr_t)p);
	process_unlock();
	*flags = 2; /* DEVICEMAP: all of it is */
	return a && (a->place == HOST || a->place == REGISTERED) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
