/* This process's own state. It exists from the first successful cuInit on, and
 * not in a forked child, which starts afresh. */
#ifndef GPUSLICE_PROCESS_H
#define GPUSLICE_PROCESS_H

#include <linux/futex.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "api.h"
#include "layout.h"
#include "ledger.h"

/* What the kernel walks when the helper thread dies: a list of one element, the
 * owner word of this process's slot. */
struct owner {
	struct robust_list_head head;
	struct robust_list element;
	struct vgpu_slot *slot;
	_Atomic uint32_t ready; /* 1: the word is set; a futex */
};

struct process {
	pid_t pid;
	int slot_index;
	int fd; /* holds the slot's lock; never used again, for the program may close it */
	struct vgpu_usage *usage;
	struct vgpu_slot *slot;
	struct owner owner;
	_Atomic(CUcontext) primary[VGPU_MAX_DEVICES]; /* per cell, as last retained */
	struct ledger ledger;
};

/* NULL: this process may not use CUDA, which has been said. */
struct process *process_get(void);
/* The same, but does not make one. */
struct process *process_peek(void);

/* Starts the thread that owns the slot for as long as this process lives. It does
 * not wait for the thread to run: on a busy machine that would be the longest part
 * of cuInit. Until it has run the slot's byte alone is locked. */
bool owner_start(struct owner *owner, struct vgpu_slot *slot);
/* Returns once the thread owns the slot: before that nothing may be charged in it.
 * False: the kernel has no robust futexes. */
bool owner_wait(struct owner *owner);

#endif
