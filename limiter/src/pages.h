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
	lock_t lock; /* of the rest */
	struct pages_of of[PAGES_CONTEXTS];
};

enum pages_result {
	PAGES_ENTERED,
	PAGES_ANOTHER,  /* it can take another page, which is not reserved; nothing has changed */
	PAGES_NO_PLACE, /* for the context; nothing has changed */
};

/* Counts a piece of size bytes, at most a page. reserved: the caller has reserved a page; if it is not
 * needed any more, it is given back. */
enum pages_result pages_enter(struct process *p, uint64_t context, int cell, uint64_t page, uint64_t size, bool reserved);
/* Gives back what a piece has kept, after the driver has freed it. */
void pages_leave(struct process *p, uint64_t context, int cell, uint64_t size);

#endif
