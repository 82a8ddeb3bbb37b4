#include "cost.h"

#include <stddef.h>
#include <sys/mman.h>

#include "bucket.h"

_Atomic(struct cost *) cost_table;

static struct cost *make_table(void)
{
	struct cost *none = NULL, *made = mmap(NULL, COST_PLACES * sizeof(*made), PROT_READ | PROT_WRITE,
	                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (made == MAP_FAILED)
		return NULL;
	/* Release: fresh zeroes are there before the pointer. */
	if (atomic_compare_exchange_strong_explicit(&cost_table, &none, made, memory_order_acq_rel, memory_order_acquire))
		return made;
	munmap(made, COST_PLACES * sizeof(*made));
	return none;
}

/* A free entry among those of the key; if there is none, one of them is replaced. */
static struct cost *claim(struct cost *all, uint64_t key)
{
	struct cost *victim = &all[((key >> 40) + (key >> 8) % COST_PROBES) % COST_PLACES];

	for (uint64_t i = 0; i < COST_PROBES; i++) {
		struct cost *c = &all[((key >> 40) + i) % COST_PLACES];
		uint64_t empty = 0;

		if (atomic_compare_exchange_strong_explicit(&c->key, &empty, key, memory_order_relaxed, memory_order_relaxed) ||
		    empty == key)
			return c;
	}
	atomic_store_explicit(&victim->ns, 0, memory_order_relaxed);
	atomic_store_explicit(&victim->due, 0, memory_order_relaxed);
	atomic_store_explicit(&victim->lowest, 0, memory_order_relaxed);
	atomic_store_explicit(&victim->before, 0, memory_order_relaxed);
	atomic_store_explicit(&victim->charged, 0, memory_order_relaxed);
	atomic_store_explicit(&victim->launches, 0, memory_order_relaxed);
	atomic_store_explicit(&victim->samples, 0, memory_order_relaxed);
	atomic_store_explicit(&victim->key, key, memory_order_relaxed);
	return victim;
}

struct cost *cost_claim(uint64_t key)
{
	struct cost *all = atomic_load_explicit(&cost_table, memory_order_acquire);

	if (!all)
		all = make_table();
	return all ? claim(all, key) : NULL;
}

enum {
	WINDOW = 8,
	TYPICAL_FIRST_NS = 10000,
	TYPICAL_MOST_NS = 1000000,
	AGAIN_SOON_NS = 2000000, /* while it is new, then */
	AGAIN_NS = 20000000,
};

static _Atomic uint64_t typical;

static void learn_typical(uint64_t ns)
{
	uint64_t old = atomic_load_explicit(&typical, memory_order_relaxed);

	ns = ns < TYPICAL_MOST_NS ? ns : TYPICAL_MOST_NS;
	atomic_store_explicit(&typical, old ? old - old / 8 + ns / 8 : ns, memory_order_relaxed);
}

uint64_t cost_typical(void)
{
	uint64_t ns = atomic_load_explicit(&typical, memory_order_relaxed);

	return ns ? ns : TYPICAL_FIRST_NS;
}

static uint64_t lower(uint64_t a, uint64_t b)
{
	return a && (!b || a < b) ? a : b;
}

/* The estimate is the least of the last 8 to 16 samples. Time between two events is wall time: it
 * contains the work of other tenants and streams, and the launch's own way to the GPU; the least
 * sample contains the least of these. It is too low for a kernel with a duration that depends on
 * its data: the host's correction compensates for that. */
int64_t cost_learn(struct cost *c, uint64_t ns, uint64_t now)
{
	uint32_t samples = atomic_fetch_add_explicit(&c->samples, 1, memory_order_relaxed) + 1;
	uint64_t lowest, before, estimate;

	ns = ns < 1 ? 1 : ns < BUCKET_MOST ? ns : BUCKET_MOST;
	lowest = lower(ns, atomic_load_explicit(&c->lowest, memory_order_relaxed));
	before = atomic_load_explicit(&c->before, memory_order_relaxed);
	estimate = lower(before, lowest);
	atomic_store_explicit(&c->lowest, samples % WINDOW ? lowest : 0, memory_order_relaxed);
	if (samples % WINDOW == 0)
		atomic_store_explicit(&c->before, lowest, memory_order_relaxed);
	atomic_store_explicit(&c->ns, samples < WINDOW ? estimate | COST_NEW : estimate, memory_order_relaxed);
	atomic_store_explicit(&c->due, now + (samples < 2 * WINDOW ? AGAIN_SOON_NS : AGAIN_NS), memory_order_relaxed);
	learn_typical(ns);
	if (samples > WINDOW)
		return 0;
	uint64_t right = atomic_load_explicit(&c->launches, memory_order_relaxed) * estimate;
	return (int64_t)(right - atomic_exchange_explicit(&c->charged, right, memory_order_relaxed));
}

void cost_note(struct cost *c, uint64_t charged)
{
	atomic_fetch_add_explicit(&c->charged, charged, memory_order_relaxed);
	atomic_fetch_add_explicit(&c->launches, 1, memory_order_relaxed);
}
