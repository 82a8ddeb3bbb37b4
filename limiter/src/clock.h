#ifndef GPUSLICE_CLOCK_H
#define GPUSLICE_CLOCK_H

#include <errno.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* CLOCK_MONOTONIC in microseconds. */
static inline uint64_t clock_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* The time of a clock in nanoseconds. */
static inline uint64_t clock_of(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* CLOCK_MONOTONIC in nanoseconds. */
static inline uint64_t clock_ns(void)
{
	return clock_of(CLOCK_MONOTONIC);
}

/* CLOCK_MONOTONIC in nanoseconds at its last tick, 1 to 10 ms ago; takes a tenth of the time of
 * clock_ns. */
static inline uint64_t clock_coarse_ns(void)
{
	return clock_of(CLOCK_MONOTONIC_COARSE);
}

/* Waits ns, less than a second. Makes the system call itself, because libc's function is a
 * cancellation point, which the program does not expect in a CUDA call. Keeps errno. */
static inline void clock_nap_ns(uint64_t ns)
{
	struct timespec pause = { 0, (long)ns };
	int saved = errno;

	syscall(SYS_nanosleep, &pause, NULL);
	errno = saved;
}

/* Waits for less than a second, as clock_nap_ns. */
static inline void clock_sleep_us(long microseconds)
{
	clock_nap_ns((uint64_t)microseconds * 1000);
}

#endif
