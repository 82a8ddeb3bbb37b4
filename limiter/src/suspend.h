/* Processes that are checkpointed: the driver has none of their memory on the GPUs, except what they
 * have exported or share by legacy IPC, which other processes may hold. Their bytes stay in the cells of their slots. A
 * bit in the owner word takes all that is not exported out of every sum; IPC records then count for themselves.
 *
 * The bit is part of the owner word, so that it can be set only while the slot's owner is the process that was
 * checkpointed, and ends with the word. A sum that finds it set was announced before the bit is
 * cleared; so the process that clears it finds that announcement in the sum that follows (reserve.c). */
#ifndef GPUSLICE_SUSPEND_H
#define GPUSLICE_SUSPEND_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

enum { SUSPEND_MOST = 16 }; /* copies of this library in a process: as many as a process has linker namespaces */

/* The slots of one process. */
struct suspended {
	int count;
	struct {
		struct vgpu_slot *slot;
		uint32_t owner;
		uint64_t start_time;
	} of[SUSPEND_MOST];
};

static inline bool suspended(const struct vgpu_slot *s)
{
	/* seq_cst: see above. */
	return atomic_load(&s->owner) & VGPU_OWNER_SUSPENDED;
}

/* Marks the slots, except those with another owner by now, or with none that is alive. */
void suspend_mark_all(const struct suspended *set);
void suspend_unmark_all(const struct suspended *set);
void suspend_unmark(struct vgpu_slot *s);

#endif
