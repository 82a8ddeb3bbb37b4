/* What making virtual memory and importing it have in common. */
#ifndef GPUSLICE_VMM_H
#define GPUSLICE_VMM_H

#include "charge.h"

bool vmm_on_host(const CUmemAllocationProp *prop);
/* The driver has made the memory or refused to. Keeps the charge for as long as the
 * process has the memory, or gives both back. */
CUresult vmm_settle(struct charge *charge, CUresult result, CUmemGenericAllocationHandle handle);

#endif
