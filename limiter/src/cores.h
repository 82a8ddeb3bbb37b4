/* How much compute time the container has of each GPU, as the host says now. */
#ifndef GPUSLICE_CORES_H
#define GPUSLICE_CORES_H

#include <stdatomic.h>
#include <stdint.h>

#include "layout.h"
#include "rate.h"

struct cores {
	_Atomic(const _Atomic uint64_t *) generation; /* in the limits file; NULL: not looked at yet */
	_Atomic uint64_t seen;                        /* the generation that the rest is of */
	_Atomic uint32_t limited;                     /* bit i: cell i */
	_Atomic uint32_t cells;                       /* how many there are */
	_Atomic uint32_t busy;                        /* somebody reads them again */
	_Atomic(struct vgpu_bucket *) buckets;        /* of the usage file; NULL: it is not mapped */
	_Atomic uint32_t rates[VGPU_MAX_DEVICES];
};
extern struct cores cores;

uint32_t cores_refresh(void);

/* Which cells are limited now, as bits: what an unlimited launch pays for. */
static inline uint32_t cores_limited(void)
{
	/* Acquire: the fields were filled before it was set. */
	const _Atomic uint64_t *generation = atomic_load_explicit(&cores.generation, memory_order_acquire);

	/* Acquire on the host's counter: what it counts was written before. */
	if (__builtin_expect(!generation || atomic_load_explicit(generation, memory_order_acquire) !=
	                                            atomic_load_explicit(&cores.seen, memory_order_relaxed), 0))
		return cores_refresh();
	/* Relaxed, as the rates: a number that stands for itself; one that a launch
	 * sees a moment late is followed by the next. */
	return atomic_load_explicit(&cores.limited, memory_order_relaxed);
}

static inline uint32_t cores_rate(int cell)
{
	return atomic_load_explicit(&cores.rates[cell], memory_order_relaxed);
}

#endif
