/*
 * Time on a GPU. Processes that have work queued take turns of one slice, round robin; a kernel that is longer than what
 * is left of the turn goes on in the next one. A process without work gives its turn up; a single process has the whole
 * GPU. Each change of the process takes time in which nothing runs. With MPS there are no turns: what processes have queued runs
 * together, and slower where it is more than fills the GPU. This file is part of all three programs.
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

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
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

static _Atomic uint64_t *busy_of_group(struct state *s, unsigned gpu, unsigned slot)
{
	return &s->groups[s->clients[slot].group % MAX_GROUPS].gpus[gpu].busy_ns;
}

/* A step of that client that changes nothing yet. */
static struct step *begin_step(struct state *s, unsigned gpu, struct engine *e, unsigned slot)
{
	const struct client_gpu *mine = &s->clients[slot].gpus[gpu];
	struct step *p = &e->step;

	p->slot = slot;
	p->clock = e->clock;
	p->slice_left = e->slice_left;
	p->engine_busy = atomic_load_explicit(&e->busy_ns, memory_order_relaxed);
	p->client_busy = atomic_load_explicit(&mine->busy_ns, memory_order_relaxed);
	p->group_busy = atomic_load_explicit(busy_of_group(s, gpu, slot), memory_order_relaxed);
	p->segment_count = mine->segment_count;
	p->segment = mine->segments[(mine->segment_count - 1) % SEGMENTS];
	return p;
}

static void end_step(struct state *s, unsigned gpu, struct engine *e)
{
	crash_point();
	atomic_store_explicit(&e->step.valid, 1, memory_order_release);
	make_step(s, gpu, e);
}

static uint64_t switch_to(const struct state *s, unsigned gpu, const struct engine *e, unsigned slot)
{
	return e->current && e->current - 1 != slot ? s->gpus[gpu].switch_ns : 0;
}

/* The client that has the turn. At least one has work. The clock may be beyond the present then: it begins its turn so late. */
static unsigned turn_of(struct state *s, unsigned gpu, struct engine *e)
{
	unsigned current = e->current ? e->current - 1 : NO_CLIENT;
	unsigned next;
	struct step *p;

	if (current != NO_CLIENT && e->slice_left && engine_waiting(e, current) && work_left(s, gpu, current))
		return current;
	next = e->current < MAX_CLIENTS ? next_waiting(e, e->current) : NO_CLIENT;
	if (next == NO_CLIENT)
		next = next_waiting(e, 0);
	p = begin_step(s, gpu, e, next);
	p->clock += switch_to(s, gpu, e, next);
	p->slice_left = s->gpus[gpu].slice_ns;
	end_step(s, gpu, e);
	return next;
}

/* At the speed of that segment, but for rounding. */
static bool as_fast(const struct segment *s, uint64_t ns, uint64_t span)
{
	double even = (double)span * (double)(s->v_end - s->v_begin) / (double)(s->t_end - s->t_begin);

	return (double)ns >= even - 1 && (double)ns <= even + 1;
}

/* Continues the last segment if there was nothing between. */
static void fill_segment(struct step *p, const struct client_gpu *mine, uint64_t v, uint64_t ns, uint64_t t, uint64_t span)
{
	const struct segment *last = &mine->segments[(mine->segment_count - 1) % SEGMENTS];
	bool goes_on = mine->segment_count && last->t_end == t && last->v_end == v && last->t_end > last->t_begin &&
		       as_fast(last, ns, span);

	p->segment_count = mine->segment_count + !goes_on;
	p->segment.v_begin = goes_on ? last->v_begin : v;
	p->segment.t_begin = goes_on ? last->t_begin : t;
	p->segment.v_end = v + ns;
	p->segment.t_end = t + span;
}

/* What a client gets of the engine. */
struct stretch_of_time {
	uint64_t ns;        /* of its kernel time, */
	uint64_t span;      /* within that time from the clock on */
	uint64_t engine_ns; /* in which kernels run that are not counted with another client */
	uint64_t moves;     /* the clock, afterwards */
};

static void run(struct state *s, unsigned gpu, struct engine *e, unsigned slot, struct stretch_of_time t)
{
	struct client_gpu *mine = &s->clients[slot].gpus[gpu];
	struct step *p = begin_step(s, gpu, e, slot);
	uint64_t slice = s->gpus[gpu].slice_ns;

	busy_add(e->busy, e->clock, e->clock + t.span, t.engine_ns);
	busy_add(mine->busy, e->clock, e->clock + t.span, t.ns);
	fill_segment(p, mine, p->client_busy, t.ns, e->clock, t.span);
	p->clock += t.moves;
	/* Without others, it may have had several turns. */
	p->slice_left = t.ns <= e->slice_left ? e->slice_left - t.ns : slice - (t.ns - e->slice_left) % slice;
	p->engine_busy += t.engine_ns;
	p->client_busy += t.ns;
	p->group_busy += t.ns;
	end_step(s, gpu, e);
}

/* Many full rounds together, when no one looked for long: each of the n gets as many slices. False: not that many. */
static bool run_rounds(struct state *s, unsigned gpu, struct engine *e, unsigned n, uint64_t now)
{
	uint64_t slice = s->gpus[gpu].slice_ns;
	uint64_t round = n * (slice + s->gpus[gpu].switch_ns);
	uint64_t rounds = (now - e->clock) / round;
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
		uint64_t ns = rounds * slice, span = rounds * round;

		run(s, gpu, e, slot, (struct stretch_of_time){ns, span, ns, ++done == n ? span : 0});
	}
	e->current = current;
	e->slice_left = slice_left;
	return true;
}

/* What all fill together that have work queued, and at least FULL_WIDTH: they are slower by what that is more. */
static uint64_t width_of_all(const struct state *s, unsigned gpu, const struct engine *e)
{
	uint64_t width = 0;

	for EACH_WAITING(slot, e)
		width += atomic_load_explicit(&s->clients[slot].gpus[gpu].width, memory_order_relaxed);
	return width > FULL_WIDTH ? width : FULL_WIDTH;
}

/* Until then, or until the first of the n is done. */
static void run_together(struct state *s, unsigned gpu, struct engine *e, unsigned n, uint64_t now)
{
	uint64_t width = width_of_all(s, gpu, e);
	uint64_t span = now - e->clock;
	unsigned done = 0;

	for EACH_WAITING(slot, e)
		span = least(span, (least(work_left(s, gpu, slot), span) * width + FULL_WIDTH - 1) / FULL_WIDTH);
	for EACH_WAITING(slot, e) {
		uint64_t ns = least(work_left(s, gpu, slot), span * FULL_WIDTH / width);
		bool last = ++done == n;

		run(s, gpu, e, slot, (struct stretch_of_time){ns, span, last ? span : 0, last ? span : 0});
	}
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
		if (s->gpus[gpu].mps) {
			run_together(s, gpu, e, n, now);
			continue;
		}
		if (n > 1 && run_rounds(s, gpu, e, n, now))
			continue;
		slot = turn_of(s, gpu, e);
		if (e->clock >= now)
			return;
		ns = least(work_left(s, gpu, slot), now - e->clock);
		if (n > 1)
			ns = least(ns, e->slice_left);
		run(s, gpu, e, slot, (struct stretch_of_time){ns, ns, ns, ns});
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
	uint64_t switches = 0;

	if (s->gpus[gpu].mps)
		return e->clock + (uint64_t)((double)need * (double)width_of_all(s, gpu, e) / FULL_WIDTH);
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
		most = least(work_left(s, gpu, other), most);
		eta += most;
		switches += (most + slice - 1) / slice - (other == current && most && e->slice_left);
	}
	if (switches)
		switches += turns;
	else
		switches = current != slot;
	return eta + switches * s->gpus[gpu].switch_ns;
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
