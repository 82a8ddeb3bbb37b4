/* Copies and fills that wait for the work in front of them in a default stream. That is waited for first, as by a
 * synchronisation: so its end is known, and the copy itself is no work. Others go straight to the driver: copies within the GPU's
 * memory, and small ones to it, for which the driver does not wait, fills of it, and what has a stream. */
#include "capture.h"
#include "cores.h"
#include "flight.h"
#include "hooks.h"
#include "turnends.h"

enum { SMALL = 65536, CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2, CU_POINTER_ATTRIBUTE_IS_MANAGED = 8 };

static void wait_first(CUstream stream)
{
	CUcontext context = NULL;

	if (capture_any() || !turn_any_work() || REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || !context)
		return;
	turn_wait_begin();
	if (REAL(cuStreamSynchronize)(stream) == CUDA_SUCCESS)
		turn_ended(flight_name(stream), context);
	turn_wait_end();
}

/* Addresses of other kinds the driver does not know. */
static bool is_host(CUdeviceptr ptr)
{
	unsigned int type = 0;

	return REAL(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr) != CUDA_SUCCESS || type == CU_MEMORYTYPE_HOST;
}

static bool is_side(unsigned int type, CUdeviceptr ptr)
{
	return type == CU_MEMORYTYPE_HOST || (type == CU_MEMORYTYPE_UNIFIED && is_host(ptr));
}
#define REACHES_HOST(c, depth)                                                  \
	((c) && (is_side((c)->dstMemoryType, (c)->dstDevice) ||                 \
	         ((size_t)(c)->WidthInBytes * (c)->Height * (depth) > SMALL && is_side((c)->srcMemoryType, (c)->srcDevice))))

/* Looked up only behind work: fills are many, and most are of the GPU's memory. */
static bool is_filled_at_once(CUdeviceptr ptr)
{
	unsigned int managed = 0;

	return turn_any_work() &&
	       ((REAL(cuPointerGetAttribute)(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr) == CUDA_SUCCESS && managed) || is_host(ptr));
}

#define COPY(name, parameters, arguments, waits, stream)                        \
	CUresult name parameters                                                \
	{                                                                       \
		if (__builtin_expect(cores_limited() != 0, 0) && (waits))       \
			wait_first(stream);                                     \
		return REAL(name) arguments;                                    \
	}
#define COPIES(name, parameters, arguments, waits)                              \
	COPY(name##_v2, parameters, arguments, waits, CU_STREAM_LEGACY)         \
	COPY(name##_v2_ptds, parameters, arguments, waits, CU_STREAM_PER_THREAD)

COPY(cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t bytes), (dst, src, bytes), is_host(dst), CU_STREAM_LEGACY)
COPY(cuMemcpy_ptds, (CUdeviceptr dst, CUdeviceptr src, size_t bytes), (dst, src, bytes), is_host(dst), CU_STREAM_PER_THREAD)
COPY(cuMemcpyDtoH, (void *dst, CUdeviceptr_v1 src, unsigned int bytes), (dst, src, bytes), true, CU_STREAM_LEGACY)
COPIES(cuMemcpyDtoH, (void *dst, CUdeviceptr src, size_t bytes), (dst, src, bytes), true)
COPY(cuMemcpyAtoH, (void *dst, CUarray src, unsigned int at, unsigned int bytes), (dst, src, at, bytes), true, CU_STREAM_LEGACY)
COPIES(cuMemcpyAtoH, (void *dst, CUarray src, size_t at, size_t bytes), (dst, src, at, bytes), true)
COPY(cuMemcpyHtoD, (CUdeviceptr_v1 dst, const void *src, unsigned int bytes), (dst, src, bytes), bytes > SMALL, CU_STREAM_LEGACY)
COPIES(cuMemcpyHtoD, (CUdeviceptr dst, const void *src, size_t bytes), (dst, src, bytes), bytes > SMALL)
COPY(cuMemcpyHtoA, (CUarray dst, unsigned int at, const void *src, unsigned int bytes), (dst, at, src, bytes), bytes > SMALL,
     CU_STREAM_LEGACY)
COPIES(cuMemcpyHtoA, (CUarray dst, size_t at, const void *src, size_t bytes), (dst, at, src, bytes), bytes > SMALL)

#define COPIES_2D(name)                                                                                          \
	COPY(name, (const CUDA_MEMCPY2D_v1 *c), (c), REACHES_HOST(c, 1), CU_STREAM_LEGACY)                       \
	COPIES(name, (const CUDA_MEMCPY2D *c), (c), REACHES_HOST(c, 1))
COPIES_2D(cuMemcpy2D)
COPIES_2D(cuMemcpy2DUnaligned)
COPY(cuMemcpy3D, (const CUDA_MEMCPY3D_v1 *c), (c), REACHES_HOST(c, c->Depth), CU_STREAM_LEGACY)
COPIES(cuMemcpy3D, (const CUDA_MEMCPY3D *c), (c), REACHES_HOST(c, c->Depth))
COPY(cuMemcpy3DPeer, (const CUDA_MEMCPY3D *c), (c), REACHES_HOST(c, c->Depth), CU_STREAM_LEGACY)
COPY(cuMemcpy3DPeer_ptds, (const CUDA_MEMCPY3D *c), (c), REACHES_HOST(c, c->Depth), CU_STREAM_PER_THREAD)

#define FILLS_OF(bits, type)                                                                                      \
	COPY(cuMemsetD##bits, (CUdeviceptr_v1 dst, type value, unsigned int count), (dst, value, count),          \
	     is_filled_at_once(dst), CU_STREAM_LEGACY)                                                            \
	COPIES(cuMemsetD##bits, (CUdeviceptr dst, type value, size_t count), (dst, value, count), is_filled_at_once(dst)) \
	COPY(cuMemsetD2D##bits, (CUdeviceptr_v1 dst, unsigned int pitch, type value, unsigned int width, unsigned int height), \
	     (dst, pitch, value, width, height), is_filled_at_once(dst), CU_STREAM_LEGACY)                        \
	COPIES(cuMemsetD2D##bits, (CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height),       \
	       (dst, pitch, value, width, height), is_filled_at_once(dst))
FILLS_OF(8, unsigned char)
FILLS_OF(16, unsigned short)
FILLS_OF(32, unsigned int)
