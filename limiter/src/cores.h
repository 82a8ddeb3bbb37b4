/* The compute share of each GPU that the limits file contains now. */
#ifndef GPUSLICE_CORES_H
#define GPUSLICE_CORES_H

#include <stdatomic.h>
#include <stdint.h>

#include "layout.h"
#include "rate.h"

struct cores {
	_Atomic(const _Atomic uint64_t *) generation; /* in the limits file; NULL: not read yet */
	_Atomic uint64_t seen;                        /* the generation of the fields below */
	_Atomic uint32_t limited;                     /* bit i: cell i is limited */
	_Atomic uint32_t cells;                       /* number of cells */
	_Atomic uint32_t busy;                        /* 1: a thread reads the rates again */
	_Atomic(struct vgpu_bucket *) buckets;        /* of the usage file; NULL: it is not mapped */
	_Atomic uint32_t rates[VGPU_MAX_DEVICES];
};
extern struct cores cores;

uint32_t cores_refresh(void);

/* The cells that are limited now, as bits. An unlimited launch does only this. */
static inline uint32_t cores_limited(void)
{
	/* Acquire: the fields were filled before it was set. */
	const _Atomic uint64_t *generation = atomic_load_explicit(&cores.generation, memory_order_acquire);

	/* Acquire on the host's counter: the host writes the records before it. */
	if (__builtin_expect(!generation || atomic_load_explicit(generation, memory_order_acquire) !=
	                                            atomic_load_explicit(&cores.seen, memory_order_relaxed), 0))
		return cores_refresh();
	/* Relaxed, as the rates: no other data depends on it; if a launch sees a change late,
	 * the next launch sees it. */
	return atomic_load_explicit(&cores.limited, memory_order_relaxed);
}

static inline uint32_t cores_rate(int cell)
{
	return atomic_load_explicit(&cores.rates[cell], memory_order_relaxed);
}

#endif
