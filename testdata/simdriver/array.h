/* Inside libcuda.so.1: arrays. */
#ifndef SIMDRIVER_ARRAY_H
#define SIMDRIVER_ARRAY_H

#include "page.h"
#include "vmm.h"

#define LEVELS 16
#define PLANES 2
#define NV12 0xb0

struct CUarray_st {
	CUcontext ctx;
	CUDA_ARRAY3D_DESCRIPTOR desc;
	uint64_t needs;
	struct taken taken;
	CUmipmappedArray of; /* it is a level of that one */
	CUarray whole;	     /* it is a plane of that one, in its content from `begin` on */
	uint64_t begin;
	CUarray plane[PLANES]; /* those that were asked for */
	struct content content;
};

struct CUmipmappedArray_st {
	CUcontext ctx;
	CUDA_ARRAY3D_DESCRIPTOR desc;
	uint64_t needs;
	struct taken taken;
	unsigned levels;
	CUarray level[LEVELS]; /* those that were asked for */
};

uint64_t array_at_level(uint64_t extent, unsigned level);
/* Process lock held. */
void array_end_planes(CUarray array);

#endif
