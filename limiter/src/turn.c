/* A launch looks: which work has ended, what the container and its peers have had meanwhile, and whether
 * it may go on. A look that permits the launch also permits some short ones after it without a look.
 *
 * Each container gets its share of the time in which it has work under way. So little may be under way
 * while others want the GPU: the driver runs what is queued, whatever container has the turn. */
#include "turn.h"

#include "clock.h"
#include "cores.h"
#include "duration.h"
#include "turnends.h"
#include "turnstate.h"

enum verdict { GO, FULL, NOT_YET };
enum { MANY = 64, REST_PARTS = 4 };

static const uint64_t HOLD_NS = 3000000, FLIGHT_NS = 2000000, FLIGHT_FREE_NS = 20000000, LONG_NS = 8000000,
	LONG_NAP_NS = 1000000;

/* What may be under way in gaps of another container's turn; how long gaps are open after a look; and what may be under way in
 * one's own turn with open gaps: a launch waits for the next slice of the driver. */
static const uint64_t FILL_NS = 1000000, OPEN_NS = 5000000, SLICE_NS = 3000000;

/* What is under way may wait for this launch, and then never ends: a launch waits for it so long. The first is for work
 * that no other container waits for, as far as is known, the second for a container that has had more than its share. */
static const uint64_t FULL_NS = 300000000, STUCK_NS = 10000000000;

/* Between processes of a container: one that waits goes first if it has waited longer by so much. It may be dead, or stopped, so
 * the others wait for it until so long after its last look. */
static const uint64_t PRECEDENCE_NS = 20000000, ALIVE_NS = 1000000000;

/* The events, the account, and the words. */
static struct under_way look(struct turn *t, struct view *v, CUstream stream, uint64_t now)
{
	struct flight *f = turn_flight(t);
	struct under_way all = flight_poll(f, stream, now);

	turn_begin(t, now);
	turn_expect(t);
	if (!all.marks && !flight_any_loose(f)) {
		turn_cover(t, turn_probable_end(t, now));
		f->begin = 0;
	} else {
		turn_cover(t, now);
	}
	if (!f->begin)
		turn_add_pause(t, now);
	turn_see(t, v, now);
	turn_account(t, v);
	/* The driver may have run others' work meanwhile: what is under way lasts until the next look, for the others. */
	uint64_t ns = least(all.ns + flight_loose(f), FORESIGHT_NS);
	turn_publish(t, now, now + (all.marks && ns < 2 * NAP_NS ? 2 * NAP_NS : ns));
	return all;
}

/* The ns that may be under way: a part of what is left of the turn, so that the GPU has work while the machine does not run this
 * process. Of short kernels the driver takes no more. */
static uint64_t most_of(const struct turn *t, const struct view *v, const struct under_way *all)
{
	uint64_t processes = atomic_load_explicit(&t->words->words.processes, memory_order_relaxed);

	if (!lag_contended(t->words, v))
		return FLIGHT_FREE_NS;
	if (t->gaps.open)
		return SLICE_NS;
	if (all->launches >= MANY)
		return FLIGHT_NS;
	uint64_t rest = lag_rest(t->words, &t->own, v) / REST_PARTS / (processes > 1 ? processes : 1);
	return rest < FLIGHT_NS ? FLIGHT_NS : least(rest, FLIGHT_FREE_NS);
}

/* Whether as much is under way as may be. An unknown function runs singly. */
static bool full(const struct turn *t, const struct view *v, const struct under_way *all, uint64_t ns, uint64_t waited)
{
	uint64_t most = most_of(t, v, all), few = ns && ns < LONG_NS ? 2 : 1;

	if (waited > FULL_NS && v->now - all->oldest > FULL_NS)
		return false;
	if (all->marks == FLIGHT_MARKS)
		return true;
	return all->launches >= few && (v->now - all->oldest > most || all->ns >= most || !ns || all->unknown);
}

/* Whether the launch may use the gaps in another container's turn. */
static bool may_fill(const struct turn *t, const struct view *v, const struct under_way *all, uint64_t ns)
{
	const struct flight *f = turn_flight(t);

	if (!lag_may_fill(t->words, &t->own, v) || !ns || ns >= LONG_NS)
		return false;
	if (!all->marks && !flight_any_loose(f))
		return true;
	return t->fills && !all->unknown && all->ns + flight_loose(f) + ns <= FILL_NS;
}

/* Permits the launch, and more that take as long as it until the quota has passed. */
static void permit(struct turn *t, uint64_t now, uint64_t ns)
{
	struct flight *f = turn_flight(t);
	int64_t quota = ns && ns < (uint64_t)FLIGHT_QUOTA_NS && !f->singly ? FLIGHT_QUOTA_NS - (int64_t)ns : 0;

	f->singly -= f->singly > 0;
	f->unknown |= !ns;
	flight_permit(f, ns, quota, now);
	t->permitted = now;
	if (!f->begin)
		f->begin = now;
	if (t->fills)
		return;
	if (atomic_load_explicit(&t->words->words.hold_until, memory_order_relaxed) <= now)
		t->taken = now;
	atomic_store_explicit(&t->words->words.hold_until, now + HOLD_NS + least(ns, FORESIGHT_NS), memory_order_relaxed);
}

/* Another process of the container has waited for longer. */
static bool after_another(const struct turn *t, uint64_t since, uint64_t now)
{
	for (int i = 0; i < VGPU_TURN_PROCESSES; i++) {
		uint64_t until = atomic_load_explicit(&t->words->waits_until[i], memory_order_relaxed);

		if (until > now && until < now + 2 * ALIVE_NS && i != t->process &&
		    atomic_load_explicit(&t->words->waits_since[i], memory_order_relaxed) + PRECEDENCE_NS < since)
			return true;
	}
	return false;
}

static void waits(const struct turn *t, uint64_t since, uint64_t until)
{
	atomic_store_explicit(&t->words->waits_since[t->process], since, memory_order_relaxed);
	atomic_store_explicit(&t->words->waits_until[t->process], until, memory_order_relaxed);
}

static bool works(const struct turn *t)
{
	return atomic_load_explicit(&t->words->words.processes, memory_order_relaxed) > 0;
}

/* Until the next look of one that waits. Many that look often would take the processors from the programs. But the end of the
 * container's own work has to be seen in time, and the pauses of the others, if few containers wait. */
static uint64_t nap_of(const struct turn *t, const struct view *v, const struct under_way *all)
{
	uint64_t ns = t->refused ? lag_refused_for(t->words, &t->own, v) / 2 : 0; /* it can end earlier */
	uint64_t processes = atomic_load_explicit(&t->words->words.processes, memory_order_relaxed);

	if (all->marks)
		ns = least(ns, all->ns / 8);
	if (v->count && !t->rests)
		ns = least(ns, (uint64_t)v->count * most(1, least(processes, LAG_PROCESSES)) * NAP_NS);
	return most(NAP_NS, least(ns, LONG_NAP_NS));
}

static void close_gaps(struct turn *t, uint64_t now)
{
	if (t->gaps.open)
		gaps_close(&t->gaps, now);
}

/* Before a launch that may go on. */
static void leave_gaps(struct turn *t, const struct view *v, bool idle, bool at_once, uint64_t now)
{
	struct flight *f = turn_flight(t);
	struct gaps_sums sums = { now, atomic_load_explicit(&f->launches, memory_order_relaxed),
		atomic_load_explicit(&t->own.words.busy, memory_order_relaxed) };

	if (!t->limited || t->ceiling > 0 || !lag_contended(t->words, v) || turn_others_work(t, now))
		gaps_reset(&t->gaps);
	else if (!t->fills && gaps_look(&t->gaps, &sums, idle, at_once))
		f->singly = f->singly > 1 ? f->singly : 1;
	f->shared = t->fills || t->gaps.open || t->gaps.looks;
	turn_show_gaps(t, t->gaps.open && !t->fills ? now + OPEN_NS : 0);
}

static enum verdict try_take(struct turn *t, uint64_t key, CUstream stream, uint64_t since, uint64_t now)
{
	struct flight *f = turn_flight(t);
	uint64_t ns = duration_of(key), waited = now - since;
	struct view v;

	if (t->refused && now - t->looked < AGAIN_NS)
		return NOT_YET; /* another thread has just looked */
	if (!ns)
		flight_mark(f, now); /* so that its own event measures it */
	struct under_way all = look(t, &v, stream, now);
	if (flight_shows_ends(f, now)) /* launches are left to events of the program */
		flight_count_loose(f, &all);
	bool filled = t->limited && full(t, &v, &all, ns, waited);
	bool after = t->limited && lag_contended(t->words, &v) && after_another(t, since, now);
	t->refused = after || (t->limited && !lag_may_go(t->words, &t->own, &v));
	/* With none of its own under way it may be another process' that waits for this launch. */
	bool under_way = all.marks ? now - f->last_done > STUCK_NS : works(t);
	bool stuck = waited > STUCK_NS && under_way;
	t->rests = t->limited && lag_capped(t->words, &t->own, &v);
	bool fills = t->refused && !after && may_fill(t, &v, &all, ns);
	if (fills || (!filled && !t->refused) || stuck) {
		t->fills = fills;
		leave_gaps(t, &v, !all.marks && !flight_any_loose(f), !waited, now);
		permit(t, now, ns);
		waits(t, 0, 0);
		return GO;
	}
	if (t->refused)
		turn_show_gaps(t, 0);
	else
		close_gaps(t, now);
	/* One with too much work of its own does not keep others from theirs. */
	waits(t, since, t->refused ? now + ALIVE_NS : 0);
	t->nap = nap_of(t, &v, &all);
	if (t->rests) /* what it may not use is the others' */
		turn_want(t, now - LAG_ABSENT_NS);
	else if (t->refused)
		turn_want(t, now + t->nap + GRACE_NS);
	flight_mark_all(f, now);
	return t->refused ? NOT_YET : FULL;
}

static void add_wait(int cell, uint64_t ns)
{
	struct vgpu_compute *compute = atomic_load_explicit(&cores.compute, memory_order_relaxed);

	if (compute)
		atomic_fetch_add_explicit(&compute[cell].throttled, ns, memory_order_relaxed);
}

void turn_take(int cell, uint64_t key, CUstream stream)
{
	struct turn *t = turn_of(cell);

	/* The first condition follows the host. */
	for (uint64_t start = 0; cores_limited() >> cell & 1;) {
		if (!turn_lock_soon(t)) {
			flight_pass(turn_flight(t), duration_of(key));
			return;
		}
		uint64_t now = clock_ns();
		start = start ? start : now;
		enum verdict verdict = try_take(t, key, stream, start, now);
		uint64_t nap = t->nap;
		turn_unlock(t);
		if (verdict == GO)
			break;
		clock_nap_ns(nap);
		if (verdict == NOT_YET) /* added during the wait: it can take long, and the host reads the sum */
			add_wait(cell, clock_ns() - now);
	}
}

/* Short launches can be left to events that the program records. In a thread's own stream only that thread could record one later. */
static void mark_launched(struct flight *f, uint64_t now)
{
	if (!flight_shows_ends(f, now))
		flight_mark_all(f, now);
	else if (f->singly || f->unknown || flight_any_own(f) || flight_loose(f) >= (uint64_t)FLIGHT_QUOTA_NS)
		flight_mark(f, now);
}

void turn_launched(int cell)
{
	struct turn *t = turn_of(cell);

	if (!turn_lock(t))
		return; /* the thread that looks now marks it, or the next one does */
	uint64_t now = clock_ns();
	struct flight *f = turn_flight(t);
	mark_launched(f, now);
	struct under_way all = flight_pending(f, now);
	uint64_t ns = all.ns + flight_loose(f);
	turn_publish(t, now, now + least(ns, FORESIGHT_NS));
	turn_expect(t);
	bool longer = t->expected > now + FORESIGHT_NS;
	turn_unlock(t);
	if (longer)
		turn_start_beating();
	struct vgpu_compute *compute = atomic_load_explicit(&cores.compute, memory_order_relaxed);
	if (!compute)
		return;
	uint64_t launches = atomic_load_explicit(&f->launches, memory_order_relaxed);
	launches -= atomic_exchange_explicit(&t->counted, launches, memory_order_relaxed);
	atomic_fetch_add_explicit(&compute[cell].launches, launches, memory_order_relaxed);
	atomic_store_explicit(&compute[cell].last_launch, now, memory_order_relaxed);
}
