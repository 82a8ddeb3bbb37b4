/* The cell of a GPU, and the context that is current in the calling thread. */
#ifndef GPUSLICE_DEVICE_H
#define GPUSLICE_DEVICE_H

#include "api.h"

/* The cell of a GPU by the driver's number, or -1: this container may not use it. */
int device_cell(CUdevice dev);

struct here {
	CUcontext context;
	int cell; /* or -1 */
};

/* The calling thread's current context and its cell. Returns the driver's error if there is no
 * context. */
CUresult device_here(struct here *out);

#endif
