/* This process's own state. It exists from the first successful cuInit on, and
 * not in a forked child, which starts afresh. */
#ifndef GPUSLICE_PROCESS_H
#define GPUSLICE_PROCESS_H

#include <linux/futex.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "api.h"
#include "backing.h"
#include "exported.h"
#include "layout.h"
#include "ledger.h"
#include "pool.h"
#include "primary.h"

/* What the kernel walks when the helper thread dies: a list of one element, the
 * owner word of this process's slot. */
struct owner {
	struct robust_list_head head;
	struct robust_list element;
	struct vgpu_usage *usage;
	struct vgpu_slot *slot; /* not to be read before owner_wait: it may yet become another */
	int fd; /* holds the slot's lock; never used once the word is set, for the program may close it */
	_Atomic uint32_t state; /* a futex, see owner.c */
};

struct process {
	pid_t pid;
	struct vgpu_usage *usage;
	struct owner owner;
	struct primary primary[VGPU_MAX_DEVICES]; /* per cell */
	struct pools pools;
	struct ledger ledger;
	struct backing backing;
	struct exported exported;
};

/* NULL: this process may not use CUDA, which has been said. */
struct process *process_get(void);
/* The same, but does not make one. */
struct process *process_peek(void);

/* Starts the thread that owns a slot of usage for as long as this process lives:
 * the claimed one, whose byte fd locks, or another if that has become another
 * process's meanwhile. It does not wait for the thread to run: on a busy machine
 * that would be the longest part of cuInit. Until it has run the slot's byte alone
 * is locked, and the program may close fd. */
bool owner_start(struct owner *owner, struct vgpu_usage *usage, int fd, int slot);
/* Returns once the thread owns the slot: before that nothing may be charged in it.
 * False: it owns none, which has been said. */
bool owner_wait(struct owner *owner);

#endif
