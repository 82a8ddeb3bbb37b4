/* The container's compute time on one GPU in nanoseconds: earned as time passes, spent by launches. */
#ifndef GPUSLICE_BUCKET_H
#define GPUSLICE_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

/* The largest charge and the largest debt in nanoseconds, whatever the file contains. */
#define BUCKET_MOST ((uint64_t)10 * 1000 * 1000 * 1000)

/* Charges ns. True: the launch can start now. False: it must wait in bucket_wait, to which *turn
 * is passed, until what was charged before it has been earned. */
static inline bool bucket_charge(struct vgpu_bucket *b, uint64_t ns, uint64_t *turn)
{
	/* Relaxed: the position in the queue is the sum's value itself, and no other data is
	 * passed with it. If the process dies right after this, only its own container has
	 * lost that time. */
	*turn = atomic_fetch_add_explicit(&b->spent, ns, memory_order_relaxed);
	return __builtin_expect((int64_t)(atomic_load_explicit(&b->earned, memory_order_relaxed) - *turn) >= 0, 1);
}

/* Waits until the charges before turn have been earned, or the cell is not limited any more.
 * Follows changes of the rate. */
void bucket_wait(struct vgpu_bucket *b, int cell, uint64_t turn);
/* Adds what the time since the last refill is worth to `earned`. now is CLOCK_MONOTONIC in
 * nanoseconds, rate as in rate.h. */
void bucket_refill(struct vgpu_bucket *b, uint64_t now, uint32_t rate);
/* Corrects a charge by ns: positive, the launch costs more; negative, it costs less. */
void bucket_settle(struct vgpu_bucket *b, int64_t ns, uint32_t rate);

#endif
