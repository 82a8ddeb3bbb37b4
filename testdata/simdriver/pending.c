/*
 * A list of what is not in the queue yet, in the order in which it was put into streams. One thread puts it there when what is before it
 * is done; another one calls the functions of the host. They live as long as the process, from the first time that they are needed.
 */
#define _GNU_SOURCE
#include "pending.h"

#include "green.h"

#include <stdlib.h>
#include <sys/prctl.h>

static struct pending *list, **last = &list;
static atomic_uint count; /* written with the lock held */
static uint64_t last_number;
static bool started;

/* As the rules for streams have it: the legacy one waits for all blocking ones, and they for it. */
static bool before(const struct pending *p, CUcontext ctx, CUstream stream, bool blocking)
{
	if (p->stream == stream && p->ctx == ctx)
		return true;
	return p->ctx == ctx && p->blocking && blocking && (!p->stream || !stream);
}

static bool is_blocking(CUstream s)
{
	return !s || !(s->flags & CU_STREAM_NON_BLOCKING);
}

static bool any_before(const struct pending *end, CUcontext ctx, CUstream stream, bool blocking, uint64_t number)
{
	for (const struct pending *p = list; p && p != end; p = p->next) {
		if (p->number <= number && before(p, ctx, stream, blocking))
			return true;
	}
	return false;
}

bool pending_before(CUcontext ctx, CUstream s)
{
	return atomic_load_explicit(&count, memory_order_relaxed) && any_before(NULL, s ? s->ctx : ctx, s, is_blocking(s), UINT64_MAX);
}

static void take_out(struct pending *p)
{
	struct pending **at = &list;

	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	if (!*at)
		last = at;
	atomic_fetch_sub(&count, 1);
	p->end(p);
	process_changed();
}

static struct pending *first_called(void)
{
	struct pending *p = list;

	while (p && p->state != PENDING_CALLED)
		p = p->next;
	return p;
}

static void *call_all(void *unused)
{
	(void)unused;
	process_lock();
	for (;;) {
		struct pending *p = first_called();

		if (!p) {
			process_wait(UINT64_MAX);
			continue;
		}
		p->state = PENDING_RUNS;
		process_unlock();
		p->run(p);
		process_lock();
		take_out(p);
	}
	return NULL;
}

/* Does the first that can be done. */
static bool do_one(uint64_t *ask_again)
{
	for (struct pending *p = list; p; p = p->next) {
		if (p->state != PENDING_WAITS || any_before(p, p->ctx, p->stream, p->blocking, UINT64_MAX))
			continue;
		green_deferred(p->green);
		if (p->ready && !p->ready(p, ask_again))
			continue;
		p->state = p->calls ? PENDING_CALLED : PENDING_RUNS;
		if (p->calls) {
			process_changed();
			return true;
		}
		if (p->run && p->unlocked) {
			process_unlock();
			p->run(p);
			process_lock();
		} else if (p->run) {
			p->run(p);
		}
		take_out(p);
		return true;
	}
	return false;
}

static void *do_all(void *unused)
{
	(void)unused;
	prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0);
	process_lock();
	for (;;) {
		uint64_t ask_again = UINT64_MAX;

		if (!do_one(&ask_again))
			process_wait(ask_again);
	}
	return NULL;
}

static bool start_threads(void)
{
	static bool calling;
	pthread_attr_t detached;
	pthread_t thread;

	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	calling = calling || !pthread_create(&thread, &detached, call_all, NULL);
	started = calling && !pthread_create(&thread, &detached, do_all, NULL);
	pthread_attr_destroy(&detached);
	return started;
}

CUresult pending_put(struct pending *p, CUcontext ctx, CUstream s, uint64_t *number)
{
	if (!started && !start_threads()) {
		p->end(p);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	p->ctx = s ? s->ctx : ctx;
	p->stream = s;
	p->green = green_of(s);
	p->blocking = is_blocking(s);
	p->state = PENDING_WAITS;
	p->number = ++last_number;
	p->next = NULL;
	if (number)
		*number = p->number;
	*last = p;
	last = &p->next;
	atomic_fetch_add(&count, 1);
	process_changed();
	return CUDA_SUCCESS;
}

void pending_each(void (*look)(struct pending *p, void *data), void *data)
{
	for (struct pending *p = list; p; p = p->next)
		look(p, data);
}

bool pending_has(uint64_t number)
{
	const struct pending *p = number ? list : NULL;

	while (p && p->number != number)
		p = p->next;
	return p != NULL;
}

void pending_drop_context(CUcontext ctx)
{
	struct pending *next;

	for (struct pending *p = list; p; p = next) {
		next = p->next;
		if (p->ctx == ctx && p->state != PENDING_RUNS)
			take_out(p);
	}
}

static bool find(CUstream handle, CUcontext *ctx, CUstream *stream)
{
	if (!atomic_load(&count) || current_context(ctx) || stream_find(handle, *ctx, stream))
		return false;
	if (*stream)
		*ctx = (*stream)->ctx;
	return true;
}

void pending_wait(CUstream handle)
{
	CUcontext ctx;
	CUstream s;

	if (!atomic_load(&count))
		return;
	process_lock();
	if (find(handle, &ctx, &s)) {
		uint64_t number = last_number;
		bool blocking = is_blocking(s);

		while (any_before(NULL, ctx, s, blocking, number))
			process_wait(UINT64_MAX);
	}
	process_unlock();
}

static bool any_of(CUcontext ctx, uint64_t number)
{
	const struct pending *p = list;

	while (p && (p->ctx != ctx || p->number > number))
		p = p->next;
	return p != NULL;
}

void pending_wait_context(CUcontext ctx)
{
	uint64_t number;

	if (!atomic_load(&count))
		return;
	process_lock();
	number = last_number;
	while (any_of(ctx, number))
		process_wait(UINT64_MAX);
	process_unlock();
}

static bool is_full(CUcontext ctx, CUstream s)
{
	unsigned n = 0;

	for (const struct pending *p = list; p; p = p->next)
		n += p->ctx == ctx && p->stream == s;
	return n >= MAX_QUEUE;
}

void pending_wait_room(CUstream handle)
{
	CUcontext ctx;
	CUstream s;

	if (atomic_load_explicit(&count, memory_order_relaxed) < MAX_QUEUE)
		return;
	process_lock();
	if (find(handle, &ctx, &s)) {
		while (is_full(ctx, s))
			process_wait(UINT64_MAX);
	}
	process_unlock();
}

bool pending_queue_done(struct queue *q, uint64_t tail, uint64_t *ask_again)
{
	uint64_t eta = queue_eta(q, tail);

	if (eta && eta < *ask_again)
		*ask_again = eta;
	return !eta;
}
