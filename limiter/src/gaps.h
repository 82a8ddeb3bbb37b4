/* Whether a container leaves the GPU idle in its turn, because it launches slowly: then another one may use the gaps.
 * Arithmetic only, with the time passed in (CLOCK_MONOTONIC, ns). */
#ifndef GPUSLICE_GAPS_H
#define GPUSLICE_GAPS_H

#include <stdbool.h>
#include <stdint.h>

/* Running sums. */
struct gaps_sums {
	uint64_t now, launches;
	uint64_t busy; /* time with work under way */
};

struct gaps {
	bool open;             /* others may use them */
	int looks;             /* launches in a row that looked; all but the first began with no work under way */
	uint64_t closed, busy; /* from launch to launch while they were closed, 0: not known; and the time with work */
	uint64_t measured;     /* when that was */
	struct gaps_sums from; /* a window's begin; now 0: there is none */
	uint64_t closed_until, penalty;
};

/* A launch that may go on looks. idle: no work was under way. at_once: it did not wait for its turn or for its own work.
 * Returns whether the next launch has to look too. */
bool gaps_look(struct gaps *gaps, const struct gaps_sums *sums, bool idle, bool at_once);

/* A thread waits for the container's work, or has asked whether it has ended. */
void gaps_wait(struct gaps *gaps, uint64_t now);

/* More of its own work is under way than gaps would leave. */
void gaps_close(struct gaps *gaps, uint64_t now);

/* No other container wants the GPU, or other processes of the container have work. */
void gaps_reset(struct gaps *gaps);

#endif
