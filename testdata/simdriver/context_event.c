/* Events of all that is in a context, and contexts that wait for one. */
#include "driver.h"

static CUresult check(CUcontext ctx, CUevent event)
{
	if (!object_is(OBJECT_CONTEXT, ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	return object_is(OBJECT_EVENT, event) && event->ctx->gpu == ctx->gpu ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuCtxRecordEvent(CUcontext ctx, CUevent event)
{
	CUresult r;

	ENTER();
	r = capture_forbids_wait(ctx, NULL);
	process_lock();
	if (!r)
		r = check(ctx, event);
	if (!r) {
		event->capture_id = 0;
		queue_mark(queue_of(ctx), event, ctx->any_tail);
	}
	process_unlock();
	return r;
}

CUresult cuCtxWaitEvent(CUcontext ctx, CUevent event)
{
	CUresult r;

	ENTER();
	r = capture_forbids_wait(ctx, NULL);
	process_lock();
	if (!r)
		r = check(ctx, event);
	if (!r && event->capture_id)
		r = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	if (!r && event->waits && event->tail > ctx->floor)
		ctx->floor = event->tail;
	process_unlock();
	return r;
}
