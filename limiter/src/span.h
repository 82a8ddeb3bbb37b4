/* A set of address ranges: those that overlap are one. */
#ifndef GPUSLICE_SPAN_H
#define GPUSLICE_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct span {
	uint64_t begin, end; /* end is not in it */
	int cell;
};

struct spans { /* zeroed: none */
	struct span *at; /* rising, none overlaps another */
	size_t count, room;
};

/* Adds a range of a cell. False: there is no memory for it. */
bool spans_add(struct spans *spans, struct span span);
void spans_free(struct spans *spans);

#endif
