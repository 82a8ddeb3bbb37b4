/* Events show when work has ended. There is one behind all launches that pass between two looks, in
 * each stream that they went to. A look makes a launch wait until little enough is under way. */
#include "flight.h"

#include "capture.h"
#include "duration.h"
#include "hooks.h"

#define TAKING ((CUstream)UINTPTR_MAX)
enum { LATE_NS = 300000000, SURPRISE = 2, MEASURE_SINGLY = 16 };

/* A capture can be open for long, in a thread that waits for this one. */
static const uint64_t CAPTURED_NS = 10000000000;

static CUcontext current(void)
{
	CUcontext context = NULL;

	return REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS ? context : NULL;
}

static bool is_default(CUstream name)
{
	return name == CU_STREAM_LEGACY || flight_own(name);
}

static CUcontext context_of(CUstream name)
{
	CUcontext context = NULL;

	return !is_default(name) && REAL(cuStreamGetCtx)(name, &context) == CUDA_SUCCESS ? context : current();
}

void flight_context(struct flight *f, CUcontext context)
{
	CUcontext none = NULL;

	if (!atomic_compare_exchange_strong_explicit(&f->context, &none, context, memory_order_relaxed, memory_order_relaxed) && none != context)
		atomic_store_explicit(&f->context, FLIGHT_SEVERAL, memory_order_relaxed);
}

static CUstream dirty(const struct flight *f, uintptr_t at)
{
	/* Acquire: pairs with put(). */
	CUstream stream = atomic_load_explicit(&f->dirty[at], memory_order_acquire);

	return stream != TAKING ? stream : NULL;
}

static CUcontext context_at(const struct flight *f, uintptr_t at)
{
	return atomic_load_explicit(&f->contexts[at], memory_order_relaxed);
}

static bool is_noted(const struct flight *f, CUstream stream, uintptr_t home, CUcontext context)
{
	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++) {
		uintptr_t at = (home + i) % FLIGHT_STREAMS;

		if (dirty(f, at) == stream && (!context || context_at(f, at) == context))
			return true;
	}
	return false;
}

static void put(struct flight *f, CUstream stream, uintptr_t home, CUcontext context)
{
	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++) {
		uintptr_t at = (home + i) % FLIGHT_STREAMS;
		CUstream none = NULL;

		if (!atomic_compare_exchange_strong_explicit(&f->dirty[at], &none, TAKING, memory_order_relaxed, memory_order_relaxed))
			continue;
		atomic_store_explicit(&f->contexts[at], context, memory_order_relaxed);
		/* Release: a thread that reads the stream reads its context. */
		atomic_store_explicit(&f->dirty[at], stream, memory_order_release);
		return;
	}
	/* There are more: what they run is seen with the others', or not at all for a moment. */
}

static uintptr_t home_of(CUstream stream)
{
	uintptr_t at = (uintptr_t)stream;

	return at >> 4 ^ at >> 10 ^ at;
}

void flight_add(struct flight *f, CUstream stream)
{
	uintptr_t home = home_of(stream);
	CUcontext here = is_default(stream) ? current() : NULL;

	if (!is_noted(f, stream, home, here))
		put(f, stream, home, here ? here : context_of(stream));
}

static void drop(struct flight *f, uintptr_t at)
{
	f->noted[at].closing = false;
	f->noted[at].left = 0;
	atomic_store_explicit(&f->dirty[at], NULL, memory_order_relaxed);
}

uint64_t flight_total(const struct flight *f)
{
	int64_t left = atomic_load_explicit(&f->quota, memory_order_relaxed);

	return f->base + (left < f->granted ? (uint64_t)(f->granted - (left > 0 ? left : 0)) : 0);
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
	f->base = flight_total(f) + ns;
	f->granted = quota;
	atomic_store_explicit(&f->quota, quota, memory_order_relaxed);
}

bool flight_any_loose(const struct flight *f)
{
	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++)
		if (dirty(f, i))
			return true;
	return false;
}

bool flight_any_own(const struct flight *f)
{
	CUstream own = flight_name(CU_STREAM_PER_THREAD);

	return is_noted(f, own, home_of(own), NULL);
}

static void learn(const struct flight *f, uint64_t key, uint64_t least, uint64_t most)
{
	if (!f->shared || !duration_of(key))
		duration_learn(key, least, most);
}

/* The marks of a look that are done ended one after the other, between the time of the last ones, before, and now: of each only
 * its part of that time is known. */
static void done(struct flight *f, struct mark *m, uint64_t seen, uint64_t before, int marks, uint64_t now)
{
	uint64_t from = m->sent > f->last_done ? m->sent : f->last_done, first = m->since > before ? m->since : before;
	uint64_t least = seen > from ? seen - from : 0, most = now > first ? (now - first) / (uint64_t)marks : 0;

	m->pending = false;
	if (m->key)
		learn(f, m->key, least / m->launches, most / m->launches);
	else if (least > m->ns * SURPRISE + (uint64_t)FLIGHT_QUOTA_NS)
		f->singly = MEASURE_SINGLY; /* one of several functions takes longer than it did */
	if (now > f->last_done)
		f->last_done = now;
}

static void count(struct under_way *all, const struct mark *m)
{
	all->launches += m->launches;
	all->ns += m->ns;
	all->unknown |= m->unknown;
	if (!all->oldest || m->sent < all->oldest)
		all->oldest = m->sent;
}

struct under_way flight_pending(const struct flight *f, uint64_t now)
{
	struct under_way all = { 0 };

	for (int i = 0; i < FLIGHT_MARKS; i++) {
		all.marks += f->marks[i].pending;
		if (f->marks[i].pending && now - f->marks[i].sent < LATE_NS)
			count(&all, &f->marks[i]);
	}
	return all;
}

/* Those that are pending, the oldest first; returns their number. */
static int by_age(struct flight *f, struct mark *order[FLIGHT_MARKS])
{
	int n = 0;

	for (int i = 0; i < FLIGHT_MARKS; i++) {
		struct mark *m = &f->marks[i];
		int at = n;

		if (!m->pending)
			continue;
		for (; at && order[at - 1]->sent > m->sent; at--)
			order[at] = order[at - 1];
		order[at] = m;
		n++;
	}
	return n;
}

/* A stream's events happen in their order, and a query takes as long as a short kernel: behind one that has not happened,
 * none is asked for. */
static bool is_behind(const struct mark *m, struct mark *const waited_for[], int n)
{
	for (int i = 0; i < n; i++)
		if (m->stream && waited_for[i]->stream == m->stream && waited_for[i]->context == m->context)
			return true;
	return false;
}

struct under_way flight_poll(struct flight *f, CUstream stream, uint64_t now)
{
	struct under_way all = { 0 };
	struct mark *order[FLIGHT_MARKS], *ended[FLIGHT_MARKS], *waited_for[FLIGHT_MARKS];
	uint64_t before = f->last_done;
	int pending = by_age(f, order), count_ended = 0, count_waited = 0;
	/* Else the query could break a capture of another thread. */
	int mode = pending ? capture_relax(CU_STREAM_CAPTURE_MODE_RELAXED) : -1;

	for (int i = 0; i < pending; i++) {
		struct mark *m = order[i];

		if (!is_behind(m, waited_for, count_waited)) {
			if (REAL(cuEventQuery)(m->event) != CUDA_ERROR_NOT_READY) {
				ended[count_ended++] = m;
				continue;
			}
			waited_for[count_waited++] = m;
		}
		m->seen = now;
		all.marks++;
		if ((stream && m->stream == stream) || now - m->sent < LATE_NS)
			count(&all, m);
	}
	if (mode >= 0)
		capture_relax(mode);
	for (int i = 0; i < count_ended; i++)
		done(f, ended[i], ended[i]->seen, before, count_ended, now);
	return all;
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

static bool record(struct flight *f, CUstream stream, CUcontext context, uint64_t now, struct mark like)
{
	struct mark *m = free_mark(f, context);

	if (!m || REAL(cuEventRecord)(m->event, flight_own(stream) ? CU_STREAM_PER_THREAD : stream) != CUDA_SUCCESS)
		return false;
	m->stream = stream;
	m->since = f->since;
	m->sent = now;
	m->ns = like.ns;
	m->key = like.key;
	m->launches = like.launches;
	m->unknown = like.unknown;
	m->pending = true;
	m->seen = 0;
	return true;
}

/* The event has to be of the stream's context. */
static bool record_in(struct flight *f, CUstream stream, CUcontext context, uint64_t now, struct mark like)
{
	CUcontext here = current(), popped;

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
		drop(f, at);
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

static void mark(struct flight *f, int streams, uint64_t now)
{
	uint64_t key = atomic_exchange_explicit(&f->key, 0, memory_order_relaxed);
	uint64_t launches = atomic_load_explicit(&f->launches, memory_order_relaxed), share = (uint64_t)streams;
	/* A count that lost one can be lower than before. */
	int64_t each = (int64_t)(launches - f->counted) / streams;
	struct mark like = { .ns = flight_loose(f) / share, .key = key == FLIGHT_MIXED ? 0 : key,
		.launches = each > 0 ? (uint64_t)each : 1, .unknown = f->unknown };

	f->counted = launches;
	f->marked = flight_total(f);
	f->unknown = false;
	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++) {
		CUstream stream = dirty(f, i);
		CUcontext context = context_at(f, i);

		if (!markable(f, i, stream, now))
			continue;
		/* First, so that a launch of another thread that the event misses is noted again. */
		drop(f, i);
		if (record_in(f, stream, context, now, like))
			continue;
		f->marked -= like.ns < f->marked ? like.ns : f->marked;
		f->unknown |= like.unknown;
		put(f, stream, home_of(stream), context);
	}
}

void flight_mark(struct flight *f, uint64_t now)
{
	int streams = 0;

	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++)
		streams += markable(f, i, dirty(f, i), now);
	if (!streams)
		return;
	if (!capture_stay_away()) {
		for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++)
			if (markable(f, i, dirty(f, i), now))
				leave(f, i, now, CAPTURED_NS);
		return;
	}
	int mode = capture_relax(CU_STREAM_CAPTURE_MODE_RELAXED);
	mark(f, streams, now);
	f->since = now;
	capture_relax(mode);
	capture_leave();
}

/* The legacy stream waits for all threads' own ones. */
static bool is_in(CUstream stream, CUcontext context, CUstream its, CUcontext in)
{
	if (stream && its != stream && !(stream == CU_STREAM_LEGACY && flight_own(its)))
		return false;
	return !context || !in || in == context;
}

void flight_ended(struct flight *f, CUstream stream, CUcontext context, uint64_t now)
{
	bool all = true;

	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++) {
		CUstream its = dirty(f, i);

		if (!its)
			continue;
		if (is_in(stream, context, its, context_at(f, i)))
			drop(f, i);
		else
			all = false;
	}
	if (all) {
		uint64_t first = f->since > f->last_done ? f->since : f->last_done;
		uint64_t launches = atomic_load_explicit(&f->launches, memory_order_relaxed);
		uint64_t key = atomic_exchange_explicit(&f->key, 0, memory_order_relaxed);
		int64_t more = (int64_t)(launches - f->counted); /* 0 or less: another thread counts at this moment */

		if (key && key != FLIGHT_MIXED && more > 0 && now > first)
			learn(f, key, 0, (now - first) / (uint64_t)more);
		f->since = now;
		f->counted = launches;
		f->marked = flight_total(f);
		f->unknown = false;
	}
	uint64_t before = f->last_done;
	int count = 0;
	for (int i = 0; i < FLIGHT_MARKS; i++)
		count += f->marks[i].pending && is_in(stream, context, f->marks[i].stream, f->marks[i].context);
	for (int i = 0; i < FLIGHT_MARKS; i++) {
		struct mark *m = &f->marks[i];

		if (m->pending && is_in(stream, context, m->stream, m->context))
			done(f, m, count == 1 ? now : m->seen, before, count, now);
	}
}

bool flight_idle(const struct flight *f)
{
	for (int i = 0; i < FLIGHT_MARKS; i++)
		if (f->marks[i].pending)
			return false;
	return !flight_any_loose(f);
}

void flight_forget_stream(struct flight *f, CUstream stream)
{
	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++)
		if (dirty(f, i) == stream)
			drop(f, i);
	for (int i = 0; i < FLIGHT_MARKS; i++) /* another stream can have the handle now */
		if (f->marks[i].stream == stream)
			f->marks[i].stream = NULL;
}

void flight_close(struct flight *f, CUcontext context)
{
	for (int i = 0; i < FLIGHT_MARKS; i++) {
		struct mark m = f->marks[i];

		if (!m.event || !is_in(NULL, context, NULL, m.context))
			continue;
		REAL(cuEventDestroy_v2)(m.event);
		f->marks[i] = (struct mark){ .pending = false };
		if (m.pending && m.stream && !is_noted(f, m.stream, home_of(m.stream), m.context))
			put(f, m.stream, home_of(m.stream), m.context);
	}
	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++)
		if (dirty(f, i) && is_in(NULL, context, NULL, context_at(f, i)))
			f->noted[i].closing = true;
}

void flight_closed(struct flight *f, CUcontext context, bool gone)
{
	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++) {
		if (!dirty(f, i) || !is_in(NULL, context, NULL, context_at(f, i)))
			continue;
		if (gone)
			drop(f, i);
		f->noted[i].closing = false;
	}
}
