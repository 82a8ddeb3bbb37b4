#include "green.h"

#include "device.h"
#include "hooks.h"
#include "process.h"

_Atomic bool green_ever;

/* The green one holds it, so it stays active. */
static CUcontext find_primary(struct process *p, CUdevice dev)
{
	CUcontext primary;

	if (REAL(cuDevicePrimaryCtxRetain)(&primary, dev) != CUDA_SUCCESS)
		return NULL;
	if (hook_exists(HOOK_cuDevicePrimaryCtxRelease_v2))
		REAL(cuDevicePrimaryCtxRelease_v2)(dev);
	else
		REAL(cuDevicePrimaryCtxRelease)(dev);
	/* cppcheck-suppress uninitvar ; cuDevicePrimaryCtxRetain has set it
	 * Relaxed: a handle, the same for every thread. */
	atomic_store_explicit(&p->primary[device_cell(dev)].handle, primary, memory_order_relaxed);
	return primary;
}

/* Without memory for the entry, what is allocated in it stays charged until the process ends. */
void green_made(struct process *p, CUdevice dev, void *green)
{
	CUcontext context = NULL, primary = find_primary(p, dev);

	if (!primary || REAL(cuCtxFromGreenCtx)(&context, green) != CUDA_SUCCESS || !context)
		return;
	ledger_put(&p->ledger, (struct ledger_entry){ .key = (uintptr_t)context,
		                                      .context = (uintptr_t)primary,
		                                      .kind = LEDGER_GREEN,
		                                      .cell = (uint64_t)device_cell(dev) });
	atomic_store_explicit(&green_ever, true, memory_order_relaxed);
}

bool green_end_begin(struct process *p, CUcontext context, struct ledger_entry *entry)
{
	return atomic_load_explicit(&green_ever, memory_order_relaxed) &&
	       ledger_take(&p->ledger, LEDGER_GREEN, (uintptr_t)context, entry);
}

void green_end_failed(struct process *p, const struct ledger_entry *entry)
{
	ledger_put(&p->ledger, *entry);
}

CUcontext green_primary(struct process *p, CUcontext context)
{
	struct ledger_entry entry;

	return ledger_find(&p->ledger, LEDGER_GREEN, (uintptr_t)context, &entry) ? (CUcontext)(uintptr_t)entry.context : context;
}
