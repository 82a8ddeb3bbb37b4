/* Whether a container leaves the GPU idle in its turn, because it launches slowly or waits for its kernels: then others may use the
 * gaps. Arithmetic only, with the time passed in (CLOCK_MONOTONIC, ns). */
#ifndef GPUSLICE_GAPS_H
#define GPUSLICE_GAPS_H

#include <stdbool.h>
#include <stdint.h>

struct gaps_sums {
	double ns, launches;
	double shared; /* time with work of others, of each */
};

struct gaps {
	bool open;                /* others may use the gaps in its turn */
	int looks, idle;          /* launches in a row that looked, and of them those that began with no work under way, since when is not known */
	uint64_t looks_from, idle_ns; /* when the first one was; and what is known of such times */
	struct gaps_sums closed;  /* in its turn with closed gaps, older ones half as much */
	struct gaps_sums phase;   /* since they were opened or closed, */
	uint64_t settles;         /* and what was under way then has ended */
	struct gaps_sums fill;    /* in gaps of others */
	uint64_t launches, shared; /* running sums at the last look, */
	uint64_t looked;          /* and when that was; 0: it may not have launched all the time since */
	bool looked_filling;      /* which was in a gap of others */
	uint64_t measured;        /* when they were opened last */
	uint64_t closed_until, penalty;
	uint64_t no_fill_until, fill_penalty;
	double price;             /* the part of its launches that it has less with open gaps; 0 to 1 */
};

/* A launch looks that may go on in its own turn. launches: a running sum; idle: no work was under way; since: when the last work
 * ended, 0: not known. Returns whether the next launch has to look too. */
bool gaps_look(struct gaps *gaps, uint64_t now, uint64_t launches, uint64_t shared, bool idle, uint64_t since);

/* The same, in gaps of another container's turn, at that price. */
void gaps_fill(struct gaps *gaps, uint64_t now, uint64_t launches, uint64_t shared, double price);
bool gaps_may_fill(const struct gaps *gaps, uint64_t now);

/* A launch may not go on because of others. */
void gaps_pass(struct gaps *gaps);

/* No other container wants the GPU, or other processes of the container have work. */
void gaps_reset(struct gaps *gaps);

#endif
