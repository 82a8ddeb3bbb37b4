/* A launch where compute time is limited: begin before the driver is called, which may wait; end
 * after. */
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

/* Charges a launch, and waits until it can start. limited: the result of cores_limited(); what:
 * the function or graph; volume: its number of threads; stream: 0, a default stream's name or a
 * handle. */
void pace_begin(struct pace *pace, uint32_t limited, const void *what, uint64_t volume, CUstream stream);
/* Charges a launch into a stream of any context, and waits; never measures it. The parameters are
 * those of pace_begin. */
void pace_begin_elsewhere(struct pace *pace, uint32_t limited, const void *what, uint64_t volume, CUstream stream);
/* After the launch. Returns the driver's result; the charge of a failed launch is undone. */
CUresult pace_end_slow(struct pace *pace, CUresult result);
static inline CUresult pace_end(struct pace *pace, CUresult result)
{
	if (__builtin_expect(pace->sample < 0 && result == CUDA_SUCCESS, 1))
		return result;
	return pace_end_slow(pace, result);
}

/* Before a context ends: the driver may reuse its handle for another GPU. */
void pace_forget_contexts(void);

#endif
