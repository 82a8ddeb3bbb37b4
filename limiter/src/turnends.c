/* The end of work, as far as threads see it: they wait for it in the driver, ask for it, or end a stream or a context. */
#include "turnends.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "turnstate.h"

_Atomic uint32_t turn_beating;
static _Atomic int waiting; /* threads that wait in the driver */

static const uint64_t WAIT_NS = 15000000, BEAT_NS = 30000000, SHOW_NS = 2000000, QUOTA_LASTS_NS = 1000000,
	QUERY_GAP_NS = 1000000; /* between two queries of a thread that does nothing else */
enum { IDLE_BEATS = 100 };

void turn_start_beating(void)
{
	if (atomic_load_explicit(&turn_beating, memory_order_relaxed) || atomic_exchange(&turn_beating, 1))
		return;
	syscall(SYS_futex, &turn_beating, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* No other thread can put an event behind what this one has launched into its own stream. */
static void mark_own(struct turn *t, uint64_t now)
{
	struct flight *f = turn_flight(t);

	if (flight_any_own(f))
		flight_mark(f, now);
}

bool turn_any_work(void)
{
	bool some = false;

	for (struct turn *t = turn_next(NULL); t && !some; t = turn_next(t)) {
		if (!turn_lock(t))
			return true;
		some = turn_flight(t)->begin || flight_any_loose(turn_flight(t));
		turn_unlock(t);
	}
	return some;
}

void turn_wait_begin(void)
{
	/* seq_cst, as in turn_beat(): one of the two sees the other's word. */
	atomic_fetch_add(&waiting, 1);
	for (struct turn *t = turn_next(NULL); t; t = turn_next(t)) {
		if (!turn_lock(t))
			continue;
		uint64_t now = clock_ns();
		mark_own(t, now);
		turn_begin(t, now);
		gaps_wait(&t->gaps, now);
		turn_show_gaps(t, 0);
		if (turn_flight(t)->begin)
			turn_publish(t, now, t->expected > now + WAIT_NS ? t->expected : now + WAIT_NS);
		turn_unlock(t);
		turn_start_beating();
	}
}

void turn_wait_end(void)
{
	atomic_fetch_sub(&waiting, 1);
}

/* Work is under way. */
static void show(struct turn *t, uint64_t now, uint64_t until)
{
	struct view v;

	turn_begin(t, now);
	if (!turn_flight(t)->begin)
		return;
	turn_cover(t, now);
	turn_see(t, &v, now);
	turn_account(t, &v);
	turn_publish(t, now, until);
}

/* Launches that passed without a look have not been published. */
static void show_begin(struct turn *t, uint64_t now)
{
	turn_begin(t, now);
	if (turn_flight(t)->begin)
		turn_publish(t, now, now + SHOW_NS);
}

/* A program that waits for each launch would pass without a look until the quota is used up: for long, if its launches take
 * longer than they did. */
static void end_quota(struct turn *t, uint64_t now)
{
	struct flight *f = turn_flight(t);

	if (now - t->permitted > QUOTA_LASTS_NS && atomic_load_explicit(&f->quota, memory_order_relaxed) > 0)
		flight_permit(f, 0, 0, now);
}

/* Work that a thread has queried again and again has been under way since its first query. */
static void begin_queried(struct turn *t)
{
	struct flight *f = turn_flight(t);
	uint64_t since = atomic_exchange_explicit(&t->queried, 0, memory_order_relaxed);

	if (since && !f->begin && flight_any_loose(f))
		f->begin = most(since, f->last_done);
}

static void begin_end(struct turn *t, uint64_t now)
{
	begin_queried(t);
	turn_begin(t, now);
	end_quota(t, now);
}

static void saw_end(struct turn *t, uint64_t now, bool waited)
{
	struct flight *f = turn_flight(t);

	begin_end(t, now);
	gaps_wait(&t->gaps, now);
	if (!f->begin || (!waited && now - t->saw < AGAIN_NS))
		return;
	t->saw = now;
	turn_expect(t);
	struct under_way all = flight_poll(f, NULL, now);
	bool loose = flight_any_loose(f), none = !all.marks && !loose;
	turn_cover(t, none && !waited ? turn_probable_end(t, now) : now);
	f->begin = none ? 0 : now;
	t->expected = now + all.ns;
	if (!flight_shows_ends(f, now))
		flight_mark_all(f, now);
	turn_publish(t, now, none ? now : now + least(most(all.ns, 2 * NAP_NS), FORESIGHT_NS));
}

void turn_saw_end(bool waited)
{
	for (struct turn *t = turn_next(NULL); t; t = turn_next(t)) {
		if (!turn_lock(t))
			continue; /* the thread that looks now finds it out */
		saw_end(t, clock_ns(), waited);
		turn_unlock(t);
	}
}

void turn_saw_work(void)
{
	uint64_t now = clock_ns();

	for (struct turn *t = turn_next(NULL); t; t = turn_next(t)) {
		/* Relaxed: only how long ago it was counts. */
		uint64_t seen = atomic_exchange_explicit(&t->seen, now, memory_order_relaxed);
		bool first = now - seen > QUERY_GAP_NS || !atomic_load_explicit(&t->queried, memory_order_relaxed);
		if (first)
			atomic_store_explicit(&t->queried, now, memory_order_relaxed);
		if ((!first && now - t->looked <= SHOW_NS) || !turn_lock(t))
			continue;
		if (now - t->looked > SHOW_NS)
			show(t, now, now + BEAT_NS);
		else
			show_begin(t, now);
		turn_unlock(t);
	}
}

/* Of some streams it is known that their work has ended. */
static void saw_some_end(struct turn *t, uint64_t now, bool waited)
{
	struct flight *f = turn_flight(t);

	if (flight_idle(f)) {
		turn_cover(t, waited ? now : turn_probable_end(t, now));
		f->begin = 0;
		turn_expect(t);
		t->expected = now;
		turn_publish(t, now, now);
	}
	if (now - t->looked > LOOK_NS)
		flight_permit(f, 0, 0, now);
}

static void ended(struct turn *t, CUstream stream, CUcontext context)
{
	if (!turn_lock(t))
		return; /* the thread that looks now finds it out */
	uint64_t now = clock_ns();
	begin_end(t, now);
	flight_ended(turn_flight(t), stream, context, now);
	saw_some_end(t, now, true);
	turn_unlock(t);
}

void turn_answered(CUevent event, uint64_t asked, bool waited)
{
	for (struct turn *t = turn_next(NULL); t; t = turn_next(t)) {
		if (!turn_lock(t))
			continue;
		uint64_t now = clock_ns();
		begin_end(t, now);
		gaps_wait(&t->gaps, now);
		if (flight_answered(turn_flight(t), event, asked, waited, now))
			saw_some_end(t, now, waited);
		else
			saw_end(t, now, waited);
		turn_unlock(t);
	}
}

void turn_ended(CUstream stream, CUcontext context)
{
	for (struct turn *t = turn_next(NULL); t; t = turn_next(t))
		ended(t, stream, context);
}

/* Whether it has work, as far as can be known without the driver: a thread waits for it, or it is not expected to have ended. */
static bool beat(struct turn *t, uint64_t now)
{
	turn_begin(t, now);
	bool waited_for = atomic_load(&waiting) > 0;
	if (!turn_flight(t)->begin || (!waited_for && t->expected <= now))
		return false;
	show(t, now, waited_for ? now + BEAT_NS : least(now + BEAT_NS, t->expected));
	return true;
}

void turn_beat(void)
{
	static int idle;
	bool some = atomic_load(&waiting) > 0;

	for (struct turn *t = turn_next(NULL); t; t = turn_next(t)) {
		if (!turn_lock(t))
			continue;
		some |= beat(t, clock_ns());
		turn_unlock(t);
	}
	idle = some ? 0 : idle + 1;
	if (idle < IDLE_BEATS)
		return;
	idle = 0;
	atomic_store(&turn_beating, 0);
	if (atomic_load(&waiting) > 0)
		atomic_store(&turn_beating, 1);
}

void turn_forget_stream(CUstream stream)
{
	for (struct turn *t = turn_next_known(NULL); t; t = turn_next_known(t)) {
		if (!turn_lock_soon(t))
			continue;
		flight_mark_all(turn_flight(t), clock_ns()); /* what it runs goes on */
		flight_forget_stream(turn_flight(t), stream);
		turn_unlock(t);
	}
}

void turn_context(int cell, CUcontext context)
{
	if (cell >= 0 && turn_flights)
		flight_context(&turn_flights[cell], context);
}

void turn_context_ending(CUcontext context)
{
	for (struct turn *t = turn_next_known(NULL); t; t = turn_next_known(t)) {
		if (!turn_lock_soon(t))
			continue;
		flight_close(turn_flight(t), context);
		turn_unlock(t);
	}
	turn_wait_begin();
}

void turn_context_ended(CUcontext context, bool gone)
{
	for (struct turn *t = turn_next_known(NULL); t; t = turn_next_known(t)) {
		if (!turn_lock_soon(t))
			continue;
		flight_closed(turn_flight(t), context, gone);
		turn_unlock(t);
	}
	if (gone && context)
		turn_ended(NULL, context);
	turn_wait_end();
}
