/* The ceiling of a container without turn files: the account of all of its processes together, in its usage file. A process
 * counts towards it beside its own account, and the lesser of both permits. */
#ifndef GPUSLICE_CEILING_H
#define GPUSLICE_CEILING_H

#include <stdint.h>

#include "lag.h"
#include "layout.h"

/* What a process shows of itself in a cell. */
struct ceiling_own { uint64_t until; };

/* Shows that a process has work until then. process: its place. */
void ceiling_show(struct vgpu_compute *compute, struct ceiling_own *own, int process, uint64_t until);
/* Accounts for the time since the last step of any process of the container, in which this one had the span. part: of the
 * GPU. Returns what the container may use, in ns. */
int64_t ceiling_step(struct vgpu_compute *compute, const struct ceiling_own *own, int process, double part, const struct span *span,
                     uint64_t now);

#endif
