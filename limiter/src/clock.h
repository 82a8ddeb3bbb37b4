#ifndef GPUSLICE_CLOCK_H
#define GPUSLICE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static inline void clock_sleep_us(long microseconds)
{
	struct timespec pause = { microseconds / 1000000, microseconds % 1000000 * 1000 };

	nanosleep(&pause, NULL);
}

#endif
