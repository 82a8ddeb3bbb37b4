/* A process's slot in the usage file: taking one, and clearing those of the dead. */
#ifndef GPUSLICE_SLOT_H
#define GPUSLICE_SLOT_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

/* Locks the byte of a free slot through fd, which must stay open as long as the
 * slot is used. Its owner word is still 0, and it is the caller's only once that
 * has become its TID by slot_own: the program may close fd in between. -1: there
 * is none, the file can't be locked or (errno is ENOSPC) its file system is full. */
int slot_claim(struct vgpu_usage *usage, int fd);
/* Makes the slot this thread's. False: another process was faster. */
bool slot_own(struct vgpu_slot *slot);

/* What of a cell is charged: all of it; or, where the kernel's witnesses agree that the
 * slot's owner and its memory are gone, the exported memory that is held. fd is any
 * description of the file that holds no slot; read-only will do. */
uint64_t slot_bytes(const struct vgpu_usage *usage, int fd, uint32_t slot, int cell);

/* Clears the slots of the dead. */
void slot_reap(struct vgpu_usage *usage, int fd);

#endif
