/* Functions of the host in a stream: a thread of the driver calls them when what was in the stream before is done. */
#include "pending.h"

#include <stdlib.h>

struct host_call {
	struct pending p;
	bool reached; /* the moment below is known */
	struct queue *queue;
	uint64_t tail;
	CUhostFn function;
	CUstreamCallback callback; /* if not NULL, in place of the function */
	CUstream handle;	   /* for it */
	void *data;
};

static _Thread_local bool inside;

bool host_function_calls(void)
{
	return inside;
}

static bool ready(struct pending *p, uint64_t *ask_again)
{
	struct host_call *c = (struct host_call *)p;

	if (!c->reached) {
		c->queue = queue_of(p->ctx);
		c->tail = stream_ready(p->ctx, p->stream);
		c->reached = true;
	}
	return pending_queue_done(c->queue, c->tail, ask_again);
}

static void run(struct pending *p)
{
	struct host_call *c = (struct host_call *)p;

	inside = true;
	if (c->callback)
		c->callback(c->handle, CUDA_SUCCESS, c->data);
	else
		c->function(c->data);
	inside = false;
}

static void end(struct pending *p)
{
	free(p);
}

static CUresult call(CUstream handle, CUhostFn function, CUstreamCallback callback, void *data)
{
	struct host_call *c;
	bool captured = false;
	CUcontext ctx;
	CUstream s;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (!function && !callback)
		return CUDA_ERROR_INVALID_VALUE;
	c = malloc(sizeof(*c));
	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*c = (struct host_call){.p = {.ready = ready, .run = run, .end = end, .calls = true}, .function = function, .callback = callback,
				.handle = handle, .data = data};
	process_lock();
	r = stream_find(handle, ctx, &s);
	if (!r)
		r = capture_check(s ? s->ctx : ctx, s, &captured);
	if (!r && captured)
		r = callback ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : capture_host_function(s, function, data);
	if (r || captured)
		free(c);
	else
		r = pending_put(&c->p, ctx, s, NULL);
	process_unlock();
	return r;
}

CUresult host_function_put(CUstream handle, CUhostFn function, void *data)
{
	return call(handle, function, NULL, data);
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
	ENTER();
	return call(stream, function, NULL, data);
}

CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *data)
{
	ENTER();
	return call(per_thread(stream), function, NULL, data);
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags)
{
	ENTER();
	return flags ? CUDA_ERROR_INVALID_VALUE : call(stream, NULL, callback, data);
}

CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags)
{
	ENTER();
	return flags ? CUDA_ERROR_INVALID_VALUE : call(per_thread(stream), NULL, callback, data);
}
