/* What is put into the queue, or done, later than the program asked for it. */
#include "pending.h"

#include "allocation.h"
#include "transfer.h"

#include <stdlib.h>

struct deferred {
	struct pending p;
	struct load load;
	unsigned launches;
	CUdeviceptr ptr;
	CUevent event;	 /* NULL: it is gone */
	uint64_t record; /* the number of the record that it waits for; 0: it is done */
	struct queue *queue;
	uint64_t tail;
	struct transfer transfer;
};

static void unmark(CUdeviceptr ptr)
{
	struct allocation *a = allocation_find(ptr);

	if (a)
		a->free_pending = false;
}

static void end(struct pending *p)
{
	unmark(((struct deferred *)p)->ptr);
	free(p);
}

/* d is copied. */
static CUresult put(CUcontext ctx, CUstream s, const struct deferred *d, uint64_t *number)
{
	struct deferred *copy = malloc(sizeof(*copy));

	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*copy = *d;
	copy->p.end = end;
	return pending_put(&copy->p, ctx, s, number);
}

static void run_load(struct pending *p)
{
	struct deferred *d = (struct deferred *)p;

	stream_put_load(p->ctx, p->stream, d->load, d->launches);
}

CUresult pending_put_load(CUcontext ctx, CUstream s, struct load load, unsigned launches)
{
	return put(ctx, s, &(struct deferred){.p.run = run_load, .load = load, .launches = launches}, NULL);
}

static void run_free(struct pending *p)
{
	struct deferred *d = (struct deferred *)p;

	unmark(d->ptr);
	allocation_free_async(d->ptr, p->ctx, p->stream);
	d->ptr = 0; /* the address can be another's now */
}

CUresult pending_put_free(CUcontext ctx, CUstream s, CUdeviceptr ptr)
{
	struct allocation *a = allocation_find(ptr);
	CUresult r;

	if (!a || a->base != ptr || a->free_pending || (a->place != DEVICE && a->place != GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	r = put(ctx, s, &(struct deferred){.p.run = run_free, .ptr = ptr}, NULL);
	a->free_pending = !r;
	return r;
}

static void run_transfer(struct pending *p)
{
	transfer_run(&((struct deferred *)p)->transfer);
}

CUresult pending_put_transfer(CUcontext ctx, CUstream s, const struct transfer *t)
{
	return put(ctx, s, &(struct deferred){.p.run = run_transfer, .p.unlocked = true, .transfer = *t}, NULL);
}

static bool wait_ready(struct pending *p, uint64_t *ask_again);

/* Those that wait for the record know now when it happens. */
static void pass_on(struct pending *p, void *data)
{
	struct deferred *d = (struct deferred *)p;
	const struct pending *record = data;

	if (p->ready != wait_ready || d->record != record->number)
		return;
	d->record = 0;
	d->queue = queue_of(record->ctx);
	d->tail = stream_ready(record->ctx, record->stream);
}

static void run_record(struct pending *p)
{
	struct deferred *d = (struct deferred *)p;

	if (d->event && d->event->pending_record == p->number) /* else it was recorded again since */
		event_put(d->event, p->ctx, p->stream);
	pending_each(pass_on, p);
}

CUresult pending_put_record(CUcontext ctx, CUstream s, CUevent event)
{
	CUresult r = put(ctx, s, &(struct deferred){.p.run = run_record, .event = event}, &event->pending_record);

	event->capture_id = 0;
	event->recorded = event->recorded || !r;
	return r;
}

static bool wait_ready(struct pending *p, uint64_t *ask_again)
{
	struct deferred *d = (struct deferred *)p;

	if (d->record && pending_has(d->record))
		return false;
	if (!d->queue)
		return true;
	if (d->queue != queue_of(p->ctx))
		return pending_queue_done(d->queue, d->tail, ask_again);
	stream_advance(p->ctx, p->stream, d->tail);
	return true;
}

CUresult pending_put_wait(CUcontext ctx, CUstream s, uint64_t record, struct queue *q, uint64_t tail)
{
	return put(ctx, s, &(struct deferred){.p.ready = wait_ready, .record = record, .queue = q, .tail = tail}, NULL);
}

static void forget(struct pending *p, void *event)
{
	struct deferred *d = (struct deferred *)p;

	if (p->run == run_record && d->event == event)
		d->event = NULL;
}

void pending_forget_event(CUevent event)
{
	pending_each(forget, event);
}

static void end_stream(struct pending *p)
{
	free(p->stream->backlog.tails);
	free(p->stream);
	free(p);
}

void pending_free_stream(CUstream s)
{
	struct pending *p = pending_before(s->ctx, s) ? calloc(1, sizeof(*p)) : NULL;

	if (p) {
		p->end = end_stream;
		p->next = NULL;
		pending_put(p, s->ctx, s, NULL);
		return;
	}
	free(s->backlog.tails);
	free(s);
}
