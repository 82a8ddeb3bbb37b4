/* What NVML counts of a GPU's memory for each process, in this process's own view. */
#ifndef GPUSLICE_FIGURES_H
#define GPUSLICE_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

#include "api.h"

enum { FIGURES_MOST = 1536 };

struct figure {
	uint32_t pid;  /* as the driver calls the process: it may be one of another PID namespace */
	uint32_t list; /* of compute, graphics or MPS: a process can be in more than one */
	uint64_t bytes;
};

/* The GPU of a UUID. Loads and initialises the driver's NVML, for good. False: there is none, or it
 * does not have the GPU. */
bool figures_device(const char *uuid, nvmlDevice_t *device);
/* Stores the figures of a GPU and returns their number; -1: it is unknown, or there are too many. */
int figures_read(nvmlDevice_t device, struct figure out[FIGURES_MOST]);

#endif
