/* Inside libcuda.so.1: kernels of a process that run at the same time. */
#ifndef SIMDRIVER_OVERLAP_H
#define SIMDRIVER_OVERLAP_H

#include <stdint.h>

/*
 * How full the GPU is over time. Time is the kernel time of a queue, or what has passed since a graph began. A kernel has a
 * width: of FULL_WIDTH, how much of the GPU it fills if no other runs with it.
 */
struct overlap {
	struct stretch {
		uint64_t end;   /* it begins where the one before it ends, the first one whenever */
		unsigned width; /* of all that runs in it */
	} *stretches;
	unsigned count, room;
};

/*
 * Puts a kernel there that takes that long if no other runs with it, and can't begin before that moment; returns when it ends.
 * What came earlier has the GPU first: this one gets what is left, and is slower as long as that is less than its width. Width 0
 * takes time only.
 */
uint64_t overlap_put(struct overlap *o, uint64_t from, uint64_t ns, unsigned width);
/* Forgets what ended by then. */
void overlap_forget(struct overlap *o, uint64_t until);
void overlap_free(struct overlap *o);

#endif
