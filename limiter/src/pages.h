/* Small allocations share pages of the GPU. The driver does not report which ones, so the most pages
 * that the small pieces of a context can be in is computed, and charged.
 *
 * The driver takes another page for a piece of s bytes only if each page it has is too full for it.
 * All pieces are multiples of a unit, so each page then has at least the first multiple of the unit
 * above page - s, and there are at most sum / that. And a page has at least one piece. With
 * pieces of one size this is exact; what a driver wastes because a page's room is in parts is
 * residue. */
#ifndef GPUSLICE_PAGES_H
#define GPUSLICE_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "lock.h"

struct process;

struct pages_of { /* of a context; no pieces: the place is free */
	uint64_t context;
	uint64_t pieces, sum; /* their number and bytes */
	uint64_t pages;       /* that are charged */
	uint64_t page;        /* bytes of one */
	uint32_t unit;
	int cell;
};

enum { PAGES_CONTEXTS = 32 };

struct pages { /* fresh zeroed memory: there are none */
	lock_t lock; /* of the rest; held across a reservation */
	struct pages_of of[PAGES_CONTEXTS];
};

enum pages_result {
	PAGES_ENTERED,
	PAGES_NO_ROOM,  /* another page does not fit; nothing is charged */
	PAGES_NO_PLACE, /* for the context; nothing is charged */
};

/* Charges what a piece of size bytes, at most a page, can add. */
enum pages_result pages_enter(struct process *p, uint64_t context, int cell, uint64_t page, uint64_t size);
/* Gives back what a piece has kept, after the driver has freed it. */
void pages_leave(struct process *p, uint64_t context, int cell, uint64_t size);

#endif
