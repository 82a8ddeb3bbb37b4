/* Measuring launches: a pair of events around one now and then. No thread: a later
 * launch looks whether they have happened. */
#ifndef GPUSLICE_SAMPLE_H
#define GPUSLICE_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "api.h"
#include "cost.h"

enum { SAMPLE_NONE = -1 };

struct sampled { /* a sample that has come in */
	struct cost *cost;
	uint64_t key;
	uint64_t ns;
	int cell;
};

/* Records the first event, if a sample is to be had now. Never during a capture.
 * The stream is 0, one of the two names of default streams, or a handle. */
int sample_begin(struct cost *cost, uint64_t key, int cell, CUstream stream, uint64_t now);
/* Records the second; where the launch has failed the sample is none. */
void sample_end(int sample, CUstream stream, bool launched);
/* Looks at those that are under way in the current context; calls came for each
 * that has come in. True: one of this stream is still under way. */
bool sample_poll(CUstream stream, void (*came)(const struct sampled *));
/* The same, and whether one of this stream that was measured before that moment has
 * still not run. Next to free where there is none, in any stream. */
bool sample_late(CUstream stream, uint64_t since, void (*came)(const struct sampled *));
/* Before a context ends: gives all events back that no thread is using. */
void sample_drop_all(void);

#endif
