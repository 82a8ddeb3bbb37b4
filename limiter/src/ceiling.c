/* All atomics are relaxed, as in lag.c. */
#include "ceiling.h"

#include "least.h"

static uint64_t get(const _Atomic uint64_t *word)
{
	return atomic_load_explicit(word, memory_order_relaxed);
}

static _Atomic uint64_t *place_of(struct vgpu_compute *c, int process)
{
	return &c->work_until[process % VGPU_CEILING_PROCESSES];
}

void ceiling_show(struct vgpu_compute *c, struct ceiling_own *own, int process, uint64_t until)
{
	_Atomic uint64_t *place = place_of(c, process);
	uint64_t shown = get(place);

	/* Of several at one place the latest counts. */
	if (shown == own->until || until > shown || shown > until + LAG_HORIZON_NS)
		atomic_store_explicit(place, until, memory_order_relaxed);
	own->until = until;
}

/* The time in which one of the processes had work. Of the others only the end is known. */
static uint64_t covered_by(struct vgpu_compute *c, const struct ceiling_own *own, int process, const struct span *s, uint64_t before,
                           uint64_t now)
{
	uint64_t mine = 0, others = 0, from = most(s->from, before);

	if (s->to > from)
		mine = least(s->ns, s->to - from);
	for (int i = 0; i < VGPU_CEILING_PROCESSES; i++) {
		uint64_t until = get(&c->work_until[i]);

		if (until <= before || until > now + LAG_HORIZON_NS || (&c->work_until[i] == place_of(c, process) && until == own->until))
			continue;
		others = most(others, least(until, now) - before);
	}
	/* It began after the others, or before them. */
	if (from > before)
		mine += least(others, from - before);
	return least(most(mine, others), now - before);
}

static uint64_t advance(_Atomic uint64_t *looked, uint64_t now)
{
	uint64_t before = get(looked);

	while ((before < now || before - now > LAG_HORIZON_NS) &&
	       !atomic_compare_exchange_weak_explicit(looked, &before, now, memory_order_relaxed, memory_order_relaxed))
		;
	return before;
}

static int64_t bounded(int64_t ns, int64_t most)
{
	return ns > most ? most : ns < LAG_LEAST_NS ? LAG_LEAST_NS : ns;
}

int64_t ceiling_step(struct vgpu_compute *c, const struct ceiling_own *own, int process, double part, const struct span *span, uint64_t now)
{
	int64_t cap, next, most = (int64_t)(part * LAG_CREDIT_NS);
	uint64_t before = advance(&c->looked, now);

	if (!before) { /* new: what an idle container has saved */
		atomic_store_explicit(&c->cap, most, memory_order_relaxed);
		return most;
	}
	cap = atomic_load_explicit(&c->cap, memory_order_relaxed);
	if (before >= now)
		return bounded(cap, most);
	/* All of the time pays back what ended processes owe. Work counts up to the horizon. */
	int64_t change = (int64_t)((double)(now - before) * part);
	before = now - least(now - before, LAG_HORIZON_NS);
	change -= (int64_t)covered_by(c, own, process, span, before, now);
	do
		next = bounded(bounded(cap, most) + change, most);
	while (!atomic_compare_exchange_weak_explicit(&c->cap, &cap, next, memory_order_relaxed, memory_order_relaxed));
	return next;
}
