/* Synchronisations: pools release there what is above their release threshold, and what the thread
 * waited for has ended, which may end the container's turn. And streams that end. */
#include "capture.h"
#include "cores.h"
#include "hooks.h"
#include "pool.h"
#include "turnends.h"
#include "turnstate.h"

/* Whether the wait was announced: a share may come or go meanwhile. */
static bool begin(void)
{
	bool announced = __builtin_expect(cores_limited() != 0, 0);

	if (announced)
		turn_wait_begin();
	return announced;
}

static CUresult end(bool announced, CUresult result)
{
	if (announced)
		turn_wait_end();
	pools_may_have_shrunk();
	return result;
}

static CUresult end_of_context(bool announced, CUresult result, CUcontext ctx)
{
	if (announced && result == CUDA_SUCCESS && (ctx || REAL(cuCtxGetCurrent)(&ctx) == CUDA_SUCCESS))
		turn_ended(NULL, ctx);
	return end(announced, result);
}

static CUresult end_of_stream(bool announced, CUresult result, CUstream stream)
{
	CUcontext ctx = NULL;

	/* Each context has default streams of the same names. */
	if (announced && result == CUDA_SUCCESS && ((uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD ||
	                                            REAL(cuCtxGetCurrent)(&ctx) == CUDA_SUCCESS))
		turn_ended(flight_name(stream), ctx);
	return end(announced, result);
}

CUresult cuCtxSynchronize(void)
{
	bool announced = begin();

	return end_of_context(announced, REAL(cuCtxSynchronize)(), NULL);
}

/* Of CUDA 13. In front of an older driver libc's dlsym finds it nevertheless. Programs that look for
 * _v2 of every name (numba) then call it without a context, and mean the current one. */
CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
	if (!hook_exists(HOOK_cuCtxSynchronize_v2))
		return cuCtxSynchronize();
	bool announced = begin();
	return end_of_context(announced, REAL(cuCtxSynchronize_v2)(ctx), ctx);
}

CUresult cuStreamSynchronize(CUstream stream)
{
	bool announced = begin();

	return end_of_stream(announced, REAL(cuStreamSynchronize)(stream), stream);
}

/* For a caller of the _ptsz variant the stream 0 is its thread's own. */
CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	bool announced = begin();

	return end_of_stream(announced, REAL(cuStreamSynchronize_ptsz)(stream), stream ? stream : CU_STREAM_PER_THREAD);
}

static CUresult seen(CUresult result)
{
	if (__builtin_expect(cores_limited() == 0, 1))
		return result;
	if (result == CUDA_SUCCESS)
		turn_saw_end(false);
	else if (result == CUDA_ERROR_NOT_READY)
		turn_saw_work();
	return result;
}

CUresult cuStreamQuery(CUstream stream)
{
	return seen(REAL(cuStreamQuery)(stream));
}

CUresult cuStreamQuery_ptsz(CUstream stream)
{
	return seen(REAL(cuStreamQuery_ptsz)(stream));
}

static CUresult destroyed(CUresult result, CUstream stream)
{
	if (result == CUDA_SUCCESS)
		capture_destroyed(stream);
	return result;
}

CUresult cuStreamDestroy(CUstream stream)
{
	if (turn_ever_used())
		turn_forget_stream(stream);
	return destroyed(REAL(cuStreamDestroy)(stream), stream);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
	if (turn_ever_used())
		turn_forget_stream(stream);
	return destroyed(REAL(cuStreamDestroy_v2)(stream), stream);
}
