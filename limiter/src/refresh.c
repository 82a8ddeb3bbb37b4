#include "cores.h"

#include "limits.h"
#include "table.h"
#include "turnstate.h"
#include "usage.h"

/* Reads the shares again: one thread at a time, so that an older value never replaces a newer one;
 * the other threads use the current values. `busy` is not a lock: no thread waits for it. It may
 * stay set in a forked child, but the child of a process that has launched can't launch. */
uint32_t cores_refresh(void)
{
	const _Atomic uint64_t *generation = limits_generation();
	uint32_t limited = 0;

	/* Acquire and release: a thread reads what the last thread stored. In a signal handler that interrupts a look, no turn can
	 * follow: the next launch does it. */
	if (!turn_flights || !generation || turn_any_mine() || atomic_exchange_explicit(&cores.busy, 1, memory_order_acquire))
		return atomic_load_explicit(&cores.limited, memory_order_relaxed);
	/* Acquire: the records are read after the generation, so they are not older. */
	uint64_t now = atomic_load_explicit(generation, memory_order_acquire);
	struct vgpu_usage *usage = usage_map();
	atomic_store_explicit(&cores.compute, usage ? usage->compute : NULL, memory_order_relaxed);
	atomic_store_explicit(&cores.cells, (uint32_t)limits_count(), memory_order_relaxed);
	for (int i = 0; i < limits_count() && i < VGPU_MAX_DEVICES; i++) {
		const _Atomic uint32_t *sequence = limits_turn_id() ? table_sequence(i) : NULL;

		/* Before the table is read: the next launch sees a change meanwhile. */
		if (sequence)
			atomic_store_explicit(&cores.sequences[i].seen, atomic_load(sequence), memory_order_relaxed);
		atomic_store_explicit(&cores.sequences[i].now, sequence, memory_order_relaxed);
		limited |= (uint32_t)turn_refresh(i) << i;
	}
	atomic_store_explicit(&cores.limited, limited, memory_order_relaxed);
	atomic_store_explicit(&cores.seen, now, memory_order_relaxed);
	atomic_store_explicit(&cores.generation, generation, memory_order_release);
	atomic_store_explicit(&cores.busy, 0, memory_order_release);
	return limited;
}
