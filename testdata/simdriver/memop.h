/* Inside libcuda.so.1: what a stream does with values in memory. Process lock held, but where another rule is written. */
#ifndef SIMDRIVER_MEMOP_H
#define SIMDRIVER_MEMOP_H

#include "driver.h"

#define MEMOPS_MAX 256u

struct memops { /* does not change once it is made */
	unsigned uses;
	CUcontext ctx; /* of a node: what it was given */
	unsigned count;
	CUstreamBatchMemOpParams op[];
};

/* A copy, used once. */
CUresult memops_make(struct memops **out, CUcontext ctx, const CUstreamBatchMemOpParams *ops, unsigned count, unsigned flags);
struct memops *memops_use(struct memops *m);
/* NULL: nothing. */
void memops_unuse(struct memops *m);
/* Takes the lock. Any handle. */
CUresult memops_put(CUstream handle, struct memops *m);
CUresult capture_memops(CUstream stream, struct memops *m);

#endif
