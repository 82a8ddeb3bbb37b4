/* Green contexts: some of a GPU's multiprocessors. As documented, the context that one is made into is the primary one
 * with these. So what is allocated in it is the primary one's, and ends with that. */
#ifndef GPUSLICE_GREEN_H
#define GPUSLICE_GREEN_H

#include <stdatomic.h>
#include <stdbool.h>

#include "api.h"
#include "ledger.h"

struct process;

/* Whether this program ever made one: else no context is looked up. */
extern _Atomic bool green_ever;

/* After the driver has made one. */
void green_made(struct process *process, CUdevice dev, void *green);
/* Before a call that may end the context: forgets it. False: it is no green one. */
bool green_end_begin(struct process *process, CUcontext context, struct ledger_entry *entry);
/* If it has not ended. */
void green_end_failed(struct process *process, const struct ledger_entry *entry);

CUcontext green_primary(struct process *process, CUcontext context);
/* The context to which belongs what is allocated in this one. */
static inline CUcontext green_owner(struct process *process, CUcontext context)
{
	/* Relaxed: a thread that uses a green context got it from the one that made it. */
	return __builtin_expect(atomic_load_explicit(&green_ever, memory_order_relaxed), 0) ? green_primary(process, context) : context;
}

#endif
