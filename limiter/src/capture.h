/* Streams that are being captured into a graph: what is launched there does not
 * run, and most calls of ours would spoil it. */
#ifndef GPUSLICE_CAPTURE_H
#define GPUSLICE_CAPTURE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "api.h"

extern _Atomic unsigned captures_open;

/* Whether any stream of this process may be captured now: one load. */
static inline bool capture_any(void)
{
	/* Relaxed: a capture that begins in another thread at this moment is not ours. */
	return __builtin_expect(atomic_load_explicit(&captures_open, memory_order_relaxed) != 0, 0);
}

/* Around calls of ours that a capture would suffer from. False: one is open, or is
 * about to be, and the calls must not be made. True: whoever begins one now waits
 * for capture_leave, some microseconds. */
bool capture_stay_away(void);
void capture_leave(void);

/* Sets this thread's capture mode and returns the mode before. With CU_STREAM_CAPTURE_MODE_RELAXED
 * the driver allows calls that would otherwise end a capture. */
int capture_relax(int mode);
/* Waits for a stream that is not captured, in the relaxed mode. */
CUresult capture_wait(CUstream stream);

/* Whether this very stream is captured, or can't be asked. Disturbs no capture. */
bool capture_of(CUstream stream);

#endif
