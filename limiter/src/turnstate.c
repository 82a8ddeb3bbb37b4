#include "turnstate.h"

#include <sys/mman.h>

#include "clock.h"
#include "cores.h"
#include "duration.h"
#include "limits.h"
#include "process.h"

struct flight *turn_flights;
static struct turn *turns; /* VGPU_MAX_DEVICES */
_Atomic uint32_t turn_used;

static const uint64_t LOCK_NAP_NS = 20000, LOCK_WAIT_NS = 300000000;

bool turn_start(void)
{
	static struct state {
		struct flight flights[VGPU_MAX_DEVICES];
		struct turn turns[VGPU_MAX_DEVICES];
		struct duration durations[DURATION_PLACES];
	} *state;
	/* A forked child has its parent's, in which a thread of the parent may hold a lock. */
	void *fresh = mmap(state, sizeof(*state), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (state ? MAP_FIXED : 0), -1, 0);

	if (fresh == MAP_FAILED)
		return false;
	state = fresh;
	turn_flights = state->flights;
	turns = state->turns;
	atomic_store_explicit(&turn_used, 0, memory_order_relaxed);
	durations = state->durations;
	return true;
}

bool turn_lock(struct turn *t)
{
	uint64_t none = 0;

	/* Acquire: what the last holder wrote. */
	return !atomic_load_explicit(&t->busy, memory_order_relaxed) &&
	       atomic_compare_exchange_strong_explicit(&t->busy, &none, lock_self(), memory_order_acquire, memory_order_relaxed);
}

static bool is_mine(const struct turn *t)
{
	/* Relaxed: only this thread writes its own value. */
	return atomic_load_explicit(&t->busy, memory_order_relaxed) == lock_self();
}

bool turn_any_mine(void)
{
	bool any = false;

	for (int i = 0; i < VGPU_MAX_DEVICES && !any; i++)
		any = is_mine(&turns[i]);
	return any;
}

bool turn_lock_soon(struct turn *t)
{
	bool mine = is_mine(t);

	for (uint64_t waited = 0; waited < LOCK_WAIT_NS && !mine; waited += LOCK_NAP_NS) {
		if (turn_lock(t))
			return true;
		clock_nap_ns(LOCK_NAP_NS);
	}
	return false;
}

void turn_unlock(struct turn *t)
{
	atomic_store_explicit(&t->busy, 0, memory_order_release);
}

int turn_cell(const struct turn *t)
{
	return (int)(t - turns);
}

struct turn *turn_of(int cell)
{
	return &turns[cell];
}

struct flight *turn_flight(const struct turn *t)
{
	return &turn_flights[turn_cell(t)];
}

/* The part of the GPU that the container never exceeds; 0: none. One that does not see all others keeps to its share. */
static double ceiling_of(const struct limits_share *s, const struct turn *t)
{
	if (t->shares.valid && t->shares.crowded)
		return t->shares.weight;
	if (s->soft_percent > s->percent)
		return s->soft_percent < 100 ? s->soft_percent / 100. : 0;
	return s->force || !t->shares.valid || !t->words || t->words == &t->own ? s->percent / 100. : 0;
}

static void open_words(struct turn *t, uint64_t id)
{
	if (t->words && t->words != &t->own)
		return;
	t->words = id ? table_own(turn_cell(t), id) : NULL;
	if (!t->words)
		t->words = &t->own;
	int slot = process_slot();
	t->process = (slot > 0 ? slot : 0) % VGPU_TURN_PROCESSES;
}

bool turn_refresh(int cell)
{
	struct turn *t = &turns[cell];
	struct limits_share share = limits_share(cell);
	uint64_t id = limits_turn_id();
	bool used = atomic_load_explicit(&t->used, memory_order_relaxed);

	if (!turn_lock_soon(t))
		return used;
	if (id && table_sequence(cell)) {
		table_read(cell, id, &t->shares);
		peers_follow(&t->peers, &t->shares);
	}
	t->limited = !share.disabled && share.percent < 100;
	used = (t->limited && (share.percent > 0 || share.soft_percent > 0)) || (t->shares.valid && t->shares.any_share);
	if (used) {
		open_words(t, id);
		atomic_fetch_or_explicit(&turn_used, 1u << cell, memory_order_relaxed);
	}
	t->ceiling = t->limited ? ceiling_of(&share, t) : 0;
	atomic_store_explicit(&t->used, used, memory_order_relaxed);
	turn_unlock(t);
	return used;
}

void turn_see(struct turn *t, struct view *v, uint64_t now)
{
	v->now = now;
	v->ceiling = t->ceiling;
	v->rests = t->rests;
	v->taken = t->taken;
	v->weight = t->shares.valid ? t->shares.weight : t->ceiling > 0 ? t->ceiling : 1;
	v->low = t->shares.low;
	v->count = 0;
	if (t->words == &t->own || !t->shares.valid)
		return;
	const _Atomic uint32_t *sequence = table_sequence(turn_cell(t));
	/* Relaxed: table_read() reads it again. */
	if (sequence && atomic_load_explicit(sequence, memory_order_relaxed) != t->shares.sequence) {
		table_read(turn_cell(t), limits_turn_id(), &t->shares);
		peers_follow(&t->peers, &t->shares);
	}
	peers_look(&t->peers, turn_cell(t), &t->shares, v);
	lag_weigh(t->words, v);
}

void turn_want(struct turn *t, uint64_t until)
{
	atomic_store_explicit(&t->words->words.want_until, until, memory_order_relaxed);
	if (t->words != &t->own)
		atomic_store_explicit(&t->own.words.want_until, until, memory_order_relaxed);
}

void turn_show_gaps(struct turn *t, uint64_t until)
{
	atomic_store_explicit(&t->words->words.gaps_until, until, memory_order_relaxed);
}

bool turn_others_work(const struct turn *t, uint64_t now)
{
	bool some = false;

	for (int i = 0; i < VGPU_TURN_PROCESSES && !some; i++)
		some = i != t->process && atomic_load_explicit(&t->words->work_until[i], memory_order_relaxed) > now;
	return some;
}

/* Where the container's processes have their ceiling together; NULL: in the turn file. */
static struct vgpu_compute *ceiling_of_all(const struct turn *t)
{
	struct vgpu_compute *compute = atomic_load_explicit(&cores.compute, memory_order_relaxed);

	return compute && t->words == &t->own && t->ceiling > 0 ? &compute[turn_cell(t)] : NULL;
}

/* The lesser account permits. */
static void keep_ceiling(struct turn *t, struct vgpu_compute *compute, const struct view *v)
{
	int64_t cap = ceiling_step(compute, &t->shown, t->process, v->ceiling, &t->span, v->now);

	if (cap < atomic_load_explicit(&t->own.words.cap, memory_order_relaxed))
		atomic_store_explicit(&t->own.words.cap, cap, memory_order_relaxed);
}

void turn_publish(struct turn *t, uint64_t now, uint64_t until)
{
	struct vgpu_turn *w = t->words;
	uint64_t last = until, processes = 0;

	if (t->fills) {
		turn_want(t, until + GRACE_NS);
		return;
	}
	atomic_store_explicit(&w->work_until[t->process], until, memory_order_relaxed);
	struct vgpu_compute *compute = ceiling_of_all(t);
	if (compute)
		ceiling_show(compute, &t->shown, t->process, until);
	for (int i = 0; i < VGPU_TURN_PROCESSES; i++) {
		uint64_t one = atomic_load_explicit(&w->work_until[i], memory_order_relaxed);

		last = one > last && one < now + LAG_HORIZON_NS ? one : last;
		processes += one > now;
	}
	atomic_store_explicit(&w->words.work_until, last, memory_order_relaxed);
	atomic_store_explicit(&w->words.processes, processes, memory_order_relaxed);
	if (w != &t->own)
		atomic_store_explicit(&t->own.words.processes, processes, memory_order_relaxed);
	turn_want(t, last + GRACE_NS);
}

void turn_begin(struct turn *t, uint64_t now)
{
	struct flight *f = turn_flight(t);

	if (f->begin || !flight_any_loose(f))
		return;
	uint64_t from = now - least(now, flight_loose(f));
	f->begin = from > f->last_done ? from : f->last_done;
}

void turn_add_pause(struct turn *t, uint64_t until)
{
	uint64_t hold = atomic_load_explicit(&t->words->words.hold_until, memory_order_relaxed);

	uint64_t from = t->span.to > t->looked ? t->span.to : t->looked;

	if (t->span.to && until > from && until - t->span.to < GRACE_NS && hold > t->span.to)
		t->span.pauses += until - from;
}

void turn_cover(struct turn *t, uint64_t until)
{
	struct flight *f = turn_flight(t);
	uint64_t from = f->begin > t->looked ? f->begin : t->looked;

	if (!f->begin || until <= from)
		return;
	turn_add_pause(t, from);
	if (!t->span.ns)
		t->span.from = from;
	t->span.to = until;
	t->span.ns += until - from;
}

void turn_expect(struct turn *t)
{
	uint64_t total = flight_total(turn_flight(t));

	t->expected = (t->expected > t->permitted ? t->expected : t->permitted) + (total - t->launched);
	t->launched = total;
}

void turn_account(struct turn *t, struct view *v)
{
	t->span.fills = t->fills;
	t->span.filled = t->gaps.open && !t->refused;
	uint64_t charged = lag_step(t->words, v, &t->span, t->process);

	struct vgpu_compute *shared = ceiling_of_all(t);
	if (shared)
		keep_ceiling(t, shared, v);
	if (t->words != &t->own)
		lag_step(&t->own, v, &t->span, t->process);
	t->span = (struct span){ .to = t->span.to };
	t->looked = v->now;
	struct vgpu_compute *compute = atomic_load_explicit(&cores.compute, memory_order_relaxed);
	if (compute)
		atomic_fetch_add_explicit(&compute[turn_cell(t)].busy, charged, memory_order_relaxed);
}

uint64_t turn_probable_end(const struct turn *t, uint64_t now)
{
	uint64_t seen = atomic_load_explicit(&t->seen, memory_order_relaxed);

	if (seen > t->looked && seen > t->expected && seen <= now)
		return seen + (now - seen) / 2;
	if (t->expected > t->looked)
		return least(now, t->expected);
	uint64_t late = t->looked - t->expected;
	return t->looked + least(most(late, LOOK_NS), (now - t->looked) / 2);
}

struct turn *turn_next_known(struct turn *t)
{
	int cell = t ? turn_cell(t) + 1 : 0;
	uint32_t rest = atomic_load_explicit(&turn_used, memory_order_relaxed) >> cell;

	return rest ? &turns[cell + __builtin_ctz(rest)] : NULL;
}

struct turn *turn_next(struct turn *t)
{
	while ((t = turn_next_known(t)) && !atomic_load_explicit(&t->used, memory_order_relaxed))
		;
	return t;
}
