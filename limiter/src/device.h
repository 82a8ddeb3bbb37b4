/* Which cell a GPU has, and what is current in the calling thread. */
#ifndef GPUSLICE_DEVICE_H
#define GPUSLICE_DEVICE_H

#include "api.h"

/* The cell of the driver's GPU, or -1: this container may not use it. */
int device_cell(CUdevice dev);

struct here {
	CUcontext context;
	int cell; /* or -1 */
};

/* An error is the driver's own: there is no context. */
CUresult device_here(struct here *out);

#endif
