/* Arrays and mipmapped arrays. The driver does not report what one takes, so its
 * size is computed: elements by format, rows to 64 bytes and, where there are
 * rows, their number to 8 (the blocks in which a GPU stores them), the whole to
 * 512. A sparse or deferred one takes nothing by itself: memory is mapped in. */
#include <string.h>

#include "charge.h"
#include "hooks.h"

static uint64_t times(uint64_t a, uint64_t b)
{
	uint64_t product;

	return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t round_up(uint64_t value, uint64_t unit)
{
	return value > UINT64_MAX - unit ? UINT64_MAX : (value + unit - 1) / unit * unit;
}

/* Bytes of one element; of a format not listed here, the most that one takes. */
static uint64_t element(int format, unsigned int channels)
{
	switch (format) {
	case 0x01: case 0x08: /* (un)signed int8 */
	case 0xc0: case 0xc1: case 0xc2: case 0xc6: case 0xc7: case 0xc8: /* the same, normalised */
		return channels;
	case 0x02: case 0x09: case 0x10: /* (un)signed int16, half */
	case 0xc3: case 0xc4: case 0xc5: case 0xc9: case 0xca: case 0xcb:
		return 2 * (uint64_t)channels;
	case 0x03: case 0x0a: case 0x20: /* (un)signed int32, float */
		return 4 * (uint64_t)channels;
	default:
		return 16;
	}
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int level)
{
	uint64_t width = d->Width >> level, height = d->Height >> level, depth = d->Depth >> level;
	uint64_t row = round_up(times(width ? width : 1, element(d->Format, d->NumChannels)), 64);

	if (d->Flags & 0x5) /* layered or a cube map: Depth is a number of layers */
		depth = d->Depth;
	uint64_t rows = d->Height ? round_up(height ? height : 1, 8) : 1;
	return round_up(times(times(row, rows), depth ? depth : 1), 512);
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
	uint64_t sum = 0;

	if (d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		return 0;
	for (unsigned int level = 0; level < levels && level < 64; level++)
		if (__builtin_add_overflow(sum, level_bytes(d, level), &sum))
			return UINT64_MAX;
	return sum;
}

/* out is where the driver has put the new handle, CUarray or CUmipmappedArray. */
static CUresult settle(struct charge *charge, CUresult result, enum ledger_kind kind, void *out)
{
	void *handle = NULL;

	if (result == CUDA_SUCCESS)
		memcpy(&handle, out, sizeof(handle));
	if (result == CUDA_SUCCESS && charge_keep(charge, kind, (uintptr_t)handle))
		return CUDA_SUCCESS;
	if (result == CUDA_SUCCESS) {
		if (kind == LEDGER_ARRAY)
			REAL(cuArrayDestroy)(handle);
		else
			REAL(cuMipmappedArrayDestroy)(handle);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	charge_cancel(charge);
	return result;
}

static CUresult begin(struct charge *charge, const void *out, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels)
{
	return out ? charge_begin(charge, array_bytes(desc, levels)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *desc)
{
	if (!desc)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_ARRAY3D_DESCRIPTOR same = { desc->Width, desc->Height, 0, desc->Format, desc->NumChannels, 0 };
	struct charge charge;
	CUresult result = begin(&charge, array, &same, 1);
	if (result != CUDA_SUCCESS)
		return result;
	return settle(&charge, REAL(cuArrayCreate)(array, desc), LEDGER_ARRAY, array);
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *desc)
{
	if (!desc)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_ARRAY3D_DESCRIPTOR same = { desc->Width, desc->Height, 0, desc->Format, desc->NumChannels, 0 };
	struct charge charge;
	CUresult result = begin(&charge, array, &same, 1);
	if (result != CUDA_SUCCESS)
		return result;
	return settle(&charge, REAL(cuArrayCreate_v2)(array, desc), LEDGER_ARRAY, array);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc)
{
	if (!desc)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_ARRAY3D_DESCRIPTOR same = { desc->Width,       desc->Height, desc->Depth, desc->Format,
		                         desc->NumChannels, desc->Flags };
	struct charge charge;
	CUresult result = begin(&charge, array, &same, 1);
	if (result != CUDA_SUCCESS)
		return result;
	return settle(&charge, REAL(cuArray3DCreate)(array, desc), LEDGER_ARRAY, array);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	if (!desc)
		return CUDA_ERROR_INVALID_VALUE;
	struct charge charge;
	CUresult result = begin(&charge, array, desc, 1);
	if (result != CUDA_SUCCESS)
		return result;
	return settle(&charge, REAL(cuArray3DCreate_v2)(array, desc), LEDGER_ARRAY, array);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels)
{
	if (!desc)
		return CUDA_ERROR_INVALID_VALUE;
	struct charge charge;
	CUresult result = begin(&charge, array, desc, levels);
	if (result != CUDA_SUCCESS)
		return result;
	return settle(&charge, REAL(cuMipmappedArrayCreate)(array, desc, levels), LEDGER_MIPMAP, array);
}

CUresult cuArrayDestroy(CUarray array)
{
	struct discharge discharge;

	discharge_begin(&discharge, LEDGER_ARRAY, (uintptr_t)array);
	return discharge_end(&discharge, REAL(cuArrayDestroy)(array));
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	struct discharge discharge;

	discharge_begin(&discharge, LEDGER_MIPMAP, (uintptr_t)array);
	return discharge_end(&discharge, REAL(cuMipmappedArrayDestroy)(array));
}
