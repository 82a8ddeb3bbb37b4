/* Part of cuda_api.h: copies and fills as before CUDA 3.2, with addresses and sizes of 32 bits. Included by it. */
#ifndef SIMDRIVER_LEGACY_COPY_API_H
#define SIMDRIVER_LEGACY_COPY_API_H

#pragma GCC visibility push(default)

typedef struct {
	unsigned int srcXInBytes, srcY;
	int srcMemoryType;
	const void *srcHost;
	CUdeviceptr_v1 srcDevice;
	CUarray srcArray;
	unsigned int srcPitch;
	unsigned int dstXInBytes, dstY;
	int dstMemoryType;
	void *dstHost;
	CUdeviceptr_v1 dstDevice;
	CUarray dstArray;
	unsigned int dstPitch;
	unsigned int WidthInBytes, Height;
} CUDA_MEMCPY2D_v1;

typedef struct {
	unsigned int srcXInBytes, srcY, srcZ, srcLOD;
	int srcMemoryType;
	const void *srcHost;
	CUdeviceptr_v1 srcDevice;
	CUarray srcArray;
	void *reserved0;
	unsigned int srcPitch, srcHeight;
	unsigned int dstXInBytes, dstY, dstZ, dstLOD;
	int dstMemoryType;
	void *dstHost;
	CUdeviceptr_v1 dstDevice;
	CUarray dstArray;
	void *reserved1;
	unsigned int dstPitch, dstHeight;
	unsigned int WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D_v1;

CUresult cuMemcpyHtoD(CUdeviceptr_v1 dst, const void *src, unsigned int bytes);
CUresult cuMemcpyDtoH(void *dst, CUdeviceptr_v1 src, unsigned int bytes);
CUresult cuMemcpyDtoD(CUdeviceptr_v1 dst, CUdeviceptr_v1 src, unsigned int bytes);
CUresult cuMemcpyHtoDAsync(CUdeviceptr_v1 dst, const void *src, unsigned int bytes, CUstream stream);
CUresult cuMemcpyDtoHAsync(void *dst, CUdeviceptr_v1 src, unsigned int bytes, CUstream stream);
CUresult cuMemcpyDtoDAsync(CUdeviceptr_v1 dst, CUdeviceptr_v1 src, unsigned int bytes, CUstream stream);
CUresult cuMemcpyDtoA(CUarray dst, unsigned int offset, CUdeviceptr_v1 src, unsigned int bytes);
CUresult cuMemcpyAtoD(CUdeviceptr_v1 dst, CUarray src, unsigned int offset, unsigned int bytes);
CUresult cuMemcpyHtoA(CUarray dst, unsigned int offset, const void *src, unsigned int bytes);
CUresult cuMemcpyAtoH(void *dst, CUarray src, unsigned int offset, unsigned int bytes);
CUresult cuMemcpyAtoA(CUarray dst, unsigned int dst_offset, CUarray src, unsigned int src_offset, unsigned int bytes);
CUresult cuMemcpyHtoAAsync(CUarray dst, unsigned int offset, const void *src, unsigned int bytes, CUstream stream);
CUresult cuMemcpyAtoHAsync(void *dst, CUarray src, unsigned int offset, unsigned int bytes, CUstream stream);
CUresult cuMemcpy2D(const CUDA_MEMCPY2D_v1 *copy);
CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D_v1 *copy);
CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D_v1 *copy, CUstream stream);
CUresult cuMemcpy3D(const CUDA_MEMCPY3D_v1 *copy);
CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D_v1 *copy, CUstream stream);
CUresult cuMemsetD8(CUdeviceptr_v1 dst, unsigned char value, unsigned int count);
CUresult cuMemsetD16(CUdeviceptr_v1 dst, unsigned short value, unsigned int count);
CUresult cuMemsetD32(CUdeviceptr_v1 dst, unsigned int value, unsigned int count);
CUresult cuMemsetD2D8(CUdeviceptr_v1 dst, unsigned int pitch, unsigned char value, unsigned int width, unsigned int height);
CUresult cuMemsetD2D16(CUdeviceptr_v1 dst, unsigned int pitch, unsigned short value, unsigned int width, unsigned int height);
CUresult cuMemsetD2D32(CUdeviceptr_v1 dst, unsigned int pitch, unsigned int value, unsigned int width, unsigned int height);

#pragma GCC visibility pop
#endif
