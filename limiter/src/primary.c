#include "primary.h"

#include "charge.h"
#include "hooks.h"

bool primary_active(CUdevice dev)
{
	unsigned int flags;
	int active = 1;

	return REAL(cuDevicePrimaryCtxGetState)(dev, &flags, &active) != CUDA_SUCCESS || active;
}

bool primary_held(struct process *p, int cell, CUdevice *dev)
{
	struct primary *primary = &p->primary[cell];

	lock_take(&primary->lock);
	bool held = primary->held;
	*dev = primary->dev;
	lock_give(&primary->lock);
	return held;
}

/* The lock is held across the reservation, so that no other thread may ask the
 * driver on the strength of one that fails. */
static CUresult hold(struct primary *primary, CUdevice dev)
{
	struct charge charge;

	if (primary->held)
		return CUDA_SUCCESS;
	CUresult result = charge_begin_context(&charge, dev);
	if (result != CUDA_SUCCESS)
		return result;
	charge_hold_context(&charge);
	primary->held = true;
	primary->bytes = charge.bytes;
	primary->dev = dev;
	return CUDA_SUCCESS;
}

CUresult primary_begin(struct process **process, CUdevice dev)
{
	int cell = device_cell(dev);
	struct process *p = *process = cell < 0 ? NULL : process_get();

	if (!p)
		return CUDA_ERROR_NOT_INITIALIZED;
	struct primary *primary = &p->primary[cell];
	lock_take(&primary->lock);
	CUresult result = hold(primary, dev);
	if (result == CUDA_SUCCESS) {
		primary->calls++;
		primary->begun++;
	}
	lock_give(&primary->lock);
	return result;
}

/* Whether the driver is to be asked; and then in *begun what to compare with. A
 * call under way can't be told from one that made it active: it settles itself. */
static bool look(struct primary *primary, uint64_t *begun)
{
	lock_take(&primary->lock);
	bool asks = primary->held && primary->doubt && !primary->calls;
	if (asks)
		primary->doubt = false;
	*begun = primary->begun;
	lock_give(&primary->lock);
	return asks;
}

/* It was not active after look(): gives back, unless a call has begun since. */
static void let_go(struct process *p, int cell, uint64_t begun)
{
	struct primary *primary = &p->primary[cell];

	lock_take(&primary->lock);
	if (primary->begun != begun) {
		primary->doubt = true;
	} else if (primary->held) {
		primary->held = false;
		charge_give_context(p, cell, primary->bytes);
	}
	lock_give(&primary->lock);
}

/* Each call that ends it, or that may have failed to begin it, raises the doubt
 * before it comes here: so the last of those that race finds it, and nothing
 * stays charged for long. */
static void settle(struct process *p, CUdevice dev)
{
	int cell = device_cell(dev);
	uint64_t begun;

	while (look(&p->primary[cell], &begun) && !primary_active(dev))
		let_go(p, cell, begun);
}

CUresult primary_end(struct process *p, CUdevice dev, CUresult result)
{
	struct primary *primary = &p->primary[device_cell(dev)];

	lock_take(&primary->lock);
	primary->calls--;
	if (result != CUDA_SUCCESS)
		primary->doubt = true;
	lock_give(&primary->lock);
	settle(p, dev);
	return result;
}

void primary_may_have_ended(struct process *p, CUdevice dev)
{
	struct primary *primary = &p->primary[device_cell(dev)];

	lock_take(&primary->lock);
	primary->doubt = true;
	lock_give(&primary->lock);
	settle(p, dev);
}
