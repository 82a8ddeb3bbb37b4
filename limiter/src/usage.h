/* The usage file: mapping it, and what all processes together have. */
#ifndef GPUSLICE_USAGE_H
#define GPUSLICE_USAGE_H

#include <stdbool.h>

#include "layout.h"

/* The file's mapping, writable, made once in a process; NULL: it is missing or
 * wrong, which has been said. In a process whose limits come from the
 * environment and that names no file it is memory of this process alone. */
struct vgpu_usage *usage_map(void);

/* A fresh open file description of the file, or -1. */
int usage_open(void);

struct usage_sum {
	uint64_t committed, tentative;
	bool deaths; /* some slot's owner word says that its owner died */
};

/* The sums over all claimed slots; they saturate. */
struct usage_sum usage_sum(struct vgpu_usage *usage, int cell);

/* What of that may lie in the host's memory (reserve.c). */
uint64_t usage_spilled(struct vgpu_usage *usage, int cell);

/* What the container has of a cell, without the slots of the dead, for a process
 * that need not have a slot itself. False: the file is missing or wrong. */
bool usage_read(int cell, uint64_t *used);

/* The PIDs of the container's processes that have a slot and live, as this process's
 * PID namespace has them; at most room of them. */
int usage_pids(unsigned int *pids, int room);

#endif
