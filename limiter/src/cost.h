/* What launches cost: how long the GPU takes for a function and a size, or for a
 * graph, as far as this process has found out. */
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
	_Atomic uint64_t charged;  /* for the launches while it was new */
	_Atomic uint32_t launches; /* these */
	_Atomic uint32_t samples;
};

/* The estimate is still likely to fall: what is charged is written down, and
 * corrected with each sample. */
#define COST_NEW ((uint64_t)1 << 63)

enum { COST_PLACES = 4096, COST_PROBES = 4 };

/* Made by the first limited launch, never freed; NULL before that. All of it is
 * relaxed atomics: each number stands for itself, and what two threads make of one
 * entry at once is at worst a poor estimate until the next sample. */
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

/* NULL: no memory for the table. The entry may become another key's at any time:
 * a wrong estimate is all that comes of it. */
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

/* Whether the launch needs more than its estimate: it is unknown, or new. */
static inline int cost_unsure(uint64_t ns)
{
	return (int64_t)(ns - 1) < 0;
}

/* A launch was charged while its cost was unsure. */
void cost_note(struct cost *cost, uint64_t charged);
/* A measured duration. Returns by how much what was charged for the launches while it
 * was new is too little, or, below 0, too much. */
int64_t cost_learn(struct cost *cost, uint64_t ns, uint64_t now);
/* What a launch of unknown cost is charged. */
uint64_t cost_typical(void);

#endif
