/* What processes of the container share by legacy IPC. A GPU keeps such memory for as long as a process has it
 * open, also when its maker has freed it or has ended. One word of the usage file has the state of a record:
 *
 *   FREE     no memory
 *   MAKING   its maker fills it
 *   OPEN     others can open the memory. Its maker is charged; while it is checkpointed, the record's bytes count
 *   LEAVING  its maker has freed it, or has ended. It is charged still. No other process can open it
 *   LEFT     its maker is not charged any more: the record's bytes count in the sums, until no process has it open
 *
 * Only the maker, or after its end the reaper of its slot, takes a record from FREE to LEFT; any process that finds a
 * LEFT one which no process has open makes it FREE. Each step is one store, so a process can be killed before and after any.
 *
 * A process that opens the memory sets its bit first, and reads the state after that. The maker leaves in the other order:
 * it sets LEAVING, and reads the bits after that. So one of the two sees the other. */
#ifndef GPUSLICE_IPCRECORD_H
#define GPUSLICE_IPCRECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

/* Makes a record of memory of the process with that slot, which has it open for others. -1: all are taken, or there is
 * no page for it. */
int ipcrecord_make(struct vgpu_usage *usage, int fd, uint32_t slot, int cell, uint64_t bytes, uint64_t key);
/* The record of a handle, in which this process can set its bit. -1: none. */
int ipcrecord_find(const struct vgpu_usage *usage, uint64_t key);
/* Notes that the process with that slot has the memory open. False: its maker has left it, and the caller lets it go. */
bool ipcrecord_hold(struct vgpu_usage *usage, int record, uint32_t slot, uint64_t key);
void ipcrecord_let_go(struct vgpu_usage *usage, int record, uint32_t slot);
/* Its maker has freed the memory. What of it is left is charged when this returns. */
void ipcrecord_leave(struct vgpu_usage *usage, int record);
/* The process with that slot has ended; its slot's lock is held. Before its charges end. */
void ipcrecord_clear(struct vgpu_usage *usage, uint32_t slot);

/* Whether the process with that slot has memory of a cell open that its maker has left. */
bool ipcrecord_holds(const struct vgpu_usage *usage, uint32_t slot, int cell);
/* The bytes of a cell that others can have open, and the slot of their maker; -1: it has left them. 0: none. */
uint64_t ipcrecord_memory(const struct vgpu_usage *usage, uint32_t record, int cell, int *maker);
/* Those that the record counts for: its maker has left them, or is checkpointed. */
uint64_t ipcrecord_bytes(const struct vgpu_usage *usage, uint32_t record, int cell);
/* Those that its maker has left. *stays becomes false if it leaves them now: they can count before the record's word of
 * ipc_left changes again. */
uint64_t ipcrecord_left_bytes(const struct vgpu_usage *usage, uint32_t record, int cell, bool *stays);

/* The number of records that were ever used; the tenant can write the file. seq_cst: in a sum it is read after the
 * cells, from which a record takes over. */
static inline uint32_t ipcrecord_high(const struct vgpu_usage *usage)
{
	uint32_t high = atomic_load(&usage->ipc_high);

	return high < VGPU_IPC_RECORDS ? high : VGPU_IPC_RECORDS;
}

enum { IPCRECORD_PER_WORD = 32 };

/* The words of ipc_left that have a record. */
static inline uint32_t ipcrecord_words(const struct vgpu_usage *usage)
{
	return (ipcrecord_high(usage) + IPCRECORD_PER_WORD - 1) / IPCRECORD_PER_WORD;
}

/* The first record of which a word has a bit; takes the bit away. */
static inline uint32_t ipcrecord_next(uint32_t word, uint64_t *bits)
{
	uint32_t record = word * IPCRECORD_PER_WORD + (uint32_t)__builtin_ctzll(*bits);

	*bits &= *bits - 1;
	return record;
}

#endif
