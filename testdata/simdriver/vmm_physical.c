/* Virtual memory: physical memory by handle. It ends when no handle and no mapping is left. */
#define _GNU_SOURCE
#include "vmm.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHARED_MAGIC 0x314d454d4d495353ull /* "SSIMMEM1" */

/* What a file descriptor of exported memory holds. */
struct shared {
	uint64_t magic, size;
	CUmemAllocationProp prop;
	uint8_t uuid[16];
};

struct physical *physical_find(CUmemGenericAllocationHandle handle)
{
	struct physical *p = (struct physical *)(uintptr_t)handle;

	return object_is(OBJECT_PHYSICAL, p) && p->handles ? p : NULL;
}

static void end_if_unused(struct physical *p)
{
	if (p->handles || p->uses)
		return;
	if (p->charged)
		charge_return(&process.view, p->card, CHARGE_DATA, p->size);
	object_remove(p);
	free(p);
}

void physical_use(struct physical *p)
{
	p->uses++;
}

void physical_unuse(struct physical *p)
{
	p->uses--;
	end_if_unused(p);
}

static bool on_host(const CUmemAllocationProp *prop)
{
	return prop->location.type >= CU_MEM_LOCATION_TYPE_HOST && prop->location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

static CUresult check_prop(const CUmemAllocationProp *prop)
{
	if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (on_host(prop))
		return CUDA_SUCCESS;
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_card(prop->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	if (device_lost(prop->location.id))
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	return prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

/* Process lock held. */
static CUresult add(struct physical with, CUmemGenericAllocationHandle *handle)
{
	struct physical *p = malloc(sizeof(*p));

	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*p = with;
	p->handles = 1;
	if (!object_add(OBJECT_PHYSICAL, p)) {
		free(p);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*handle = (uintptr_t)p;
	return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
		     unsigned long long flags)
{
	struct physical p;
	CUresult r;

	ENTER();
	if (!handle || flags || !size || size % VMM_GRANULARITY)
		return CUDA_ERROR_INVALID_VALUE;
	r = check_prop(prop);
	if (r)
		return r;
	p = (struct physical){.size = size, .prop = *prop, .charged = !on_host(prop)};
	p.card = p.charged ? process.devices[prop->location.id].card : 0;
	process_lock();
	if (p.charged)
		r = from_errno(charge_take(&process.view, p.card, CHARGE_DATA, size));
	if (!r)
		r = add(p, handle);
	else
		p.charged = false;
	if (r && p.charged)
		charge_return(&process.view, p.card, CHARGE_DATA, size);
	process_unlock();
	return r;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct physical *p;

	ENTER();
	process_lock();
	p = physical_find(handle);
	if (p) {
		p->handles--;
		end_if_unused(p);
	}
	process_unlock();
	return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	const struct physical *p = NULL;
	CUdeviceptr base;
	size_t size;

	ENTER();
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	if (vmm_mapping_at((uintptr_t)addr, &base, &size, &p)) {
		((struct physical *)p)->handles++;
		*handle = (uintptr_t)p; /* documented: the value with which it was mapped */
	}
	process_unlock();
	return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, int option)
{
	CUresult r;

	ENTER();
	if (!granularity || option < 0 || option > 1)
		return CUDA_ERROR_INVALID_VALUE;
	r = check_prop(prop);
	if (!r)
		*granularity = VMM_GRANULARITY;
	return r;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	const struct physical *p;

	ENTER();
	if (!prop)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	p = physical_find(handle);
	if (p)
		*prop = p->prop;
	process_unlock();
	return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
	struct shared shared = {.magic = SHARED_MAGIC};
	const struct physical *p;
	int fd;

	ENTER();
	if (!shareable || flags)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	p = physical_find(handle);
	if (p) {
		shared.size = p->size;
		shared.prop = p->prop;
		for (unsigned i = 0; i < sizeof(shared.uuid); i++)
			shared.uuid[i] = process.view.s->cards[p->card].uuid[i];
	}
	process_unlock();
	if (!p || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !(shared.prop.requestedHandleTypes & type))
		return CUDA_ERROR_INVALID_VALUE;
	fd = memfd_create("simgpu-memory", MFD_CLOEXEC);
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (pwrite(fd, &shared, sizeof(shared), 0) != sizeof(shared)) {
		close(fd);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	*(int *)shareable = fd;
	return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type)
{
	struct shared shared;
	CUresult r;

	ENTER();
	if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	if (pread((int)(intptr_t)shareable, &shared, sizeof(shared), 0) != sizeof(shared) || shared.magic != SHARED_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	r = add((struct physical){.size = shared.size, .prop = shared.prop}, handle);
	process_unlock();
	return r;
}
