/* Arrays and mipmapped arrays. The driver does not report what one takes, so its
 * size is computed: elements, blocks and planes by format, rows to 64 bytes and, where there are
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

/* What a format is made of. */
struct format {
	uint64_t bytes; /* of one element, or of a compressed block */
	uint64_t side;  /* elements in a row, and rows, of that block */
	uint64_t rows;  /* of all planes, for two rows of the first */
};

static struct format plain(uint64_t bytes)
{
	return (struct format){ bytes, 1, 2 };
}

static struct format block(uint64_t bytes)
{
	return (struct format){ bytes, 4, 2 };
}

/* The first plane is the brightness. The colours have half as many rows (4:2:0), as many (4:2:2) or
 * twice as many (4:4:4), of the same length. */
static struct format planar(uint64_t bytes, uint64_t rows)
{
	return (struct format){ bytes, 1, rows };
}

/* By the values of CUarray_format. A format that is not listed: the most that one takes. */
static struct format format_of(int format, unsigned int channels)
{
	switch (format) {
	case 0x01: case 0x08: /* (un)signed int8 */
	case 0xc0: case 0xc1: case 0xc2: case 0xc6: case 0xc7: case 0xc8: /* the same, normalised */
		return plain(channels);
	case 0x02: case 0x09: case 0x10: /* (un)signed int16, half */
	case 0xc3: case 0xc4: case 0xc5: case 0xc9: case 0xca: case 0xcb:
		return plain(2 * (uint64_t)channels);
	case 0x03: case 0x0a: case 0x20: /* (un)signed int32, float */
		return plain(4 * (uint64_t)channels);
	case 0x91: case 0x92: case 0x97: case 0x98: /* BC1, BC4 */
		return block(8);
	case 0x93: case 0x94: case 0x95: case 0x96: case 0x99: case 0x9a: /* BC2, BC3, BC5 */
	case 0x9b: case 0x9c: case 0x9d: case 0x9e: /* BC6H, BC7 */
		return block(16);
	case 0xb0: /* NV12 */
		return planar(1, 3);
	case 0x9f: case 0xa1: /* P010, P016 */
		return planar(2, 3);
	case 0xa2: /* NV16 */
		return planar(1, 4);
	case 0xa3: case 0xa4: /* P210, P216 */
		return planar(2, 4);
	case 0xb2: case 0xb4: /* Y444 in planes and half in planes, 8 bits */
		return planar(1, 6);
	case 0xb3: case 0xb5: /* the same, 10 and 16 bits */
		return planar(2, 6);
	case 0xa5: /* YUY2 */
		return plain(2);
	case 0xa6: case 0xa7: case 0xa8: case 0xa9: case 0x50: /* Y210, Y216, AYUV, Y410, 101010_2 */
		return plain(4);
	case 0xb1: /* Y416 */
		return plain(8);
	default:
		return plain(16);
	}
}

static uint64_t at_least_one(uint64_t n)
{
	return n ? n : 1;
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int level)
{
	struct format f = format_of(d->Format, d->NumChannels);
	uint64_t width = at_least_one(d->Width >> level), height = at_least_one(d->Height >> level), depth = d->Depth >> level;
	uint64_t row = round_up(times(round_up(width, f.side) / f.side, f.bytes), 64);
	uint64_t rows = round_up(times(round_up(height, f.side) / f.side, f.rows), 2) / 2;

	if (d->Flags & 0x5) /* layered or a cube map: Depth is a number of layers */
		depth = d->Depth;
	return round_up(times(times(row, d->Height ? round_up(rows, 8) : rows), at_least_one(depth)), 512);
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
	discharge_wait_begin(&discharge);
	return discharge_wait_end(&discharge, REAL(cuArrayDestroy)(array));
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	struct discharge discharge;

	discharge_begin(&discharge, LEDGER_MIPMAP, (uintptr_t)array);
	discharge_wait_begin(&discharge);
	return discharge_wait_end(&discharge, REAL(cuMipmappedArrayDestroy)(array));
}
