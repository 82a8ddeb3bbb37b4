#include "ipcleft.h"

uint64_t ipcleft_read(struct ipcleft *left, const struct vgpu_usage *usage, int cell, uint32_t word)
{
	struct ipcleft_known *known = &left->known[cell][word];
	bool mine = !atomic_exchange_explicit(&left->noting, 1, memory_order_acquire), stays = true;
	/* Again, so that of two threads the later one has the later word. */
	uint64_t now = atomic_load(&usage->ipc_left[word]), sum = 0;

	for (uint64_t bits = (uint32_t)now; bits;)
		sum += ipcrecord_left_bytes(usage, ipcrecord_next(word, &bits), cell, &stays); /* each is below 2^42 */
	if (mine && stays) {
		atomic_store_explicit(&known->bytes, sum, memory_order_relaxed);
		atomic_store_explicit(&known->word, now, memory_order_release);
	}
	if (mine)
		atomic_store_explicit(&left->noting, 0, memory_order_release);
	return sum;
}
