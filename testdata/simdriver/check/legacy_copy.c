/* Copies and fills with addresses of 32 bits. */
#include "check.h"

#include <string.h>

static void linear(void)
{
	unsigned char in[64], out[64] = {0};
	CUdeviceptr_v1 p, q;

	for (unsigned i = 0; i < sizeof(in); i++)
		in[i] = (unsigned char)(i + 1);
	FINE(cuMemAlloc(&p, 256));
	FINE(cuMemAlloc(&q, 256));
	FINE(cuMemcpyHtoD(p, in, 64));
	FINE(cuMemcpyDtoD(q + 64, p, 64));
	FINE(cuMemcpyDtoH(out, q + 64, 64));
	CHECK(!memcmp(in, out, 64));
	FINE(cuMemcpyHtoDAsync(p, in + 32, 32, NULL));
	FINE(cuMemcpyDtoDAsync(q, p, 32, NULL));
	FINE(cuMemcpyDtoHAsync(out, q, 32, NULL));
	FINE(cuStreamSynchronize(NULL));
	CHECK(!memcmp(in + 32, out, 32));
	FINE(cuMemsetD8(p, 7, 3));
	FINE(cuMemsetD16(p + 4, 0x0102, 2));
	FINE(cuMemsetD32(p + 8, 0x03040506, 1));
	FINE(cuMemcpyDtoH(out, p, 12));
	CHECK(!memcmp(out, (unsigned char[]){7, 7, 7, in[35], 2, 1, 2, 1, 6, 5, 4, 3}, 12));
	GIVES(cuMemcpyHtoD(p, in, 1 << 20), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemFree(p));
	FINE(cuMemFree(q));
	GIVES(cuMemsetD8(p, 0, 1), CUDA_ERROR_INVALID_VALUE);
}

static void rows(void)
{
	unsigned char in[8 * 4], out[8 * 4] = {0};
	CUDA_MEMCPY2D_v1 c = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = in, .srcPitch = 8, .srcXInBytes = 2, .srcY = 1,
			      .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstPitch = 16, .WidthInBytes = 4, .Height = 2};
	CUDA_MEMCPY3D_v1 deep = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcPitch = 16, .srcHeight = 2,
				 .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = out, .dstPitch = 4, .dstHeight = 2,
				 .WidthInBytes = 4, .Height = 2, .Depth = 1};
	CUdeviceptr_v1 p;

	for (unsigned i = 0; i < sizeof(in); i++)
		in[i] = (unsigned char)(i + 1);
	FINE(cuMemAlloc(&p, 256));
	c.dstDevice = deep.srcDevice = p;
	FINE(cuMemsetD2D8(p, 16, 0xee, 16, 4));
	FINE(cuMemcpy2D(&c));
	FINE(cuMemcpy3D(&deep));
	CHECK(!memcmp(out, in + 10, 4) && !memcmp(out + 4, in + 18, 4));
	c.dstY = 2;
	FINE(cuMemcpy2DUnaligned(&c));
	FINE(cuMemcpy2DAsync(&c, NULL));
	deep.srcY = 2;
	FINE(cuMemcpy3DAsync(&deep, NULL));
	FINE(cuStreamSynchronize(NULL));
	CHECK(!memcmp(out, in + 10, 4));
	FINE(cuMemsetD2D16(p, 16, 0x0102, 2, 1));
	FINE(cuMemsetD2D32(p + 16, 16, 0x03040506, 1, 1));
	FINE(cuMemcpyDtoH(out, p, 20));
	CHECK(out[0] == 2 && out[3] == 1 && out[4] == 0xee && out[16] == 6 && out[19] == 3);
	GIVES(cuMemcpy2D(NULL), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemcpy3D(NULL), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemFree(p));
}

static void arrays(void)
{
	unsigned char in[16], out[16] = {0};
	CUarray a, b;
	CUdeviceptr_v1 p;

	for (unsigned i = 0; i < sizeof(in); i++)
		in[i] = (unsigned char)(i + 1);
	FINE(cuArrayCreate(&a, &(CUDA_ARRAY_DESCRIPTOR_v1){16, 0, 1, 1}));
	FINE(cuArrayCreate(&b, &(CUDA_ARRAY_DESCRIPTOR_v1){16, 0, 1, 1}));
	FINE(cuMemAlloc(&p, 16));
	FINE(cuMemcpyHtoA(a, 0, in, 16));
	FINE(cuMemcpyAtoA(b, 4, a, 0, 8));
	FINE(cuMemcpyAtoD(p, b, 4, 8));
	FINE(cuMemcpyDtoA(b, 0, p, 4));
	FINE(cuMemcpyAtoH(out, b, 0, 8));
	CHECK(!memcmp(out, in, 4) && !memcmp(out + 4, in, 4));
	FINE(cuMemcpyHtoAAsync(a, 0, in + 8, 8, NULL));
	FINE(cuMemcpyAtoHAsync(out, a, 0, 8, NULL));
	FINE(cuStreamSynchronize(NULL));
	CHECK(!memcmp(out, in + 8, 8));
	FINE(cuMemFree(p));
	FINE(cuArrayDestroy(a));
	FINE(cuArrayDestroy(b));
}

void check_legacy_copies(void)
{
	start();
	linear();
	rows();
	arrays();
}
