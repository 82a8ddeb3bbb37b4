/* The lag of a container is the time that it should have had and did not have. It grows with the
 * container's part of the time in which it wanted the GPU, and shrinks by the time in which it had
 * work there. So it needs no price of a kernel.
 *
 * A kernel that nothing ends takes time from the others whatever turns there are. With it in their lags all of these would be the
 * greatest at last, and each container would launch at any time. So it is a credit: it counts among the turns, until the
 * container with that kernel has paid it back.
 *
 * The container with the greatest lag for its weight takes the turn, and keeps it until it is QUANTUM
 * behind the best other one. One with more lag than BOUND, or BOUND_BY_WEIGHT for its weight, launches in
 * any case: whatever the others write, it gets its share.
 *
 * All atomics are relaxed: the words are independent, and processes of one container that step at the
 * same time lose a moment at worst. */
#include "lag.h"

#include "least.h"

static const int64_t QUANTUM_NS = 20000000, BOUND_NS = 40000000, BOUND_BY_WEIGHT_NS = 150000000;
/* One with so much credit is due no more: it does not use it. */
static const int64_t ENOUGH_NS = 70000000;
/* One with so much debt, and with work all the time, has a kernel that nothing ends. */
static const int64_t HELD_NS = 200000000;
enum { HOLDERS = 2 }; /* processes with one that count, of all other containers together: more of them can be forged */
/* Time that no container used is due to all of them. Without this their lags would all pass the bound in the end. */
static const uint64_t FORGET_NS = 2000000000;
static const uint64_t TAKEN_NS = 3000000, PATIENCE_NS = 90000000, RECENT_NS = 50000000;
enum { OF_GAPS = 4 };
static const double LOW_WEIGHT = 0.01;

static uint64_t get(const _Atomic uint64_t *word)
{
	return atomic_load_explicit(word, memory_order_relaxed);
}

static int64_t get_signed(const _Atomic int64_t *word)
{
	return atomic_load_explicit(word, memory_order_relaxed);
}

static void set(_Atomic uint64_t *word, uint64_t value)
{
	atomic_store_explicit(word, value, memory_order_relaxed);
}

/* One that is ahead waits a little for those that pause between two launches. */
static bool wants(const struct vgpu_turn *turn, const struct view *v, const struct peer *p)
{
	int64_t lag = get_signed(&turn->words.lag);
	uint64_t patience = lag < 0 ? least((uint64_t)-(lag / 4), PATIENCE_NS) : 0;

	return p->want_until + patience > v->now;
}

void lag_weigh(const struct vgpu_turn *turn, struct view *v)
{
	bool high = !v->low;

	for (int i = 0; i < v->count && !high; i++)
		high = !v->peers[i].low && wants(turn, v, &v->peers[i]);
	if (!high)
		return;
	if (v->low)
		v->weight = LOW_WEIGHT;
	for (int i = 0; i < v->count; i++)
		if (v->peers[i].low)
			v->peers[i].weight = LOW_WEIGHT;
}

/* The time in which one of the container's processes had work. Of the others only the end is known. */
static uint64_t covered_by(const struct vgpu_turn *turn, const struct view *v, uint64_t before, const struct span *s, int process)
{
	uint64_t own = 0, others = 0, from = most(s->from, before);

	if (s->to > from)
		own = least(s->ns, s->to - from);
	for (int i = 0; i < VGPU_TURN_PROCESSES; i++) {
		uint64_t until = get(&turn->work_until[i]);

		if (i == process || until <= before || until > v->now + LAG_HORIZON_NS)
			continue;
		others = most(others, least(until, v->now) - before);
	}
	/* It began after the others, or before them. */
	if (from > before)
		own += least(others, from - before);
	return most(own, others);
}

/* What the peer has worked since this account last looked. */
static uint64_t worked(struct vgpu_turn *turn, int index, const struct peer *p)
{
	int at = index;

	for (int i = 0; i < VGPU_TURN_PEERS; i++)
		if (get(&turn->seen[i].id) == p->id) {
			at = i;
			break;
		}
	if (get(&turn->seen[at].id) != p->id) {
		set(&turn->seen[at].id, p->id);
		set(&turn->seen[at].busy, p->busy);
		return 0;
	}
	uint64_t before = get(&turn->seen[at].busy), more = p->busy - before;
	if (more == 0)
		return 0;
	/* A sum that is a little lower was extrapolated too far before. */
	if (more < LAG_HORIZON_NS || -more > LAG_HORIZON_NS)
		set(&turn->seen[at].busy, p->busy);
	return more < LAG_HORIZON_NS ? more : 0;
}

static int64_t bounded(int64_t ns, int64_t most)
{
	return ns > most ? most : ns < LAG_LEAST_NS ? LAG_LEAST_NS : ns;
}

/* A container that does not want the GPU any more, and is still due its part. */
static bool is_due(const struct view *v, const struct peer *p)
{
	return p->lag < ENOUGH_NS && p->want_until + LAG_ABSENT_NS > v->now;
}

static bool holds(const struct peer *p, uint64_t more, uint64_t passed)
{
	return p->lag < -HELD_NS && more >= passed - passed / 8;
}

/* What kernels of others took of what was due is a credit, which ends with a debt. */
static int64_t settle(struct vgpu_turn *turn, double weight, int64_t lag, int64_t taken)
{
	int64_t most = (int64_t)(weight * (double)-LAG_LEAST_NS), credit = bounded(get_signed(&turn->words.credit), most);

	credit = (credit < 0 ? 0 : credit) + taken;
	credit = credit > most ? most : credit;
	int64_t paid = lag < 0 ? (int64_t)least((uint64_t)credit, (uint64_t)-lag) : 0;
	atomic_store_explicit(&turn->words.credit, credit - paid, memory_order_relaxed);
	return lag + paid;
}

/* When it last was accounted, which is now from here on. It never goes back: a process that was stopped between
 * its look and here would let the next one account for a time again. */
static uint64_t advance(_Atomic uint64_t *looked, uint64_t now)
{
	uint64_t before = get(looked);

	while ((before < now || before - now > LAG_HORIZON_NS) &&
	       !atomic_compare_exchange_weak_explicit(looked, &before, now, memory_order_relaxed, memory_order_relaxed))
		;
	return before;
}

/* Of what others had work meanwhile. A container with gaps in its turn has most of the charge, the one that uses them the rest:
 * it may have less of the GPU than half. */
static int64_t charge_of(uint64_t covered, double overlap, const struct span *span)
{
	if (span->fills)
		return (int64_t)(covered / OF_GAPS);
	if (span->filled)
		return (int64_t)((double)covered * (1 - (overlap < 1 ? overlap : 1) / OF_GAPS));
	return (int64_t)((double)covered / (1 + overlap));
}

uint64_t lag_step(struct vgpu_turn *turn, const struct view *v, const struct span *span, int process)
{
	uint64_t before = advance(&turn->words.looked, v->now);
	double overlap = 0, others = 0, held = 0, work = 0, weights = v->weight, holders = 0, processes = (double)least(get(&turn->words.processes), LAG_PROCESSES);
	int64_t lag, cap;

	if (!before) /* new, and so it may use at once what an idle container has saved */
		atomic_store_explicit(&turn->words.cap, (int64_t)(v->ceiling * LAG_CREDIT_NS), memory_order_relaxed);
	if (!before || before >= v->now)
		return 0;
	if (v->now - before > LAG_HORIZON_NS)
		before = v->now - LAG_HORIZON_NS;
	uint64_t passed = v->now - before;
	uint64_t covered = least(covered_by(turn, v, before, span, process), passed);
	for (int i = 0; i < v->count; i++) {
		uint64_t more = worked(turn, i, &v->peers[i]);

		others += (double)more / (double)passed;
		if (covered)
			overlap += (double)least(more, covered) / (double)covered * v->peers[i].processes / (processes > 1 ? processes : 1);
		bool holder = holds(&v->peers[i], more, passed);
		*(holder ? &held : &work) += (double)least(more, passed) * (holder ? (double)least(v->peers[i].processes, HOLDERS) : v->peers[i].processes);
		if (wants(turn, v, &v->peers[i]) || is_due(v, &v->peers[i]))
			*(holder ? &holders : &weights) += v->peers[i].weight;
	}
	held = held < HOLDERS * (double)passed ? held : HOLDERS * (double)passed;
	work += (double)covered * (processes > 1 ? processes : 1);
	work = work > (double)passed ? work : (double)passed;
	uint64_t wanted = get(&turn->words.want_until) + LAG_ABSENT_NS;
	wanted = wanted > before ? least(wanted - before, passed) : 0;
	int64_t charge = charge_of(covered, overlap, span), all = (int64_t)((double)wanted * v->weight / (weights + holders));
	int64_t due = held > 0 ? (int64_t)((double)wanted * v->weight / weights * work / (held + work)) : all;
	lag = bounded(get_signed(&turn->words.lag), LAG_MOST_NS);
	if (lag > 0)
		lag -= (int64_t)((double)lag * (double)least(passed, FORGET_NS) / (double)FORGET_NS);
	int64_t pauses = others < 1 ? (int64_t)((double)least(span->pauses, passed - covered) * (1 - others)) : 0;
	if (weights + holders > v->weight) {
		lag = settle(turn, v->weight, bounded(lag + due - charge - pauses, LAG_MOST_NS), all > due ? all - due : 0);
	} else { /* no other container wants it: debts and credits end */
		atomic_store_explicit(&turn->words.credit, 0, memory_order_relaxed);
		lag = lag < 0 ? bounded(lag + (int64_t)passed, 0) : lag > (int64_t)passed ? lag - (int64_t)passed : 0;
	}
	cap = bounded(get_signed(&turn->words.cap), LAG_MOST_NS);
	if (v->ceiling > 0)
		cap = bounded(cap + (int64_t)((double)passed * v->ceiling) - charge, (int64_t)(v->ceiling * LAG_CREDIT_NS));
	else /* a ceiling that comes begins with its credit */
		cap = LAG_MOST_NS;
	atomic_store_explicit(&turn->words.lag, lag, memory_order_relaxed);
	atomic_store_explicit(&turn->words.cap, cap, memory_order_relaxed);
	atomic_fetch_add_explicit(&turn->words.busy, covered, memory_order_relaxed);
	return (uint64_t)charge;
}

bool lag_contended(const struct vgpu_turn *turn, const struct view *v)
{
	bool some = v->ceiling > 0;

	for (int i = 0; i < v->count && !some; i++)
		some = wants(turn, v, &v->peers[i]) || v->peers[i].want_until + RECENT_NS > v->now;
	return some;
}

static int64_t lesser(const _Atomic int64_t *a, const _Atomic int64_t *b)
{
	int64_t x = get_signed(a), y = get_signed(b);

	return x < y ? x : y;
}

static int64_t least_cap(const struct view *v)
{
	return v->rests ? (int64_t)(v->ceiling * LAG_CREDIT_NS) / 2 : 0;
}

bool lag_capped(const struct vgpu_turn *turn, const struct vgpu_turn *own, const struct view *v)
{
	return v->ceiling > 0 && lesser(&turn->words.cap, &own->words.cap) <= least_cap(v);
}

/* What counts among the turns, for its weight. */
static double standing(const struct vgpu_turn *turn, const struct vgpu_turn *own, const struct view *v)
{
	double a = (double)get_signed(&turn->words.lag) + (double)get_signed(&turn->words.credit);
	double b = (double)get_signed(&own->words.lag) + (double)get_signed(&own->words.credit);

	return (a < b ? a : b) / v->weight;
}

static double standing_of(const struct peer *p)
{
	return (double)(p->lag + p->credit) / p->weight;
}

/* The greatest lag for its weight among those that want the GPU, and whether one of them has the turn. False: none wants it. */
static bool others(const struct vgpu_turn *turn, const struct view *v, double *best, bool *held)
{
	bool any = false;

	*held = false;
	for (int i = 0; i < v->count; i++) {
		const struct peer *p = &v->peers[i];

		if (!wants(turn, v, p))
			continue;
		double other = standing_of(p);
		*best = !any || other > *best ? other : *best;
		any = true;
		*held |= p->hold_until > v->now;
	}
	return any;
}

uint64_t lag_rest(const struct vgpu_turn *turn, const struct vgpu_turn *own, const struct view *v)
{
	double best = 0, rest = v->ceiling > 0 ? (double)lesser(&turn->words.cap, &own->words.cap) : (double)LAG_MOST_NS;
	bool held;

	if (!others(turn, v, &best, &held)) { /* one may come back soon */
		rest = v->ceiling > 0 ? rest : 0;
	} else {
		/* The others' lag grows meanwhile too: in all the distance changes by 1/weight. */
		double until = (standing(turn, own, v) - best + (double)QUANTUM_NS) * v->weight;
		rest = until < rest ? until : rest;
	}
	return rest > 0 ? (uint64_t)rest : 0;
}

/* Two that looked at the same moment have both taken the turn: the one with the greater ID gives it back. */
static bool yields(const struct vgpu_turn *turn, const struct view *v)
{
	bool some = false;

	for (int i = 0; i < v->count && v->now - v->taken < TAKEN_NS && !some; i++)
		some = v->peers[i].hold_until > v->now && v->peers[i].id < turn->words.id && wants(turn, v, &v->peers[i]);
	return some;
}

bool lag_may_go(struct vgpu_turn *turn, const struct vgpu_turn *own, const struct view *v)
{
	int64_t lag = lesser(&turn->words.lag, &own->words.lag);
	double mine = standing(turn, own, v), best = 0;
	bool held;

	if (lag_capped(turn, own, v))
		return false;
	if (!others(turn, v, &best, &held) || lag > BOUND_NS || (double)lag / v->weight > (double)BOUND_BY_WEIGHT_NS)
		return true;
	if (get(&turn->words.hold_until) <= v->now)
		return !held && mine >= best;
	if (mine > best - (double)QUANTUM_NS && !yields(turn, v))
		return true;
	set(&turn->words.hold_until, 0);
	return false;
}

bool lag_may_fill(const struct vgpu_turn *turn, const struct vgpu_turn *own, const struct view *v)
{
	double mine = standing(turn, own, v);
	bool gaps = false;

	if (v->low || v->ceiling > 0)
		return false;
	for (int i = 0; i < v->count; i++) {
		const struct peer *p = &v->peers[i];

		if (p->hold_until > v->now && !p->gaps)
			return false;
		if (p->hold_until <= v->now && p->want_until > v->now && standing_of(p) > mine)
			return false;
		gaps |= p->gaps;
	}
	return gaps;
}

uint64_t lag_refused_for(const struct vgpu_turn *turn, const struct vgpu_turn *own, const struct view *v)
{
	double mine = standing(turn, own, v), left = 0;

	if (lag_capped(turn, own, v))
		return (uint64_t)((double)(least_cap(v) - lesser(&turn->words.cap, &own->words.cap)) / v->ceiling);
	for (int i = 0; i < v->count; i++) {
		const struct peer *p = &v->peers[i];

		if (p->want_until <= v->now)
			continue;
		double one = (double)(p->want_until - v->now), turns = (standing_of(p) - mine + (double)QUANTUM_NS) * p->weight;

		if (p->hold_until > v->now) {
			one = turns < one ? turns : one;
			one = (double)(p->hold_until - v->now) < one ? (double)(p->hold_until - v->now) : one;
		}
		left = one > left ? one : left;
	}
	return left > 0 ? (uint64_t)left : 0;
}
