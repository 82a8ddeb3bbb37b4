/* The memory pools of this process, and its GPUs' memory for graphs. */
#ifndef GPUSLICE_POOL_H
#define GPUSLICE_POOL_H

#include "account.h"
#include "layout.h"

struct process;

enum pool_state {
	POOL_CHARGED = 1, /* of a GPU */
	POOL_FREE_OF_CHARGE, /* of host memory */
	POOL_ENDED, /* the program has destroyed it; the driver is asked to when it is empty */
};

struct pool {
	_Atomic uintptr_t handle; /* 0: nobody's yet; 1: of one that is gone */
	_Atomic uint32_t state;
	_Atomic uint64_t chunk; /* that it grows by multiples of, as far as was seen */
	struct account account;
};

enum { POOLS = 256 };

struct pools { /* fresh zeroed memory: there are none */
	lock_t lock; /* of who adds one or takes one out */
	_Atomic uint32_t high; /* places below it were ever used */
	struct pool pool[POOLS];
	struct account graph[VGPU_MAX_DEVICES]; /* per cell */
};

/* The pool of that handle, or NULL. */
struct pool *pool_find(struct process *p, CUmemoryPool handle);
/* Adds one. NULL: there are too many. */
struct pool *pool_add(struct process *p, CUmemoryPool handle, enum pool_state state, int cell);
/* Lets the driver destroy one that the program has, if it is empty. */
void pool_bury(struct process *p, struct pool *pool);
/* The device's default pool, or a known one; NULL: neither. */
struct pool *pool_known(struct process *p, CUmemoryPool handle, CUdevice dev);

/* Looks at what the pools and graphs of a cell, or (-1) of all, have let go. */
void pools_look(struct process *p, int cell);
/* After a call that may have made pools smaller. */
void pools_may_have_shrunk(void);
/* Makes the pools and graphs of a cell let go what they have idle, as much as is
 * wanted. True: there was something. No call that a stream capture forbids. */
bool pools_make_room(struct process *p, int cell, uint64_t bytes);

/* The account of the GPU's memory for graphs; NULL: not granted. */
struct account *graph_account(struct process *p, CUdevice dev);

#endif
