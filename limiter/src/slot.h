/* A process's slot in the usage file: claims one, and clears those of dead processes. */
#ifndef GPUSLICE_SLOT_H
#define GPUSLICE_SLOT_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

/* Locks the byte of a free slot through fd, which must stay open while the slot is used, and returns
 * the slot. Its owner word is still 0: the slot is the caller's only after slot_own has set the word
 * to its TID, because the program may close fd in between. -1, and errno: all slots are taken or
 * the file can't be locked (EAGAIN), or its file system is full (ENOSPC). */
int slot_claim(struct vgpu_usage *usage, int fd);
/* Sets the slot's owner word to this thread, and its PID. False: another process has the slot. */
bool slot_own(struct vgpu_usage *usage, struct vgpu_slot *slot);

/* The bytes of a cell that a slot is charged for: all; or, if the kernel and /proc show that the
 * slot's owner has ended with its memory, only the exported memory that is held. fd is any
 * description of the file that holds no slot; it can be read-only. */
uint64_t slot_bytes(const struct vgpu_usage *usage, int fd, uint32_t slot, int cell);

/* The bytes of a cell of legacy IPC that a process which has not ended has open, and its maker has not, or has ended. fd: as above. */
uint64_t slot_left_bytes(const struct vgpu_usage *usage, int fd, int cell);

/* Whether a process that is charged for a cell is dying, of the first some dozens in the file. */
bool slot_dying(const struct vgpu_usage *usage, const struct vgpu_slot *own, int cell);

/* Clears the slots of dead processes. True: one was cleared and is free. */
bool slot_reap(struct vgpu_usage *usage, int fd);

#endif
