/* The compute share of each GPU that the limits file contains now. */
#ifndef GPUSLICE_CORES_H
#define GPUSLICE_CORES_H

#include <stdatomic.h>
#include <stdint.h>

#include "layout.h"

struct cores {
	_Atomic(const _Atomic uint64_t *) generation; /* in the limits file; NULL: not read yet */
	_Atomic uint64_t seen;                        /* the generation of the fields below */
	_Atomic uint32_t limited;                     /* bit i: launches on cell i take turns, or are shown to others */
	_Atomic uint32_t cells;                       /* number of cells */
	_Atomic uint32_t busy;                        /* 1: a thread reads the shares again */
	_Atomic(struct vgpu_compute *) compute;       /* of the usage file; NULL: it is not mapped */
	_Atomic uint32_t next;                        /* cell to check */
	struct {
		_Atomic(const _Atomic uint32_t *) now; /* in the table; NULL: there is none */
		_Atomic uint32_t seen;
	} sequences[VGPU_MAX_DEVICES];
};
extern struct cores cores;

uint32_t cores_refresh(void);

/* The cells of which launches take part now, as bits. Other launches do only this. */
static inline uint32_t cores_limited(void)
{
	/* Acquire: the fields were filled before it was set. */
	const _Atomic uint64_t *generation = atomic_load_explicit(&cores.generation, memory_order_acquire);

	/* Acquire on the host's counter: the host writes the records before it. */
	if (__builtin_expect(!generation || atomic_load_explicit(generation, memory_order_acquire) !=
	                                            atomic_load_explicit(&cores.seen, memory_order_relaxed), 0))
		return cores_refresh();
	/* Relaxed: no other data depends on it; if a launch sees a change late, the next launch sees
	 * it. With several GPUs each launch checks one table. */
	uint32_t at = 0, cells = atomic_load_explicit(&cores.cells, memory_order_relaxed);
	if (__builtin_expect(cells > 1, 0)) {
		at = atomic_load_explicit(&cores.next, memory_order_relaxed);
		atomic_store_explicit(&cores.next, at + 1 < cells ? at + 1 : 0, memory_order_relaxed);
	}
	const _Atomic uint32_t *sequence = atomic_load_explicit(&cores.sequences[at].now, memory_order_relaxed);
	if (__builtin_expect(sequence && atomic_load_explicit(sequence, memory_order_relaxed) !=
	                                         atomic_load_explicit(&cores.sequences[at].seen, memory_order_relaxed), 0))
		return cores_refresh();
	return atomic_load_explicit(&cores.limited, memory_order_relaxed);
}

#endif
