/* The container's compute time on one GPU: earned as time passes, spent by launches. */
#ifndef GPUSLICE_BUCKET_H
#define GPUSLICE_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

/* No charge and no debt is larger, whatever anybody has written into the file. */
#define BUCKET_MOST ((uint64_t)10 * 1000 * 1000 * 1000)

/* Charges ns. True: the launch may go at once. False: it may when what was charged
 * before it has been earned; *turn is for bucket_wait. */
static inline bool bucket_charge(struct vgpu_bucket *b, uint64_t ns, uint64_t *turn)
{
	/* Relaxed: the place in the line is the sum's value itself, and no other data
	 * is handed over with it. A process that dies right after it has paid for
	 * nothing; nobody else has. */
	*turn = atomic_fetch_add_explicit(&b->spent, ns, memory_order_relaxed);
	return __builtin_expect((int64_t)(atomic_load_explicit(&b->earned, memory_order_relaxed) - *turn) >= 0, 1);
}

/* Waits for the turn, in the order of the charges; follows changes of the rate. */
void bucket_wait(struct vgpu_bucket *b, int cell, uint64_t turn);
/* Turns the time since the last refill into what is earned. */
void bucket_refill(struct vgpu_bucket *b, uint64_t now, uint32_t rate);
/* Corrects what was charged by so much: more if positive. */
void bucket_settle(struct vgpu_bucket *b, int64_t ns, uint32_t rate);

#endif
