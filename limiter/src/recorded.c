/* Events that the program records itself show the end of work too. Of such an event only an answer of the driver to the program
 * counts, and only if no record but the one that is known here can be meant. */
#include "flightparts.h"

/* So long after the program saw an end by its events, more ends are left to them. */
static const uint64_t SHOWN_NS = 2000000;

/* Of more work that is under way the limiter sees the end itself, so that the next launch is permitted in time. */
static const uint64_t LEFT_NS = 2000000;

static _Atomic uint64_t last_serial;

uint64_t flight_next_serial(void)
{
	/* seq_cst, as in flight_asked(): the driver's calls lie between. */
	return atomic_fetch_add(&last_serial, 1) + 1;
}

uint64_t flight_asked(void)
{
	return atomic_load(&last_serial);
}

bool flight_shows_ends(struct flight *f, uint64_t now)
{
	if (now - f->shown >= SHOWN_NS)
		return false;
	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++) {
		if (!flight_stream_at(f, i))
			continue;
		if (!f->noted[i].since)
			f->noted[i].since = now;
		if (now - f->noted[i].since >= SHOWN_NS)
			return false;
	}
	uint64_t left = flight_loose(f);
	FLIGHT_EACH_PENDING(f, i) {
		const struct mark *m = &f->marks[i];

		if (m->recorded)
			continue;
		left += m->ns;
		if (now - m->sent >= SHOWN_NS && !flight_is_backed(f, m))
			return false;
	}
	return left < LEFT_NS;
}

void flight_count_loose(const struct flight *f, struct under_way *all)
{
	int64_t launches = (int64_t)(atomic_load_explicit(&f->launches, memory_order_relaxed) - f->counted);

	if (!flight_any_loose(f))
		return;
	all->launches += launches > 0 ? (uint64_t)launches : 1;
	all->ns += flight_loose(f);
	all->unknown |= f->unknown;
	if (!all->oldest || f->since < all->oldest)
		all->oldest = f->since;
}

void flight_forget_event(struct flight *f, CUevent event)
{
	for (int i = FLIGHT_OWN; i < FLIGHT_MARKS; i++) {
		CUevent one = event;

		/* seq_cst, as in flight_record_begin(): events.c. */
		if (atomic_load(&f->theirs[i]) == event)
			atomic_compare_exchange_strong(&f->theirs[i], &one, NULL);
	}
}

/* One that has no event of the limiter, or one of this context, which is kept. */
static struct mark *place(struct flight *f, CUcontext context)
{
	for (int i = FLIGHT_OWN; i < FLIGHT_MARKS; i++) {
		struct mark *m = &f->marks[i];

		if (!m->pending && (!m->event || m->context == context))
			return m;
	}
	return NULL;
}

int flight_record_begin(struct flight *f, CUevent event, CUstream stream, uint64_t record, uint64_t now)
{
	CUcontext here = (uintptr_t)stream < 16 || flight_own(stream) ? flight_current() : NULL;
	uintptr_t at = FLIGHT_STREAMS;
	int streams = 0;

	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++) {
		CUstream its = flight_stream_at(f, i);

		streams += its != NULL;
		if (its == stream && (!here || flight_context_at(f, i) == here))
			at = i;
	}
	if (at == FLIGHT_STREAMS || f->noted[at].closing)
		return -1;
	CUcontext context = flight_context_at(f, at);
	struct mark *m = place(f, context), like = flight_part(f, streams);
	if (!m)
		return -1;
	/* Before the driver's call: a launch that the event may miss is noted again. */
	flight_drop(f, at);
	flight_fill(f, m, stream, now, like);
	m->context = context;
	m->record = record;
	atomic_store(&f->theirs[m - f->marks], event);
	if (streams == 1) {
		flight_none_loose(f);
		f->since = now;
	} else {
		f->counted += like.launches;
		f->marked += like.ns;
	}
	return (int)(m - f->marks);
}

void flight_record_end(struct flight *f, int mark, uint64_t record)
{
	struct mark *m = &f->marks[mark];

	if (m->pending && m->record == record)
		m->counts_after = flight_next_serial();
}

bool flight_answered(struct flight *f, CUevent event, uint64_t asked, bool waited, uint64_t now)
{
	const struct mark *known = NULL;
	struct mark *ended[FLIGHT_MARKS];
	uint64_t before = f->last_done;
	int count = 0;

	for (int i = FLIGHT_OWN; i < FLIGHT_MARKS && !known; i++) {
		const struct mark *m = &f->marks[i];

		if (atomic_load_explicit(&f->theirs[i], memory_order_relaxed) == event && m->counts_after && m->counts_after <= asked)
			known = m;
	}
	if (!known)
		return false;
	f->shown = now; /* the program asks, also where the limiter knew before */
	if (!known->pending || !known->stream)
		return false;
	FLIGHT_EACH_PENDING(f, i) {
		struct mark *m = &f->marks[i];

		if (m->stream == known->stream && m->context == known->context && m->serial <= known->serial)
			ended[count++] = m;
	}
	for (int i = 0; i < count; i++)
		flight_done(f, ended[i], count == 1 && waited ? now : ended[i]->seen, before, count, now);
	return true;
}
