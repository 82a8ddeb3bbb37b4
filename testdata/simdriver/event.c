/* Events: the moment at which what was in a stream when it was recorded is done. */
#include "driver.h"

#include <stdlib.h>

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
	CUcontext ctx;
	CUevent e;
	CUresult r;

	ENTER();
	r = current_context(&ctx);
	if (r)
		return r;
	if (!event || flags > 7)
		return CUDA_ERROR_INVALID_VALUE;
	e = calloc(1, sizeof(*e));
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->ctx = ctx;
	e->flags = flags;
	process_lock();
	if (!object_add(OBJECT_EVENT, e)) {
		free(e);
		e = NULL;
	}
	process_unlock();
	*event = e;
	return e ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuEventDestroy(CUevent event)
{
	ENTER();
	return object_destroy(OBJECT_EVENT, event);
}

CUresult cuEventDestroy_v2(CUevent event)
{
	ENTER();
	return object_destroy(OBJECT_EVENT, event);
}

static CUresult record(CUevent event, CUstream handle, unsigned flags)
{
	CUcontext ctx;
	CUstream s;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	r = stream_find(handle, ctx, &s);
	if (!r && (!object_is(OBJECT_EVENT, event) || event->ctx != (s ? s->ctx : ctx)))
		r = CUDA_ERROR_INVALID_HANDLE;
	if (!r) {
		uint64_t ready = stream_ready(ctx, s);
		uint64_t now = now_ns();

		event->recorded = true;
		event->time = ready > now ? ready : now;
	}
	process_unlock();
	return r;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	ENTER();
	return record(event, stream, 0);
}

CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
	ENTER();
	return record(event, per_thread(stream), 0);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
	ENTER();
	return record(event, stream, flags);
}

CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags)
{
	ENTER();
	return record(event, per_thread(stream), flags);
}

/* When the event happens; 0 if it was never recorded. */
static CUresult time_of(CUevent event, uint64_t *ns)
{
	CUresult r = CUDA_SUCCESS;

	process_lock();
	if (object_is(OBJECT_EVENT, event))
		*ns = event->recorded ? event->time : 0;
	else
		r = CUDA_ERROR_INVALID_HANDLE;
	process_unlock();
	return r;
}

CUresult cuEventQuery(CUevent event)
{
	uint64_t ns;
	CUresult r;

	ENTER();
	r = time_of(event, &ns);
	if (r)
		return r;
	return ns > now_ns() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event)
{
	uint64_t ns;
	CUresult r;

	ENTER();
	r = time_of(event, &ns);
	if (!r)
		wait_until(ns);
	return r;
}

static CUresult elapsed(float *ms, CUevent start, CUevent end)
{
	uint64_t now = now_ns();
	CUresult r = CUDA_SUCCESS;

	process_lock();
	if (!object_is(OBJECT_EVENT, start) || !object_is(OBJECT_EVENT, end))
		r = CUDA_ERROR_INVALID_HANDLE;
	else if (!start->recorded || !end->recorded || ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
		r = CUDA_ERROR_INVALID_HANDLE;
	else if (start->time > now || end->time > now)
		r = CUDA_ERROR_NOT_READY;
	else
		*ms = (float)((double)(int64_t)(end->time - start->time) / 1e6);
	process_unlock();
	return r;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	ENTER();
	if (!milliseconds)
		return CUDA_ERROR_INVALID_VALUE;
	return elapsed(milliseconds, start, end);
}
