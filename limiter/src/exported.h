/* Exported memory, which lives as long as a descriptor of it does, in any process.
 *
 * Each descriptor that the driver gives is an open file description. On it the limiter takes
 * a read lock on one byte of the descriptor's own file: the byte that the exporting process
 * has chosen. The kernel ends the lock with the last copy of the descriptor, which may also be in
 * a socket's queue. So the lock shows whether memory of an ended process may still exist, and the
 * descriptor's /proc/self/fdinfo shows which process exported it.
 *
 * An import of memory that a slot of this container is charged for is charged to no other.
 * The importing process lists that slot in its own, and as long as a living slot lists it,
 * what that slot has exported stays charged, as it does while the byte is locked. */
#ifndef GPUSLICE_EXPORTED_H
#define GPUSLICE_EXPORTED_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"
#include "lock.h"

struct process;

struct exported { /* fresh zeroed memory: nothing is exported or imported */
	lock_t lock;
	uint32_t uses[VGPU_MAX_IMPORTS]; /* number of this process's imports from the slot in imports[i] */
};

/* Adds bytes to the exported bytes of a cell, before the driver exports them; and subtracts them
 * if the export failed. */
void exported_add(struct process *p, int cell, uint64_t bytes);
void exported_undo(struct process *p, int cell, uint64_t bytes);
/* Locks the slot's byte on the descriptor. False: the lock failed. */
bool exported_mark(struct process *p, int fd, uint32_t slot);

/* Returns the slot of this container that is charged for the memory of a descriptor, and keeps
 * the charge until exported_import_end was called as often. -1: no slot is known. */
int exported_import_begin(struct process *p, int fd);
void exported_import_end(struct process *p, int slot);

/* Whether memory that the slot's ended process exported may still exist. */
bool exported_held(const struct vgpu_usage *usage, uint32_t slot);
/* The bytes of a cell that are exported. */
uint64_t exported_bytes(const struct vgpu_slot *slot, int cell);

#endif
