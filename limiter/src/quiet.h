/* Locks of data that a program's signal handlers can get to, by the calls of the driver that they make. A thread that holds
 * one is quiet: no signal handler runs in it, so that none waits for its own thread, and none sees data that is half
 * changed. Not for what is held across a wait of the program. */
#ifndef GPUSLICE_QUIET_H
#define GPUSLICE_QUIET_H

#include <signal.h>

#include "lock.h"

#define QUIET_BIT(signal) ((uint64_t)1 << ((signal) - 1))
/* Those of a fault of the thread itself stay as they are: while they are blocked, the kernel kills the process. */
#define QUIET_ALL (~(QUIET_BIT(SIGSEGV) | QUIET_BIT(SIGBUS) | QUIET_BIT(SIGFPE) | QUIET_BIT(SIGILL) | QUIET_BIT(SIGTRAP) | QUIET_BIT(SIGSYS)))
#define QUIET_NONE UINT64_MAX /* no mask: two signals can't be blocked. Nothing is to be restored */

/* Not libc's function, which leaves out the signals that it uses itself. Returns what quiet_end() takes. */
static inline uint64_t quiet_begin(void)
{
	uint64_t all = QUIET_ALL, before = 0;

	return syscall(SYS_rt_sigprocmask, SIG_BLOCK, &all, &before, sizeof(before)) ? QUIET_NONE : before;
}

static inline void quiet_end(uint64_t before)
{
	if (before != QUIET_NONE)
		syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof(before));
}

static inline uint64_t quiet_take(lock_t *lock)
{
	uint64_t before = quiet_begin();

	lock_take(lock);
	return before;
}

static inline void quiet_give(lock_t *lock, uint64_t before)
{
	lock_give(lock);
	quiet_end(before);
}

#endif
