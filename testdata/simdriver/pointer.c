/* What an address is of: an allocation, or a mapping of physical memory. */
#include "allocation.h"
#include "vmm.h"

#include <string.h>

#define LAST_ATTRIBUTE 20
#define SYNC_MEMOPS 6

struct owner {
	CUdeviceptr base;
	size_t size;
	const struct allocation *a; /* NULL: a mapping */
	const struct physical *p;
};

static bool find(CUdeviceptr ptr, struct owner *o)
{
	*o = (struct owner){.a = allocation_find(ptr)};
	if (!o->a)
		return vmm_mapping_at(ptr, &o->base, &o->size, &o->p);
	o->base = o->a->base;
	o->size = o->a->size;
	return true;
}

static CUresult address_range(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
	struct owner o;
	CUcontext ctx;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	process_lock();
	if (find(ptr, &o)) {
		*base = o.base;
		*size = o.size;
	} else {
		r = CUDA_ERROR_NOT_FOUND;
	}
	process_unlock();
	return r;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
	CUdeviceptr b;
	size_t n;
	CUresult r;

	ENTER();
	r = address_range(&b, &n, ptr);
	if (r)
		return r;
	if (base)
		*base = b;
	if (size)
		*size = n;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned int *size, CUdeviceptr_v1 ptr)
{
	CUdeviceptr b;
	size_t n;
	CUresult r;

	ENTER();
	r = address_range(&b, &n, ptr);
	if (r)
		return r;
	if (base)
		*base = (CUdeviceptr_v1)b;
	if (size)
		*size = (unsigned)n;
	return CUDA_SUCCESS;
}

static bool on_host(const struct owner *o)
{
	return o->a ? o->a->place == HOST || o->a->place == REGISTERED : o->p->prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
}

/* Documented: memory of a pool, and that of a mapping, is of no context. */
static CUcontext context_of(const struct owner *o)
{
	return o->a && !o->a->pool && o->a->place != GRAPH ? o->a->ctx : NULL;
}

static int device_of(const struct owner *o)
{
	return o->a ? o->a->ctx->device : on_host(o) ? -1 : o->p->prop.location.id;
}

/* Whether cuIpcGetMemHandle takes it. */
static bool ipc_capable(const struct owner *o)
{
	return o->a && o->a->place == DEVICE && !o->a->pool;
}

static CUresult attribute_of(const struct owner *o, void *data, int which, CUdeviceptr ptr)
{
	switch (which) {
	case 1: /* CONTEXT */
		*(CUcontext *)data = context_of(o);
		return CUDA_SUCCESS;
	case 2: /* MEMORY_TYPE: HOST 1, DEVICE 2 */
		*(unsigned *)data = on_host(o) ? 1 : 2;
		return CUDA_SUCCESS;
	case 3: /* DEVICE_POINTER */
		*(CUdeviceptr *)data = ptr;
		return CUDA_SUCCESS;
	case 4: /* HOST_POINTER */
		if (!o->a || (!on_host(o) && o->a->place != MANAGED))
			return CUDA_ERROR_INVALID_VALUE;
		*(void **)data = (void *)(uintptr_t)ptr;
		return CUDA_SUCCESS;
	case SYNC_MEMOPS:
	case 13: /* MAPPED */
		*(unsigned *)data = 1;
		return CUDA_SUCCESS;
	case 7:	 /* BUFFER_ID */
	case 20: /* MEMORY_BLOCK_ID */
		*(unsigned long long *)data = o->a ? o->a->id : o->p->id;
		return CUDA_SUCCESS;
	case 8: /* IS_MANAGED */
		*(unsigned *)data = o->a && o->a->place == MANAGED;
		return CUDA_SUCCESS;
	case 9: /* DEVICE_ORDINAL */
		*(int *)data = device_of(o);
		return CUDA_SUCCESS;
	case 10: /* IS_LEGACY_CUDA_IPC_CAPABLE */
		*(unsigned *)data = ipc_capable(o);
		return CUDA_SUCCESS;
	case 11: /* RANGE_START_ADDR */
	case 19: /* MAPPING_BASE_ADDR */
		*(CUdeviceptr *)data = o->base;
		return CUDA_SUCCESS;
	case 12: /* RANGE_SIZE */
	case 18: /* MAPPING_SIZE */
		*(size_t *)data = o->size;
		return CUDA_SUCCESS;
	case 14: /* ALLOWED_HANDLE_TYPES, of cuMemExportToShareableHandle */
		*(unsigned long long *)data = o->a ? 0 : (unsigned long long)o->p->prop.requestedHandleTypes;
		return CUDA_SUCCESS;
	case 17: /* MEMPOOL_HANDLE */
		*(CUmemoryPool *)data = o->a ? o->a->pool : NULL;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr ptr)
{
	struct owner o;
	CUresult r;

	ENTER();
	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	r = find(ptr, &o) ? attribute_of(&o, data, attribute, ptr) : CUDA_ERROR_INVALID_VALUE;
	process_unlock();
	return r;
}

/* What an attribute that is not there leaves: as many bytes of zeros. */
static size_t size_of(int attribute)
{
	static const unsigned char sizes[LAST_ATTRIBUTE + 1] = {0, 8, 4, 8, 8, 16, 4, 8, 4, 4, 4, 8, 8, 4, 8, 8, 4, 8, 8, 8, 4};

	return attribute > 0 && attribute <= LAST_ATTRIBUTE ? sizes[attribute] : 0;
}

/* As documented: a pointer that is not the driver's has attributes, too, all of them 0; its device is -2. */
CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **data, CUdeviceptr ptr)
{
	static const int no_device = -2;

	ENTER();
	if (!count || !attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		if (!size_of(attributes[i]) || !data[i])
			return CUDA_ERROR_INVALID_VALUE;
	}
	for (unsigned i = 0; i < count; i++) {
		if (!cuPointerGetAttribute(data[i], attributes[i], ptr))
			continue;
		memset(data[i], 0, size_of(attributes[i]));
		if (attributes[i] == 9)
			memcpy(data[i], &no_device, sizeof(no_device));
	}
	return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr ptr)
{
	struct owner o;
	bool known;

	ENTER();
	if (!value || attribute != SYNC_MEMOPS)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	known = find(ptr, &o);
	process_unlock();
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; /* all copies here are synchronous already */
}
