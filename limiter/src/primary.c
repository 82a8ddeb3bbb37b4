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

/* The lock is held across the reservation, so that no other thread calls the driver while the
 * reservation may still fail. */
static CUresult hold(struct primary *primary, CUdevice dev)
{
	struct charge charge;

	if (primary->held)
		return CUDA_SUCCESS;
	CUresult result = charge_begin_context(&charge, dev);
	if (result != CUDA_SUCCESS)
		return result;
	charge_hold_context(&charge);
	primary->held = primary->fresh = true;
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

/* Whether the driver must be queried; *begun is for let_go(). During a call that may make it active
 * the answer would be ambiguous: the end of that call queries again. */
static bool must_query(struct primary *primary, uint64_t *begun)
{
	lock_take(&primary->lock);
	bool query = primary->held && primary->doubt && !primary->calls;
	if (query)
		primary->doubt = false;
	*begun = primary->begun;
	lock_give(&primary->lock);
	return query;
}

/* It was not active after must_query(): gives the charge back, unless a call has begun since. */
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

/* Each call that may have ended it, or that failed to make it active, sets `doubt` before this
 * function. So the last of several concurrent calls queries the driver, and the charge ends soon
 * after the context. */
static void settle(struct process *p, CUdevice dev)
{
	int cell = device_cell(dev);
	uint64_t begun;

	while (must_query(&p->primary[cell], &begun) && !primary_active(dev))
		let_go(p, cell, begun);
}

CUresult primary_end(struct process *p, CUdevice dev, CUresult result)
{
	struct primary *primary = &p->primary[device_cell(dev)];

	lock_take(&primary->lock);
	bool made = result == CUDA_SUCCESS && primary->fresh;
	primary->calls--;
	if (made)
		primary->fresh = false;
	if (result != CUDA_SUCCESS)
		primary->doubt = true;
	lock_give(&primary->lock);
	if (made)
		residue_made(p, device_cell(dev));
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
