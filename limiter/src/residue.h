/* What NVML counts for this process beyond its charges is charged to the process itself: before its first allocation
 * in a context (VGPU_RECORD_FIRST), because the host sees it only later; and always where the host measures no residue
 * (VGPU_RECORD_UNMEASURED). */
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
	_Atomic uint32_t cells;   /* bit i: cell i is watched */
	_Atomic uint32_t asked;   /* a futex: the thread looks when it changes */
	_Atomic uint32_t started; /* the thread was started */
	_Atomic uint32_t looking; /* see residue.c */
	struct residue_gpu {
		_Atomic CUdevice dev; /* written before the bit is set */
		_Atomic uint32_t contexts, looked; /* so many were made; so many when the last look began, or was given up */
		/* The thread's own. */
		nvmlDevice_t device;
		uint64_t charged;
		struct figure own[RESIDUE_NAMES]; /* entries of NVML of which one is this process; bytes is not used */
		int names; /* of them; 0: not known (yet) */
		uint32_t failed; /* steps in a row in which this process was not measured */
		uint32_t pause;  /* steps after the next failed attempt to know */
		uint32_t wait;   /* steps until the next attempt */
	} gpus[VGPU_MAX_DEVICES];
};

/* This process is about to have a context on the GPU of a cell. A thread looks at it, see residue_made(). */
void residue_watch(struct process *p, int cell, CUdevice dev);
/* It has made a context there: the thread looks. It goes on to look once a second where the host measures no
 * residue, and while some is charged here. */
void residue_made(struct process *p, int cell);

/* Before an allocation: waits for the first look after a context was created, 0.3 s at most, or until two have failed. */
void residue_wait(struct process *p, int cell);
static inline void residue_catch_up(struct process *p, struct residue *r, int cell)
{
	struct residue_gpu *gpu = &r->gpus[cell];

	/* Relaxed: an allocation follows its context in the same thread, or in one that knows of it. */
	if (__builtin_expect(atomic_load_explicit(&gpu->contexts, memory_order_relaxed) !=
	                     atomic_load_explicit(&gpu->looked, memory_order_relaxed), 0))
		residue_wait(p, cell);
}

#endif
