/*
 * Copies and fills. They validate their ranges and keep the order of their stream; they take no time of their own.
 */
#include "transfer.h"

#include "allocation.h"
#include "content.h"
#include "pending.h"
#include "vmm.h"

#include <stdint.h>
#include <string.h>

#define TURN (1ull << 20) /* so many bytes, then other threads get the process lock */

static bool is_fake(CUdeviceptr p)
{
	return (p >= FAKE_BASE && p < FAKE_END) || (p >= VMM_BASE && p < VMM_END) || p < 0x100000000ull;
}

/* From its first byte to its last; false: more than there are addresses. */
static bool extent(const struct side *s, const struct transfer *t, uint64_t *first, uint64_t *bytes)
{
	__uint128_t plane = (__uint128_t)s->pitch * s->rows;
	__uint128_t skip = s->z * plane + (__uint128_t)s->y * s->pitch + s->x;
	__uint128_t all = (t->depth - 1) * plane + (__uint128_t)(t->height - 1) * s->pitch + t->width;

	*first = s->ptr + (uint64_t)skip;
	*bytes = (uint64_t)all;
	return plane >> 64 == 0 && (skip + all + s->ptr) >> 63 == 0;
}

static CUresult check_side(const struct side *s, const struct transfer *t)
{
	uint64_t first, bytes;
	bool device;

	if (s->kind == SIDE_ARRAY)
		return array_covers(s->array, s->x, s->y, s->z, t->width, t->height, t->depth);
	if ((t->height > 1 || t->depth > 1) && s->pitch < s->x + t->width)
		return CUDA_ERROR_INVALID_VALUE;
	if (t->depth > 1 && s->rows < s->y + t->height)
		return CUDA_ERROR_INVALID_VALUE;
	if (!extent(s, t, &first, &bytes))
		return CUDA_ERROR_INVALID_VALUE;
	device = s->kind == SIDE_DEVICE || (s->kind == SIDE_UNIFIED && is_fake(first));
	return (device ? memory_covers(first, bytes) : s->ptr != 0) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool is_empty(const struct transfer *t)
{
	return !t->width || !t->height || !t->depth;
}

CUresult transfer_check(const struct transfer *t)
{
	CUresult r = is_empty(t) ? CUDA_SUCCESS : check_side(&t->to, t);

	if (!r && !is_empty(t) && !t->element)
		r = check_side(&t->from, t);
	return r;
}

/* A piece of a row: what memory it is, and how much of it lies in one piece. */
struct piece {
	char *at; /* NULL: nothing was written there */
	struct content *of;
	size_t left;
};

static bool find(const struct side *s, size_t x, size_t y, size_t z, struct piece *p)
{
	CUdeviceptr ptr = s->ptr + (s->z + z) * s->pitch * s->rows + (s->y + y) * s->pitch + s->x + x;
	uint64_t offset = 0;
	bool found;

	*p = (struct piece){.at = (char *)(uintptr_t)ptr, .left = SIZE_MAX};
	if (s->kind == SIDE_ARRAY)
		found = array_content(s->array, s->x + x, s->y + y, s->z + z, &p->of, &offset, &p->left);
	else if (s->kind == SIDE_HOST || (s->kind == SIDE_UNIFIED && !is_fake(ptr)))
		return true;
	else
		found = memory_content(ptr, &p->of, &offset, &p->left);
	if (found && p->of)
		p->at = p->of->at ? p->of->at + offset : NULL;
	return found;
}

static bool make_writable(struct piece *p, const struct side *s, size_t x, size_t y, size_t z)
{
	return p->at || (content_write(p->of) && find(s, x, y, z, p));
}

static void fill_piece(char *at, const struct transfer *t, size_t x, size_t bytes)
{
	const unsigned char *value = (const unsigned char *)&t->value; /* little-endian */
	size_t done = bytes < t->element ? bytes : t->element;

	if (t->element == 1) {
		memset(at, value[0], bytes);
		return;
	}
	for (size_t i = 0; i < done; i++)
		at[i] = (char)value[(x + i) % t->element];
	for (; done < bytes; done *= 2)
		memcpy(at + done, at, bytes - done < done ? bytes - done : done);
}

/* At most that much of a row, from x on: how much of it is done; 0: the memory went meanwhile, or the host has none. */
static size_t step(const struct transfer *t, size_t x, size_t y, size_t z, size_t bytes)
{
	struct piece to, from = {.left = SIZE_MAX};

	if (!find(&t->to, x, y, z, &to) || (!t->element && !find(&t->from, x, y, z, &from)))
		return 0;
	bytes = bytes < to.left ? bytes : to.left;
	bytes = bytes < from.left ? bytes : from.left;
	if (t->element ? !t->value : !from.at) {
		if (to.of && to.at)
			content_zero(to.of, (uint64_t)(to.at - to.of->at), bytes);
		else if (to.at)
			memset(to.at, 0, bytes);
		return bytes;
	}
	if (!make_writable(&to, &t->to, x, y, z))
		return 0;
	if (t->element)
		fill_piece(to.at, t, x, bytes);
	else
		memmove(to.at, from.at, bytes);
	return bytes;
}

/* Zeros that are copied over zeros, or filled, are no work, however many. */
static size_t turn(const struct transfer *t)
{
	return t->element && !t->value ? SIZE_MAX : TURN;
}

CUresult transfer_run(const struct transfer *t)
{
	size_t x = 0, y = 0, z = 0, budget = turn(t), done;

	if (is_empty(t))
		return CUDA_SUCCESS;
	process_lock();
	while (z < t->depth) {
		done = step(t, x, y, z, t->width - x < budget ? t->width - x : budget);
		if (!done) {
			process_unlock();
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		}
		x += done;
		budget -= done;
		if (x == t->width) {
			x = 0;
			if (++y == t->height) {
				y = 0;
				z++;
			}
		}
		if (!budget) {
			process_unlock();
			process_lock();
			budget = turn(t);
		}
	}
	process_unlock();
	return CUDA_SUCCESS;
}

CUresult transfer_do(const struct transfer *t, CUcontext ctx, CUstream s)
{
	bool deferred;
	CUresult r = CUDA_SUCCESS;

	process_lock();
	deferred = pending_before(ctx, s);
	if (deferred)
		r = pending_put_transfer(ctx, s, t);
	process_unlock();
	return deferred ? r : transfer_run(t);
}

/* The program's, and not pinned: it can be used again when the call returns. Process lock held. */
static bool is_pageable(const struct side *s)
{
	return (s->kind == SIDE_HOST || (s->kind == SIDE_UNIFIED && !is_fake(s->ptr))) && !allocation_find(s->ptr);
}

CUresult transfer_put(const struct transfer *t, CUstream handle, bool wait)
{
	bool captured = false;
	CUcontext ctx;
	CUstream s;
	CUresult r = current_context(&ctx);

	if (r || is_empty(t))
		return r;
	process_lock();
	r = stream_find(handle, ctx, &s);
	if (!r)
		r = transfer_check(t);
	if (!r)
		r = capture_check(s ? s->ctx : ctx, s, &captured);
	if (!r && captured)
		r = capture_transfer(s, t);
	else if (!r)
		wait = wait || is_pageable(&t->to) || (is_pageable(&t->from) && pending_before(ctx, s));
	process_unlock();
	if (!r && wait)
		r = stream_wait(handle);
	if (r || captured)
		return r;
	return wait ? transfer_run(t) : transfer_do(t, ctx, s);
}

static CUresult read_side(struct side *s, int kind, const void *host, CUdeviceptr device, CUarray array)
{
	if (kind < SIDE_HOST || kind > SIDE_UNIFIED)
		return CUDA_ERROR_INVALID_VALUE;
	s->kind = (enum side_kind)kind;
	s->ptr = kind == SIDE_HOST ? (CUdeviceptr)(uintptr_t)host : kind == SIDE_ARRAY ? 0 : device;
	s->array = kind == SIDE_ARRAY ? array : NULL;
	return CUDA_SUCCESS;
}

CUresult transfer_of_3d(struct transfer *t, const CUDA_MEMCPY3D *c)
{
	CUresult r;

	if (!c || c->srcLOD || c->dstLOD)
		return CUDA_ERROR_INVALID_VALUE;
	*t = (struct transfer){
		.from = {.x = c->srcXInBytes, .y = c->srcY, .z = c->srcZ, .pitch = c->srcPitch, .rows = c->srcHeight},
		.to = {.x = c->dstXInBytes, .y = c->dstY, .z = c->dstZ, .pitch = c->dstPitch, .rows = c->dstHeight},
		.width = c->WidthInBytes, .height = c->Height, .depth = c->Depth,
	};
	r = read_side(&t->from, c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray);
	return r ? r : read_side(&t->to, c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray);
}

void transfer_to_3d(const struct transfer *t, CUDA_MEMCPY3D *c)
{
	*c = (CUDA_MEMCPY3D){
		.srcXInBytes = t->from.x, .srcY = t->from.y, .srcZ = t->from.z, .srcMemoryType = (int)t->from.kind,
		.srcHost = t->from.kind == SIDE_HOST ? (void *)(uintptr_t)t->from.ptr : NULL,
		.srcDevice = t->from.kind == SIDE_HOST ? 0 : t->from.ptr, .srcArray = t->from.array,
		.srcPitch = t->from.pitch, .srcHeight = t->from.rows,
		.dstXInBytes = t->to.x, .dstY = t->to.y, .dstZ = t->to.z, .dstMemoryType = (int)t->to.kind,
		.dstHost = t->to.kind == SIDE_HOST ? (void *)(uintptr_t)t->to.ptr : NULL,
		.dstDevice = t->to.kind == SIDE_HOST ? 0 : t->to.ptr, .dstArray = t->to.array,
		.dstPitch = t->to.pitch, .dstHeight = t->to.rows,
		.WidthInBytes = t->width, .Height = t->height, .Depth = t->depth,
	};
}

CUresult transfer_of_2d(struct transfer *t, const CUDA_MEMCPY2D *c)
{
	CUresult r;

	if (!c)
		return CUDA_ERROR_INVALID_VALUE;
	*t = (struct transfer){
		.from = {.x = c->srcXInBytes, .y = c->srcY, .pitch = c->srcPitch},
		.to = {.x = c->dstXInBytes, .y = c->dstY, .pitch = c->dstPitch},
		.width = c->WidthInBytes, .height = c->Height, .depth = 1,
	};
	r = read_side(&t->from, c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray);
	return r ? r : read_side(&t->to, c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray);
}

CUresult transfer_of_fill(struct transfer *t, CUdeviceptr dst, size_t pitch, unsigned element, uint32_t value, size_t width, size_t height)
{
	if ((element != 1 && element != 2 && element != 4) || dst % element || width > SIZE_MAX / element ||
	    (height > 1 && pitch % element))
		return CUDA_ERROR_INVALID_VALUE;
	*t = (struct transfer){
		.to = {.kind = SIDE_DEVICE, .ptr = dst, .pitch = pitch},
		.width = width * element, .height = height, .depth = 1, .element = element, .value = element == 4 ? value : value & ((1u << 8 * element) - 1),
	};
	return CUDA_SUCCESS;
}

CUresult transfer_of_memset(struct transfer *t, const CUDA_MEMSET_NODE_PARAMS *p)
{
	return p ? transfer_of_fill(t, p->dst, p->pitch, p->elementSize, p->value, p->width, p->height) : CUDA_ERROR_INVALID_VALUE;
}
