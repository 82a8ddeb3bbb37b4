/* The share of compute time that a record of the limits file allows. */
#ifndef GPUSLICE_RATE_H
#define GPUSLICE_RATE_H

#include <stdint.h>

#include "layout.h"

/* Nanoseconds of GPU time per nanosecond, as a fixed-point number with RATE_BITS fractional bits. */
enum { RATE_BITS = 20, RATE_ONE = 1 << RATE_BITS };

/* The rate that a record allows now, in units of 1/RATE_ONE; 0: not limited. */
uint32_t rate_of(const struct vgpu_record *record);

#endif
