/* A GPU's primary context in this process. Only the driver knows when it is
 * active: it counts retains, of green contexts too, and a reset ends it whatever
 * the count. So what it takes is charged before any call that may make it active,
 * and given back when the driver has said that it is not active at a moment since
 * when no such call has begun. */
#ifndef GPUSLICE_PRIMARY_H
#define GPUSLICE_PRIMARY_H

#include <stdbool.h>
#include <stdint.h>

#include "api.h"
#include "lock.h"

struct process;

struct primary { /* fresh zeroed memory: not active */
	_Atomic(CUcontext) handle; /* as last retained */
	lock_t lock;     /* of the rest; never held across a driver call */
	bool held;       /* it is charged */
	bool doubt;      /* it may have ended since it was charged */
	uint32_t calls;  /* that may make it active, under way */
	uint64_t begun;  /* such calls so far */
	uint64_t bytes;  /* that are charged while it is held */
	CUdevice dev;    /* whose it is, while it is held */
};

/* Before a call that may make it active; on an error the driver must not be asked. */
CUresult primary_begin(struct process **process, CUdevice dev);
/* After that call; returns its result. */
CUresult primary_end(struct process *process, CUdevice dev, CUresult result);
/* After a call that may have ended it. */
void primary_may_have_ended(struct process *process, CUdevice dev);
/* Whether that of a cell's GPU is charged, and which GPU it is. */
bool primary_held(struct process *process, int cell, CUdevice *dev);
/* Whether the driver says that it is active; where it can't tell: yes. */
bool primary_active(CUdevice dev);

#endif
