#ifndef GPUSLICE_RESUMED_H
#define GPUSLICE_RESUMED_H

#include "layout.h"

/* For a thread of the slot's process that is about to charge something: waits as long as the process is checkpointed,
 * as the driver would make it wait. If the process is not (a tool outside of the container has
 * restored it), its bytes count again. */
void resumed_wait(struct vgpu_slot *s);

#endif
