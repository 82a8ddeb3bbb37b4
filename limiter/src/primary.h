/* A GPU's primary context in this process. Only the driver knows when it is active: it counts
 * retains, those of green contexts too, and a reset ends it whatever the count. So its memory is
 * charged before any call that may make it active. The charge is given back when the driver has
 * answered that it is not active, if no such call has begun since the query. */
#ifndef GPUSLICE_PRIMARY_H
#define GPUSLICE_PRIMARY_H

#include <stdbool.h>
#include <stdint.h>

#include "api.h"
#include "lock.h"

struct process;

struct primary { /* fresh zeroed memory: not active */
	_Atomic(CUcontext) handle; /* as last retained */
	_Atomic uint32_t retained; /* retains that the program has not released; the driver counts no fewer */
	lock_t lock;     /* of the rest; never held across a driver call */
	bool held;       /* it is charged */
	bool fresh;      /* and no call has succeeded since */
	bool doubt;      /* it may have ended since it was charged */
	uint32_t calls;  /* calls under way that may make it active */
	uint64_t begun;  /* number of such calls so far */
	uint64_t bytes;  /* what is charged while it is held */
	CUdevice dev;    /* its GPU, while it is held */
};

/* Before a call that may make it active: charges it. On an error (those of charge_begin_context)
 * the driver must not be called. */
CUresult primary_begin(struct process **process, CUdevice dev);
/* After that call; returns its result. */
CUresult primary_end(struct process *process, CUdevice dev, CUresult result);
/* After a call that may have ended it. */
void primary_may_have_ended(struct process *process, CUdevice dev);
/* Whether the primary context of a cell's GPU is charged; *dev is set to the driver's number of
 * the GPU. */
bool primary_held(struct process *process, int cell, CUdevice *dev);
/* Whether the driver reports it as active. True also if the query fails. */
bool primary_active(CUdevice dev);

#endif
