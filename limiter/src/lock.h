/* A mutex of eight bytes for this process's own data. Zero is unlocked, so it
 * comes unlocked out of fresh memory. Ours rather than libc's: no pthread symbol
 * versions, and it can live in a page that fork wipes. Never in shared memory;
 * never held across a driver call, but for growth.c. A signal handler that has interrupted
 * its own thread under a lock can see so, and must not take it. */
#ifndef GPUSLICE_LOCK_H
#define GPUSLICE_LOCK_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct { _Atomic uint64_t word; } lock_t; /* 0 free; else the holder, and bit 0: it is waited for */

/* Different in each thread that lives, and even. */
static inline uint64_t lock_self(void)
{
	return (uint64_t)(uintptr_t)__builtin_thread_pointer();
}

/* Whether this thread holds it: the caller is in a signal handler, which would wait for itself. */
static inline bool lock_mine(lock_t *lock)
{
	/* Relaxed: only this thread writes its own value. */
	return (atomic_load_explicit(&lock->word, memory_order_relaxed) & ~(uint64_t)1) == lock_self();
}

/* Other threads may wait as well: so the bit is set again when it is taken. */
static inline void lock_wait(lock_t *lock, uint64_t seen)
{
	for (;;) {
		if (seen == 0) {
			if (atomic_compare_exchange_strong_explicit(&lock->word, &seen, lock_self() | 1, memory_order_acquire, memory_order_relaxed))
				return;
		} else if (!(seen & 1)) {
			if (atomic_compare_exchange_strong_explicit(&lock->word, &seen, seen | 1, memory_order_relaxed, memory_order_relaxed))
				seen |= 1;
		} else { /* the lower half: the number is little-endian */
			syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, (uint32_t)seen, NULL, NULL, 0);
			seen = atomic_load_explicit(&lock->word, memory_order_relaxed);
		}
	}
}

static inline void lock_take(lock_t *lock)
{
	uint64_t seen = 0;

	/* Acquire: what the last holder wrote is visible from here on. */
	if (!atomic_compare_exchange_strong_explicit(&lock->word, &seen, lock_self(), memory_order_acquire, memory_order_relaxed))
		lock_wait(lock, seen);
}

/* False: the caller is in such a handler. */
static inline bool lock_unless_mine(lock_t *lock)
{
	if (lock_mine(lock))
		return false;
	lock_take(lock);
	return true;
}

static inline void lock_give(lock_t *lock)
{
	/* Release: what was written under the lock is visible to the next holder. */
	if (atomic_exchange_explicit(&lock->word, 0, memory_order_release) & 1)
		syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#endif
