/* What the driver keeps reserved of a GPU by itself and grows as it sees fit: a
 * memory pool, or a GPU's memory for graphs. It alone knows how much that is, and
 * tells when asked. So before a call that may grow it the most that it can grow by
 * is charged; after it what it really has; and what it has let go since is given
 * back whenever it is looked at.
 *
 * What is charged is never less than what the driver has: it is settled, which is
 * what the driver said or more, and what is flying for calls under way. A look asks
 * the driver without the lock. Its answer counts if no call has ended since it was
 * asked: a call that grew it meanwhile is still flying with all that it may take.
 * Each call looks when it has ended, so the last one of those that race is heard.
 * A launch of a graph counts on what is settled besides (graph.c): while one is under
 * way nothing of that is given back. */
#ifndef GPUSLICE_ACCOUNT_H
#define GPUSLICE_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "api.h"
#include "lock.h"

struct process;

enum account_kind { ACCOUNT_POOL = 1, ACCOUNT_GRAPH };

struct account { /* fresh zeroed memory: the driver has nothing there */
	lock_t lock; /* of the rest; never held across a driver call */
	_Atomic uint64_t settled; /* written under the lock, peeked at without it */
	_Atomic uint64_t flying; /* added to without the lock, before the driver is asked */
	uint64_t ended;  /* calls so far */
	uint32_t leaning; /* calls under way that take what is settled for granted: launches */
	uint32_t asking; /* threads that use the driver's handle outside of the lock */
	bool closed;     /* the handle is the driver's again */
	uint64_t live, gone; /* of graphs: see graph.c */
	/* Which one it is; a place in the table becomes another pool's in time, so these
	 * are read under the lock where that may be, else while it can't be. */
	_Atomic uintptr_t whose; /* the pool's handle, or the GPU's number */
	_Atomic int cell;
	_Atomic int kind; /* enum account_kind */
};

/* Charges so much for a call. False: it does not fit. */
bool account_begin(struct process *p, struct account *account, uint64_t bytes);
/* After the call. False: the driver has taken more than that, and it does not fit;
 * it is charged all the same, and the caller should undo what it did. In *more how
 * much more, where that is asked for. */
bool account_end(struct process *p, struct account *account, uint64_t bytes, uint64_t *more);
/* Asks the driver, and gives back what it has let go. */
void account_look(struct process *p, struct account *account);

/* Between these two the pool's handle stays valid; not after a false. */
bool account_hold(struct account *account);
void account_release(struct account *account);
/* Nobody holds it and nothing is charged: from now on nobody will. */
bool account_close(struct account *account);
void account_open(struct account *account, enum account_kind kind, uintptr_t whose, int cell);

static inline bool account_empty(struct account *account)
{
	/* Relaxed: a hint whether to look; the look itself takes the lock. */
	return !atomic_load_explicit(&account->settled, memory_order_relaxed);
}

#endif
