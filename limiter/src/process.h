/* The limiter's state of this process. It exists from the first successful cuInit on. A forked child
 * does not inherit it. */
#ifndef GPUSLICE_PROCESS_H
#define GPUSLICE_PROCESS_H

#include <linux/futex.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "api.h"
#include "backing.h"
#include "exported.h"
#include "freeing.h"
#include "ipcheld.h"
#include "ipcleft.h"
#include "layout.h"
#include "ledger.h"
#include "lock.h"
#include "pages.h"
#include "pool.h"
#include "primary.h"
#include "residue.h"

/* The robust list that the kernel reads when the helper thread dies. Its one element is the owner
 * word of this process's slot. */
struct owner {
	struct robust_list_head head;
	struct robust_list element;
	struct vgpu_usage *usage;
	struct vgpu_slot *slot; /* must not be read before owner_wait: it can change until then */
	int fd; /* holds the slot's lock; the program may close it, so it is checked before each use */
	uint64_t dev, ino; /* of the file that fd is open on */
	lock_t lent; /* held by the thread that uses fd for other locks, see owner_borrow */
	_Atomic uint32_t state; /* a futex, see owner.c */
};

struct process {
	pid_t pid;
	struct vgpu_usage *usage;
	struct owner owner;
	struct primary primary[VGPU_MAX_DEVICES]; /* per cell */
	lock_t growing; /* a limit of a context is being set, see growth.c */
	struct pools pools;
	struct ledger ledger;
	struct freeing freeing;
	struct pages pages;
	struct backing backing;
	struct exported exported;
	struct ipcheld ipcheld;
	struct ipcleft ipcleft;
	struct residue residue;
};

/* Returns the state, and creates it if there is none. NULL: this process may not use CUDA, and one
 * line on stderr has reported it. */
struct process *process_get(void);
/* Returns the state; NULL: there is none. */
struct process *process_peek(void);

/* The number of its slot; -1: it has none. */
int process_slot(void);

/* Starts the thread that owns a slot of usage for the lifetime of this process: the claimed slot
 * with the byte that fd locks, or another one if another process has taken that one meanwhile.
 * Does not wait for the thread to run, because on a busy machine that would be the longest part of
 * cuInit. Until it has run, only the slot's byte is locked, and the program may close fd. False:
 * the thread can't be started. */
bool owner_start(struct owner *owner, struct vgpu_usage *usage, int fd, int slot);
/* A description of the usage file for locks that end soon: a new one; or, where the file can't be
 * opened any more (another root directory, no free descriptor), the one that holds the slot. fd -1:
 * none. */
struct borrowed {
	int fd;
	bool own;
};
struct borrowed owner_borrow(struct owner *owner);
/* Ends the slow path's lock; the caller has ended those on slots. */
void owner_return(struct owner *owner, struct borrowed borrowed);
/* Waits until the thread owns the slot; nothing may be charged in the slot before. False: the thread
 * owns none, and one line on stderr has reported it. */
bool owner_wait(struct owner *owner);

#endif
