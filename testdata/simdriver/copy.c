/* The calls that copy and fill. What they do is in transfer.c. */
#include "transfer.h"

static struct side linear(enum side_kind kind, CUdeviceptr ptr)
{
	return (struct side){.kind = kind, .ptr = ptr};
}

static struct side part_of_array(CUarray array, size_t offset)
{
	return (struct side){.kind = SIDE_ARRAY, .array = array, .x = offset};
}

static CUresult copy(struct side to, struct side from, size_t bytes, CUstream stream, bool wait)
{
	struct transfer t = {.to = to, .from = from, .width = bytes, .height = 1, .depth = 1};

	return transfer_put(&t, stream, wait);
}

static CUresult copy_3d(const CUDA_MEMCPY3D *c, CUstream stream, bool wait)
{
	struct transfer t;
	CUresult r = transfer_of_3d(&t, c);

	return r ? r : transfer_put(&t, stream, wait);
}

static CUresult copy_2d(const CUDA_MEMCPY2D *c, CUstream stream, bool wait)
{
	struct transfer t;
	CUresult r = transfer_of_2d(&t, c);

	return r ? r : transfer_put(&t, stream, wait);
}

static CUresult copy_peer(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t bytes, CUstream stream, bool wait)
{
	bool known;

	process_lock();
	known = object_is(OBJECT_CONTEXT, dst_ctx) && object_is(OBJECT_CONTEXT, src_ctx);
	process_unlock();
	return known ? copy(linear(SIDE_DEVICE, dst), linear(SIDE_DEVICE, src), bytes, stream, wait) : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult fill(CUdeviceptr dst, size_t pitch, unsigned element, uint32_t value, size_t width, size_t height, CUstream stream)
{
	struct transfer t;
	CUresult r = transfer_of_fill(&t, dst, pitch, element, value, width, height);

	return r ? r : transfer_put(&t, stream, false);
}

static CUdeviceptr at(const void *p)
{
	return (CUdeviceptr)(uintptr_t)p;
}

#define LIST(...) __VA_ARGS__

/* A call that waits, and its twin; the body is an expression of `stream`. */
#define TWIN(name, parameters, call)               \
	CUresult name(parameters)                  \
	{                                          \
		CUstream stream = NULL;            \
		ENTER();                           \
		return call;                       \
	}                                          \
	CUresult name##_ptds(parameters)           \
	{                                          \
		CUstream stream = CU_STREAM_PER_THREAD; \
		ENTER();                           \
		return call;                       \
	}

#define ASYNC_TWIN(name, parameters, call)                 \
	CUresult name(parameters, CUstream stream)         \
	{                                                  \
		ENTER();                                   \
		return call;                               \
	}                                                  \
	CUresult name##_ptsz(parameters, CUstream stream)  \
	{                                                  \
		stream = per_thread(stream);               \
		ENTER();                                   \
		return call;                               \
	}

#define DST linear(SIDE_DEVICE, dst)
#define SRC linear(SIDE_DEVICE, src)
#define HOST_DST linear(SIDE_HOST, at(dst))
#define HOST_SRC linear(SIDE_HOST, at(src))
#define ANY_DST linear(SIDE_UNIFIED, dst)
#define ANY_SRC linear(SIDE_UNIFIED, src)

TWIN(cuMemcpy, LIST(CUdeviceptr dst, CUdeviceptr src, size_t bytes), copy(ANY_DST, ANY_SRC, bytes, stream, true))
TWIN(cuMemcpyHtoD_v2, LIST(CUdeviceptr dst, const void *src, size_t bytes), copy(DST, HOST_SRC, bytes, stream, true))
TWIN(cuMemcpyDtoH_v2, LIST(void *dst, CUdeviceptr src, size_t bytes), copy(HOST_DST, SRC, bytes, stream, true))
TWIN(cuMemcpyDtoD_v2, LIST(CUdeviceptr dst, CUdeviceptr src, size_t bytes), copy(DST, SRC, bytes, stream, true))
ASYNC_TWIN(cuMemcpyAsync, LIST(CUdeviceptr dst, CUdeviceptr src, size_t bytes), copy(ANY_DST, ANY_SRC, bytes, stream, false))
ASYNC_TWIN(cuMemcpyHtoDAsync_v2, LIST(CUdeviceptr dst, const void *src, size_t bytes), copy(DST, HOST_SRC, bytes, stream, false))
ASYNC_TWIN(cuMemcpyDtoHAsync_v2, LIST(void *dst, CUdeviceptr src, size_t bytes), copy(HOST_DST, SRC, bytes, stream, false))
ASYNC_TWIN(cuMemcpyDtoDAsync_v2, LIST(CUdeviceptr dst, CUdeviceptr src, size_t bytes), copy(DST, SRC, bytes, stream, false))

TWIN(cuMemcpyHtoA_v2, LIST(CUarray dst, size_t offset, const void *src, size_t bytes),
     copy(part_of_array(dst, offset), HOST_SRC, bytes, stream, true))
TWIN(cuMemcpyAtoH_v2, LIST(void *dst, CUarray src, size_t offset, size_t bytes),
     copy(HOST_DST, part_of_array(src, offset), bytes, stream, true))
TWIN(cuMemcpyDtoA_v2, LIST(CUarray dst, size_t offset, CUdeviceptr src, size_t bytes),
     copy(part_of_array(dst, offset), SRC, bytes, stream, true))
TWIN(cuMemcpyAtoD_v2, LIST(CUdeviceptr dst, CUarray src, size_t offset, size_t bytes),
     copy(DST, part_of_array(src, offset), bytes, stream, true))
TWIN(cuMemcpyAtoA_v2, LIST(CUarray dst, size_t dst_offset, CUarray src, size_t src_offset, size_t bytes),
     copy(part_of_array(dst, dst_offset), part_of_array(src, src_offset), bytes, stream, true))
ASYNC_TWIN(cuMemcpyHtoAAsync_v2, LIST(CUarray dst, size_t offset, const void *src, size_t bytes),
	   copy(part_of_array(dst, offset), HOST_SRC, bytes, stream, false))
ASYNC_TWIN(cuMemcpyAtoHAsync_v2, LIST(void *dst, CUarray src, size_t offset, size_t bytes),
	   copy(HOST_DST, part_of_array(src, offset), bytes, stream, false))

TWIN(cuMemcpy2D_v2, const CUDA_MEMCPY2D *c, copy_2d(c, stream, true))
TWIN(cuMemcpy2DUnaligned_v2, const CUDA_MEMCPY2D *c, copy_2d(c, stream, true))
ASYNC_TWIN(cuMemcpy2DAsync_v2, const CUDA_MEMCPY2D *c, copy_2d(c, stream, false))
TWIN(cuMemcpy3D_v2, const CUDA_MEMCPY3D *c, copy_3d(c, stream, true))
ASYNC_TWIN(cuMemcpy3DAsync_v2, const CUDA_MEMCPY3D *c, copy_3d(c, stream, false))
TWIN(cuMemcpy3DPeer, const CUDA_MEMCPY3D *c, copy_3d(c, stream, true))
ASYNC_TWIN(cuMemcpy3DPeerAsync, const CUDA_MEMCPY3D *c, copy_3d(c, stream, false))
TWIN(cuMemcpyPeer, LIST(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t bytes),
     copy_peer(dst, dst_ctx, src, src_ctx, bytes, stream, true))
ASYNC_TWIN(cuMemcpyPeerAsync, LIST(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t bytes),
	   copy_peer(dst, dst_ctx, src, src_ctx, bytes, stream, false))

#define FILL_TWINS(bits, type)                                                                                        \
	TWIN(cuMemsetD##bits##_v2, LIST(CUdeviceptr dst, type value, size_t count),                                   \
	     fill(dst, 0, bits / 8, value, count, 1, stream))                                                         \
	ASYNC_TWIN(cuMemsetD##bits##Async, LIST(CUdeviceptr dst, type value, size_t count),                           \
		   fill(dst, 0, bits / 8, value, count, 1, stream))                                                   \
	TWIN(cuMemsetD2D##bits##_v2, LIST(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height),    \
	     fill(dst, pitch, bits / 8, value, width, height, stream))                                                \
	ASYNC_TWIN(cuMemsetD2D##bits##Async, LIST(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height), \
		   fill(dst, pitch, bits / 8, value, width, height, stream))

FILL_TWINS(8, unsigned char)
FILL_TWINS(16, unsigned short)
FILL_TWINS(32, unsigned int)
