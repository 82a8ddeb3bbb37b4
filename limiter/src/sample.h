/* Measures some launches with a pair of events around each. There is no thread: a later launch
 * checks whether the events have happened. */
#ifndef GPUSLICE_SAMPLE_H
#define GPUSLICE_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "api.h"
#include "cost.h"

enum { SAMPLE_NONE = -1 };

struct sampled { /* a finished sample; ns: its duration */
	struct cost *cost;
	uint64_t key;
	uint64_t ns;
	int cell;
};

/* Records the first event, if a sample is due and a place is free. Returns the sample for
 * sample_end, or SAMPLE_NONE. Never during a capture. The stream is 0, one of the two names of
 * default streams, or a handle. now: nanoseconds of the coarse clock. */
int sample_begin(struct cost *cost, uint64_t key, int cell, CUstream stream, uint64_t now);
/* Records the second event. If the launch has failed, the sample is dropped. */
void sample_end(int sample, CUstream stream, bool launched);
/* Checks the samples of the current context and calls came for each finished one. True: a sample of
 * this stream has not finished. */
bool sample_poll(CUstream stream, void (*came)(const struct sampled *));
/* Checks the samples of the current context and calls came for each finished one. True: a sample of
 * this stream that began before `since` has not finished. Without such a sample in any stream it
 * only reads a few words. */
bool sample_late(CUstream stream, uint64_t since, void (*came)(const struct sampled *));
/* Before a context ends: destroys all events that no thread is using. */
void sample_drop_all(void);

#endif
