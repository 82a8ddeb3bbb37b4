/* What /proc shows of a process: the third of three witnesses of a slot owner's death; the others are
 * the owner word and the lock (slot.c). */
#ifndef GPUSLICE_WITNESS_H
#define GPUSLICE_WITNESS_H

#include <stdbool.h>
#include <stdint.h>

/* Of this process: the start time (field 22 of /proc/self/stat), and the inode of the PID namespace.
 * 0: /proc does not show it. */
uint64_t witness_start_time(void);
uint64_t witness_pid_namespace(void);

/* Whether /proc is consistent with the end of that process and its memory: it does not exist, another
 * process has its PID, it is a zombie, it has called exec, or this process can't see it. */
bool witness_process_gone(uint32_t pid, uint64_t start_time, uint64_t pid_ns);

/* The PID namespace that the mounted /proc shows, if it is this process's; else 0. */
uint64_t witness_visible_namespace(void);
/* How a process records itself in its slot. */
struct witness_identity {
	uint32_t pid; /* in its own PID namespace */
	uint64_t pid_ns, start_time;
};

/* Finds that of the process with this number in the caller's PID namespace. Returns 1: found; 0: there is no
 * such process; -1: unknown, or it is the number of a thread. */
int witness_identify(int pid, struct witness_identity *found);

/* Of a process of that namespace, with its owner word: whether it has been killed or is exiting, and has not
 * ended: it still has its memory of the driver, and soon has not. */
bool witness_dying(uint32_t pid, uint64_t start_time, uint32_t owner);

#endif
