/* Copies and fills with addresses of 32 bits: those of today do them. */
#include "driver.h"

static CUDA_MEMCPY2D wide_2d(const CUDA_MEMCPY2D_v1 *c)
{
	return (CUDA_MEMCPY2D){
		c->srcXInBytes, c->srcY, c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray, c->srcPitch,
		c->dstXInBytes, c->dstY, c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray, c->dstPitch,
		c->WidthInBytes, c->Height,
	};
}

static CUDA_MEMCPY3D wide_3d(const CUDA_MEMCPY3D_v1 *c)
{
	return (CUDA_MEMCPY3D){
		c->srcXInBytes, c->srcY, c->srcZ, c->srcLOD, c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray,
		c->reserved0, c->srcPitch, c->srcHeight,
		c->dstXInBytes, c->dstY, c->dstZ, c->dstLOD, c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray,
		c->reserved1, c->dstPitch, c->dstHeight,
		c->WidthInBytes, c->Height, c->Depth,
	};
}

#define LIST(...) __VA_ARGS__
#define NARROW(name, parameters, call)   \
	CUresult name(parameters)        \
	{                                \
		ENTER();                 \
		return call;             \
	}

NARROW(cuMemcpyHtoD, LIST(CUdeviceptr_v1 dst, const void *src, unsigned int bytes), cuMemcpyHtoD_v2(dst, src, bytes))
NARROW(cuMemcpyDtoH, LIST(void *dst, CUdeviceptr_v1 src, unsigned int bytes), cuMemcpyDtoH_v2(dst, src, bytes))
NARROW(cuMemcpyDtoD, LIST(CUdeviceptr_v1 dst, CUdeviceptr_v1 src, unsigned int bytes), cuMemcpyDtoD_v2(dst, src, bytes))
NARROW(cuMemcpyHtoDAsync, LIST(CUdeviceptr_v1 dst, const void *src, unsigned int bytes, CUstream stream),
       cuMemcpyHtoDAsync_v2(dst, src, bytes, stream))
NARROW(cuMemcpyDtoHAsync, LIST(void *dst, CUdeviceptr_v1 src, unsigned int bytes, CUstream stream),
       cuMemcpyDtoHAsync_v2(dst, src, bytes, stream))
NARROW(cuMemcpyDtoDAsync, LIST(CUdeviceptr_v1 dst, CUdeviceptr_v1 src, unsigned int bytes, CUstream stream),
       cuMemcpyDtoDAsync_v2(dst, src, bytes, stream))
NARROW(cuMemcpyDtoA, LIST(CUarray dst, unsigned int offset, CUdeviceptr_v1 src, unsigned int bytes),
       cuMemcpyDtoA_v2(dst, offset, src, bytes))
NARROW(cuMemcpyAtoD, LIST(CUdeviceptr_v1 dst, CUarray src, unsigned int offset, unsigned int bytes),
       cuMemcpyAtoD_v2(dst, src, offset, bytes))
NARROW(cuMemcpyHtoA, LIST(CUarray dst, unsigned int offset, const void *src, unsigned int bytes),
       cuMemcpyHtoA_v2(dst, offset, src, bytes))
NARROW(cuMemcpyAtoH, LIST(void *dst, CUarray src, unsigned int offset, unsigned int bytes),
       cuMemcpyAtoH_v2(dst, src, offset, bytes))
NARROW(cuMemcpyAtoA, LIST(CUarray dst, unsigned int dst_offset, CUarray src, unsigned int src_offset, unsigned int bytes),
       cuMemcpyAtoA_v2(dst, dst_offset, src, src_offset, bytes))
NARROW(cuMemcpyHtoAAsync, LIST(CUarray dst, unsigned int offset, const void *src, unsigned int bytes, CUstream stream),
       cuMemcpyHtoAAsync_v2(dst, offset, src, bytes, stream))
NARROW(cuMemcpyAtoHAsync, LIST(void *dst, CUarray src, unsigned int offset, unsigned int bytes, CUstream stream),
       cuMemcpyAtoHAsync_v2(dst, src, offset, bytes, stream))

CUresult cuMemcpy2D(const CUDA_MEMCPY2D_v1 *c)
{
	ENTER();
	return c ? cuMemcpy2D_v2((CUDA_MEMCPY2D[]){wide_2d(c)}) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D_v1 *c)
{
	ENTER();
	return c ? cuMemcpy2DUnaligned_v2((CUDA_MEMCPY2D[]){wide_2d(c)}) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D_v1 *c, CUstream stream)
{
	ENTER();
	return c ? cuMemcpy2DAsync_v2((CUDA_MEMCPY2D[]){wide_2d(c)}, stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy3D(const CUDA_MEMCPY3D_v1 *c)
{
	ENTER();
	return c ? cuMemcpy3D_v2((CUDA_MEMCPY3D[]){wide_3d(c)}) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D_v1 *c, CUstream stream)
{
	ENTER();
	return c ? cuMemcpy3DAsync_v2((CUDA_MEMCPY3D[]){wide_3d(c)}, stream) : CUDA_ERROR_INVALID_VALUE;
}

#define NARROW_FILLS(bits, type)                                                                                      \
	NARROW(cuMemsetD##bits, LIST(CUdeviceptr_v1 dst, type value, unsigned int count), cuMemsetD##bits##_v2(dst, value, count)) \
	NARROW(cuMemsetD2D##bits, LIST(CUdeviceptr_v1 dst, unsigned int pitch, type value, unsigned int width, unsigned int height), \
	       cuMemsetD2D##bits##_v2(dst, pitch, value, width, height))

NARROW_FILLS(8, unsigned char)
NARROW_FILLS(16, unsigned short)
NARROW_FILLS(32, unsigned int)
