#ifndef GPUSLICE_CLOCK_H
#define GPUSLICE_CLOCK_H

#include <errno.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline uint64_t clock_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static inline uint64_t clock_of(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static inline uint64_t clock_ns(void)
{
	return clock_of(CLOCK_MONOTONIC);
}

/* The same clock as of its last tick, 1 to 10 ms ago, for a tenth of the price. */
static inline uint64_t clock_coarse_ns(void)
{
	return clock_of(CLOCK_MONOTONIC_COARSE);
}

/* Less than a second, inside a function in which the program expects no wait: by the
 * system call, for libc's is a place where a thread may be cancelled. */
static inline void clock_nap_ns(uint64_t ns)
{
	struct timespec pause = { 0, (long)ns };
	int saved = errno;

	syscall(SYS_nanosleep, &pause, NULL);
	errno = saved;
}

static inline void clock_sleep_us(long microseconds)
{
	clock_nap_ns((uint64_t)microseconds * 1000);
}

#endif
