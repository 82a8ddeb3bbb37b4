/*
 * Copies and fills. They validate their ranges and keep the order of their stream; they take no time of their own. What is
 * written to device memory is not kept; reading it gives zeros. Managed memory is real and is copied.
 */
#include "allocation.h"
#include "vmm.h"

#include <stdint.h>
#include <string.h>

enum end { HOST_SIDE, DEVICE_SIDE, EITHER_SIDE };

static bool is_fake(CUdeviceptr p)
{
	return (p >= FAKE_BASE && p < FAKE_END) || (p >= VMM_BASE && p < VMM_END) || p < 0x100000000ull;
}

/* Process lock held. */
static bool valid(CUdeviceptr p, size_t bytes, enum end side)
{
	if (side == DEVICE_SIDE || (side == EITHER_SIDE && is_fake(p)))
		return memory_covers(p, bytes);
	return p != 0;
}

static void move(CUdeviceptr dst, CUdeviceptr src, size_t bytes, enum end to, enum end from)
{
	bool no_dst = to != HOST_SIDE && is_fake(dst);
	bool no_src = from != HOST_SIDE && is_fake(src);

	if (no_dst)
		return;
	if (no_src)
		memset((void *)(uintptr_t)dst, 0, bytes);
	else
		memmove((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes);
}

static CUresult check(CUdeviceptr dst, CUdeviceptr src, size_t bytes, enum end to, enum end from, CUstream stream, bool *captured)
{
	CUcontext ctx;
	CUstream s;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	process_lock();
	r = stream_find(stream, ctx, &s);
	if (!r && (!valid(dst, bytes, to) || !valid(src, bytes, from)))
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r)
		r = capture_check(s ? s->ctx : ctx, s, captured);
	if (!r && *captured)
		r = capture_work(s, CU_GRAPH_NODE_MEMCPY, 0);
	process_unlock();
	return r;
}

static CUresult copy_async(CUdeviceptr dst, CUdeviceptr src, size_t bytes, enum end to, enum end from, CUstream stream)
{
	bool captured = false;
	CUresult r;

	if (!bytes)
		return CUDA_SUCCESS;
	r = check(dst, src, bytes, to, from, stream, &captured);
	if (!r && !captured)
		move(dst, src, bytes, to, from);
	return r;
}

static CUresult copy(CUdeviceptr dst, CUdeviceptr src, size_t bytes, enum end to, enum end from, CUstream stream)
{
	bool captured = false;
	CUresult r;

	if (!bytes)
		return CUDA_SUCCESS;
	r = check(dst, src, bytes, to, from, stream, &captured);
	if (!r)
		r = stream_wait(stream);
	if (!r)
		move(dst, src, bytes, to, from);
	return r;
}

static CUdeviceptr at(const void *p)
{
	return (CUdeviceptr)(uintptr_t)p;
}

#define COPY_TWIN(name, dst_type, src_type, dst_value, src_value, to, from)                           \
	CUresult name(dst_type dst, src_type src, size_t bytes)                                       \
	{                                                                                             \
		ENTER();                                                                              \
		return copy(dst_value, src_value, bytes, to, from, NULL);                             \
	}                                                                                             \
	CUresult name##_ptds(dst_type dst, src_type src, size_t bytes)                                \
	{                                                                                             \
		ENTER();                                                                              \
		return copy(dst_value, src_value, bytes, to, from, CU_STREAM_PER_THREAD);             \
	}

#define COPY_ASYNC_TWIN(name, dst_type, src_type, dst_value, src_value, to, from)                     \
	CUresult name(dst_type dst, src_type src, size_t bytes, CUstream stream)                      \
	{                                                                                             \
		ENTER();                                                                              \
		return copy_async(dst_value, src_value, bytes, to, from, stream);                     \
	}                                                                                             \
	CUresult name##_ptsz(dst_type dst, src_type src, size_t bytes, CUstream stream)               \
	{                                                                                             \
		ENTER();                                                                              \
		return copy_async(dst_value, src_value, bytes, to, from, per_thread(stream));         \
	}

COPY_TWIN(cuMemcpy, CUdeviceptr, CUdeviceptr, dst, src, EITHER_SIDE, EITHER_SIDE)
COPY_TWIN(cuMemcpyHtoD_v2, CUdeviceptr, const void *, dst, at(src), DEVICE_SIDE, HOST_SIDE)
COPY_TWIN(cuMemcpyDtoH_v2, void *, CUdeviceptr, at(dst), src, HOST_SIDE, DEVICE_SIDE)
COPY_TWIN(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr, dst, src, DEVICE_SIDE, DEVICE_SIDE)
COPY_ASYNC_TWIN(cuMemcpyAsync, CUdeviceptr, CUdeviceptr, dst, src, EITHER_SIDE, EITHER_SIDE)
COPY_ASYNC_TWIN(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, dst, at(src), DEVICE_SIDE, HOST_SIDE)
COPY_ASYNC_TWIN(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, at(dst), src, HOST_SIDE, DEVICE_SIDE)
COPY_ASYNC_TWIN(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr, dst, src, DEVICE_SIDE, DEVICE_SIDE)

static CUresult fill(CUdeviceptr dst, uint32_t value, size_t width, size_t count, CUstream stream)
{
	bool captured = false;
	CUcontext ctx;
	CUstream s;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (!count)
		return CUDA_SUCCESS;
	if (dst % width || count > SIZE_MAX / width)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	r = stream_find(stream, ctx, &s);
	if (!r && !memory_covers(dst, count * width))
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r)
		r = capture_check(s ? s->ctx : ctx, s, &captured);
	if (!r && captured)
		r = capture_work(s, CU_GRAPH_NODE_MEMSET, 0);
	process_unlock();
	for (size_t i = 0; !r && !captured && !is_fake(dst) && i < count; i++)
		memcpy((char *)(uintptr_t)dst + i * width, &value, width); /* little-endian */
	return r;
}

#define FILL_TWINS(bits, type)                                                                          \
	CUresult cuMemsetD##bits##_v2(CUdeviceptr dst, type value, size_t count)                        \
	{                                                                                               \
		ENTER();                                                                                \
		return fill(dst, value, bits / 8, count, NULL);                                         \
	}                                                                                               \
	CUresult cuMemsetD##bits##_v2_ptds(CUdeviceptr dst, type value, size_t count)                   \
	{                                                                                               \
		ENTER();                                                                                \
		return fill(dst, value, bits / 8, count, CU_STREAM_PER_THREAD);                         \
	}                                                                                               \
	CUresult cuMemsetD##bits##Async(CUdeviceptr dst, type value, size_t count, CUstream stream)     \
	{                                                                                               \
		ENTER();                                                                                \
		return fill(dst, value, bits / 8, count, stream);                                       \
	}                                                                                               \
	CUresult cuMemsetD##bits##Async_ptsz(CUdeviceptr dst, type value, size_t count, CUstream stream) \
	{                                                                                               \
		ENTER();                                                                                \
		return fill(dst, value, bits / 8, count, per_thread(stream));                           \
	}

FILL_TWINS(8, unsigned char)
FILL_TWINS(16, unsigned short)
FILL_TWINS(32, unsigned int)
