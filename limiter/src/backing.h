/* The physical memory that a program has by handle (cuMemCreate, an import): its size, its GPU,
 * and its uses, which are references by handle, mappings, sparse arrays and exports. The memory
 * ends, and its charge is given back, with its last use. The tables are private memory, take
 * constant time per handle and per mapping, and grow.
 *
 * Each driver call has a begin and an end here. What the call removes leaves the tables before
 * the driver is called, because right after it the driver may reuse the same handle or address;
 * it stays charged until the driver has done the call. What the call adds counts as a use before
 * the driver is called, so that no concurrent release can end the memory. */
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
	uint32_t parked;    /* the first memory without uses that waits for these calls to end */
	uint64_t used; /* nodes that were ever used, of `room` */
	uint64_t room; /* number of nodes and of buckets, a power of two; 0: none is allocated */
	struct backing_node *nodes;
	uint32_t *buckets;
};

enum backing_place { BACKING_ADDRESS = 1, BACKING_ARRAY };

/* Records memory that the driver has made: its handle, its size in bytes and the cell that is
 * charged for it. False: there is no memory for the entry. */
bool backing_add(struct process *p, uint64_t handle, uint64_t size, int cell);

/* Records imported memory for which a slot is charged already (exported.h). False: as for
 * backing_add. */
bool backing_add_imported(struct process *p, uint64_t handle, int slot);

/* Before and after cuMemRelease. begin returns the memory for end; 0: the handle is not in the
 * table. done: the driver has released the handle. */
uint32_t backing_release_begin(struct process *p, uint64_t handle);
void backing_release_end(struct process *p, uint32_t memory, bool done);

/* Before and after cuMemExportToShareableHandle. begin returns the memory for end, and in *slot
 * the slot that is charged for it; 0: the handle is not in the table. Memory that was exported
 * stays charged when its last use here ends, because a descriptor, in this process or another,
 * may keep it. */
uint32_t backing_export_begin(struct process *p, uint64_t handle, uint32_t *slot);
void backing_export_end(struct process *p, uint32_t memory, bool done);

/* Before and after a call that maps memory. begin sets *mapping for end. False: there is no
 * memory for the entry, and the driver must not be called. end records the mapping of size bytes
 * at an address or in an array (place, at), or if the call failed removes it. */
bool backing_map_begin(struct process *p, uint64_t handle, uint32_t *mapping);
void backing_map_end(struct process *p, uint32_t mapping, enum backing_place place, uint64_t at, uint64_t size, bool done);

/* Before and after a call that unmaps. begin takes all mappings of a range of size bytes, or all
 * in an array, out of the table, and returns them as a chain for end; 0: there are none. If the
 * call failed, end restores them. */
uint32_t backing_unmap_begin(struct process *p, enum backing_place place, uint64_t at, uint64_t size);
void backing_unmap_end(struct process *p, uint32_t chain, bool done);

/* Before and after a call that may return another reference by handle. done: it has returned
 * one to handle. */
void backing_retain_begin(struct process *p);
void backing_retain_end(struct process *p, bool done, uint64_t handle);

#endif
