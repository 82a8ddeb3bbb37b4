/* Open-file-description locks on one byte: the kernel releases them when the
 * last process that holds the description ends, whatever the cause. */
#ifndef GPUSLICE_FILELOCK_H
#define GPUSLICE_FILELOCK_H

#include <stdbool.h>
#include <stdint.h>

/* Takes an exclusive lock without waiting. False: another description holds one, or the file can't
 * be locked. */
bool filelock_try(int fd, int64_t byte);
/* Takes a shared (read) lock without waiting; fd must be open for reading. False: another
 * description holds an exclusive one, or the file can't be locked. */
bool filelock_share(int fd, int64_t byte);
/* Releases the lock. */
void filelock_give(int fd, int64_t byte);
/* Tries filelock_try for about this many microseconds. False: it did not get the lock. */
bool filelock_wait(int fd, int64_t byte, long microseconds);
/* Whether another description holds a lock on the byte. True also if that can't be determined. */
bool filelock_taken(int fd, int64_t byte);

#endif
