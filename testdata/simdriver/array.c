/*
 * Arrays and mipmapped arrays. NVIDIA documents no size; here they take what blocks of 64 bytes by 8 rows take, to 512
 * bytes, charged when they are made. Sparse ones and those with deferred mapping take nothing: memory is mapped in.
 */
#include "array.h"

#include <stdlib.h>

/* The least that memory is made of: one element, or of a compressed format a block of them. */
struct unit {
	unsigned bytes; /* 0: no such format */
	unsigned width, height;
	bool planar;	/* half as many rows more, for the colours */
};

#define BC1 0x91
#define BC7_SRGB 0x9e

static struct unit compressed(int format, unsigned channels)
{
	static const unsigned char with[] = {4, 4, 4, 4, 4, 4, 1, 1, 2, 2, 3, 3, 4, 4}; /* channels that it must be given with */
	bool half = format <= BC1 + 1 || format == BC1 + 6 || format == BC1 + 7; /* BC1 and BC4 */

	return (struct unit){.bytes = with[format - BC1] != channels ? 0 : half ? 8 : 16, .width = 4, .height = 4};
}

static struct unit unit_of(int format, unsigned channels)
{
	struct unit one = {.width = 1, .height = 1};

	if (format >= BC1 && format <= BC7_SRGB)
		return compressed(format, channels);
	if (format == NV12)
		return (struct unit){.bytes = channels == 3, .width = 1, .height = 1, .planar = true};
	if (channels != 1 && channels != 2 && channels != 4)
		return one;
	switch (format) {
	case 0x01: case 0x08:
	case 0xc0: case 0xc1: case 0xc2: case 0xc6: case 0xc7: case 0xc8: /* (S|U)NORM_INT8X(1|2|4) */
		one.bytes = channels;
		break;
	case 0x02: case 0x09: case 0x10:
	case 0xc3: case 0xc4: case 0xc5: case 0xc9: case 0xca: case 0xcb: /* …16X… */
		one.bytes = 2 * channels;
		break;
	case 0x03: case 0x0a: case 0x20:
		one.bytes = 4 * channels;
		break;
	default:
		break;
	}
	return one;
}

static uint64_t up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

uint64_t array_at_level(uint64_t n, unsigned level)
{
	return n >> level ? n >> level : 1;
}

/* How it lies in memory for copies: bytes of a row, rows, planes. */
struct shape {
	uint64_t row, rows, planes;
};

static struct shape shape_of(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	struct unit u = unit_of(d->Format, d->NumChannels);
	uint64_t rows = d->Height ? (d->Height + u.height - 1) / u.height : 1;

	if (u.planar)
		rows += (rows + 1) / 2;
	return (struct shape){(d->Width + u.width - 1) / u.width * u.bytes, rows, d->Depth ? d->Depth : 1};
}

/* The array that a level is. */
static CUDA_ARRAY3D_DESCRIPTOR level_desc(CUDA_ARRAY3D_DESCRIPTOR d, unsigned level)
{
	d.Width = array_at_level(d.Width, level);
	d.Height = d.Height ? array_at_level(d.Height, level) : 0;
	if (d.Depth && !(d.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
		d.Depth = array_at_level(d.Depth, level);
	return d;
}

static uint64_t level_needs(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned level)
{
	CUDA_ARRAY3D_DESCRIPTOR at = level_desc(*d, level);
	struct shape s = shape_of(&at);

	return up(up(s.row, 64) * (at.Height ? up(s.rows, 8) : s.rows) * s.planes, 512);
}

static uint64_t content_size(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	struct shape s = shape_of(d);

	return s.row * s.rows * s.planes;
}

CUresult array_covers(CUarray array, size_t x, size_t y, size_t z, size_t width, size_t height, size_t depth)
{
	struct shape s;

	if (!object_is(OBJECT_ARRAY, array))
		return CUDA_ERROR_INVALID_HANDLE;
	s = shape_of(&array->desc);
	return x <= s.row && width <= s.row - x && y <= s.rows && height <= s.rows - y && z <= s.planes && depth <= s.planes - z
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_VALUE;
}

bool array_is_surface(CUarray array)
{
	return array->desc.Flags & CUDA_ARRAY3D_SURFACE_LDST;
}

bool array_content(CUarray array, size_t x, size_t y, size_t z, struct content **of, uint64_t *offset, size_t *left)
{
	struct shape s;

	if (!object_is(OBJECT_ARRAY, array))
		return false;
	s = shape_of(&array->desc);
	*of = array->whole ? &array->whole->content : &array->content;
	*offset = array->begin + (z * s.rows + y) * s.row + x;
	*left = (size_t)(s.row - x);
	return true;
}

static CUresult check(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	if (!d->Width || !unit_of(d->Format, d->NumChannels).bytes)
		return CUDA_ERROR_INVALID_VALUE;
	return d->Width > 131072 || d->Height > 131072 || d->Depth > 131072 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static uint64_t to_charge(const CUDA_ARRAY3D_DESCRIPTOR *d, uint64_t needs)
{
	return d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) ? 0 : needs;
}

/* Process lock held. */
static CUresult add(enum object_kind kind, void *object, CUcontext ctx, uint64_t bytes, struct taken *taken)
{
	CUresult r = ctx->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;

	if (!r && bytes)
		r = page_take(ctx, PAGE_DATA, bytes, taken);
	if (!r && !object_add(kind, object)) {
		page_return(ctx, PAGE_DATA, taken);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	return r;
}

static CUresult create(CUarray *out, CUDA_ARRAY3D_DESCRIPTOR d)
{
	CUcontext ctx;
	CUarray a;
	CUresult r = current_context(&ctx);

	if (!r)
		r = check(&d);
	if (r)
		return r;
	a = calloc(1, sizeof(*a));
	if (!a)
		return CUDA_ERROR_OUT_OF_MEMORY;
	a->ctx = ctx;
	a->desc = d;
	a->needs = level_needs(&d, 0);
	a->content.size = content_size(&d);
	process_lock();
	r = add(OBJECT_ARRAY, a, ctx, to_charge(&d, a->needs), &a->taken);
	process_unlock();
	if (r)
		free(a);
	else
		*out = a;
	return r;
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *d)
{
	ENTER();
	if (!array || !d)
		return CUDA_ERROR_INVALID_VALUE;
	return create(array, (CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, 0, d->Format, d->NumChannels, 0});
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d)
{
	ENTER();
	if (!array || !d)
		return CUDA_ERROR_INVALID_VALUE;
	return create(array, (CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, 0, d->Format, d->NumChannels, 0});
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d)
{
	ENTER();
	if (!array || !d)
		return CUDA_ERROR_INVALID_VALUE;
	return create(array, (CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags});
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	ENTER();
	if (!array || !d)
		return CUDA_ERROR_INVALID_VALUE;
	return create(array, *d);
}

static void end_array(CUarray a)
{
	array_end_planes(a);
	tiles_drop(a);
	content_end(&a->content);
	page_return(a->ctx, PAGE_DATA, &a->taken);
	free(a);
}

static void end_mipmap(CUmipmappedArray m)
{
	tiles_drop(m);
	page_return(m->ctx, PAGE_DATA, &m->taken);
	free(m);
}

CUresult cuArrayDestroy(CUarray array)
{
	CUresult r = CUDA_ERROR_INVALID_HANDLE;

	ENTER();
	process_lock();
	if (object_is(OBJECT_ARRAY, array) && !array->of && !array->whole) {
		object_remove(array);
		end_array(array);
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

static CUresult describe(CUDA_ARRAY3D_DESCRIPTOR *d, CUarray array)
{
	CUresult r = CUDA_ERROR_INVALID_HANDLE;

	process_lock();
	if (object_is(OBJECT_ARRAY, array)) {
		*d = array->desc;
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *d, CUarray array)
{
	ENTER();
	return d ? describe(d, array) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1 *d, CUarray array)
{
	CUDA_ARRAY3D_DESCRIPTOR w;
	CUresult r;

	ENTER();
	r = d ? describe(&w, array) : CUDA_ERROR_INVALID_VALUE;
	if (!r)
		*d = (CUDA_ARRAY3D_DESCRIPTOR_v1){(unsigned)w.Width, (unsigned)w.Height, (unsigned)w.Depth, w.Format, w.NumChannels, w.Flags};
	return r;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *d, CUarray array)
{
	CUDA_ARRAY3D_DESCRIPTOR w;
	CUresult r;

	ENTER();
	r = d ? describe(&w, array) : CUDA_ERROR_INVALID_VALUE;
	if (!r)
		*d = (CUDA_ARRAY_DESCRIPTOR){w.Width, w.Height, w.Format, w.NumChannels};
	return r;
}

CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1 *d, CUarray array)
{
	CUDA_ARRAY3D_DESCRIPTOR w;
	CUresult r;

	ENTER();
	r = d ? describe(&w, array) : CUDA_ERROR_INVALID_VALUE;
	if (!r)
		*d = (CUDA_ARRAY_DESCRIPTOR_v1){(unsigned)w.Width, (unsigned)w.Height, w.Format, w.NumChannels};
	return r;
}

/* Documented: only those with deferred mapping are answered for. */
static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, uint64_t needs, unsigned flags, CUdevice dev)
{
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!(flags & CUDA_ARRAY3D_DEFERRED_MAPPING))
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = needs, .alignment = 512};
	return CUDA_SUCCESS;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, CUarray array, CUdevice dev)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	ENTER();
	process_lock();
	if (needs && object_is(OBJECT_ARRAY, array))
		r = requirements(needs, array->needs, array->desc.Flags, dev);
	process_unlock();
	return r;
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, CUmipmappedArray array, CUdevice dev)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	ENTER();
	process_lock();
	if (needs && object_is(OBJECT_MIPMAP, array))
		r = requirements(needs, array->needs, array->desc.Flags, dev);
	process_unlock();
	return r;
}

CUresult mipmap_create(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels, bool own_memory)
{
	CUmipmappedArray m;
	CUcontext ctx;
	CUresult r = current_context(&ctx);

	if (!r)
		r = check(d);
	if (r)
		return r;
	if (!levels || levels > LEVELS)
		return CUDA_ERROR_INVALID_VALUE;
	m = calloc(1, sizeof(*m));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->ctx = ctx;
	m->desc = *d;
	m->levels = levels;
	for (unsigned i = 0; i < levels; i++)
		m->needs += level_needs(d, i);
	process_lock();
	r = add(OBJECT_MIPMAP, m, ctx, own_memory ? to_charge(d, m->needs) : 0, &m->taken);
	process_unlock();
	if (r)
		free(m);
	else
		*out = m;
	return r;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
	ENTER();
	if (!array || !d)
		return CUDA_ERROR_INVALID_VALUE;
	return mipmap_create(array, d, levels, true);
}

/* A level is an array of its own without memory of its own; it ends with the whole. Process lock held. */
static CUresult level_of(CUarray *out, CUmipmappedArray m, unsigned level)
{
	CUarray a;

	if (level >= m->levels)
		return CUDA_ERROR_INVALID_VALUE;
	if (!m->level[level]) {
		a = calloc(1, sizeof(*a));
		if (!a || !object_add(OBJECT_ARRAY, a)) {
			free(a);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		a->ctx = m->ctx;
		a->of = m;
		a->desc = level_desc(m->desc, level);
		a->content.size = content_size(&a->desc);
		m->level[level] = a;
	}
	*out = m->level[level];
	return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetLevel(CUarray *level_array, CUmipmappedArray array, unsigned int level)
{
	CUresult r = CUDA_ERROR_INVALID_HANDLE;

	ENTER();
	if (!level_array)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	if (object_is(OBJECT_MIPMAP, array))
		r = level_of(level_array, array, level);
	process_unlock();
	return r;
}

static void end_levels(CUmipmappedArray m)
{
	for (unsigned i = 0; i < m->levels; i++) {
		if (!m->level[i])
			continue;
		object_remove(m->level[i]);
		end_array(m->level[i]);
	}
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	CUresult r = CUDA_ERROR_INVALID_HANDLE;

	ENTER();
	process_lock();
	if (object_is(OBJECT_MIPMAP, array)) {
		end_levels(array);
		object_remove(array);
		end_mipmap(array);
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

static bool drop_array(void *object, CUcontext ctx)
{
	CUarray a = object;

	if (a->ctx != ctx || a->whole)
		return false;
	end_array(a);
	return true;
}

static bool drop_mipmap(void *object, CUcontext ctx)
{
	CUmipmappedArray m = object;

	if (m->ctx != ctx)
		return false;
	end_mipmap(m);
	return true;
}

void arrays_drop_context(CUcontext ctx)
{
	object_sweep(OBJECT_ARRAY, drop_array, ctx); /* levels too */
	object_sweep(OBJECT_MIPMAP, drop_mipmap, ctx);
}
