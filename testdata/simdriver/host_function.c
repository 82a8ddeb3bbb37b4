/*
 * Functions of the host in a stream. Each has a thread that waits until what was in the stream before it is done. As nothing on a
 * simulated GPU waits for the host, the caller does: what comes after it in the stream is put there when it has returned.
 */
#include "driver.h"

#include <pthread.h>
#include <stdlib.h>

struct host_call {
	CUcontext ctx;
	CUstream stream; /* NULL: the legacy one. Only compared: it may be gone */
	bool blocking;
	struct queue *queue;
	uint64_t tail;
	CUhostFn function;
	CUstreamCallback callback; /* if not NULL, in place of the function */
	CUstream handle;	   /* for it */
	void *data;
	bool runs, dropped;
	struct host_call *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static struct host_call *calls, **last = &calls; /* in order */
static atomic_uint pending;
static _Thread_local bool inside;

bool host_function_calls(void)
{
	return inside;
}

/* As the rules for streams have it: the legacy one waits for all blocking ones, and they for it. */
static bool before(const struct host_call *c, CUcontext ctx, CUstream stream, bool blocking)
{
	if (c->stream == stream && c->ctx == ctx)
		return true;
	return c->ctx == ctx && c->blocking && blocking && (!c->stream || !stream);
}

static bool any_before(const struct host_call *end, CUcontext ctx, CUstream stream, bool blocking, bool all)
{
	for (const struct host_call *c = calls; c && c != end; c = c->next) {
		if (all ? c->ctx == ctx : before(c, ctx, stream, blocking))
			return true;
	}
	return false;
}

static bool find(CUstream handle, CUcontext *ctx, CUstream *stream, bool *blocking)
{
	CUresult r = current_context(ctx);

	if (r)
		return false;
	process_lock();
	r = stream_find(handle, *ctx, stream);
	if (!r && *stream)
		*ctx = (*stream)->ctx;
	*blocking = !r && (!*stream || !((*stream)->flags & CU_STREAM_NON_BLOCKING));
	process_unlock();
	return !r;
}

bool host_functions_pending(CUstream handle)
{
	CUcontext ctx;
	CUstream stream;
	bool blocking, any;

	if (!atomic_load(&pending) || !find(handle, &ctx, &stream, &blocking))
		return false;
	pthread_mutex_lock(&mutex);
	any = any_before(NULL, ctx, stream, blocking, false);
	pthread_mutex_unlock(&mutex);
	return any;
}

void host_functions_wait(CUstream handle)
{
	CUcontext ctx;
	CUstream stream;
	bool blocking;

	if (!atomic_load(&pending) || !find(handle, &ctx, &stream, &blocking))
		return;
	pthread_mutex_lock(&mutex);
	while (any_before(NULL, ctx, stream, blocking, false))
		pthread_cond_wait(&change, &mutex);
	pthread_mutex_unlock(&mutex);
}

void host_functions_wait_all(CUcontext ctx)
{
	if (!atomic_load(&pending))
		return;
	pthread_mutex_lock(&mutex);
	while (any_before(NULL, ctx, NULL, false, true))
		pthread_cond_wait(&change, &mutex);
	pthread_mutex_unlock(&mutex);
}

static void take_out(struct host_call *call)
{
	struct host_call **at = &calls;

	while (*at != call)
		at = &(*at)->next;
	*at = call->next;
	if (!*at)
		last = at;
	atomic_fetch_sub(&pending, 1);
	pthread_cond_broadcast(&change);
}

/* Their threads free them. */
void host_functions_drop_context(CUcontext ctx)
{
	struct host_call *next;

	pthread_mutex_lock(&mutex);
	for (struct host_call *c = calls; c; c = next) {
		next = c->next;
		if (c->ctx != ctx || c->runs)
			continue;
		take_out(c);
		c->dropped = true;
	}
	pthread_mutex_unlock(&mutex);
}

static void *run(void *argument)
{
	struct host_call *c = argument;

	queue_wait(c->queue, c->tail);
	pthread_mutex_lock(&mutex);
	while (!c->dropped && any_before(c, c->ctx, c->stream, c->blocking, false))
		pthread_cond_wait(&change, &mutex);
	c->runs = !c->dropped;
	pthread_mutex_unlock(&mutex);
	if (!c->runs) {
		free(c);
		return NULL;
	}
	inside = true;
	if (c->callback)
		c->callback(c->handle, CUDA_SUCCESS, c->data);
	else
		c->function(c->data);
	inside = false;
	pthread_mutex_lock(&mutex);
	take_out(c);
	pthread_mutex_unlock(&mutex);
	free(c);
	return NULL;
}

static CUresult start(struct host_call *c)
{
	pthread_attr_t detached;
	pthread_t thread;
	int err;

	pthread_mutex_lock(&mutex);
	*last = c;
	last = &c->next;
	atomic_fetch_add(&pending, 1);
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	err = pthread_create(&thread, &detached, run, c);
	pthread_attr_destroy(&detached);
	if (err)
		take_out(c);
	pthread_mutex_unlock(&mutex);
	return err ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
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
	c = calloc(1, sizeof(*c));
	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	process_lock();
	r = stream_find(handle, ctx, &s);
	if (!r)
		r = capture_check(s ? s->ctx : ctx, s, &captured);
	if (!r && captured)
		r = callback ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : capture_host_function(s, function, data);
	if (!r && !captured)
		*c = (struct host_call){.ctx = s ? s->ctx : ctx, .stream = s, .function = function, .callback = callback,
					.handle = handle, .data = data, .blocking = !s || !(s->flags & CU_STREAM_NON_BLOCKING),
					.queue = queue_of(s ? s->ctx : ctx), .tail = stream_ready(ctx, s)};
	process_unlock();
	if (!r && !captured)
		r = start(c);
	if (r || captured)
		free(c);
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
