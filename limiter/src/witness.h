/* What /proc tells of a process: the third witness of a slot's owner. */
#ifndef GPUSLICE_WITNESS_H
#define GPUSLICE_WITNESS_H

#include <stdbool.h>
#include <stdint.h>

/* Of this process; 0 where /proc does not tell. */
uint64_t witness_start_time(void);
uint64_t witness_pid_namespace(void);

/* Whether nothing speaks against that process being gone, with its memory: it is
 * no longer there, another one has its number, it is a zombie, it has become
 * another program (exec), or this process can't see it at all. */
bool witness_process_gone(uint32_t pid, uint64_t start_time, uint64_t pid_ns);

#endif
