/* Events show when work has ended. There is one behind all launches that pass between two looks, in
 * each stream that they went to. A look makes a launch wait until little enough is under way. */
#include "flightparts.h"

#include "capture.h"
#include "duration.h"
#include "hooks.h"

/* A capture can be open for long, in a thread that waits for this one. */
static const uint64_t CAPTURED_NS = 10000000000;

static uint64_t permitted(const struct flight *f)
{
	int64_t left = atomic_load_explicit(&f->quota, memory_order_relaxed);

	return f->base + (left < f->granted ? (uint64_t)(f->granted - (left > 0 ? left : 0)) : 0);
}

uint64_t flight_total(const struct flight *f)
{
	return permitted(f) + atomic_load_explicit(&f->passed, memory_order_relaxed);
}

uint64_t flight_loose(const struct flight *f)
{
	uint64_t total = flight_total(f);

	return total > f->marked ? total - f->marked : 0;
}

void flight_permit(struct flight *f, uint64_t ns, int64_t quota, uint64_t now)
{
	if (!flight_any_loose(f))
		f->since = now;
	f->base = permitted(f) + ns;
	f->granted = quota;
	atomic_store_explicit(&f->quota, quota, memory_order_relaxed);
}

bool flight_any_loose(const struct flight *f)
{
	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++)
		if (flight_stream_at(f, i))
			return true;
	return false;
}

bool flight_any_own(const struct flight *f)
{
	CUstream own = flight_name(CU_STREAM_PER_THREAD);

	return flight_is_noted(f, own, flight_home(own), NULL);
}

static struct mark *free_mark(struct flight *f, CUcontext context)
{
	struct mark *m = NULL;

	for (int i = 0; i < FLIGHT_MARKS; i++) {
		struct mark *one = &f->marks[i];

		if (one->pending)
			continue;
		if (one->event && one->context == context)
			return one;
		if (!m || (m->event && !one->event))
			m = one;
	}
	if (m && m->event) { /* all are of other contexts */
		REAL(cuEventDestroy_v2)(m->event);
		m->event = NULL;
	}
	if (!m || REAL(cuEventCreate)(&m->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
		return NULL;
	m->context = context;
	return m;
}

static bool record_event(CUevent event, CUstream stream)
{
	return REAL(cuEventRecord)(event, flight_own(stream) ? CU_STREAM_PER_THREAD : stream) == CUDA_SUCCESS;
}

void flight_fill(struct flight *f, struct mark *m, CUstream stream, uint64_t now, struct mark like)
{
	atomic_store_explicit(&f->theirs[m - f->marks], NULL, memory_order_relaxed);
	m->serial = flight_next_serial();
	m->record = m->counts_after = m->seen = 0;
	m->stream = stream;
	m->since = f->since;
	m->sent = now;
	m->ns = like.ns;
	m->key = like.key;
	m->launches = like.launches;
	m->unknown = like.unknown;
	flight_set_pending(f, m, true);
	m->recorded = false;
}

static bool record(struct flight *f, CUstream stream, CUcontext context, uint64_t now, struct mark like)
{
	struct mark *m = free_mark(f, context);

	if (!m || !record_event(m->event, stream))
		return false;
	flight_fill(f, m, stream, now, like);
	m->recorded = true;
	return true;
}

/* The event has to be of the stream's context. */
static bool record_in(struct flight *f, CUstream stream, CUcontext context, uint64_t now, struct mark like)
{
	CUcontext here = flight_current(), popped;

	if (!context || context == here)
		return here && record(f, stream, here, now, like);
	if (REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
		return false;
	bool recorded = record(f, stream, context, now, like);
	REAL(cuCtxPopCurrent_v2)(&popped);
	return recorded;
}

/* No event can be recorded behind the stream's launches now: they count for so long at most. */
static void leave(struct flight *f, uintptr_t at, uint64_t now, uint64_t most)
{
	if (!f->noted[at].left)
		f->noted[at].left = now;
	else if (now - f->noted[at].left > most)
		flight_drop(f, at);
}

/* Whether this thread can record an event behind the stream's launches. In another thread's own stream it can't: that thread
 * does it with its next look or wait. */
static bool markable(struct flight *f, uintptr_t at, CUstream stream, uint64_t now)
{
	if (!stream || f->noted[at].closing)
		return false;
	if (!flight_own(stream) || stream == flight_name(CU_STREAM_PER_THREAD))
		return true;
	leave(f, at, now, LATE_NS);
	return false;
}

/* What each of so many streams has of the launches without an event. */
struct mark flight_part(struct flight *f, int streams)
{
	uint64_t key = atomic_load_explicit(&f->key, memory_order_relaxed);
	uint64_t launches = atomic_load_explicit(&f->launches, memory_order_relaxed);
	/* A count that lost one can be lower than before. */
	int64_t each = (int64_t)(launches - f->counted) / streams;

	return (struct mark){ .ns = flight_loose(f) / (uint64_t)streams, .key = key == FLIGHT_MIXED ? 0 : key,
		.launches = each > 0 ? (uint64_t)each : 1, .unknown = f->unknown };
}

/* All have an event now. */
void flight_none_loose(struct flight *f)
{
	atomic_store_explicit(&f->key, 0, memory_order_relaxed);
	f->counted = atomic_load_explicit(&f->launches, memory_order_relaxed);
	f->marked = flight_total(f);
	f->unknown = false;
}

static void mark(struct flight *f, int streams, uint64_t now)
{
	struct mark like = flight_part(f, streams);

	flight_none_loose(f);
	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++) {
		CUstream stream = flight_stream_at(f, i);
		CUcontext context = flight_context_at(f, i);

		if (!markable(f, i, stream, now))
			continue;
		/* First, so that a launch of another thread that the event misses is noted again. */
		flight_drop(f, i);
		if (record_in(f, stream, context, now, like))
			continue;
		f->marked -= like.ns < f->marked ? like.ns : f->marked;
		f->unknown |= like.unknown;
		flight_put(f, stream, flight_home(stream), context);
	}
}

/* Of one that is pending: whether it is the last one of its stream, of which only the program's event shows the end, and this
 * thread can record another. */
static bool needs_event(const struct flight *f, const struct mark *m)
{
	if (m->recorded || !m->stream || (flight_own(m->stream) && m->stream != flight_name(CU_STREAM_PER_THREAD)))
		return false;
	FLIGHT_EACH_PENDING(f, i)
		if (flight_is_in_front(m, &f->marks[i]))
			return false;
	return !flight_is_noted(f, m->stream, flight_home(m->stream), m->context);
}

/* No event can be recorded behind what only the program's events show: it is as if the program had recorded none. */
static void give_back(struct flight *f, struct mark *m)
{
	flight_set_pending(f, m, false);
	f->marked -= m->ns < f->marked ? m->ns : f->marked;
	f->counted -= m->launches;
	f->unknown |= m->unknown;
	atomic_store_explicit(&f->key, FLIGHT_MIXED, memory_order_relaxed);
	if (!flight_is_noted(f, m->stream, flight_home(m->stream), m->context))
		flight_put(f, m->stream, flight_home(m->stream), m->context);
}

static void give_back_all(struct flight *f)
{
	FLIGHT_EACH_PENDING(f, i)
		if (f->marks[i].stream && !flight_is_backed(f, &f->marks[i]))
			give_back(f, &f->marks[i]);
}

static void back(struct flight *f, struct mark *m)
{
	CUcontext popped;
	bool pushes = m->context != flight_current(), inside = !pushes || REAL(cuCtxPushCurrent_v2)(m->context) == CUDA_SUCCESS;

	m->recorded = inside && (m->event || REAL(cuEventCreate)(&m->event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) &&
	              record_event(m->event, m->stream);
	if (pushes && inside)
		REAL(cuCtxPopCurrent_v2)(&popped);
	if (!m->recorded)
		give_back_all(f);
}

static void mark_streams(struct flight *f, uint64_t now, bool back_all)
{
	int streams = 0, backed = 0;

	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++)
		streams += markable(f, i, flight_stream_at(f, i), now);
	FLIGHT_EACH_PENDING(f, i)
		if (back_all)
			backed += needs_event(f, &f->marks[i]);
	if (!streams && !backed)
		return;
	if (!capture_stay_away()) {
		if (back_all)
			give_back_all(f);
		for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++)
			if (markable(f, i, flight_stream_at(f, i), now))
				leave(f, i, now, CAPTURED_NS);
		return;
	}
	int mode = capture_relax(CU_STREAM_CAPTURE_MODE_RELAXED);
	FLIGHT_EACH_PENDING(f, i)
		if (backed && needs_event(f, &f->marks[i]))
			back(f, &f->marks[i]);
	if (streams) {
		mark(f, streams, now);
		f->since = now;
	}
	capture_relax(mode);
	capture_leave();
}

void flight_mark(struct flight *f, uint64_t now)
{
	mark_streams(f, now, false);
}

void flight_mark_all(struct flight *f, uint64_t now)
{
	mark_streams(f, now, true);
}

void flight_forget_stream(struct flight *f, CUstream stream)
{
	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++)
		if (flight_stream_at(f, i) == stream)
			flight_drop(f, i);
	for (int i = 0; i < FLIGHT_MARKS; i++) { /* another stream can have the handle now */
		struct mark *m = &f->marks[i];

		if (m->stream != stream)
			continue;
		m->stream = NULL;
		if (!m->recorded) /* it is in front of one that is */
			flight_set_pending(f, m, false);
	}
}

void flight_close(struct flight *f, CUcontext context)
{
	for (int i = 0; i < FLIGHT_MARKS; i++) {
		struct mark m = f->marks[i];

		if ((!m.event && !m.pending) || !flight_is_in(NULL, context, NULL, m.context))
			continue;
		if (m.event)
			REAL(cuEventDestroy_v2)(m.event);
		flight_set_pending(f, &f->marks[i], false);
		f->marks[i] = (struct mark){ .event = NULL };
		if (m.pending && m.stream && !flight_is_noted(f, m.stream, flight_home(m.stream), m.context))
			flight_put(f, m.stream, flight_home(m.stream), m.context);
	}
	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++)
		if (flight_stream_at(f, i) && flight_is_in(NULL, context, NULL, flight_context_at(f, i)))
			f->noted[i].closing = true;
}

void flight_closed(struct flight *f, CUcontext context, bool gone)
{
	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++) {
		if (!flight_stream_at(f, i) || !flight_is_in(NULL, context, NULL, flight_context_at(f, i)))
			continue;
		if (gone)
			flight_drop(f, i);
		f->noted[i].closing = false;
	}
}
