/* Residue where the host measures none (VGPU_RECORD_UNMEASURED): what NVML counts for this process
 * beyond its charges is charged to the process itself. */
#ifndef GPUSLICE_RESIDUE_H
#define GPUSLICE_RESIDUE_H

#include <stdatomic.h>
#include <stdint.h>

#include "api.h"
#include "figures.h"
#include "layout.h"

struct process;

enum { RESIDUE_NAMES = 8 };

struct residue { /* fresh zeroed memory: nothing is watched */
	_Atomic uint32_t cells;   /* a futex; bit i: cell i is watched */
	_Atomic uint32_t started; /* the thread was started */
	_Atomic uint32_t looking; /* see residue.c */
	struct residue_gpu {
		_Atomic CUdevice dev; /* written before the bit is set */
		/* The thread's own. */
		nvmlDevice_t device;
		uint64_t charged;
		struct figure own[RESIDUE_NAMES]; /* entries of NVML of which one is this process; bytes is not used */
		int names; /* of them; 0: not known (yet) */
		uint32_t pause; /* seconds after the next failed attempt to know */
		_Atomic uint32_t wait; /* seconds until the next attempt; a new context sets it to 0 */
	} gpus[VGPU_MAX_DEVICES];
};

/* This process is about to have a context on the GPU of a cell. Where the host measures no residue,
 * a thread looks once a second from now on. */
void residue_watch(struct process *p, int cell, CUdevice dev);

#endif
