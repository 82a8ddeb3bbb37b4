/* gpuslice-probe: see probe.c. */
#ifndef PROBE_H
#define PROBE_H

#include "../../testdata/workloads/common.h"

#define MIB ((size_t)1 << 20)

/* A function of the driver that not every version has; NULL: absent. */
void *driver_function(const char *name);
/* Prints KEY=VALUE. */
__attribute__((format(printf, 2, 3))) void answer(const char *key, const char *format, ...);

/* Allocates one kind of memory in chunks until the driver refuses, or until it has that many MiB. */
void fill(const char *kind, long chunk_mib, long most_mib);
/* The iterations of a kernel that takes a microsecond. */
void calibrate(void);
/* Keeps the GPU busy from begin, a time of CLOCK_MONOTONIC, and counts its kernels for so many seconds. */
void work(double begin, double seconds, double iterations);

#endif
