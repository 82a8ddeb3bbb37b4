/* Linear memory that the program has freed in the order of a stream (cuMemFreeAsync). No manual
 * states when the driver has such memory back. Here it stays charged until an event that follows the
 * free in the stream has come, and the driver has been asked for its free memory after that: a
 * driver can't count memory of such a free without ending the free. */
#ifndef GPUSLICE_FREEING_H
#define GPUSLICE_FREEING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api.h"
#include "ledger.h"

struct process;

enum { FREEING = 256 };

struct freed {
	_Atomic uint32_t state; /* see freeing.c; the thread that sets BUSY owns the rest */
	CUevent event;          /* NULL: the stream has failed */
	CUcontext context;      /* of stream and event: the memory's own, or a green one of it */
	CUstream stream;
	struct ledger_entry entry;
};

struct freeing { /* fresh zeroed memory: nothing is being freed */
	_Atomic uint32_t count; /* places that are not free */
	struct freed places[FREEING];
};

/* Keeps the charge of an entry that has left the ledger, after the driver's cuMemFreeAsync has
 * succeeded. If no event can be made, waits for the stream. */
void freeing_add(struct process *p, const struct ledger_entry *entry, CUstream stream);
/* Gives back what the driver has back. True: there was something. */
bool freeing_collect(struct process *p);
/* Waits until there is something to give back. False: nothing, or not within some seconds. */
bool freeing_wait(struct process *p);
/* Before a green context ends, and with it the events in it, but not the memory: waits for them. */
void freeing_context_ends(struct process *p, CUcontext context);
/* Gives back the memory of a context that has ended, of entries up to a stamp of the ledger. */
void freeing_context_ended(struct process *p, CUcontext context, uint64_t stamp);

/* Whether anything is being freed: one load. */
static inline bool freeing_any(struct freeing *freeing)
{
	/* Relaxed: a hint; the places have their own order. */
	return __builtin_expect(atomic_load_explicit(&freeing->count, memory_order_relaxed) != 0, 0);
}

#endif
