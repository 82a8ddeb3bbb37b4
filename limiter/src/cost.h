/* What launches cost: the time that the GPU takes for a function and a size, or for a graph, as
 * this process has measured it. Durations are in nanoseconds. */
#ifndef GPUSLICE_COST_H
#define GPUSLICE_COST_H

#include <stdatomic.h>
#include <stdint.h>

struct cost {
	_Atomic uint64_t key;      /* 0: empty */
	_Atomic uint64_t ns;       /* the estimate; 0: not known yet; COST_NEW may be set */
	_Atomic uint64_t due;      /* when to measure it again */
	_Atomic uint64_t lowest;   /* of the samples of this window; 0: none */
	_Atomic uint64_t before;   /* of the window before */
	_Atomic uint64_t charged;  /* sum of the charges while it was new */
	_Atomic uint32_t launches; /* number of those charges */
	_Atomic uint32_t samples;
};

/* The estimate is still likely to fall: what is charged is recorded, and corrected with each
 * sample. */
#define COST_NEW ((uint64_t)1 << 63)

enum { COST_PLACES = 4096, COST_PROBES = 4 };

/* Made by the first limited launch, never freed; NULL before that. All its fields are relaxed
 * atomics: no field depends on another, and two threads that write one entry at once cause at
 * worst a poor estimate until the next sample. */
extern _Atomic(struct cost *) cost_table;
struct cost *cost_claim(uint64_t key);

/* Never 0. volume is rounded to an eighth, so that sizes that change from launch
 * to launch are few keys. */
static inline uint64_t cost_key(const void *what, uint64_t volume, int cell)
{
	/* The four highest bits of the volume and where they are: ten bits, above a
	 * pointer's. */
	unsigned above = volume >> 3 ? 60 - (unsigned)__builtin_clzll(volume) : 0;
	uint64_t key = (uint64_t)(uintptr_t)what ^ (volume >> above | above << 4) << 48 ^ (uint64_t)cell << 58;

	return key * 0x9e3779b97f4a7c15u | 1; /* odd: different ones stay different, and mix upwards */
}

/* NULL: there is no memory for the table. The entry may become another key's at any time; the only
 * effect is a wrong estimate. */
static inline struct cost *cost_find(uint64_t key)
{
	/* Acquire: fresh zeroes are there before the pointer. */
	struct cost *all = atomic_load_explicit(&cost_table, memory_order_acquire);

	for (uint64_t i = 0; all && i < COST_PROBES; i++) {
		struct cost *c = &all[((key >> 40) + i) % COST_PLACES];

		if (__builtin_expect(atomic_load_explicit(&c->key, memory_order_relaxed) == key, 1))
			return c;
	}
	return cost_claim(key);
}

/* Whether the estimate is unknown (0) or has COST_NEW. */
static inline int cost_unsure(uint64_t ns)
{
	return (int64_t)(ns - 1) < 0;
}

/* Records the charge of a launch with an unsure cost. */
void cost_note(struct cost *cost, uint64_t charged);
/* Adds a measured duration ns at the time now. Returns the correction of what was charged while
 * the entry was new: positive, too little was charged; negative, too much. */
int64_t cost_learn(struct cost *cost, uint64_t ns, uint64_t now);
/* The nanoseconds that a launch of unknown cost is charged. */
uint64_t cost_typical(void);

#endif
