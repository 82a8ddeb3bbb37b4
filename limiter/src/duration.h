/* How long functions and graphs take on the GPU, as this process has seen it, in nanoseconds. */
#ifndef GPUSLICE_DURATION_H
#define GPUSLICE_DURATION_H

#include <stdatomic.h>
#include <stdint.h>

enum { DURATION_PLACES = 4096 };

/* All fields are relaxed atomics: no field depends on another, and two threads that write one entry
 * at once cause at worst a poor estimate until the next look. */
struct duration {
	_Atomic uint64_t key; /* 0: empty */
	_Atomic uint64_t ns;  /* a mean; 0: not known yet */
};
extern struct duration *durations; /* DURATION_PLACES, by turn_start() */

/* Never 0. volume, the number of threads, is rounded to an eighth, so that sizes that change from
 * launch to launch are few keys. */
static inline uint64_t duration_key(const void *what, uint64_t volume, int cell)
{
	/* The four highest bits of the volume and where they are: ten bits, above a
	 * pointer's. */
	unsigned above = volume >> 3 ? 60 - (unsigned)__builtin_clzll(volume) : 0;
	uint64_t key = (uint64_t)(uintptr_t)what ^ (volume >> above | above << 4) << 48 ^ (uint64_t)cell << 58;

	return key * 0x9e3779b97f4a7c15u | 1; /* odd: different ones stay different, and mix upwards */
}

static inline struct duration *duration_place(uint64_t key)
{
	return &durations[key >> 52];
}

/* 0: not known. */
static inline uint64_t duration_of(uint64_t key)
{
	const struct duration *d = duration_place(key);

	return __builtin_expect(atomic_load_explicit(&d->key, memory_order_relaxed) == key, 1)
	               ? atomic_load_explicit(&d->ns, memory_order_relaxed) : 0;
}

/* One took so long: between two bounds, because an event is only looked at from time to time. */
void duration_learn(uint64_t key, uint64_t least, uint64_t most);

#endif
