/* Memory that is mapped into sparse arrays. All of an array ends with it. */
#include "vmm.h"

#include <stdlib.h>
#include <string.h>

/* A piece of a sparse array that has memory. */
static struct tile {
	const void *resource;
	int kind;
	unsigned long long place[5];
	struct physical *of;
	struct tile *next;
} *tiles;

static struct tile **find(const struct tile *wanted)
{
	struct tile **at = &tiles;

	while (*at && ((*at)->resource != wanted->resource || (*at)->kind != wanted->kind ||
		       memcmp((*at)->place, wanted->place, sizeof(wanted->place)) != 0))
		at = &(*at)->next;
	return at;
}

static struct tile tile_of(const CUarrayMapInfo *info)
{
	struct tile t = {
		.resource = info->resourceType ? (const void *)info->resource.mipmap : info->resource.array,
		.kind = info->subresourceType,
	};

	if (t.kind) {
		t.place[0] = info->subresource.miptail.layer;
		t.place[1] = info->subresource.miptail.offset;
	} else {
		t.place[0] = info->subresource.sparseLevel.level;
		t.place[1] = info->subresource.sparseLevel.layer;
		t.place[2] = info->subresource.sparseLevel.offsetX;
		t.place[3] = info->subresource.sparseLevel.offsetY;
		t.place[4] = info->subresource.sparseLevel.offsetZ;
	}
	return t;
}

static void end_tile(struct tile **at)
{
	struct tile *t = *at;

	*at = t->next;
	physical_unuse(t->of);
	free(t);
}

void tiles_drop(const void *resource)
{
	for (struct tile **at = &tiles; *at;) {
		if ((*at)->resource == resource)
			end_tile(at);
		else
			at = &(*at)->next;
	}
}

/* Process lock held. */
static CUresult map_tile(const CUarrayMapInfo *info)
{
	struct tile wanted = tile_of(info), **old, *fresh;

	if (!object_is(info->resourceType ? OBJECT_MIPMAP : OBJECT_ARRAY, wanted.resource))
		return CUDA_ERROR_INVALID_HANDLE;
	if (info->memOperationType == 1) {
		wanted.of = physical_find(info->memHandle.memHandle);
		if (!wanted.of)
			return CUDA_ERROR_INVALID_VALUE;
		physical_use(wanted.of);
	}
	old = find(&wanted);
	if (*old)
		end_tile(old);
	if (!wanted.of)
		return CUDA_SUCCESS;
	fresh = malloc(sizeof(*fresh));
	if (!fresh) {
		physical_unuse(wanted.of);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*fresh = wanted;
	fresh->next = tiles;
	tiles = fresh;
	return CUDA_SUCCESS;
}

static CUresult map_tiles(const CUarrayMapInfo *list, unsigned count)
{
	CUresult r = CUDA_SUCCESS;

	if (!list || !count)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	for (unsigned i = 0; i < count && !r; i++)
		r = map_tile(&list[i]);
	process_unlock();
	return r;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	ENTER();
	(void)stream;
	return map_tiles(list, count);
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	ENTER();
	(void)stream;
	return map_tiles(list, count);
}
