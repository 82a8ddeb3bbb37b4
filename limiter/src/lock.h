/* A mutex of four bytes for this process's own data. Zero is unlocked, so it
 * comes unlocked out of fresh memory. Ours rather than libc's: no pthread symbol
 * versions, and it can live in a page that fork wipes. Never in shared memory;
 * never held across a driver call, but for growth.c. */
#ifndef GPUSLICE_LOCK_H
#define GPUSLICE_LOCK_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct { _Atomic uint32_t word; } lock_t; /* 0 free, 1 held, 2 held and waited for */

static inline void lock_take(lock_t *lock)
{
	uint32_t seen = 0;

	/* Acquire: what the last holder wrote is visible from here on. */
	if (atomic_compare_exchange_strong_explicit(&lock->word, &seen, 1, memory_order_acquire, memory_order_relaxed))
		return;
	while (atomic_exchange_explicit(&lock->word, 2, memory_order_acquire) != 0)
		syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

static inline void lock_give(lock_t *lock)
{
	/* Release: what was written under the lock is visible to the next holder. */
	if (atomic_exchange_explicit(&lock->word, 0, memory_order_release) == 2)
		syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#endif
