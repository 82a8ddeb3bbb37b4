/* Limits from the environment: CUDA_DEVICE_MEMORY_LIMIT and, for one GPU,
 * CUDA_DEVICE_MEMORY_LIMIT_<ordinal>; bytes, or with k, m, g for binary units. */
#ifndef GPUSLICE_ENVLIMITS_H
#define GPUSLICE_ENVLIMITS_H

#include <stdbool.h>
#include <stdint.h>

/* Reads the variables. False: none of them is set to a limit. */
bool envlimits_read(void);
/* The limit of a GPU in bytes; 0: it has none and is denied. */
uint64_t envlimits_bytes(int ordinal);

#endif
