/* Part of cuda_api.h: texture and surface objects, maps of tensors. Included by it. */
#ifndef SIMDRIVER_TEXTURE_API_H
#define SIMDRIVER_TEXTURE_API_H

#pragma GCC visibility push(default)

typedef unsigned long long CUtexObject;
typedef unsigned long long CUsurfObject;

enum { CU_RESOURCE_TYPE_ARRAY, CU_RESOURCE_TYPE_MIPMAPPED_ARRAY, CU_RESOURCE_TYPE_LINEAR, CU_RESOURCE_TYPE_PITCH2D };

typedef struct {
	int resType;
	union {
		struct {
			CUarray hArray;
		} array;
		struct {
			CUmipmappedArray hMipmappedArray;
		} mipmap;
		struct {
			CUdeviceptr devPtr;
			int format;
			unsigned int numChannels;
			size_t sizeInBytes;
		} linear;
		struct {
			CUdeviceptr devPtr;
			int format;
			unsigned int numChannels;
			size_t width, height, pitchInBytes;
		} pitch2D;
		struct {
			int reserved[32];
		} reserved;
	} res;
	unsigned int flags;
} CUDA_RESOURCE_DESC;

typedef struct {
	int addressMode[3], filterMode;
	unsigned int flags, maxAnisotropy;
	int mipmapFilterMode;
	float mipmapLevelBias, minMipmapLevelClamp, maxMipmapLevelClamp, borderColor[4];
	int reserved[12];
} CUDA_TEXTURE_DESC;

typedef struct {
	int format;
	size_t width, height, depth;
	unsigned int firstMipmapLevel, lastMipmapLevel, firstLayer, lastLayer, reserved[16];
} CUDA_RESOURCE_VIEW_DESC;

CUresult cuTexObjectCreate(CUtexObject *texture, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *desc,
			   const CUDA_RESOURCE_VIEW_DESC *view);
CUresult cuTexObjectDestroy(CUtexObject texture);
CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUtexObject texture);
CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *desc, CUtexObject texture);
CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *view, CUtexObject texture);
CUresult cuSurfObjectCreate(CUsurfObject *surface, const CUDA_RESOURCE_DESC *resource);
CUresult cuSurfObjectDestroy(CUsurfObject surface);
CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUsurfObject surface);
CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *elements, int format, unsigned int channels, CUdevice dev);

typedef struct {
	_Alignas(64) cuuint64_t opaque[16];
} CUtensorMap;

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, int type, uint32_t rank, void *address, const cuuint64_t *dims,
				const cuuint64_t *strides, const uint32_t *box, const uint32_t *element_strides, int interleave,
				int swizzle, int promotion, int fill);
CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, int type, uint32_t rank, void *address, const cuuint64_t *dims,
				 const cuuint64_t *strides, const int *lower, const int *upper, uint32_t channels, uint32_t pixels,
				 const uint32_t *element_strides, int interleave, int swizzle, int promotion, int fill);
CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address);

#pragma GCC visibility pop
#endif
