/* One launch's way where compute time is limited: begin before the driver is asked,
 * which may wait; end after. */
#ifndef GPUSLICE_PACE_H
#define GPUSLICE_PACE_H

#include <stdint.h>

#include "api.h"

struct pace {
	uint64_t charged;
	CUstream stream;
	int cell;
	int sample;
};

/* limited is cores_limited()'s. The stream is 0, a default stream's name or a handle. */
void pace_begin(struct pace *pace, uint32_t limited, const void *what, uint64_t volume, CUstream stream);
/* The same for a stream of any context; never measured. */
void pace_begin_elsewhere(struct pace *pace, uint32_t limited, const void *what, uint64_t volume, CUstream stream);
/* Returns the driver's result; a launch that has failed costs nothing. */
CUresult pace_end_slow(struct pace *pace, CUresult result);
static inline CUresult pace_end(struct pace *pace, CUresult result)
{
	if (__builtin_expect(pace->sample < 0 && result == CUDA_SUCCESS, 1))
		return result;
	return pace_end_slow(pace, result);
}

/* A context ends: its handle may come again as another GPU's. */
void pace_forget_contexts(void);

#endif
