/* Physical memory that a program has by handle (cuMemCreate, an import): how much, on which
 * GPU, and what keeps it: references by handle, mappings, sparse arrays, an export. It
 * ends, and is given back, when nothing of that is left. Private memory, constant time
 * per handle and per mapping, grows.
 *
 * Each call is bracketed: what it takes away is taken out of the tables before the
 * driver is asked, for right after it the driver may give the same handle or
 * address out again; it counts until the driver has done it. What it adds is held
 * before the driver is asked, so that no release beside it can end the memory. */
#ifndef GPUSLICE_BACKING_H
#define GPUSLICE_BACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "lock.h"

struct process;
struct backing_node;

struct backing { /* fresh zeroed memory is an empty one */
	lock_t lock;   /* of the rest; never held across a driver call */
	uint32_t free;      /* the first free node, 0: none */
	uint32_t retaining; /* calls under way that may give a reference */
	uint32_t parked;    /* the first memory of which one of them may yet tell */
	uint64_t used; /* nodes that were ever given out, of */
	uint64_t room; /* a power of two, also that of buckets; 0: nothing is there yet */
	struct backing_node *nodes;
	uint32_t *buckets;
};

enum backing_place { BACKING_ADDRESS = 1, BACKING_ARRAY };

/* The driver has made it. False: no memory to write it down. */
bool backing_add(struct process *p, uint64_t handle, uint64_t size, int cell);

/* cuMemRelease; 0: no reference of ours. */
uint32_t backing_release_begin(struct process *p, uint64_t handle);
void backing_release_end(struct process *p, uint32_t memory, bool done);

/* The same of an import that a slot is charged for already (exported.h). */
bool backing_add_imported(struct process *p, uint64_t handle, int slot);

/* cuMemExportToShareableHandle; 0: not ours, else *slot is charged for it. Memory that was
 * exported stays charged: a descriptor, here or in another process, keeps it. */
uint32_t backing_export_begin(struct process *p, uint64_t handle, uint32_t *slot);
void backing_export_end(struct process *p, uint32_t memory, bool done);

/* It will be mapped: in *mapping what to end with. False: no memory. */
bool backing_map_begin(struct process *p, uint64_t handle, uint32_t *mapping);
void backing_map_end(struct process *p, uint32_t mapping, enum backing_place place, uint64_t at, uint64_t size, bool done);

/* All mappings of a range, or all in an array, as a chain; 0: none. */
uint32_t backing_unmap_begin(struct process *p, enum backing_place place, uint64_t at, uint64_t size);
void backing_unmap_end(struct process *p, uint32_t chain, bool done);

/* Around a call that may give another reference: done, and to which handle. */
void backing_retain_begin(struct process *p);
void backing_retain_end(struct process *p, bool done, uint64_t handle);

#endif
