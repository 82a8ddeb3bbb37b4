/*
 * Time on a GPU. Processes that have work queued take turns of one slice, round robin; a kernel that is longer than what
 * is left of the turn goes on in the next one. A process without work gives its turn up; a single process has the whole
 * GPU. This file is part of all three programs.
 *
 * Nothing runs in the background: the engine is a record of what happened up to its `clock`. A process that needs a later
 * state computes it, turn by turn, from what the clients had queued. The lock is a robust mutex, which the kernel releases
 * when its holder is killed. Every change is recorded as a `step` of absolute values first, so that the next holder can
 * make it again.
 */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>

#define NO_CLIENT MAX_CLIENTS
#define DEAD_CHECK_NS 5000000ull
#define MANY_TURNS 64u /* more are taken together */

void engine_locks_init(struct state *s)
{
	pthread_mutexattr_t shared;

	pthread_mutexattr_init(&shared);
	pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
	for (unsigned c = 0; c < MAX_GPUS; c++)
		pthread_mutex_init(&s->engine_locks[c], &shared);
	pthread_mutexattr_destroy(&shared);
}

static void make_step(struct state *s, unsigned gpu, struct engine *e)
{
	const struct step *p = &e->step;
	struct client *cl = &s->clients[p->slot % MAX_CLIENTS];
	struct client_gpu *mine = &cl->gpus[gpu];

	crash_point();
	mine->segments[(p->segment_count - 1) % SEGMENTS] = p->segment;
	mine->segment_count = p->segment_count;
	crash_point();
	atomic_store_explicit(&mine->busy_ns, p->client_busy, memory_order_relaxed);
	atomic_store_explicit(&s->groups[cl->group % MAX_GROUPS].gpus[gpu].busy_ns, p->group_busy, memory_order_relaxed);
	atomic_store_explicit(&e->busy_ns, p->engine_busy, memory_order_relaxed);
	crash_point();
	e->clock = p->clock;
	e->slice_left = p->slice_left;
	e->current = p->slot + 1;
	crash_point();
	atomic_store_explicit(&e->step.valid, 0, memory_order_release);
	crash_point();
}

int engine_lock(struct view *v, unsigned gpu)
{
	struct gpu *c = &v->s->gpus[gpu];
	int err = pthread_mutex_lock(&v->s->engine_locks[gpu]);

	if (err != EOWNERDEAD)
		return err;
	if (atomic_load(&c->engine.step.valid))
		make_step(v->s, gpu, &c->engine);
	for (unsigned i = 0; i < MAX_INSTANCES; i++) {
		if (atomic_load(&c->instances[i].engine.step.valid))
			make_step(v->s, gpu, &c->instances[i].engine);
	}
	return pthread_mutex_consistent(&v->s->engine_locks[gpu]);
}

void engine_unlock(struct view *v, unsigned gpu)
{
	pthread_mutex_unlock(&v->s->engine_locks[gpu]);
}

struct engine *engine_of(struct state *s, const struct client *cl, unsigned gpu)
{
	struct instance *in = cl->mig.gpu == gpu ? instance_of(s, &cl->mig) : NULL;

	return in ? &in->engine : &s->gpus[gpu].engine;
}

/*
 * The bit and queued_ns are both sequentially consistent: a client adds to queued_ns and then reads the bit; the process
 * that computes clears the bit and then reads queued_ns. So at least one of the two sees the other.
 */
bool engine_waiting(const struct engine *e, unsigned slot)
{
	return atomic_load(&e->waiting[slot / 64]) >> slot % 64 & 1;
}

void engine_wake(struct engine *e, unsigned slot)
{
	atomic_fetch_or(&e->waiting[slot / 64], 1ull << slot % 64);
}

static void engine_sleep(struct engine *e, unsigned slot)
{
	crash_point();
	atomic_fetch_and(&e->waiting[slot / 64], ~(1ull << slot % 64));
}

/*
 * Never negative, even if two computed at the same time: the kernel hands the lock on when a thread is killed that waits for
 * it and has, in a PID namespace of its own, the number that the holder has in its.
 */
static uint64_t work_left(const struct state *s, unsigned gpu, unsigned slot)
{
	const struct client_gpu *c = &s->clients[slot].gpus[gpu];
	uint64_t busy = atomic_load_explicit(&c->busy_ns, memory_order_relaxed);
	uint64_t queued = atomic_load(&c->queued_ns);

	return queued > busy ? queued - busy : 0;
}

/* The first client with its bit set, from that slot on; NO_CLIENT: none up to the end. */
static unsigned next_waiting(const struct engine *e, unsigned from)
{
	for (unsigned w = from / 64; w < MAX_CLIENTS / 64; w++) {
		uint64_t bits = atomic_load_explicit(&e->waiting[w], memory_order_relaxed);

		if (w == from / 64)
			bits &= ~0ull << from % 64;
		if (bits)
			return w * 64 + (unsigned)__builtin_ctzll(bits);
	}
	return NO_CLIENT;
}

#define EACH_WAITING(slot, e) \
	(unsigned slot = next_waiting(e, 0); slot != NO_CLIENT; slot = slot + 1 < MAX_CLIENTS ? next_waiting(e, slot + 1) : NO_CLIENT)

/* What a process that is gone had queued is dropped, from the last computed moment on. */
static void drop_dead(struct view *v, struct engine *e, uint64_t now)
{
	if (now - e->looked_for_dead < DEAD_CHECK_NS)
		return;
	e->looked_for_dead = now;
	for EACH_WAITING(slot, e) {
		if (!client_lives(v, slot))
			engine_sleep(e, slot);
	}
}

/* Clears the bits of those that have nothing queued and counts the others. */
static unsigned count_waiting(const struct state *s, unsigned gpu, struct engine *e)
{
	unsigned n = 0;

	for EACH_WAITING(slot, e) {
		if (!work_left(s, gpu, slot)) {
			engine_sleep(e, slot);
			if (!work_left(s, gpu, slot))
				continue;
			engine_wake(e, slot);
		}
		n++;
	}
	return n;
}

/* The client that has the turn. At least one has work. */
static unsigned turn_of(const struct state *s, unsigned gpu, struct engine *e)
{
	unsigned current = e->current ? e->current - 1 : NO_CLIENT;
	unsigned next;

	if (current != NO_CLIENT && e->slice_left && engine_waiting(e, current) && work_left(s, gpu, current))
		return current;
	next = e->current < MAX_CLIENTS ? next_waiting(e, e->current) : NO_CLIENT;
	e->slice_left = s->gpus[gpu].slice_ns;
	return next != NO_CLIENT ? next : next_waiting(e, 0);
}

/* Continues the last segment if there was nothing between. */
static void fill_segment(struct step *p, const struct client_gpu *mine, uint64_t v, uint64_t ns, uint64_t t, uint64_t span)
{
	const struct segment *last = &mine->segments[(mine->segment_count - 1) % SEGMENTS];
	bool goes_on = mine->segment_count && ns == span && last->t_end == t && last->v_end == v &&
		       last->t_end - last->t_begin == last->v_end - last->v_begin;

	p->segment_count = mine->segment_count + !goes_on;
	p->segment.v_begin = goes_on ? last->v_begin : v;
	p->segment.t_begin = goes_on ? last->t_begin : t;
	p->segment.v_end = v + ns;
	p->segment.t_end = t + span;
}

/* The client gets that much of the engine within that span from now on; then the clock is so much further. */
static void run(struct state *s, unsigned gpu, struct engine *e, unsigned slot, uint64_t ns, uint64_t span, uint64_t clock_moves)
{
	struct client *cl = &s->clients[slot];
	struct client_gpu *mine = &cl->gpus[gpu];
	struct step *p = &e->step;
	uint64_t slice = s->gpus[gpu].slice_ns;
	uint64_t v = atomic_load_explicit(&mine->busy_ns, memory_order_relaxed);

	busy_add(e->busy, e->clock, e->clock + span, ns);
	busy_add(mine->busy, e->clock, e->clock + span, ns);
	p->slot = slot;
	p->clock = e->clock + clock_moves;
	/* Without others, it may have had several turns. */
	p->slice_left = ns <= e->slice_left ? e->slice_left - ns : slice - (ns - e->slice_left) % slice;
	p->engine_busy = atomic_load_explicit(&e->busy_ns, memory_order_relaxed) + ns;
	p->client_busy = v + ns;
	p->group_busy = atomic_load_explicit(&s->groups[cl->group % MAX_GROUPS].gpus[gpu].busy_ns, memory_order_relaxed) + ns;
	fill_segment(p, mine, v, ns, e->clock, span);
	crash_point();
	atomic_store_explicit(&p->valid, 1, memory_order_release);
	make_step(s, gpu, e);
}

/* Many full rounds together, when no one looked for long: each of the n gets as many slices. False: not that many. */
static bool run_rounds(struct state *s, unsigned gpu, struct engine *e, unsigned n, uint64_t now)
{
	uint64_t slice = s->gpus[gpu].slice_ns;
	uint64_t rounds = (now - e->clock) / (n * slice);
	uint32_t current = e->current;
	uint64_t slice_left = e->slice_left;
	unsigned done = 0;

	for EACH_WAITING(slot, e) {
		uint64_t left = work_left(s, gpu, slot) / slice;

		if (left < rounds)
			rounds = left;
	}
	if (rounds * n < MANY_TURNS)
		return false;
	for EACH_WAITING(slot, e) {
		uint64_t span = rounds * n * slice;

		run(s, gpu, e, slot, rounds * slice, span, ++done == n ? span : 0);
	}
	e->current = current;
	e->slice_left = slice_left;
	return true;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

void engine_advance(struct view *v, unsigned gpu, struct engine *e)
{
	struct state *s = v->s;
	uint64_t now = now_ns();

	drop_dead(v, e, now);
	while (e->clock < now) {
		unsigned n = count_waiting(s, gpu, e);
		unsigned slot;
		uint64_t ns;

		if (!n) {
			e->clock = now;
			return;
		}
		if (n > 1 && run_rounds(s, gpu, e, n, now))
			continue;
		slot = turn_of(s, gpu, e);
		ns = least(work_left(s, gpu, slot), now - e->clock);
		if (n > 1)
			ns = least(ns, e->slice_left);
		run(s, gpu, e, slot, ns, ns, ns);
	}
}

/* How many turns the other one has before the client is done in its own k-th. */
static uint64_t turns_before(unsigned current, unsigned other, unsigned slot, uint64_t k)
{
	unsigned behind = (other + MAX_CLIENTS - current) % MAX_CLIENTS;
	unsigned self = (slot + MAX_CLIENTS - current) % MAX_CLIENTS;

	return behind < self || !self ? k : k - 1;
}

uint64_t engine_eta(struct state *s, unsigned gpu, const struct engine *e, unsigned slot, uint64_t v)
{
	uint64_t slice = s->gpus[gpu].slice_ns;
	uint64_t need = v - least(v, atomic_load_explicit(&s->clients[slot].gpus[gpu].busy_ns, memory_order_relaxed));
	unsigned current = e->current ? e->current - 1 : slot;
	uint64_t at_once = current == slot ? least(e->slice_left, need) : 0;
	uint64_t turns = (need - at_once + slice - 1) / slice;
	uint64_t eta = e->clock + need;

	if (current == slot && !turns)
		return eta;
	if (!turns) /* no work, only the turn */
		turns = 1;
	for EACH_WAITING(other, e) {
		uint64_t most = turns_before(current, other, slot, turns) * slice;

		if (other == slot)
			continue;
		if (other == current)
			most -= slice - least(e->slice_left, slice);
		eta += least(work_left(s, gpu, other), most);
	}
	return eta;
}

void engines_forget(struct view *v, unsigned slot)
{
	for (unsigned c = 0; c < v->s->gpu_count; c++) {
		if (engine_lock(v, c))
			continue;
		engine_sleep(&v->s->gpus[c].engine, slot);
		for (unsigned i = 0; i < MAX_INSTANCES; i++)
			engine_sleep(&v->s->gpus[c].instances[i].engine, slot);
		engine_unlock(v, c);
	}
}

void gpu_advance(struct view *v, unsigned gpu)
{
	struct gpu *c = &v->s->gpus[gpu];

	engine_advance(v, gpu, &c->engine);
	for (unsigned i = 0; i < MAX_INSTANCES; i++) {
		if (atomic_load(&c->instances[i].serial))
			engine_advance(v, gpu, &c->instances[i].engine);
	}
}
