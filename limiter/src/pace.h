/* A launch that takes turns: begin before the driver is called, which may wait; end after. */
#ifndef GPUSLICE_PACE_H
#define GPUSLICE_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "api.h"

struct pace {
	uint64_t key;
	CUstream stream;
	int cell; /* -1: the launch takes no part */
	bool looked;
};

/* Waits until a launch can start. limited: the result of cores_limited(); what: the function or graph;
 * volume: its number of threads; stream: 0, a default stream's name or a handle. */
void pace_begin(struct pace *pace, uint32_t limited, const void *what, uint64_t volume, CUstream stream);
/* The same for a stream of any context. */
void pace_begin_elsewhere(struct pace *pace, uint32_t limited, const void *what, uint64_t volume, CUstream stream);
/* After the launch. Returns the driver's result. */
CUresult pace_end(struct pace *pace, CUresult result);

/* The cell of the calling thread's context; -1: none. */
int pace_cell(void);
/* Before a context ends: the driver may reuse its handle for another GPU. */
void pace_forget_contexts(void);

#endif
