/* Functions for virtual memory that is made (vmm.c) or imported (imported.c). */
#ifndef GPUSLICE_VMM_H
#define GPUSLICE_VMM_H

#include "charge.h"

/* Whether the memory lies in the host's memory, which is not limited. */
bool vmm_on_host(const CUmemAllocationProp *prop);
/* After the driver has made or refused the memory. Keeps the charge as long as the process has the
 * memory. If the driver refused, or the memory can't be recorded, gives the charge back, and in the
 * latter case the memory too. Returns the result for the program. */
CUresult vmm_settle(struct charge *charge, CUresult result, CUmemGenericAllocationHandle handle);

#endif
