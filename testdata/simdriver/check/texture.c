/* Texture and surface objects, maps of tensors. */
#include "check.h"

#include <string.h>

#define BYTES ((size_t)1 << 20)
#define FLOAT 0x20

static CUarray make_array(unsigned flags)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {.Width = 64, .Height = 64, .Format = FLOAT, .NumChannels = 1, .Flags = flags};
	CUarray array;

	FINE(cuArray3DCreate_v2(&array, &d));
	return array;
}

static void check_linear(CUdeviceptr p)
{
	CUDA_RESOURCE_DESC linear = {.resType = CU_RESOURCE_TYPE_LINEAR,
				     .res.linear = {.devPtr = p, .format = FLOAT, .numChannels = 4, .sizeInBytes = BYTES}};
	CUDA_RESOURCE_DESC pitch = {.resType = CU_RESOURCE_TYPE_PITCH2D,
				    .res.pitch2D = {.devPtr = p, .format = 1, .numChannels = 1, .width = 1000, .height = 1024, .pitchInBytes = 1024}};
	CUDA_RESOURCE_VIEW_DESC view = {.format = 1};
	CUDA_TEXTURE_DESC desc = {0};
	CUtexObject t;

	FINE(cuTexObjectCreate(&t, &linear, &desc, NULL));
	FINE(cuTexObjectDestroy(t));
	GIVES(cuTexObjectCreate(&t, &linear, &desc, &view), CUDA_ERROR_INVALID_VALUE); /* of arrays only */
	linear.res.linear.sizeInBytes = 2 * BYTES;
	GIVES(cuTexObjectCreate(&t, &linear, &desc, NULL), CUDA_ERROR_INVALID_VALUE);
	linear.res.linear.sizeInBytes = BYTES / 2;
	linear.res.linear.devPtr = p + 4; /* not aligned */
	GIVES(cuTexObjectCreate(&t, &linear, &desc, NULL), CUDA_ERROR_INVALID_VALUE);
	linear.res.linear.devPtr = p;
	linear.res.linear.numChannels = 3;
	GIVES(cuTexObjectCreate(&t, &linear, &desc, NULL), CUDA_ERROR_INVALID_VALUE);
	FINE(cuTexObjectCreate(&t, &pitch, &desc, NULL));
	FINE(cuTexObjectDestroy(t));
	pitch.res.pitch2D.pitchInBytes = 1000; /* not of 32 */
	GIVES(cuTexObjectCreate(&t, &pitch, &desc, NULL), CUDA_ERROR_INVALID_VALUE);
	pitch.res.pitch2D.pitchInBytes = 992; /* less than a row */
	GIVES(cuTexObjectCreate(&t, &pitch, &desc, NULL), CUDA_ERROR_INVALID_VALUE);
}

void check_textures(void)
{
	CUDA_RESOURCE_DESC of = {.resType = CU_RESOURCE_TYPE_ARRAY}, found;
	CUDA_TEXTURE_DESC desc = {.addressMode = {1, 3, 2}, .filterMode = 1, .flags = 2, .maxAnisotropy = 4}, desc_found;
	CUDA_RESOURCE_VIEW_DESC view = {.format = 0x16, .width = 64, .height = 64}, view_found;
	CUtexObject t, viewed, second;
	CUcontext other;
	CUdeviceptr p;
	size_t width;

	GIVES(cuTexObjectCreate(&t, &of, &desc, NULL), CUDA_ERROR_NOT_INITIALIZED);
	start();
	of.res.array.hArray = make_array(0);
	FINE(cuTexObjectCreate(&t, &of, &desc, NULL));
	FINE(cuTexObjectCreate(&viewed, &of, &desc, &view));
	FINE(cuTexObjectGetResourceDesc(&found, t));
	CHECK(!memcmp(&found, &of, sizeof(of)));
	FINE(cuTexObjectGetTextureDesc(&desc_found, t));
	CHECK(!memcmp(&desc_found, &desc, sizeof(desc)));
	GIVES(cuTexObjectGetResourceViewDesc(&view_found, t), CUDA_ERROR_INVALID_VALUE);
	FINE(cuTexObjectGetResourceViewDesc(&view_found, viewed));
	CHECK(view_found.format == 0x16 && view_found.width == 64);
	GIVES(cuSurfObjectGetResourceDesc(&found, t), CUDA_ERROR_INVALID_VALUE);
	FINE(cuTexObjectDestroy(viewed));
	GIVES(cuTexObjectDestroy(viewed), CUDA_ERROR_INVALID_VALUE);
	desc.addressMode[2] = 4;
	GIVES(cuTexObjectCreate(&t, &of, &desc, NULL), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuTexObjectCreate(&t, NULL, &desc, NULL), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemAlloc_v2(&p, BYTES));
	check_linear(p);
	FINE(cuMemFree_v2(p));
	FINE(cuDeviceGetTexture1DLinearMaxWidth(&width, FLOAT, 1, 0));
	CHECK(width == 1 << 28);
	GIVES(cuDeviceGetTexture1DLinearMaxWidth(&width, 0x7f, 1, 0), CUDA_ERROR_INVALID_VALUE);

	GIVES(cuSurfObjectCreate(&second, &of), CUDA_ERROR_INVALID_VALUE); /* not made to be written by kernels */
	of.res.array.hArray = make_array(CUDA_ARRAY3D_SURFACE_LDST);
	FINE(cuSurfObjectCreate(&second, &of));
	FINE(cuSurfObjectGetResourceDesc(&found, second));
	CHECK(found.res.array.hArray == of.res.array.hArray);
	GIVES(cuTexObjectDestroy(second), CUDA_ERROR_INVALID_VALUE);
	FINE(cuSurfObjectDestroy(second));

	FINE(cuCtxCreate_v2(&other, 0, 0));
	of.res.array.hArray = make_array(CUDA_ARRAY3D_SURFACE_LDST);
	FINE(cuSurfObjectCreate(&second, &of));
	FINE(cuCtxDestroy_v2(other)); /* and all that is in it */
	start();
	GIVES(cuSurfObjectDestroy(second), CUDA_ERROR_INVALID_VALUE);
	FINE(cuTexObjectDestroy(t));
}

static CUresult tiled(CUtensorMap *map, int type, uint32_t rank, uint32_t inner, int interleave, int swizzle, int fill)
{
	const cuuint64_t dims[] = {256, 256, 4}, strides[] = {1024, 262144};
	const uint32_t box[] = {inner, 64, 1}, steps[] = {1, 1, 1};

	return cuTensorMapEncodeTiled(map, type, rank, (void *)0x10000, dims, strides, box, steps, interleave, swizzle, 0, fill);
}

/* On a GPU before compute capability 9.0, too, which has none. */
void check_tensor_maps(void)
{
	const cuuint64_t dims[] = {64, 32, 32, 8}, strides[] = {128, 4096, 131072};
	const uint32_t steps[] = {1, 1, 1, 1};
	const int lower[] = {-1, -1}, upper[] = {1, 1}, far[] = {-129, 0};
	CUtensorMap map, other;
	int has;

	start();
	FINE(cuDeviceGetAttribute(&has, 127, 0)); /* TENSOR_MAP_ACCESS_SUPPORTED */
	if (!has) {
		GIVES(tiled(&map, 7, 2, 32, 0, 3, 0), CUDA_ERROR_NOT_SUPPORTED);
		return;
	}
	FINE(tiled(&map, 7, 2, 32, 0, 3, 0));
	FINE(tiled(&other, 7, 2, 32, 0, 3, 0));
	CHECK(!memcmp(&map, &other, sizeof(map)));
	FINE(tiled(&other, 7, 2, 16, 0, 3, 0));
	CHECK(memcmp(&map, &other, sizeof(map)) != 0);
	GIVES(tiled(&map, 7, 2, 64, 0, 3, 0), CUDA_ERROR_INVALID_VALUE);  /* 256 bytes, swizzled by 128 */
	GIVES(tiled(&map, 7, 2, 3, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);	  /* not of 16 bytes */
	GIVES(tiled(&map, 13, 2, 32, 0, 0, 0), CUDA_ERROR_INVALID_VALUE); /* no such type */
	GIVES(tiled(&map, 7, 6, 32, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(tiled(&map, 7, 2, 32, 1, 0, 0), CUDA_ERROR_INVALID_VALUE); /* interleaved: three dimensions at least */
	FINE(tiled(&map, 7, 3, 32, 1, 0, 0));
	GIVES(tiled(&map, 7, 3, 32, 2, 0, 0), CUDA_ERROR_INVALID_VALUE); /* by 32 bytes: swizzled so, too */
	GIVES(tiled(&map, 2, 2, 32, 0, 0, 1), CUDA_ERROR_INVALID_VALUE); /* NaN of integers */
	FINE(tiled(&map, 7, 2, 32, 0, 0, 1));
	FINE(cuTensorMapReplaceAddress(&map, (void *)0x20000));
	GIVES(cuTensorMapReplaceAddress(&map, (void *)0x20001), CUDA_ERROR_INVALID_VALUE);
	FINE(cuTensorMapEncodeIm2col(&map, 6, 4, (void *)0x10000, dims, strides, lower, upper, 64, 128, steps, 0, 3, 0, 0));
	GIVES(cuTensorMapEncodeIm2col(&map, 6, 4, (void *)0x10000, dims, strides, far, upper, 64, 128, steps, 0, 3, 0, 0),
	      CUDA_ERROR_INVALID_VALUE);
	GIVES(cuTensorMapEncodeIm2col(&map, 6, 2, (void *)0x10000, dims, strides, lower, upper, 64, 128, steps, 0, 3, 0, 0),
	      CUDA_ERROR_INVALID_VALUE);
}
