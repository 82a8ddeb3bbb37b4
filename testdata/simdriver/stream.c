/*
 * Streams: moments of this process's queue on the GPU. A stream is the moment when all that was put into it is done. The
 * legacy default stream waits for all blocking streams of its context, and they for it.
 */
#include "green.h"
#include "pending.h"
#include "pool.h"

#include <stdlib.h>

static _Thread_local struct {
	CUcontext ctx;
	CUstream stream;
} own[8]; /* this thread's default streams, by context */
static _Thread_local unsigned own_next;

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

CUstream stream_new(CUcontext ctx, unsigned flags, int priority)
{
	CUstream s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->ctx = ctx;
	s->flags = flags;
	s->priority = priority;
	s->green = green_of(NULL);
	if (!object_add(OBJECT_STREAM, s)) {
		free(s);
		return NULL;
	}
	return s;
}

static CUresult own_stream(CUcontext ctx, CUstream *stream)
{
	for (unsigned i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
		*stream = own[i].stream;
		if (own[i].ctx == ctx && object_is(OBJECT_STREAM, *stream) && (*stream)->ctx == ctx && !(*stream)->detached &&
		    (*stream)->green == green_of(NULL))
			return CUDA_SUCCESS;
	}
	*stream = stream_new(ctx, 0, 0);
	if (!*stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	own[own_next].ctx = ctx;
	own[own_next].stream = *stream;
	own_next = (own_next + 1) % (sizeof(own) / sizeof(own[0]));
	return CUDA_SUCCESS;
}

CUresult stream_find(CUstream handle, CUcontext ctx, CUstream *stream)
{
	*stream = NULL;
	if (!handle || handle == CU_STREAM_LEGACY)
		return CUDA_SUCCESS;
	if (handle == CU_STREAM_PER_THREAD)
		return own_stream(ctx, stream);
	if (!object_is(OBJECT_STREAM, handle))
		return CUDA_ERROR_INVALID_HANDLE;
	if (handle->detached)
		return CUDA_ERROR_STREAM_DETACHED;
	*stream = handle;
	return CUDA_SUCCESS;
}

uint64_t stream_ready(CUcontext ctx, CUstream s)
{
	CUgreenCtx green = green_of(s);
	uint64_t floor = s ? s->ctx->floor : ctx->floor;

	if (green)
		floor = later(floor, green->as_context.floor);
	if (!s)
		return later(floor, later(ctx->legacy_tail, ctx->blocking_tail));
	if (s->flags & CU_STREAM_NON_BLOCKING)
		return later(floor, s->tail);
	return later(floor, later(s->tail, s->ctx->legacy_tail));
}

void stream_advance(CUcontext ctx, CUstream s, uint64_t tail)
{
	CUgreenCtx green = green_of(s);

	if (s)
		ctx = s->ctx;
	if (green)
		green->as_context.any_tail = later(green->as_context.any_tail, tail);
	if (!s)
		ctx->legacy_tail = later(ctx->legacy_tail, tail);
	else
		s->tail = later(s->tail, tail);
	if (s && !(s->flags & CU_STREAM_NON_BLOCKING))
		ctx->blocking_tail = later(ctx->blocking_tail, tail);
	ctx->any_tail = later(ctx->any_tail, tail);
}

bool stream_done(CUcontext ctx, CUstream s)
{
	return queue_done(queue_of(s ? s->ctx : ctx), stream_ready(ctx, s));
}

CUresult stream_wait(CUstream handle)
{
	bool captured = false;
	struct queue *q = NULL;
	uint64_t tail = 0;
	CUcontext ctx;
	CUstream s;
	CUresult r = current_context(&ctx);

	if (!r && handle && handle != CU_STREAM_LEGACY)
		r = capture_forbids_wait(ctx, handle);
	if (r)
		return r;
	pending_wait(handle);
	process_lock();
	r = stream_find(handle, ctx, &s);
	if (!r)
		r = capture_check(ctx, s, &captured); /* of the legacy stream: by what captures another one */
	if (!r) {
		q = queue_of(s ? s->ctx : ctx);
		tail = stream_ready(ctx, s);
	}
	process_unlock();
	if (r)
		return r;
	queue_wait(q, tail);
	pools_synchronised();
	return CUDA_SUCCESS;
}

static CUresult query(CUstream handle)
{
	bool captured;
	CUcontext ctx;
	CUstream s;
	CUresult r = current_context(&ctx);

	if (!r && handle && handle != CU_STREAM_LEGACY)
		r = capture_forbids_wait(ctx, handle);
	if (r)
		return r;
	process_lock();
	r = stream_find(handle, ctx, &s);
	if (!r)
		r = capture_check(ctx, s, &captured);
	if (!r && (pending_before(ctx, s) || !stream_done(ctx, s)))
		r = CUDA_ERROR_NOT_READY;
	process_unlock();
	return r;
}

static CUresult create(CUstream *stream, unsigned flags, int priority)
{
	CUcontext ctx;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (!stream || (flags & ~CU_STREAM_NON_BLOCKING))
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	*stream = stream_new(ctx, flags, priority);
	process_unlock();
	return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	ENTER();
	return create(stream, flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	ENTER();
	if (priority > 0)
		priority = 0;
	return create(stream, flags, priority < -5 ? -5 : priority);
}

/* The work of a destroyed stream goes on: the tails of its context remember it. */
static CUresult destroy(CUstream stream)
{
	CUresult r = CUDA_ERROR_INVALID_HANDLE;

	process_lock();
	if (object_is(OBJECT_STREAM, stream)) {
		captures_drop_stream(stream);
		object_remove(stream);
		pending_free_stream(stream);
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

CUresult cuStreamDestroy(CUstream stream)
{
	ENTER();
	return destroy(stream);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
	ENTER();
	return destroy(stream);
}

static bool drop_stream(void *object, CUcontext ctx)
{
	CUstream s = object;

	if (s->ctx != ctx)
		return false;
	free(s->backlog.tails);
	captures_drop_stream(s);
	free(s);
	return true;
}

static bool drop_event(void *object, CUcontext ctx)
{
	CUevent e = object;

	if (e->ctx != ctx)
		return false;
	pending_forget_event(e);
	queue_unmark(e);
	free(e->captured);
	free(e);
	return true;
}

void streams_drop_context(CUcontext ctx)
{
	object_sweep(OBJECT_STREAM, drop_stream, ctx);
	object_sweep(OBJECT_EVENT, drop_event, ctx);
}

CUresult cuStreamQuery(CUstream stream)
{
	ENTER();
	return query(stream);
}

CUresult cuStreamQuery_ptsz(CUstream stream)
{
	ENTER();
	return query(per_thread(stream));
}

CUresult cuStreamSynchronize(CUstream stream)
{
	ENTER();
	return stream_wait(stream);
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	ENTER();
	return stream_wait(per_thread(stream));
}

/* An event of another GPU's queue, or behind something that is pending, makes the stream wait for it there. */
static CUresult wait_event(CUstream handle, CUevent event, unsigned flags)
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
	if (!r && !object_is(OBJECT_EVENT, event))
		r = CUDA_ERROR_INVALID_HANDLE;
	if (!r)
		r = capture_wait(s, event, &captured);
	if (!r && !captured && event->pending_record)
		r = pending_put_wait(ctx, s, event->pending_record, NULL, 0);
	else if (!r && !captured && event->waits && (event->queue != queue_of(s ? s->ctx : ctx) || pending_before(ctx, s)))
		r = pending_put_wait(ctx, s, 0, event->queue, event->tail);
	else if (!r && !captured && event->waits)
		stream_advance(ctx, s, event->tail);
	process_unlock();
	return r;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
	ENTER();
	return wait_event(stream, event, flags);
}

CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags)
{
	ENTER();
	return wait_event(per_thread(stream), event, flags);
}

static CUresult facts(CUstream handle, unsigned *flags, int *priority, CUcontext *owner)
{
	CUcontext ctx;
	CUstream s;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (!flags && !priority && !owner)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	r = stream_find(handle, ctx, &s);
	if (!r && flags)
		*flags = s ? s->flags : 0;
	if (!r && priority)
		*priority = s ? s->priority : 0;
	if (!r && owner)
		*owner = s && s->green ? &s->green->as_context : s ? s->ctx : current_as_set();
	process_unlock();
	return r;
}

CUresult cuStreamGetFlags(CUstream stream, unsigned int *flags)
{
	ENTER();
	return facts(stream, flags, NULL, NULL);
}

CUresult cuStreamGetFlags_ptsz(CUstream stream, unsigned int *flags)
{
	ENTER();
	return facts(per_thread(stream), flags, NULL, NULL);
}

CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
	ENTER();
	return facts(stream, NULL, priority, NULL);
}

CUresult cuStreamGetPriority_ptsz(CUstream stream, int *priority)
{
	ENTER();
	return facts(per_thread(stream), NULL, priority, NULL);
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *ctx)
{
	ENTER();
	return facts(stream, NULL, NULL, ctx);
}

CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext *ctx)
{
	ENTER();
	return facts(per_thread(stream), NULL, NULL, ctx);
}
