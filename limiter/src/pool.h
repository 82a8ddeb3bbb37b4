/* The memory pools of this process, and its GPUs' memory for graphs. */
#ifndef GPUSLICE_POOL_H
#define GPUSLICE_POOL_H

#include "account.h"
#include "layout.h"

struct process;

enum pool_state {
	POOL_CHARGED = 1, /* of a GPU */
	POOL_FREE_OF_CHARGE, /* of host memory */
	POOL_ENDED, /* the program has destroyed it; the limiter destroys it in the driver when it is empty */
};

struct pool {
	_Atomic uintptr_t handle; /* 0: never used; 1: its pool was destroyed */
	_Atomic uint32_t state;
	_Atomic uint64_t chunk; /* bytes: the observed unit of its growth */
	struct account account;
};

enum { POOLS = 256 };

struct pools { /* fresh zeroed memory: there are none */
	lock_t lock; /* for adding and removing pools */
	_Atomic uint32_t high; /* entries below it were ever used */
	struct pool pool[POOLS];
	struct account graph[VGPU_MAX_DEVICES]; /* per cell */
};

/* The pool with that handle; NULL: it is not in the table. */
struct pool *pool_find(struct process *p, CUmemoryPool handle);
/* Adds a pool of a cell. NULL: the table is full (POOLS). */
struct pool *pool_add(struct process *p, CUmemoryPool handle, enum pool_state state, int cell);
/* If the program has destroyed the pool and it is empty, destroys it in the driver. */
void pool_destroy_if_empty(struct process *p, struct pool *pool);
/* The pool with that handle, from the table, or the default pool of dev, which is added to the
 * table. NULL: it is neither, dev has no cell, or the table is full. */
struct pool *pool_known(struct process *p, CUmemoryPool handle, CUdevice dev);

/* Queries the driver for each pool of a cell that has a charge, or (cell -1) for those of all
 * cells, and gives back what the driver has released. */
void pools_refresh(struct process *p, int cell);
/* Refreshes all pools, after a call that may have made pools smaller. */
void pools_may_have_shrunk(void);
/* Trims the pools of a cell, each by that many bytes, and its memory for graphs, and gives back what
 * the driver has freed in the order of streams. True: there was something to do. Makes no call that fails during a stream capture. */
bool pools_make_room(struct process *p, int cell, uint64_t bytes);

/* The account of the GPU's memory for graphs; NULL: the GPU is not granted. */
struct account *graph_account(struct process *p, CUdevice dev);

#endif
