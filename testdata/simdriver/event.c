/*
 * Events: the moment at which what was in a stream when it was recorded is done, on the clock of the wall: what the GPU did
 * for other processes in between counts.
 */
#include "pending.h"
#include "pool.h"

#include <stdlib.h>

#define RESOLUTION_NS 500u /* as NVIDIA documents of cuEventElapsedTime */

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

static CUresult destroy(CUevent event)
{
	CUresult r = CUDA_ERROR_INVALID_HANDLE;

	process_lock();
	if (object_is(OBJECT_EVENT, event)) {
		object_remove(event);
		pending_forget_event(event);
		queue_unmark(event);
		free(event->captured);
		free(event);
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

CUresult cuEventDestroy(CUevent event)
{
	ENTER();
	return destroy(event);
}

CUresult cuEventDestroy_v2(CUevent event)
{
	ENTER();
	return destroy(event);
}

/* One with a time is work of the GPU in its stream: others in it wait until the time is written. */
void event_put(CUevent event, CUcontext ctx, CUstream s)
{
	struct queue *q = queue_of(s ? s->ctx : ctx);
	uint64_t tail = stream_ready(ctx, s);

	event->capture_id = 0;
	event->pending_record = 0;
	if (!(event->flags & CU_EVENT_DISABLE_TIMING)) {
		tail = queue_put(q, tail, (struct load){.ns = process.view.s->gpus[q->gpu].event_ns}, 0);
		stream_advance(ctx, s, tail);
	}
	queue_mark(q, event, tail);
}

static CUresult record(CUevent event, CUstream handle, unsigned flags)
{
	bool captured = false;
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
	if (!r)
		r = capture_check(s ? s->ctx : ctx, s, &captured);
	if (!r && captured)
		r = capture_record(event, s);
	else if (!r && pending_before(ctx, s))
		r = pending_put_record(ctx, s, event);
	else if (!r)
		event_put(event, ctx, s);
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

/* Whether it has happened by now. Process lock held. */
static bool happened(CUevent event)
{
	if (event->pending_record)
		return false;
	if (event->waits)
		queue_done(event->queue, event->tail);
	return !event->waits && event->time <= now_ns();
}

CUresult cuEventQuery(CUevent event)
{
	CUresult r = CUDA_SUCCESS;

	ENTER();
	process_lock();
	if (!object_is(OBJECT_EVENT, event))
		r = CUDA_ERROR_INVALID_HANDLE;
	else if (event->capture_id)
		r = CUDA_ERROR_CAPTURED_EVENT;
	else if (event->recorded && !happened(event))
		r = CUDA_ERROR_NOT_READY;
	if (r == CUDA_ERROR_CAPTURED_EVENT)
		capture_event_forbidden(event);
	process_unlock();
	return r;
}

CUresult cuEventSynchronize(CUevent event)
{
	struct queue *q = NULL;
	uint64_t tail = 0, time = 0;
	CUresult r = CUDA_SUCCESS;

	ENTER();
	process_lock();
	while (object_is(OBJECT_EVENT, event) && event->pending_record)
		process_wait(UINT64_MAX);
	if (!object_is(OBJECT_EVENT, event)) {
		r = CUDA_ERROR_INVALID_HANDLE;
	} else if (event->capture_id) {
		capture_event_forbidden(event);
		r = CUDA_ERROR_CAPTURED_EVENT;
	} else if (event->waits) {
		q = event->queue;
		tail = event->tail;
	} else {
		time = event->time; /* 0: never recorded */
	}
	process_unlock();
	if (q)
		queue_wait(q, tail);
	else
		wait_until(time);
	if (!r)
		pools_synchronised();
	return r;
}

static CUresult elapsed(float *ms, CUevent start, CUevent end)
{
	CUresult r = CUDA_SUCCESS;

	process_lock();
	if (!object_is(OBJECT_EVENT, start) || !object_is(OBJECT_EVENT, end))
		r = CUDA_ERROR_INVALID_HANDLE;
	else if (!start->recorded || !end->recorded || ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
		r = CUDA_ERROR_INVALID_HANDLE;
	else if (!happened(start) || !happened(end))
		r = CUDA_ERROR_NOT_READY;
	else
		*ms = (float)((double)(int64_t)(end->time / RESOLUTION_NS - start->time / RESOLUTION_NS) * RESOLUTION_NS / 1e6);
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
