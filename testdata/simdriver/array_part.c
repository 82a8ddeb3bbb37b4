/* Planes of arrays, and tiles of sparse ones. */
#include "array.h"

#include <stdlib.h>

#define TILE_BYTES 65536ull

void array_end_planes(CUarray array)
{
	for (int i = 0; i < PLANES; i++) {
		if (!array->plane[i])
			continue;
		object_remove(array->plane[i]);
		free(array->plane[i]);
	}
}

/* Of NV12, the one format with planes: brightness, then half as many rows and columns of two colours. */
static CUresult plane_of(CUarray *out, CUarray array, unsigned index)
{
	CUarray p;

	if (index >= PLANES || array->desc.Format != NV12)
		return CUDA_ERROR_INVALID_VALUE;
	if (!array->plane[index]) {
		p = calloc(1, sizeof(*p));
		if (!p || !object_add(OBJECT_ARRAY, p)) {
			free(p);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		p->ctx = array->ctx;
		p->whole = array;
		p->desc = array->desc;
		p->desc.Format = 1; /* bytes */
		p->desc.NumChannels = index + 1;
		p->desc.Width >>= index;
		p->desc.Height >>= index;
		p->begin = index * array->desc.Width * array->desc.Height;
		array->plane[index] = p;
	}
	*out = array->plane[index];
	return CUDA_SUCCESS;
}

CUresult cuArrayGetPlane(CUarray *plane, CUarray array, unsigned int index)
{
	CUresult r = CUDA_ERROR_INVALID_HANDLE;

	ENTER();
	if (!plane)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	if (object_is(OBJECT_ARRAY, array))
		r = plane_of(plane, array, index);
	process_unlock();
	return r;
}

static unsigned channel_bytes(int format)
{
	switch (format) {
	case 0x02: case 0x09: case 0x10:
		return 2;
	case 0x03: case 0x0a: case 0x20:
		return 4;
	default:
		return 1;
	}
}

/* Tiles have 64 KiB, in the shapes that graphics interfaces have as standard: NVIDIA documents none. */
static void tile_of(CUDA_ARRAY_SPARSE_PROPERTIES *p, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	static const unsigned flat[][2] = {{256, 256}, {256, 128}, {128, 128}, {128, 64}, {64, 64}};
	static const unsigned deep[][3] = {{64, 32, 32}, {32, 32, 32}, {32, 32, 16}, {32, 16, 16}, {16, 16, 16}};
	bool layers = d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
	unsigned bytes = d->NumChannels * channel_bytes(d->Format), i = 0;

	while (i < 4 && 1u << i < bytes)
		i++;
	p->tileExtent.width = d->Depth && !layers ? deep[i][0] : flat[i][0];
	p->tileExtent.height = d->Depth && !layers ? deep[i][1] : flat[i][1];
	p->tileExtent.depth = d->Depth && !layers ? deep[i][2] : 1;
}

/* Levels smaller than a tile are mapped together. */
static CUresult sparse(CUDA_ARRAY_SPARSE_PROPERTIES *p, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
	if (!(d->Flags & CUDA_ARRAY3D_SPARSE))
		return CUDA_ERROR_INVALID_VALUE;
	*p = (CUDA_ARRAY_SPARSE_PROPERTIES){0};
	tile_of(p, d);
	while (p->miptailFirstLevel < levels && array_at_level(d->Width, p->miptailFirstLevel) >= p->tileExtent.width &&
	       array_at_level(d->Height, p->miptailFirstLevel) >= p->tileExtent.height)
		p->miptailFirstLevel++;
	p->miptailSize = p->miptailFirstLevel < levels ? TILE_BYTES : 0;
	return CUDA_SUCCESS;
}

CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *properties, CUarray array)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	ENTER();
	process_lock();
	if (properties && object_is(OBJECT_ARRAY, array))
		r = sparse(properties, &array->desc, 1);
	process_unlock();
	return r;
}

CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *properties, CUmipmappedArray array)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	ENTER();
	process_lock();
	if (properties && object_is(OBJECT_MIPMAP, array))
		r = sparse(properties, &array->desc, array->levels);
	process_unlock();
	return r;
}
