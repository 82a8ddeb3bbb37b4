/* Streams that are being captured into a graph: what is launched there does not
 * run, and most of the limiter's own calls would end the capture. */
#ifndef GPUSLICE_CAPTURE_H
#define GPUSLICE_CAPTURE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "api.h"

extern _Atomic unsigned captures_open;

/* Whether any stream of this process may be captured now: one load. */
static inline bool capture_any(void)
{
	/* Relaxed: a capture that begins in another thread at this moment is not this thread's. */
	return __builtin_expect(atomic_load_explicit(&captures_open, memory_order_relaxed) != 0, 0);
}

/* Before and after calls of the limiter that would break a capture. False: a capture is open or
 * begins now, the calls must not be made, and capture_leave must not be called. True: a thread
 * that begins a capture now waits for capture_leave, at most some milliseconds. */
bool capture_stay_away(void);
void capture_leave(void);

/* Sets this thread's capture mode and returns the mode before. With CU_STREAM_CAPTURE_MODE_RELAXED
 * the driver allows calls that would otherwise end a capture. */
int capture_relax(int mode);
/* Waits for a stream that is not captured, in the relaxed mode. */
CUresult capture_wait(CUstream stream);

/* Whether this stream is captured, or can't be queried. Disturbs no capture. */
bool capture_of(CUstream stream);
/* After a stream has been destroyed: its capture has ended with it. */
void capture_destroyed(CUstream stream);

#endif
