/* Open-file-description locks on one byte: the kernel releases them when the
 * last holder of the description is gone, whatever it died of. */
#ifndef GPUSLICE_FILELOCK_H
#define GPUSLICE_FILELOCK_H

#include <stdbool.h>
#include <stdint.h>

bool filelock_try(int fd, int64_t byte);
/* The same, but others may share it. */
bool filelock_share(int fd, int64_t byte);
void filelock_give(int fd, int64_t byte);
/* Tries for about so many microseconds. */
bool filelock_wait(int fd, int64_t byte, long microseconds);
/* Whether another description holds it. Where it can't be told: yes. */
bool filelock_taken(int fd, int64_t byte);

#endif
