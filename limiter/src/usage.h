/* The usage file: maps it, and sums what all processes of the container have. */
#ifndef GPUSLICE_USAGE_H
#define GPUSLICE_USAGE_H

#include <stdbool.h>

#include "ipcleft.h"
#include "layout.h"

/* The file's writable mapping, made once in a process. NULL: the file is missing or invalid, and one
 * line on stderr has reported it. In a process with limits from the environment and without a
 * usage file, it is private memory of this process. */
struct vgpu_usage *usage_map(void);

/* Opens the file again, for a file description of its own; -1: error. */
int usage_open(void);

struct usage_sum {
	uint64_t committed, tentative;
	bool suspended; /* some slot's process is checkpointed */
	bool deaths; /* the owner word of some slot has FUTEX_OWNER_DIED */
};

/* The sums of a cell over all slots that may have bytes, and over the IPC records; they saturate. left: of this process. */
struct usage_sum usage_sum(struct vgpu_usage *usage, struct ipcleft *left, int cell);

/* The bytes of a cell, of all slots, that may lie in the host's memory (reserve.c). */
uint64_t usage_spilled(struct vgpu_usage *usage, int cell);

/* *used is what the container has of a cell in bytes, without the slots of dead processes. The caller
 * needs no slot. False: the file is missing or invalid. */
bool usage_read(int cell, uint64_t *used);

/* Stores the PIDs of the container's live processes with a slot that are in this process's PID
 * namespace, at most `room`, and returns their number. */
int usage_pids(unsigned int *pids, int room);

#endif
