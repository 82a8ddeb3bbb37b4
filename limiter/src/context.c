/* Contexts: refused on a GPU that is not granted. The memory of a context itself is charged before
 * the driver makes it (primary.c handles the primary one). When a context ends, the driver frees
 * all that was allocated in it, and the charges end here. */
#include "charge.h"
#include "green.h"
#include "hooks.h"
#include "pace.h"
#include "turnends.h"
#include "turnstate.h"

/* After the driver's call: keeps the charge, or gives it back if the call failed. If the charge can't
 * be recorded, destroys the context. */
static CUresult settle(struct charge *charge, CUresult result, CUcontext *ctx)
{
	if (result == CUDA_SUCCESS && charge_keep_context(charge, *ctx)) {
		residue_made(charge->process, charge->here.cell);
		turn_context(charge->here.cell, *ctx);
		return CUDA_SUCCESS;
	}
	if (result == CUDA_SUCCESS) {
		REAL(cuCtxDestroy_v2)(*ctx);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	charge_cancel(charge);
	return result;
}

CUresult cuCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	struct charge charge;
	CUresult result = charge_begin_context(&charge, dev);

	return result != CUDA_SUCCESS ? result : settle(&charge, REAL(cuCtxCreate)(ctx, flags, dev), ctx);
}

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	struct charge charge;
	CUresult result = charge_begin_context(&charge, dev);

	return result != CUDA_SUCCESS ? result : settle(&charge, REAL(cuCtxCreate_v2)(ctx, flags, dev), ctx);
}

CUresult cuCtxCreate_v3(CUcontext *ctx, void *params, int count, unsigned int flags, CUdevice dev)
{
	struct charge charge;
	CUresult result = charge_begin_context(&charge, dev);

	return result != CUDA_SUCCESS ? result : settle(&charge, REAL(cuCtxCreate_v3)(ctx, params, count, flags, dev), ctx);
}

CUresult cuCtxCreate_v4(CUcontext *ctx, void *params, unsigned int flags, CUdevice dev)
{
	struct charge charge;
	CUresult result = charge_begin_context(&charge, dev);

	return result != CUDA_SUCCESS ? result : settle(&charge, REAL(cuCtxCreate_v4)(ctx, params, flags, dev), ctx);
}

CUresult cuGLCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	struct charge charge;
	CUresult result = charge_begin_context(&charge, dev);

	return result != CUDA_SUCCESS ? result : settle(&charge, REAL(cuGLCtxCreate)(ctx, flags, dev), ctx);
}

CUresult cuGLCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	struct charge charge;
	CUresult result = charge_begin_context(&charge, dev);

	return result != CUDA_SUCCESS ? result : settle(&charge, REAL(cuGLCtxCreate_v2)(ctx, flags, dev), ctx);
}

CUresult cuVDPAUCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice dev, uint32_t vdp, void *get_proc_address)
{
	struct charge charge;
	CUresult result = charge_begin_context(&charge, dev);

	return result != CUDA_SUCCESS ? result : settle(&charge, REAL(cuVDPAUCtxCreate)(ctx, flags, dev, vdp, get_proc_address), ctx);
}

CUresult cuVDPAUCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev, uint32_t vdp, void *get_proc_address)
{
	struct charge charge;
	CUresult result = charge_begin_context(&charge, dev);

	return result != CUDA_SUCCESS ? result : settle(&charge, REAL(cuVDPAUCtxCreate_v2)(ctx, flags, dev, vdp, get_proc_address), ctx);
}

/* A call that may end a context. */
struct end {
	struct process *process; /* NULL: there is none */
	CUcontext context;       /* NULL: not known */
	bool waits;              /* announced: the driver waits for the context's work */
	uint64_t stamp;          /* the newest entry before the call */
	bool green;
	struct ledger_entry entry; /* of a green one */
};

/* The limiter's events must not outlive their context. */
static struct end before_end(CUcontext ctx)
{
	struct process *p = process_peek();
	struct end end = { p, ctx, turn_ever_used(), p ? ledger_stamp(&p->ledger) : 0, false, { 0 } };

	end.green = p && green_end_begin(p, ctx, &end.entry);
	if (end.green)
		freeing_context_ends(p, ctx);
	if (end.waits)
		turn_context_ending(ctx);
	pace_forget_contexts();
	return end;
}

static void after_end(const struct end *end, bool gone)
{
	if (end->waits)
		turn_context_ended(end->context, gone);
	if (end->green && !gone)
		green_end_failed(end->process, &end->entry);
}

/* All that was allocated in the primary context ends with it. */
static void primary_gone(struct process *p, CUdevice dev, uint64_t stamp)
{
	CUcontext primary = atomic_load_explicit(&p->primary[device_cell(dev)].handle, memory_order_relaxed);

	discharge_context(p, primary, stamp);
	pools_refresh(p, -1);
	primary_may_have_ended(p, dev);
}

/* The GPU of a green context is not known here: each GPU with a primary context is checked. */
static void green_gone(const struct end *end)
{
	CUdevice dev;

	for (int cell = 0; cell < VGPU_MAX_DEVICES; cell++)
		if (primary_held(end->process, cell, &dev) && !primary_active(dev))
			primary_gone(end->process, dev, end->stamp);
}

static CUresult destroyed(const struct end *end, CUresult result)
{
	after_end(end, result == CUDA_SUCCESS);
	if (result != CUDA_SUCCESS || !end->process)
		return result;
	if (end->green)
		green_gone(end);
	else
		discharge_context(end->process, end->context, end->stamp);
	return result;
}

CUresult cuCtxDestroy(CUcontext ctx)
{
	struct end end = before_end(ctx);

	return destroyed(&end, REAL(cuCtxDestroy)(ctx));
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	struct end end = before_end(ctx);

	return destroyed(&end, REAL(cuCtxDestroy_v2)(ctx));
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
	struct process *p;
	CUresult result = primary_begin(&p, dev);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuDevicePrimaryCtxRetain)(ctx, dev);
	if (result == CUDA_SUCCESS && ctx) /* Relaxed: a handle, the same for every thread. */
		atomic_store_explicit(&p->primary[device_cell(dev)].handle, *ctx, memory_order_relaxed);
	if (result == CUDA_SUCCESS) {
		atomic_fetch_add_explicit(&p->primary[device_cell(dev)].retained, 1, memory_order_relaxed);
		turn_context(device_cell(dev), ctx ? *ctx : FLIGHT_SEVERAL);
	}
	return primary_end(p, dev, result);
}

/* A green context is a share of the primary one, which the driver retains for it
 * and releases with it: it is charged with the primary one, and takes no more by itself. */
CUresult cuGreenCtxCreate(void **ctx, void *desc, CUdevice dev, unsigned int flags)
{
	struct process *p;
	CUresult result = primary_begin(&p, dev);

	if (result != CUDA_SUCCESS)
		return result;
	turn_context(device_cell(dev), FLIGHT_SEVERAL);
	result = REAL(cuGreenCtxCreate)(ctx, desc, dev, flags);
	if (result == CUDA_SUCCESS && ctx)
		green_made(p, dev, *ctx);
	return primary_end(p, dev, result);
}

static struct primary *primary_of(CUdevice dev)
{
	struct process *p = process_peek();
	int cell = p ? device_cell(dev) : -1;

	return cell >= 0 ? &p->primary[cell] : NULL;
}

static CUcontext primary_handle(CUdevice dev)
{
	struct primary *primary = primary_of(dev);

	return primary ? atomic_load_explicit(&primary->handle, memory_order_relaxed) : NULL;
}

/* Whether the context stays, because the program has retained it once more. */
static bool release_one(CUdevice dev)
{
	struct primary *primary = primary_of(dev);
	uint32_t had = primary ? atomic_load_explicit(&primary->retained, memory_order_relaxed) : 0;

	while (had && !atomic_compare_exchange_weak_explicit(&primary->retained, &had, had - 1, memory_order_relaxed, memory_order_relaxed))
		;
	return had > 1;
}

CUresult cuGreenCtxDestroy(void *ctx)
{
	CUcontext context = NULL;

	if (REAL(cuCtxFromGreenCtx)(&context, ctx) != CUDA_SUCCESS)
		context = NULL;
	struct end end = before_end(context);
	CUresult result = REAL(cuGreenCtxDestroy)(ctx);

	after_end(&end, result == CUDA_SUCCESS);
	if (result == CUDA_SUCCESS && end.process)
		green_gone(&end);
	return result;
}

/* The context ends with its last release, which only the driver counts. */
static CUresult released(const struct end *end, CUresult result, CUdevice dev)
{
	bool gone = result == CUDA_SUCCESS && !primary_active(dev);

	after_end(end, gone);
	if (gone && end->process && device_cell(dev) >= 0)
		primary_gone(end->process, dev, end->stamp);
	return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
	if (release_one(dev))
		return REAL(cuDevicePrimaryCtxRelease)(dev);
	struct end end = before_end(primary_handle(dev));
	return released(&end, REAL(cuDevicePrimaryCtxRelease)(dev), dev);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	if (release_one(dev))
		return REAL(cuDevicePrimaryCtxRelease_v2)(dev);
	struct end end = before_end(primary_handle(dev));
	return released(&end, REAL(cuDevicePrimaryCtxRelease_v2)(dev), dev);
}

/* A reset frees everything, even if other code has retained the context. */
static struct end before_reset(CUdevice dev)
{
	struct primary *primary = primary_of(dev);

	if (primary)
		atomic_store_explicit(&primary->retained, 0, memory_order_relaxed);
	return before_end(primary_handle(dev));
}

static CUresult reset(const struct end *end, CUresult result, CUdevice dev)
{
	after_end(end, result == CUDA_SUCCESS);
	if (result == CUDA_SUCCESS && end->process && device_cell(dev) >= 0)
		primary_gone(end->process, dev, end->stamp);
	return result;
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
	struct end end = before_reset(dev);

	return reset(&end, REAL(cuDevicePrimaryCtxReset)(dev), dev);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	struct end end = before_reset(dev);

	return reset(&end, REAL(cuDevicePrimaryCtxReset_v2)(dev), dev);
}
