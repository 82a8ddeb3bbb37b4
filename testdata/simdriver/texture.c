/*
 * Texture and surface objects: the descriptions that they were made of. Kernels read nothing here. NVIDIA documents what a
 * description must hold (docs.nvidia.com/cuda/cuda-driver-api, texture and surface object management).
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define TEXTURE_ALIGNMENT 512u /* as the attributes of the device have these */
#define PITCH_ALIGNMENT 32u
#define MAX_LINEAR_ELEMENTS (1ull << 28)
#define MAX_LINEAR_WIDTH 131072u
#define MAX_LINEAR_HEIGHT 65000u
#define MAX_LINEAR_PITCH 2097120u

#define LAST_ADDRESS_MODE 3 /* border */
#define LAST_FILTER_MODE 1 /* linear */
#define LAST_VIEW_FORMAT 0x22
#define KNOWN_FLAGS 0x73u

struct texture { /* or a surface */
	CUcontext ctx;
	CUDA_RESOURCE_DESC resource;
	CUDA_TEXTURE_DESC desc;
	CUDA_RESOURCE_VIEW_DESC view;
	bool viewed;
};

/* 0: no format that linear memory can be read in. */
static unsigned element_size(int format, unsigned channels)
{
	unsigned bytes = format == 0x01 || format == 0x08			      ? 1
			 : format == 0x02 || format == 0x09 || format == 0x10 ? 2
			 : format == 0x03 || format == 0x0a || format == 0x20 ? 4
									      : 0;

	return channels == 1 || channels == 2 || channels == 4 ? bytes * channels : 0;
}

static bool good_linear(const CUDA_RESOURCE_DESC *d)
{
	unsigned element = element_size(d->res.linear.format, d->res.linear.numChannels);
	size_t bytes = d->res.linear.sizeInBytes;

	return element && bytes && bytes / element <= MAX_LINEAR_ELEMENTS && d->res.linear.devPtr % TEXTURE_ALIGNMENT == 0 &&
	       memory_covers(d->res.linear.devPtr, bytes);
}

static bool good_pitch(const CUDA_RESOURCE_DESC *d)
{
	unsigned element = element_size(d->res.pitch2D.format, d->res.pitch2D.numChannels);
	size_t width = d->res.pitch2D.width, height = d->res.pitch2D.height, pitch = d->res.pitch2D.pitchInBytes;

	if (!element || !width || !height || width > MAX_LINEAR_WIDTH || height > MAX_LINEAR_HEIGHT || pitch > MAX_LINEAR_PITCH)
		return false;
	return pitch % PITCH_ALIGNMENT == 0 && pitch >= width * element && d->res.pitch2D.devPtr % TEXTURE_ALIGNMENT == 0 &&
	       memory_covers(d->res.pitch2D.devPtr, (height - 1) * pitch + width * element);
}

static bool good_resource(const CUDA_RESOURCE_DESC *d)
{
	if (d->flags)
		return false;
	switch (d->resType) {
	case CU_RESOURCE_TYPE_ARRAY:
		return object_is(OBJECT_ARRAY, d->res.array.hArray);
	case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
		return object_is(OBJECT_MIPMAP, d->res.mipmap.hMipmappedArray);
	case CU_RESOURCE_TYPE_LINEAR:
		return good_linear(d);
	case CU_RESOURCE_TYPE_PITCH2D:
		return good_pitch(d);
	default:
		return false;
	}
}

static bool good_desc(const CUDA_TEXTURE_DESC *d)
{
	for (int i = 0; i < 3; i++) {
		if (d->addressMode[i] < 0 || d->addressMode[i] > LAST_ADDRESS_MODE)
			return false;
	}
	return d->filterMode >= 0 && d->filterMode <= LAST_FILTER_MODE && d->mipmapFilterMode >= 0 &&
	       d->mipmapFilterMode <= LAST_FILTER_MODE && !(d->flags & ~KNOWN_FLAGS);
}

/* Documented: only arrays have views. */
static bool good_view(const CUDA_RESOURCE_VIEW_DESC *v, const CUDA_RESOURCE_DESC *d)
{
	if (!v)
		return true;
	return (d->resType == CU_RESOURCE_TYPE_ARRAY || d->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) && v->format >= 0 &&
	       v->format <= LAST_VIEW_FORMAT && v->firstMipmapLevel <= v->lastMipmapLevel && v->firstLayer <= v->lastLayer;
}

static CUresult add(enum object_kind kind, struct texture from, unsigned long long *out)
{
	struct texture *t = malloc(sizeof(*t));
	bool added;

	if (!t)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*t = from;
	process_lock();
	added = object_add(kind, t);
	process_unlock();
	if (!added)
		free(t);
	else
		*out = (unsigned long long)(uintptr_t)t;
	return added ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult get(enum object_kind kind, unsigned long long handle, struct texture *out)
{
	struct texture *t = (struct texture *)(uintptr_t)handle;
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	process_lock();
	if (object_is(kind, t)) {
		*out = *t;
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

static CUresult destroy(enum object_kind kind, unsigned long long handle)
{
	return object_destroy(kind, (void *)(uintptr_t)handle) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuTexObjectCreate(CUtexObject *texture, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *desc,
			   const CUDA_RESOURCE_VIEW_DESC *view)
{
	struct texture t = {.viewed = view != NULL};
	bool good;
	CUresult r;

	ENTER();
	r = current_context(&t.ctx);
	if (r)
		return r;
	if (!texture || !resource || !desc)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	good = good_resource(resource) && good_desc(desc) && good_view(view, resource);
	process_unlock();
	if (!good)
		return CUDA_ERROR_INVALID_VALUE;
	t.resource = *resource;
	t.desc = *desc;
	if (view)
		t.view = *view;
	return add(OBJECT_TEXTURE, t, texture);
}

CUresult cuTexObjectDestroy(CUtexObject texture)
{
	ENTER();
	return destroy(OBJECT_TEXTURE, texture);
}

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUtexObject texture)
{
	struct texture t;
	CUresult r;

	ENTER();
	r = resource ? get(OBJECT_TEXTURE, texture, &t) : CUDA_ERROR_INVALID_VALUE;
	if (!r)
		*resource = t.resource;
	return r;
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *desc, CUtexObject texture)
{
	struct texture t;
	CUresult r;

	ENTER();
	r = desc ? get(OBJECT_TEXTURE, texture, &t) : CUDA_ERROR_INVALID_VALUE;
	if (!r)
		*desc = t.desc;
	return r;
}

CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *view, CUtexObject texture)
{
	struct texture t;
	CUresult r;

	ENTER();
	r = view ? get(OBJECT_TEXTURE, texture, &t) : CUDA_ERROR_INVALID_VALUE;
	if (!r && !t.viewed)
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r)
		*view = t.view;
	return r;
}

CUresult cuSurfObjectCreate(CUsurfObject *surface, const CUDA_RESOURCE_DESC *resource)
{
	struct texture t = {0};
	bool good;
	CUresult r;

	ENTER();
	r = current_context(&t.ctx);
	if (r)
		return r;
	if (!surface || !resource || resource->resType != CU_RESOURCE_TYPE_ARRAY || resource->flags)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	good = object_is(OBJECT_ARRAY, resource->res.array.hArray) && array_is_surface(resource->res.array.hArray);
	process_unlock();
	t.resource = *resource;
	return good ? add(OBJECT_SURFACE, t, surface) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuSurfObjectDestroy(CUsurfObject surface)
{
	ENTER();
	return destroy(OBJECT_SURFACE, surface);
}

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUsurfObject surface)
{
	struct texture t;
	CUresult r;

	ENTER();
	r = resource ? get(OBJECT_SURFACE, surface, &t) : CUDA_ERROR_INVALID_VALUE;
	if (!r)
		*resource = t.resource;
	return r;
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *elements, int format, unsigned int channels, CUdevice dev)
{
	ENTER();
	if (!elements || !element_size(format, channels))
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*elements = MAX_LINEAR_ELEMENTS;
	return CUDA_SUCCESS;
}

static bool drop(void *object, CUcontext ctx)
{
	struct texture *t = object;

	if (t->ctx != ctx)
		return false;
	free(t);
	return true;
}

void textures_drop_context(CUcontext ctx)
{
	object_sweep(OBJECT_TEXTURE, drop, ctx);
	object_sweep(OBJECT_SURFACE, drop, ctx);
}
