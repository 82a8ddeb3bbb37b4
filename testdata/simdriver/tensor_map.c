/*
 * Maps of tensors, which compute capability 9.0 and later read. NVIDIA does not document what one looks like: here it is the
 * arguments, packed, and the address. They are checked as documented (cuda-driver-api, tensor map object management).
 */
#include "driver.h"

#include <string.h>

#define MAX_RANK 5u
#define MIN_CAPABILITY 9u
#define LAST_TYPE 12
#define NO_INTERLEAVE 0
#define INTERLEAVE_32B 2
#define SWIZZLE_32B 1
#define LAST_SWIZZLE 3
#define LAST_PROMOTION 3
#define FILL_NAN 1

struct tensor {
	int type, interleave, swizzle, promotion, fill;
	uint32_t rank;
	void *address;
	const cuuint64_t *dims, *strides;
	const uint32_t *element_strides;
};

static unsigned element_size(int type)
{
	static const unsigned char sizes[LAST_TYPE + 1] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};

	return sizes[type];
}

static bool is_float(int type)
{
	return type >= 6;
}

static bool good_address(const void *address, int interleave)
{
	return address && (uintptr_t)address % (interleave == INTERLEAVE_32B ? 32 : 16) == 0;
}

static bool good_modes(const struct tensor *t)
{
	if (t->type < 0 || t->type > LAST_TYPE || t->interleave < NO_INTERLEAVE || t->interleave > INTERLEAVE_32B ||
	    t->swizzle < 0 || t->swizzle > LAST_SWIZZLE || t->promotion < 0 || t->promotion > LAST_PROMOTION ||
	    t->fill < 0 || t->fill > FILL_NAN)
		return false;
	return (t->interleave != INTERLEAVE_32B || t->swizzle == SWIZZLE_32B) && (t->fill != FILL_NAN || is_float(t->type));
}

static bool good_tensor(const struct tensor *t)
{
	unsigned unit = t->interleave == INTERLEAVE_32B ? 32 : 16;

	if (!good_modes(t) || !good_address(t->address, t->interleave) || !t->dims || !t->element_strides ||
	    !t->rank || t->rank > MAX_RANK || (t->rank > 1 && !t->strides) || (t->interleave != NO_INTERLEAVE && t->rank < 3))
		return false;
	for (uint32_t i = 0; i < t->rank; i++) {
		if (!t->dims[i] || t->dims[i] > 1ull << 32 || !t->element_strides[i] || t->element_strides[i] > 8)
			return false;
		if (i && (!t->strides[i - 1] || t->strides[i - 1] % unit || t->strides[i - 1] >= 1ull << 40))
			return false;
	}
	return true;
}

/* Bytes of the innermost dimension of what is read at once. */
static bool good_inner(const struct tensor *t, uint32_t elements)
{
	uint32_t bytes = elements * element_size(t->type);

	if (t->interleave != NO_INTERLEAVE)
		return true;
	return bytes % 16 == 0 && (!t->swizzle || bytes <= 16u << t->swizzle);
}

static CUresult supported(void)
{
	for (unsigned i = 0; i < process.device_count; i++) {
		if (device_gpu((CUdevice)i)->cc_major >= MIN_CAPABILITY)
			return CUDA_SUCCESS;
	}
	return CUDA_ERROR_NOT_SUPPORTED;
}

static void encode(CUtensorMap *map, const struct tensor *t)
{
	memset(map, 0, sizeof(*map));
	map->opaque[0] = (cuuint64_t)(uintptr_t)t->address;
	map->opaque[1] = (cuuint64_t)t->type | (cuuint64_t)t->rank << 8 | (cuuint64_t)t->interleave << 16 |
			 (cuuint64_t)t->swizzle << 24 | (cuuint64_t)t->promotion << 32 | (cuuint64_t)t->fill << 40;
	for (uint32_t i = 0; i < t->rank; i++) {
		map->opaque[2 + i] = t->dims[i] - 1;
		map->opaque[7] |= (cuuint64_t)t->element_strides[i] << 8 * i;
		if (i)
			map->opaque[7 + i] = t->strides[i - 1];
	}
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, int type, uint32_t rank, void *address, const cuuint64_t *dims,
				const cuuint64_t *strides, const uint32_t *box, const uint32_t *element_strides, int interleave,
				int swizzle, int promotion, int fill)
{
	struct tensor t = {type, interleave, swizzle, promotion, fill, rank, address, dims, strides, element_strides};
	CUresult r;

	ENTER();
	r = supported();
	if (r)
		return r;
	if (!map || (uintptr_t)map % 64 || !box || !good_tensor(&t) || !good_inner(&t, box[0]))
		return CUDA_ERROR_INVALID_VALUE;
	for (uint32_t i = 0; i < rank; i++) {
		if (!box[i] || box[i] > 256)
			return CUDA_ERROR_INVALID_VALUE;
	}
	encode(map, &t);
	for (uint32_t i = 0; i < rank; i++)
		map->opaque[12] |= (cuuint64_t)(box[i] - 1) << 8 * i;
	return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, int type, uint32_t rank, void *address, const cuuint64_t *dims,
				 const cuuint64_t *strides, const int *lower, const int *upper, uint32_t channels, uint32_t pixels,
				 const uint32_t *element_strides, int interleave, int swizzle, int promotion, int fill)
{
	struct tensor t = {type, interleave, swizzle, promotion, fill, rank, address, dims, strides, element_strides};
	CUresult r;
	int most;

	ENTER();
	r = supported();
	if (r)
		return r;
	if (!map || (uintptr_t)map % 64 || !lower || !upper || rank < 3 || !good_tensor(&t) || !good_inner(&t, channels) ||
	    channels > 256 || pixels > 1024)
		return CUDA_ERROR_INVALID_VALUE;
	most = rank == 3 ? 1 << 15 : rank == 4 ? 1 << 7 : 1 << 4;
	for (uint32_t i = 0; i < rank - 2; i++) {
		if (lower[i] < -most || lower[i] >= most || upper[i] < -most || upper[i] >= most)
			return CUDA_ERROR_INVALID_VALUE;
	}
	encode(map, &t);
	map->opaque[12] = channels | (cuuint64_t)pixels << 32;
	for (uint32_t i = 0; i < rank - 2; i++)
		map->opaque[13 + i] = (uint32_t)lower[i] | (cuuint64_t)(uint32_t)upper[i] << 32;
	return CUDA_SUCCESS;
}

CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address)
{
	ENTER();
	if (!map || (uintptr_t)map % 64 || !good_address(address, (int)(map->opaque[1] >> 16 & 0xff)))
		return CUDA_ERROR_INVALID_VALUE;
	map->opaque[0] = (cuuint64_t)(uintptr_t)address;
	return CUDA_SUCCESS;
}
