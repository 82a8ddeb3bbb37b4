/* Events of all that is in a context, and contexts that wait for one. */
#include "driver.h"

static CUresult check(CUcontext ctx, CUevent event)
{
	CUresult r = CUDA_SUCCESS;

	process_lock();
	if (!object_is(OBJECT_CONTEXT, ctx))
		r = CUDA_ERROR_INVALID_CONTEXT;
	else if (!object_is(OBJECT_EVENT, event) || event->ctx->gpu != ctx->gpu)
		r = CUDA_ERROR_INVALID_HANDLE;
	process_unlock();
	return r ? r : capture_forbids_wait(ctx, NULL);
}

CUresult context_record(CUcontext ctx, CUevent event)
{
	CUresult r = check(ctx, event);

	if (r)
		return r;
	process_lock();
	event->capture_id = 0;
	event->pending_record = 0;
	queue_mark(queue_of(ctx), event, ctx->any_tail);
	process_unlock();
	return CUDA_SUCCESS;
}

CUresult context_wait(CUcontext ctx, CUevent event)
{
	CUresult r = check(ctx, event);

	if (r)
		return r;
	process_lock();
	if (event->capture_id) {
		capture_event_forbidden(event);
		r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	} else if (event->waits && event->tail > ctx->floor) {
		ctx->floor = event->tail;
	}
	process_unlock();
	return r;
}

CUresult cuCtxRecordEvent(CUcontext ctx, CUevent event)
{
	ENTER();
	return context_record(ctx, event);
}

CUresult cuCtxWaitEvent(CUcontext ctx, CUevent event)
{
	ENTER();
	return context_wait(ctx, event);
}
