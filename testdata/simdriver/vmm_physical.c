/* Virtual memory: physical memory by handle. It ends when no handle and no mapping is left. */
#define _GNU_SOURCE
#include "allocation.h"
#include "vmm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* What an importing process has to know. */
struct note {
	uint64_t size;
	CUmemAllocationProp prop;
};

_Static_assert(sizeof(struct note) <= sizeof(((struct share *)0)->note), "fits");

struct physical *physical_find(CUmemGenericAllocationHandle handle)
{
	struct physical *p = (struct physical *)(uintptr_t)handle;

	return object_is(OBJECT_PHYSICAL, p) && p->handles ? p : NULL;
}

static void end_if_unused(struct physical *p)
{
	if (p->handles || p->uses)
		return;
	content_end(&p->content);
	if (p->charged)
		charge_return(&process.view, p->gpu, CHARGE_DATA, p->size);
	if (p->shared >= 0)
		share_end(&process.view, p->shared, p->share, p->imported);
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
	if (!device_gpu(prop->location.id))
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
	p->id = memory_id();
	p->content.size = p->size;
	if (p->content.offset && !content_open(&p->content)) {
		free(p);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	if (!object_add(OBJECT_PHYSICAL, p)) {
		content_end(&p->content);
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
	p = (struct physical){.size = size, .prop = *prop, .charged = !on_host(prop), .shared = -1};
	p.gpu = p.charged ? process.devices[prop->location.id].gpu : 0;
	process_lock();
	if (p.charged)
		r = from_errno(charge_take(&process.view, p.gpu, CHARGE_DATA, size));
	if (!r)
		r = add(p, handle);
	else
		p.charged = false;
	if (r && p.charged)
		charge_return(&process.view, p.gpu, CHARGE_DATA, size);
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

/* The first export makes it a share; each descriptor is a copy of that one's. Process lock held. */
static int export(struct physical *p, int *fd)
{
	struct share what = {.gpu = p->gpu, .bytes = p->charged ? p->size : 0, .length = p->size};
	struct note note = {p->size, p->prop};

	if (p->shared < 0) {
		memcpy(what.note, &note, sizeof(note));
		int err = share_create(&process.view, &what, &p->shared, &p->share);

		if (err) {
			p->shared = -1;
			return err;
		}
		p->charged = false;
	}
	if (!p->content.offset && !content_share(&p->content, process.view.s->shares[p->share].offset))
		return EIO;
	*fd = fcntl(p->shared, F_DUPFD_CLOEXEC, 0);
	return *fd < 0 ? errno : 0;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	struct physical *p;

	ENTER();
	if (!shareable || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return r;
	process_lock();
	p = physical_find(handle);
	if (p && p->prop.requestedHandleTypes & type)
		r = from_errno(export(p, shareable));
	process_unlock();
	return r;
}

/* The device that this process knows the memory's GPU by. */
static CUresult place_import(const struct share *found, CUmemAllocationProp *prop)
{
	if (on_host(prop))
		return CUDA_SUCCESS;
	for (unsigned i = 0; i < process.device_count; i++) {
		if (process.devices[i].gpu == found->gpu) {
			prop->location.id = (int)i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type)
{
	struct physical p = {0};
	struct share found;
	struct note note;
	CUresult r;

	ENTER();
	if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	if (share_import(&process.view, (int)(intptr_t)shareable, &found, &p.shared, &p.share))
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&note, found.note, sizeof(note));
	p.imported = true;
	p.size = note.size;
	p.prop = note.prop;
	p.gpu = found.gpu;
	p.content.offset = found.offset;
	r = place_import(&found, &p.prop);
	process_lock();
	if (!r)
		r = add(p, handle);
	process_unlock();
	if (r)
		share_end(&process.view, p.shared, p.share, true);
	return r;
}
