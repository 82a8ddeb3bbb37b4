/* The account of memory that the driver reserves on a GPU and grows by itself: a memory
 * pool, or a GPU's memory for graphs. Only the driver knows its size, and returns it for
 * a query. So the most that a call can add is charged before the call, the query
 * corrects the charge after it, and each refresh gives back what the driver has released.
 *
 * The charge is never less than the driver's memory. It has two parts: `confirmed`, which
 * is the driver's answer or more, and `in_flight`, which is charged for calls that are
 * under way. A refresh queries the driver without the lock. It uses the answer only if no
 * call has ended since the query began: a call that ended meanwhile may have added memory
 * that the answer does not contain. Each call refreshes after it has ended, so the answer
 * of the last of several concurrent calls is used.
 * A launch of a graph also depends on `confirmed` (graph.c): while a launch is under way,
 * nothing of `confirmed` is given back. */
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
	_Atomic uint64_t confirmed; /* bytes; written under the lock, also read without it */
	_Atomic uint64_t in_flight; /* bytes; added without the lock, before the driver is called */
	uint64_t ended;  /* number of calls that have ended */
	uint32_t pinned; /* launches under way: `confirmed` must not decrease */
	uint32_t queries; /* threads that use the driver's handle outside of the lock */
	bool closed;     /* the handle must not be used any more */
	uint64_t live, destroyed; /* bytes of graphs: see graph.c */
	/* The object of this account. An entry of the table can become another pool's. So these
	 * are read under the lock, or while the entry can't change. */
	_Atomic uintptr_t object; /* the pool's handle, or the GPU's number */
	_Atomic int cell;
	_Atomic int kind; /* enum account_kind */
};

/* Charges bytes before a call that may grow the driver's memory by at most that. False: they
 * do not fit, nothing is charged and the call must not be made. */
bool account_begin(struct process *p, struct account *account, uint64_t bytes);
/* After the call, with the bytes of account_begin. False: the driver has taken more, and the
 * additional bytes do not fit. They are charged nevertheless, and the caller should undo the
 * call. *more is the number of additional bytes; more can be NULL. */
bool account_end(struct process *p, struct account *account, uint64_t bytes, uint64_t *more);
/* Queries the driver, and gives back what it has released. */
void account_refresh(struct process *p, struct account *account);

/* Between account_hold and account_release the pool's handle stays valid. account_hold returns
 * false if the account is closed; then account_release must not be called. */
bool account_hold(struct account *account);
void account_release(struct account *account);
/* Closes the account if no thread holds it and nothing is charged. False: it is in use, or it
 * is closed already. */
bool account_close(struct account *account);
/* Assigns the account to a pool's handle or a GPU's number, and opens it. */
void account_open(struct account *account, enum account_kind kind, uintptr_t object, int cell);

static inline bool account_empty(struct account *account)
{
	/* Relaxed: a hint whether to refresh; account_refresh takes the lock. */
	return !atomic_load_explicit(&account->confirmed, memory_order_relaxed);
}

#endif
