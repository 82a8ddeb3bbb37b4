/* Which work has ended: by the limiter's events, by the program's, and by waits. */
#include "flightparts.h"

#include "capture.h"
#include "duration.h"
#include "hooks.h"

enum { SURPRISE = 2, MEASURE_SINGLY = 16 };

static void learn(const struct flight *f, uint64_t key, uint64_t least, uint64_t most)
{
	if (!f->shared || !duration_of(key))
		duration_learn(key, least, most);
}

/* The marks of a look that are done ended one after the other, between the time of the last ones, before, and now: of each only
 * its part of that time is known. */
void flight_done(struct flight *f, struct mark *m, uint64_t seen, uint64_t before, int marks, uint64_t now)
{
	uint64_t from = m->sent > f->last_done ? m->sent : f->last_done, first = m->since > before ? m->since : before;
	uint64_t least = seen > from ? seen - from : 0, most = now > first ? (now - first) / (uint64_t)marks : 0;

	flight_set_pending(f, m, false);
	if (m->key)
		learn(f, m->key, least / m->launches, most / m->launches);
	else if (least > m->ns * SURPRISE + (uint64_t)FLIGHT_QUOTA_NS)
		f->singly = MEASURE_SINGLY; /* one of several functions takes longer than it did */
	if (now > f->last_done)
		f->last_done = now;
}

void flight_set_pending(struct flight *f, struct mark *m, bool pending)
{
	int i = (int)(m - f->marks);
	uint64_t bit = (uint64_t)1 << i % 64;

	m->pending = pending;
	f->pending[i / 64] = pending ? f->pending[i / 64] | bit : f->pending[i / 64] & ~bit;
}

int flight_next_pending(const struct flight *f, int i)
{
	for (; i < FLIGHT_MARKS; i = (i / 64 + 1) * 64) {
		uint64_t rest = f->pending[i / 64] >> i % 64;

		if (rest)
			return i + __builtin_ctzll(rest);
	}
	return FLIGHT_MARKS;
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

	FLIGHT_EACH_PENDING(f, i) {
		all.marks++;
		if (now - f->marks[i].sent < LATE_NS)
			count(&all, &f->marks[i]);
	}
	return all;
}

/* Those that are pending, the oldest first; returns their number. */
static int by_age(struct flight *f, struct mark *order[FLIGHT_MARKS])
{
	int n = 0;

	FLIGHT_EACH_PENDING(f, i) {
		struct mark *m = &f->marks[i];
		int at = n;

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

/* Only the events of the limiter are asked for: the program may destroy its own ones. */
static bool is_seen_behind(const struct mark *m, struct mark *const ended[], int n)
{
	for (int i = 0; i < n; i++)
		if (ended[i]->recorded && flight_is_in_front(m, ended[i]))
			return true;
	return false;
}

/* Another thread's own stream: only that thread shows the end, or records an event there. */
static bool is_left(const struct mark *m, uint64_t now)
{
	return m->stream && flight_own(m->stream) && m->stream != flight_name(CU_STREAM_PER_THREAD) && now - m->sent > LATE_NS;
}

bool flight_is_backed(const struct flight *f, const struct mark *m)
{
	FLIGHT_EACH_PENDING(f, i)
		if (f->marks[i].recorded && flight_is_in_front(m, &f->marks[i]))
			return true;
	return m->recorded;
}

struct under_way flight_poll(struct flight *f, CUstream stream, uint64_t now)
{
	struct under_way all = { 0 };
	struct mark *order[FLIGHT_MARKS], *ended[FLIGHT_MARKS], *waited_for[FLIGHT_MARKS];
	uint64_t before = f->last_done;
	int pending = by_age(f, order), count_ended = 0, count_waited = 0, mode = -1;

	for (int i = 0; i < pending; i++) {
		struct mark *m = order[i];

		if (!m->recorded || is_behind(m, waited_for, count_waited))
			continue;
		if (mode < 0) /* else the query could break a capture of another thread */
			mode = capture_relax(CU_STREAM_CAPTURE_MODE_RELAXED);
		if (REAL(cuEventQuery)(m->event) != CUDA_ERROR_NOT_READY)
			ended[count_ended++] = m;
		else
			waited_for[count_waited++] = m;
	}
	if (mode >= 0)
		capture_relax(mode);
	int answered = count_ended;
	for (int i = 0; i < pending; i++) {
		struct mark *m = order[i];

		if (m->recorded) {
			bool has = false;
			for (int k = 0; k < answered; k++)
				has |= ended[k] == m;
			if (has)
				continue;
			m->seen = now;
		} else if (is_seen_behind(m, ended, answered)) {
			ended[count_ended++] = m;
			continue;
		} else if (is_left(m, now)) {
			flight_set_pending(f, m, false);
			continue;
		}
		all.marks++;
		if ((stream && m->stream == stream) || now - m->sent < LATE_NS)
			count(&all, m);
	}
	for (int i = 0; i < count_ended; i++)
		flight_done(f, ended[i], ended[i]->seen, before, count_ended, now);
	return all;
}

void flight_ended(struct flight *f, CUstream stream, CUcontext context, uint64_t now)
{
	bool all = true;

	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++) {
		CUstream its = flight_stream_at(f, i);

		if (!its)
			continue;
		if (flight_is_in(stream, context, its, flight_context_at(f, i)))
			flight_drop(f, i);
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
	FLIGHT_EACH_PENDING(f, i)
		count += flight_is_in(stream, context, f->marks[i].stream, f->marks[i].context);
	FLIGHT_EACH_PENDING(f, i) {
		struct mark *m = &f->marks[i];

		if (flight_is_in(stream, context, m->stream, m->context))
			flight_done(f, m, count == 1 ? now : m->seen, before, count, now);
	}
}

bool flight_idle(const struct flight *f)
{
	return flight_next_pending(f, 0) == FLIGHT_MARKS && !flight_any_loose(f);
}
