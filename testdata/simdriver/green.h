/* Inside libcuda.so.1: green contexts. Process lock held. */
#ifndef SIMDRIVER_GREEN_H
#define SIMDRIVER_GREEN_H

#include "driver.h"

struct CUgreenCtx_st {
	unsigned count, width;	    /* multiprocessors; the same, of FULL_WIDTH */
	CUgreenCtx next_gone;
	struct CUctx_st as_context; /* what cuCtxFromGreenCtx gives: has any_tail, floor and an address; all else is the primary one's */
	uint64_t full_tail;	    /* until then its kernels fill it */
};

/* That of a stream; of the legacy one: that which is current. NULL: none. */
CUgreenCtx green_of(CUstream stream);
/* What this thread does next in the legacy stream was put there with that one current. */
void green_deferred(CUgreenCtx green);
/* A kernel that would fill more than it has takes longer. */
struct load green_load(CUgreenCtx green, struct load load);
/* When the next kernel of it can begin at the earliest; it has been put, and ends then. */
uint64_t green_ready(CUgreenCtx green, uint64_t ready, struct load load);
void green_advance(CUgreenCtx green, uint64_t tail, struct load load);
/* The primary context goes. */
void greens_drop_context(CUcontext primary);

#endif
