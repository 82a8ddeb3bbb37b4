/* What the IPC records count for of which the makers have left the memory. A process keeps the sums that it has read: one
 * is right for as long as the word of ipc_left is the same, because that changes before a record counts, and with its end. */
#ifndef GPUSLICE_IPCLEFT_H
#define GPUSLICE_IPCLEFT_H

#include "ipcrecord.h"

struct ipcleft { /* fresh zeroed memory: no sum is known */
	_Atomic uint32_t noting; /* 1: a thread changes the rest. Not a lock: no thread waits for it */
	struct ipcleft_known {
		_Atomic uint64_t word, bytes;
	} known[VGPU_MAX_DEVICES][VGPU_IPC_RECORDS / IPCRECORD_PER_WORD];
};

/* Reads the records of a word, and keeps their sum. */
uint64_t ipcleft_read(struct ipcleft *left, const struct vgpu_usage *usage, int cell, uint32_t word);

/* seq_cst: in a sum the word is read after the cells, from which a record takes over. */
static inline uint64_t ipcleft_bytes(struct ipcleft *left, const struct vgpu_usage *usage, int cell, uint32_t word)
{
	struct ipcleft_known *known = &left->known[cell][word];
	uint64_t now = atomic_load(&usage->ipc_left[word]);

	if (!(uint32_t)now)
		return 0;
	/* Acquire: pairs with the release in ipcleft_read(). A later sum than that of the word is right as well. */
	if (__builtin_expect(atomic_load_explicit(&known->word, memory_order_acquire) == now, 1))
		return atomic_load_explicit(&known->bytes, memory_order_relaxed);
	return ipcleft_read(left, usage, cell, word);
}

#endif
